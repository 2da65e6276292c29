"""The workspace as a completion would leave it, in memory, or why it is refused.

spec  files: path to text; allowed: globs of what may be written (default: the files themselves);
      locked: globs of what may not, whatever `allowed` says (default: LOCKED);
      answer: "patch" (default), "write" for the last file written, "edit" for calls of an edit
      tool, "code" for a block of code, or "any" of them

Read are `edit`, `edit_file` and `str_replace` with the old and the new text, one pair or a list
`edits` of pairs, in the formats of `rewards.verifiers.last_write`.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from rewards.verifiers.code_blocks import HINTS, fenced, from_code, is_code, lines_of, parsed
from rewards.verifiers.codex_patches import has_envelope
from rewards.verifiers.last_write import calls, last_write, writes
from rewards.verifiers.patches import apply_patch
from rewards.verifiers.rubric import BadSpec

Failure = Literal[
    "no_patch",  # nothing that could be applied
    "malformed",  # a diff that cannot be read in one way only
    "truncated",
    "path_not_allowed",
    "file_unknown",
    "context_not_found",
    "ambiguous",
    "nothing_changed",
    "no_code",  # what is left holds none
]

# In a glob `*` stands for `/` too.
LOCKED = (
    *("tests/*", "*/tests/*", "test/*", "*/test/*", "__tests__/*", "*/__tests__/*"),
    *("test_*.py", "*/test_*.py", "*_test.py", "conftest.py", "*/conftest.py"),
    *("*.test.[jt]s", "*.test.[jt]sx", "*.spec.[jt]s", "*.spec.[jt]sx"),
    *("pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "sitecustomize.py"),
    *("*/pytest.ini", "*/tox.ini", "*/setup.cfg", "*/pyproject.toml", "*/sitecustomize.py"),
)
# What has to be a list of texts, where it is given.
LISTS = {"spec": ("allowed", "locked"), "tests": ("needs", "plugins", "shared", "roots", "allow")}
_UNSAFE = re.compile(r"[\\\x00-\x1f\x7f]|^[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing is applied: the class of the failure, and a sentence for the model.

    `located` is the share of a diff's hunks whose place was found.
    """

    failure: Failure
    why: str
    located: float = 0.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """The files after the change; `changed` names those written, moved or deleted, in order."""

    files: dict[str, str]
    changed: tuple[str, ...]
    before: Mapping[str, str] = field(repr=False)


