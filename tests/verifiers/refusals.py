"""The refusal of a completion."""

from typing import Any

import pytest

from rewards.verifiers.answer import read_candidate
from rewards.verifiers.candidate import Refusal


def refusal(completion: str, spec: dict[str, Any]) -> Refusal:
    """Return the refusal of a completion; fails when there is none."""
    with pytest.raises(Refusal) as refused:
        read_candidate(completion, spec)
    return refused.value
