"""Tools of the repository agent, and the diff of the files they changed.

A workspace is an overlay: the files of a repository and, over them, the files that the agent wrote.
Nothing is copied, and nothing on the disk changes. Every call returns a text: a result, or an error
that says what to do.
"""

import difflib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import re2

from pimono_sdpo.suites.suite import decode_text
from pimono_sdpo.text import replace_surrogates
from rewards.verifiers.tool_calls import AGENT_TOOLS, check, load_tools

MAX_FILES, MOST_FILES = 200, 1000
MAX_HITS, MOST_HITS = 50, 500
MAX_LINE = 300
MAX_GREP_BYTES = 2_000_000
MAX_WRITE = 400_000
MAX_PATH, MAX_NAME = 1000, 255


class ToolError(Exception):
    """A failed call; the message is for the model."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call; `text` is the error if it is not `ok`."""

    ok: bool
    text: str
    changed: bool = False


@dataclass(slots=True)
class Workspace:
    """A repository as an agent sees it, by path; `before` has the original content of written files, None if new."""

    repo: Mapping[str, Path]
    max_chars: int
    written: dict[str, bytes] = field(default_factory=dict)
    before: dict[str, bytes | None] = field(default_factory=dict)

    def call(self, name: str, args: dict[str, Any]) -> ToolResult:
        """Run a call and return its result or error; raises OSError if the disk fails."""
        if name not in AGENT_TOOLS:
            tools = ", ".join(sorted(AGENT_TOOLS))
            text = f"Unknown tool `{name[:80]}`; the tools are {tools}."
            text += " Tests are run for you." if "test" in name.lower() else ""
            return ToolResult(False, replace_surrogates(text))
        before = dict(self.written)
        try:
            if errors := check(load_tools("repo_agent")[name], args).errors:
                raise ToolError(f"The arguments of {name} are wrong: {'; '.join(errors)}.")
            text = getattr(self, name)(**{key: value for key, value in args.items() if key != "thought"})
        except ToolError as error:
            return ToolResult(False, replace_surrogates(str(error)))
        return ToolResult(True, replace_surrogates(text), self.written != before)

    def changed(self) -> dict[str, bytes]:
        """Return the changed files by path, sorted."""
        return {path: content for path, content in sorted(self.written.items()) if content != self.before[path]}

    def list_files(self, rel_dir: str, max_files: int = MAX_FILES) -> str:
        """List the files below a directory, files before subfolders."""
        folder = _read_path(rel_dir, "rel_dir")
        if self._has(folder):
            raise ToolError(f"`{rel_dir}` is a file; read it with read_file.")
        files = self._list_below(folder, rel_dir)
        shown = files[: min(max_files, MOST_FILES)]
        text = "\n".join(shown) or "(no files)"
        if more := len(files) - len(shown):
            text += f"\n[{more} more files; name a folder below, or raise max_files]"
        return text

    def read_file(self, rel_path: str, max_chars: int | None = None) -> str:
        """Read the beginning of a text file."""
        path = _read_path(rel_path, "rel_path")
        if not self._has(path):
            self._list_below(path, rel_path)  # raises ToolError if nothing is there
            raise ToolError(f"`{rel_path}` is a directory; list it with list_files.")
        data = self._read(path)
        if _is_binary(data):
            raise ToolError(f"`{rel_path}` is a binary file; it has no text to read.")
        text, note = data.decode(errors="replace"), "\n[cut after {} characters; the file has {} bytes]"
        most = min(max_chars or self.max_chars, self.max_chars - len(note.format(self.max_chars, len(data))))
        return text if len(text) <= most else text[:most] + note.format(most, len(data))

    def grep(self, pattern: str, rel_dir: str, max_hits: int = MAX_HITS) -> str:
        """Search the lines of the files below a directory, or of one file."""
        regex, start = _compile(pattern), _read_path(rel_dir, "rel_dir")
        most, hits, skipped = min(max_hits, MOST_HITS), list[str](), 0
        for path in [start] if self._has(start) else self._list_below(start, rel_dir):
            if path not in self.written and self.repo[path].stat().st_size > MAX_GREP_BYTES:
                skipped += 1
                continue
            data = self._read(path)
            lines = [] if _is_binary(data) else data.decode(errors="replace").split("\n")
            hits += [
                f"{path}:{number}: {line.rstrip()[:MAX_LINE]}"
                for number, line in enumerate(lines, 1)
                if regex.search(line)
            ]
            if len(hits) >= most:
                hits[most:] = [f"[stopped after {most} hits; a narrower pattern or folder shows the rest]"]
                break
        lines = hits or ["(no hits)"]
        if skipped:
            lines.append(f"[{skipped} files above {MAX_GREP_BYTES} bytes were not searched]")
        return "\n".join(lines)

    def write_file(self, rel_path: str, content: str) -> str:
        """Write a whole file."""
        path = _read_path(rel_path, "rel_path")
        if len(content) > MAX_WRITE:
            raise ToolError(f"The content has {len(content)} characters; a file may have {MAX_WRITE}. Write less.")
        for parent in map(str, PurePosixPath(path).parents):
            if self._has(parent):
                raise ToolError(f"`{parent}` is a file, so it cannot contain other files.")
        is_new = not self._has(path)
        if is_new and self._is_folder(path):
            raise ToolError(f"`{rel_path}` is a directory; give the path of a file.")
        old, data = None if is_new else self._read(path), replace_surrogates(content).encode()
        if old is not None and decode_text(old) is None:
            raise ToolError(
                f"`{rel_path}` is a binary file or not UTF-8 text, and writing it would corrupt it; leave it alone."
            )
        if old == data:
            return f"`{path}` holds exactly this already; nothing changed."
        self.before.setdefault(path, old)
        self.written[path] = data
        return f"{'created' if is_new else 'wrote'} {path} ({len(content)} characters)"

    def _has(self, path: str) -> bool:
        return path in self.written or path in self.repo

    def _is_folder(self, path: str) -> bool:
        return not path or any(one.startswith(f"{path}/") for files in (self.repo, self.written) for one in files)

    def _read(self, path: str) -> bytes:
        return self.written[path] if path in self.written else self.repo[path].read_bytes()

    def _list_below(self, folder: str, given: str) -> list[str]:
        """Return the files below a folder, files before subfolders; raises ToolError with the path as `given`."""
        if not self._is_folder(folder):
            raise ToolError(f"`{given}` does not exist; list_files shows what does.")
        prefix = f"{folder}/" if folder else ""
        return sorted((path for path in {**self.repo, **self.written} if path.startswith(prefix)), key=_sort_key)