def files_of(spec: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the files of a spec; raises BadSpec when it has none."""
    files = spec.get("files")
    for name in LISTS["spec"]:
        given = spec.get(name) or []
        if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
            raise BadSpec(f"`{name}` of the spec is {given!r}; write a list of globs.")
    if not isinstance(files, Mapping) or not all(isinstance(text, str) for text in files.values()):
        raise BadSpec("The spec has no `files`; give the text of each file by its path.")
    return files


def unsafe_path(path: str) -> Refusal | None:
    """Say why a path is none that any workspace lets be written.

    >>> unsafe_path("../x.py").why
    'The path `../x.py` leaves the workspace; name a file by its path from the root.'
    """
    if not path or path.startswith(("/", "~")) or _UNSAFE.search(path):
        why = "is not a relative path with forward slashes; name a file by its path from the root."
    elif ".." in path.split("/"):
        why = "leaves the workspace; name a file by its path from the root."
    elif any(part.casefold().rstrip(" .") in (".git", "") for part in path.split("/")):
        why = "may not be written; leave it alone."
    else:
        return None
    return Refusal("path_not_allowed", f"The path `{path}` {why}")


def refused_path(path: str, spec: Mapping[str, Any]) -> Refusal | None:
    """Say why a path may not be written, None when it may."""
    if unsafe := unsafe_path(path):
        return unsafe
    if matches(path, spec.get("locked", LOCKED)):
        return Refusal(
            "path_not_allowed",
            f"The path `{path}` belongs to the tests or their settings, which stay as they are; "
            "change the code under test.",
        )
    allowed = spec.get("allowed")
    if path in spec["files"] if allowed is None else matches(path, allowed):
        return None
    may = ", ".join(f"`{name}`" for name in list(spec["files"] if allowed is None else allowed)[:5])
    return Refusal("path_not_allowed", f"The path `{path}` may not be written; these may: {may}.")


def changed_files(before: Mapping[str, str], after: dict[str, str]) -> Candidate | Refusal:
    """Return the candidate, or a refusal when the files are what they were."""
    changed = tuple(
        path for path in sorted({*before, *after}) if before.get(path) != after.get(path)
    )
    if not changed:
        return Refusal(
            "nothing_changed",
            "The answer leaves every file as it was; change what the task asks for.",
        )
    return Candidate(after, changed, before)


def matches(path: str, globs: Sequence[str]) -> bool:
    """Tell whether a path is one of those that globs mean.

    >>> matches("src/A.py", ["src/*"]), matches("a.py", ["src/*"])
    (True, False)
    """
    # Case is ignored in what is locked and what is allowed alike: disks may ignore it, too.
    return any(fnmatchcase(path.casefold(), glob.casefold()) for glob in globs)


TOOLS = ("edit", "edit_file", "str_replace")
_PATHS = ("path", "file_path", "file")
_OLD = ("oldText", "old_text", "old_str", "old_string")
_NEW = ("newText", "new_text", "new_str", "new_string")


class Edit(NamedTuple):
    """A text to be replaced, and where in the completion the call stands."""

    at: int
    path: str
    old: str
    new: str


def edits(completion: str) -> Iterator[Edit]:
    """Yield every complete replacement, in order of the calls."""
    for at, name, given in sorted(calls(completion), key=lambda call: call[0]):
        pairs = given.get("edits", [given])
        path = _first(given, _PATHS)
        if name not in TOOLS or path is None or not isinstance(pairs, list):
            continue
        for pair in pairs:
            if isinstance(pair, dict):
                old, new = _first(pair, _OLD), _first(pair, _NEW)
                if old is not None and new is not None:
                    yield Edit(at, path.removeprefix("./"), old, new)


def edited(completion: str, spec: Mapping[str, Any]) -> Candidate | Refusal:
    """Return the files after every edit, or why one of them fails."""
    files = dict(spec["files"])
    found = list(edits(completion))
    if not found:
        return Refusal("no_patch", "The answer calls no edit tool with an old and a new text.")
    for edit in found:
        if refused := refused_path(edit.path, spec):
            return refused
        if edit.path not in files:
            return Refusal("file_unknown", f"There is no file {edit.path}; name one that is there.")
        times = files[edit.path].count(edit.old) if edit.old else 0
        if times == 0:
            why = f"Could not find the exact text in {edit.path}; copy it from the file as it is."
            return Refusal("context_not_found", why)
        if times > 1:
            why = f"Found {times} occurrences of the text in {edit.path}; give more of its lines."
            return Refusal("ambiguous", why)
        files[edit.path] = files[edit.path].replace(edit.old, edit.new)
    return changed_files(spec["files"], files)


def _first(given: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((given[name] for name in names if isinstance(given.get(name), str)), None)


def candidate_of(completion: str, spec: Mapping[str, Any]) -> Candidate | Refusal:
    """Return the files as the completion leaves them.

    spec["answer"] is "patch" (default), "write", "edit", "code", or "any": then calls that write
    or edit count first, then a diff, then code. What only takes the code away is refused.
    Raises BadSpec for anything else.
    """
    files_of(spec)
    found = _applied(completion, spec)
    if isinstance(found, Refusal) or not all(_is_emptied(found, path) for path in found.changed):
        return found
    return Refusal("no_code", f"The answer leaves no code in {found.changed[0]}; write all of it.")


def _applied(completion: str, spec: Mapping[str, Any]) -> Candidate | Refusal:
    answer = spec.get("answer", "patch")
    if answer == "any":
        answer = _form(completion)
    if answer == "patch":
        return apply_patch(completion, spec)
    if answer == "write":
        return last_write(completion, spec)
    if answer == "edit":
        return edited(completion, spec)
    if answer == "code":
        return from_code(completion, spec)
    raise BadSpec(
        f"`answer` of the spec is {answer!r}; write 'any', 'patch', 'write', 'edit' or 'code'."
    )


def _is_emptied(candidate: Candidate, path: str) -> bool:
    """Tell whether a file is still there and has lost all of its code; to delete it is a change."""
    before, after = candidate.before.get(path, ""), candidate.files.get(path)
    return after is not None and _has_code(path, before) and not _has_code(path, after)


def _has_code(path: str, text: str) -> bool:
    tree = parsed(text) if path.endswith((".py", ".pyi")) else None
    if tree is None:
        return bool(text.strip())
    return any(not _is_idle(node) for node in tree.body)


def _is_idle(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Pass)


def _form(completion: str) -> str:
    """Tell the form of an answer; of writes and edits, the later one."""
    written = max((write.at for write in writes(completion)), default=-1)
    edit = max((one.at for one in edits(completion)), default=-1)
    if max(written, edit) >= 0:
        return "write" if written > edit else "edit"
    return "patch" if _has_diff(completion) else "code"


def _has_diff(completion: str) -> bool:
    """Tell whether a diff begins outside of code: a docstring may have lines like those of one."""
    lines = lines_of(completion)
    if is_code("\n".join(lines)):
        return False
    outside: list[str] = []
    for part in fenced(lines):
        if isinstance(part, str):
            outside.append(part)
        elif part.info.lower() in HINTS:
            return True
        elif part.open or not is_code(part.text):
            outside += part.lines
    return has_envelope("\n".join(outside)) or any(
        line.startswith(("@@", "diff --git ", "--- a/"))
        or (line.startswith("--- ") and after.startswith("+++ "))
        for line, after in zip(outside, [*outside[1:], ""], strict=False)
    )
