"""The tools of the repository agent, confined to the folder of a run, and the diff they made.

Only `write_file` changes that folder and nothing in it is executed, so a path cannot change between
its check and its use. Symlinks of the repository are never followed. The answer to any arguments is
a text: a result, or an error that says what to do.
"""

import difflib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import re2

from pimono_sdpo.text import replace_surrogates
from rewards.verifiers.tool_schemas import AGENT_TOOLS, describe_problems

MAX_FILES, MOST_FILES = 200, 1000
MAX_HITS, MOST_HITS = 50, 500
MAX_WALK = 20_000
MAX_LINE = 300
MAX_PATTERN = 1000
MAX_GREP_BYTES = 2_000_000
MAX_WRITE = 400_000
MAX_PATH, MAX_NAME = 1000, 255
SNIFF = 8192
NOTE = 80  # characters of the remark below a file that was cut
NOT_SEEN = frozenset({".git"})


class ToolError(Exception):
    """A call that failed; the text is for the model."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call; `text` is an error when it is not `ok`."""

    ok: bool
    text: str
    changed: bool = False


@dataclass(slots=True)
class Workspace:
    """An agent's folder; `before` has the original content of written files, None for new ones."""

    root: Path
    max_chars: int
    before: dict[str, bytes | None] = field(default_factory=dict)

    def call(self, name: str, args: dict[str, Any]) -> ToolResult:
        """Do a call, or return why it failed; raises OSError when the disk fails."""
        tool = _TOOLS.get(name)
        if tool is None:
            there = f"Unknown tool `{replace_surrogates(name[:80])}`; the tools are {_NAMES}."
            tests = " Tests are run for you." if "test" in name.lower() else ""
            return ToolResult(False, there + tests)
        if wrong := describe_problems(name, args):
            return ToolResult(
                False, f"The arguments of {name} are wrong: {replace_surrogates(wrong)}."
            )
        given = {key: value for key, value in args.items() if key != "thought"}
        try:
            return tool(self, **given)
        except ToolError as error:
            return ToolResult(False, replace_surrogates(str(error)))

    def changed(self) -> dict[str, bytes]:
        """Return the changed files by path."""
        now = {path: (self.root / path).read_bytes() for path in sorted(self.before)}
        return {path: content for path, content in now.items() if content != self.before[path]}


def list_files(space: Workspace, rel_dir: str, max_files: int = MAX_FILES) -> ToolResult:
    """List the files below a directory, sorted."""
    folder = _existing(space.root, rel_dir, "rel_dir")
    if not folder.is_dir():
        raise ToolError(f"`{rel_dir}` is a file; read it with read_file.")
    most = min(max_files, MOST_FILES)
    found: list[str] = []
    more = 0
    for path in _files(folder):
        if len(found) < most:
            found.append(path.relative_to(space.root).as_posix())
        else:
            more += 1
    text = "\n".join(replace_surrogates(name) for name in found) or "(no files)"
    if more:
        text += f"\n[{more} more files; name a folder below, or raise max_files]"
    return ToolResult(True, text)


def read_file(space: Workspace, rel_path: str, max_chars: int | None = None) -> ToolResult:
    """Read the beginning of a text file."""
    path = _existing(space.root, rel_path, "rel_path")
    if path.is_dir():
        raise ToolError(f"`{rel_path}` is a directory; list it with list_files.")
    most = min(max_chars or space.max_chars, space.max_chars - NOTE)
    with path.open("rb") as file:
        data = file.read(4 * most + 4)
    if _binary(data):
        raise ToolError(f"`{rel_path}` is a binary file; it has no text to read.")
    whole = data.decode("utf-8", errors="replace")
    size = path.stat().st_size
    if len(whole) <= most and len(data) == size:
        return ToolResult(True, whole)
    return ToolResult(
        True, f"{whole[:most]}\n[cut after {most} characters; the file has {size} bytes]"
    )


def grep(
    space: Workspace, pattern: str, rel_dir: str, max_hits: int = MAX_HITS
) -> ToolResult:  # fmt: skip
    """Search the lines of the files below a directory, or of one file."""
    found = _compiled(pattern)
    start = _existing(space.root, rel_dir, "rel_dir")
    most = min(max_hits, MOST_HITS)
    hits: list[str] = []
    skipped = 0
    for path in _files(start) if start.is_dir() else [start]:
        if path.stat().st_size > MAX_GREP_BYTES:
            skipped += 1
            continue
        data = path.read_bytes()
        if _binary(data):
            continue
        name = path.relative_to(space.root).as_posix()
        for number, line in enumerate(data.decode("utf-8", errors="replace").split("\n"), 1):
            if found.search(line):
                hits.append(f"{name}:{number}: {line.rstrip()[:MAX_LINE]}")
                if len(hits) == most:
                    break
        if len(hits) == most:
            break
    lines = hits or ["(no hits)"]
    if len(hits) == most:
        lines.append(f"[stopped after {most} hits; a narrower pattern or folder shows the rest]")
    if skipped:
        lines.append(f"[{skipped} files above {MAX_GREP_BYTES} bytes were not searched]")
    return ToolResult(True, replace_surrogates("\n".join(lines)))