def _sort_key(path: str) -> list[tuple[bool, str]]:
    *folders, name = path.split("/")
    return [*((True, folder) for folder in folders), (False, name)]


def _is_binary(data: bytes) -> bool:
    return b"\0" in data


def _read_path(given: str, argument: str) -> str:
    """Return a path relative to the top of the repository, which is ""; raises ToolError for a path outside."""
    from_root = "give one from the top of the repository, such as `src/main.py` or `.`"
    shown = given[:MAX_LINE]
    if given.startswith(("/", "~", "\\")) or given[1:3] in (":\\", ":/"):
        raise ToolError(f"`{argument}` is the absolute path `{shown}`; {from_root}.")
    if any(ord(character) < 32 or "\ud800" <= character <= "\udfff" for character in given):
        raise ToolError(f"`{argument}` has characters that are not allowed in a path; {from_root}.")
    parts = [part for part in given.strip().split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ToolError(f"`{shown}` leaves the repository with `..`; {from_root}.")
    if len(given) > MAX_PATH or any(len(part.encode()) > MAX_NAME for part in parts):
        raise ToolError(f"`{argument}` is too long for a path; {from_root}.")
    if ".git" in map(str.casefold, parts):
        raise ToolError(f"`{shown}` is not part of the repository's files; leave it alone.")
    return "/".join(parts)


def _compile(pattern: str) -> Any:
    """Compile a pattern with RE2, which takes time linear in the text for any pattern."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(replace_surrogates(pattern), options)
    except re2.error as error:
        why = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        raise ToolError(
            f"`pattern` is not a regular expression of RE2 ({why[:200]}); it has no lookaround and no backreference."
        ) from error


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\t": "\\t", "\n": "\\n"})
Files = Mapping[str, bytes | None]


def unified_diff(before: Files, after: Files) -> str:
    r"""Return the diff of the files of `after`, sorted by path; None stands for a missing file.

    >>> print(unified_diff({"a.py": b"x = 1\n"}, {"a.py": b"x = 2\n"}), end="")
    diff --git a/a.py b/a.py
    --- a/a.py
    +++ b/a.py
    @@ -1 +1 @@
    -x = 1
    +x = 2
    """
    return "".join(line for path in sorted(after) for line in _diff(path, before.get(path), after[path]))


def _diff(path: str, before: bytes | None, after: bytes | None) -> Iterator[str]:
    old, new = _quote(f"a/{path}"), _quote(f"b/{path}")
    yield f"diff --git {old} {new}\n"
    if before is None:
        yield "new file mode 100644\n"
    if after is None:
        yield "deleted file mode 100644\n"
    # A name with spaces is followed by a tab, or `patch` would read only part of it.
    tab = "\t" if " " in path else ""
    names = ("/dev/null" if before is None else f"{old}{tab}", "/dev/null" if after is None else f"{new}{tab}")
    # Lines are split at line feeds only; git treats Python's other line separators as characters.
    old_lines, new_lines = (list(io.StringIO((content or b"").decode(), newline="\n")) for content in (before, after))
    for line in difflib.unified_diff(old_lines, new_lines, *names):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _quote(path: str) -> str:
    """Quote a path as git does if it has special characters."""
    quoted = path.translate(_ESCAPES)
    return path if quoted == path else f'"{quoted}"'
