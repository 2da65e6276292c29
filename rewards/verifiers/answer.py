"""The candidate of a completion: its diff applied, or its last file written, as the spec says."""

from collections.abc import Mapping
from typing import Any

from rewards.verifiers.candidate import Candidate, Refusal
from rewards.verifiers.last_write import last_write
from rewards.verifiers.patches import apply_patch


def candidate_of(completion: str, spec: Mapping[str, Any]) -> Candidate | Refusal:
    """Return the files as the completion leaves them.

    spec["answer"] is "patch" (default) or "write". Raises ValueError for anything else.
    """
    answer = spec.get("answer", "patch")
    if answer == "patch":
        return apply_patch(completion, spec)
    if answer == "write":
        return last_write(completion, spec)
    raise ValueError(f"`answer` of the spec is {answer!r}; write 'patch' or 'write'.")
