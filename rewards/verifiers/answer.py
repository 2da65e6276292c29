"""The candidate of a completion, in the form that the spec asks for or that the answer has.

Calls of an edit tool are `edit`, `edit_file` and `str_replace` with the old and the new text, one
pair or a list `edits` of pairs, in the formats of `rewards.verifiers.last_write`.
"""

import ast
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rewards.verifiers.candidate import (
    Candidate,
    Refusal,
    changed_files,
    files_of,
    refused_path,
)
from rewards.verifiers.code_blocks import fenced, from_code, is_code, parsed
from rewards.verifiers.codex_patches import has_envelope
from rewards.verifiers.diffs import HINTS, lines_of
from rewards.verifiers.last_write import calls, last_write, writes
from rewards.verifiers.patches import apply_patch
from rewards.verifiers.rubric import BadSpec

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