def write_file(space: Workspace, rel_path: str, content: str) -> ToolResult:
    """Write a whole file; missing folders are created."""
    path = _inside(space.root, rel_path, "rel_path")
    if len(content) > MAX_WRITE:
        raise ToolError(
            f"The content has {len(content)} characters; a file may have {MAX_WRITE}. Write less."
        )
    if path == space.root or path.is_dir():
        raise ToolError(f"`{rel_path}` is a directory; give the path of a file.")
    for parent in path.parents:
        if parent.exists() and not parent.is_dir():
            blocked = parent.relative_to(space.root).as_posix()
            raise ToolError(f"`{blocked}` is a file, so it cannot contain other files.")
    old = _content(path, rel_path)
    data = replace_surrogates(content).encode()
    name = path.relative_to(space.root).as_posix()
    if old == data:
        return ToolResult(True, f"`{name}` holds exactly this already; nothing changed.")
    space.before.setdefault(name, old)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    done = "wrote" if old is not None else "created"
    return ToolResult(True, f"{done} {name} ({len(content)} characters)", changed=True)


_TOOLS: dict[str, Callable[..., ToolResult]] = {
    "list_files": list_files,
    "read_file": read_file,
    "grep": grep,
    "write_file": write_file,
}
_NAMES = ", ".join(sorted(AGENT_TOOLS))


def _content(path: Path, given: str) -> bytes | None:
    """Return the content of a file that will be replaced, None for a new file."""
    if not path.exists():
        return None
    _regular(path, given)
    data = path.read_bytes()
    if _binary(data):
        raise ToolError(
            f"`{given}` is a binary file and cannot be replaced by text; leave it alone."
        )
    try:
        data.decode()
    except UnicodeDecodeError:
        raise ToolError(
            f"`{given}` is not UTF-8 text, and writing it would corrupt it; leave it alone."
        ) from None
    return data


def _existing(root: Path, given: str, argument: str) -> Path:
    path = _inside(root, given, argument)
    if not path.exists():
        raise ToolError(f"`{given}` does not exist; list_files shows what does.")
    if not path.is_dir():
        _regular(path, given)
    return path


def _regular(path: Path, given: str) -> None:
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ToolError(f"`{given}` is not a regular file; leave it alone.")


def _inside(root: Path, given: str, argument: str) -> Path:
    """Return the path below the root; raises ToolError if it leaves it or passes a symlink."""
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
    if NOT_SEEN & {part.casefold() for part in parts}:
        raise ToolError(f"`{shown}` is not part of the repository's files; leave it alone.")
    path = root
    for part in parts:
        path /= part
        if path.is_symlink():
            link = path.relative_to(root).as_posix()
            raise ToolError(f"`{link}` is a symbolic link, which is not followed.")
    return path


def _files(folder: Path) -> Iterator[Path]:
    """Yield at most MAX_WALK regular files below a folder, files before subfolders."""
    number = 0
    for at, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in NOT_SEEN)
        for name in sorted(files):
            path = Path(at, name)
            if stat.S_ISREG(path.lstat().st_mode):
                number += 1
                if number > MAX_WALK:
                    return
                yield path


def _binary(data: bytes) -> bool:
    return b"\0" in data[:SNIFF]


def _compiled(pattern: str) -> Any:
    """Compile for RE2, whose time is linear in the text whatever the pattern."""
    if len(pattern) > MAX_PATTERN:
        raise ToolError(f"`pattern` is longer than {MAX_PATTERN} characters; give a shorter one.")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(replace_surrogates(pattern), options)
    except re2.error as error:
        why = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        raise ToolError(
            f"`pattern` is not a regular expression of RE2 ({why[:200]}); it has no lookaround and "
            "no backreference."
        ) from error


_ESCAPES = {"\\": "\\\\", '"': '\\"', "\t": "\\t", "\n": "\\n"}


def unified_diff(before: Mapping[str, bytes | None], after: Mapping[str, bytes]) -> str:
    r"""Return the diff of the files of `after`, in order of paths; None in `before` is a new file.

    >>> print(unified_diff({"a.py": b"x = 1\n"}, {"a.py": b"x = 2\n"}), end="")
    diff --git a/a.py b/a.py
    --- a/a.py
    +++ b/a.py
    @@ -1 +1 @@
    -x = 1
    +x = 2
    """
    return "".join(
        line for path in sorted(after) for line in _file(path, before.get(path), after[path])
    )


def _file(path: str, before: bytes | None, after: bytes) -> Iterator[str]:
    old, new = _quoted(f"a/{path}"), _quoted(f"b/{path}")
    yield f"diff --git {old} {new}\n"
    if before is None:
        yield "new file mode 100644\n"
        old = "/dev/null"
    hunks = difflib.unified_diff(_lines(before or b""), _lines(after), n=3)
    # Names with spaces end in a tab, or `patch` would read only part of them.
    tab = "\t" if " " in path else ""
    for number, line in enumerate(hunks):
        if number == 0:
            yield f"--- {old}{tab if before is not None else ''}\n"
        elif number == 1:
            yield f"+++ {new}{tab}\n"
        elif line.endswith("\n"):
            yield line
        else:
            yield f"{line}\n\\ No newline at end of file\n"


def _lines(content: bytes) -> list[str]:
    """Split at line feeds only: other line separators of Python are characters to git."""
    *whole, rest = content.decode().split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _quoted(path: str) -> str:
    """Quote a path as git does when it has a quote or a backslash."""
    if not any(character in _ESCAPES for character in path):
        return path
    return '"' + "".join(_ESCAPES.get(character, character) for character in path) + '"'
