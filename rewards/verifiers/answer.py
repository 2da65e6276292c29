"""The candidate of a completion, in the form that the spec asks for or that the answer has."""

from collections.abc import Mapping
from typing import Any

from rewards.verifiers.candidate import Candidate, Refusal
from rewards.verifiers.code_blocks import from_code
from rewards.verifiers.edits import edited, edits
from rewards.verifiers.last_write import last_write, writes
from rewards.verifiers.patches import apply_patch


def candidate_of(completion: str, spec: Mapping[str, Any]) -> Candidate | Refusal:
    """Return the files as the completion leaves them.

    spec["answer"] is "patch" (default), "write", "edit", "code", or "any": then calls that write
    or edit count first, then a diff, then code. Raises ValueError for anything else.
    """
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
    raise ValueError(
        f"`answer` of the spec is {answer!r}; write 'any', 'patch', 'write', 'edit' or 'code'."
    )


def _form(completion: str) -> str:
    """Tell the form of an answer; of writes and edits, the later one."""
    written = max((write.at for write in writes(completion)), default=-1)
    edit = max((one.at for one in edits(completion)), default=-1)
    if max(written, edit) >= 0:
        return "write" if written > edit else "edit"
    lines = completion.split("\n")
    found = any(line.startswith(("@@", "diff --git ", "--- a/", "```diff")) for line in lines)
    return "patch" if found else "code"
