"""The candidate of a completion, in the form that the spec asks for or that the answer has."""

import ast
from collections.abc import Mapping
from typing import Any

from rewards.verifiers.candidate import Candidate, Refusal, files_of
from rewards.verifiers.code_blocks import from_code, is_code, parsed
from rewards.verifiers.edits import edited, edits
from rewards.verifiers.envelopes import has_envelope
from rewards.verifiers.fences import HINTS, lines_of
from rewards.verifiers.labels import fenced
from rewards.verifiers.last_write import last_write, writes
from rewards.verifiers.patches import apply_patch
from rewards.verifiers.result import BadSpec


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
