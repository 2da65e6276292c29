"""The refusal of a completion."""

from typing import Any

import pytest

from rewards.verifiers.answer import candidate_of
from rewards.verifiers.candidate import Refusal


def refusal(completion: str, spec: dict[str, Any]) -> Refusal:
    """Return the refusal of a completion; fails when there is none."""
    with pytest.raises(Refusal) as refused:
        candidate_of(completion, spec)
    return refused.value
