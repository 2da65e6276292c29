"""What a verifier says of a completion, the same for the reward, the teacher, a row and a pair."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pimono_sdpo.text import well_formed

Status = Literal["passed", "failed", "error", "skipped"]
MAX_PARTIAL = 0.99


@dataclass(frozen=True, slots=True)
class VerifierResult:
    """One verdict.

    `score` is 1.0 when everything passed, partial credit up to MAX_PARTIAL when something failed,
    and None when nothing was judged: `error` is our own fault and never the model's, `skipped`
    means that the verifier has no say. `category` is one of the filter's, or `timeout`,
    `patch_apply`, `malformed_output`. `feedback` is for the teacher, "" when passed.
    """

    name: str
    status: Status
    score: float | None
    category: str | None = None
    feedback: str = ""
    metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # What a completion says may hold half a character, which no tokenizer and no column can.
        object.__setattr__(self, "feedback", well_formed(self.feedback))


class BadSpec(ValueError):
    """A row's spec is none to judge by: nobody's fault but the row's. One sentence says why."""


class Verifier(Protocol):
    """Judges the text of a completion by a spec, the decoded `verifier_spec` of its row."""

    def __call__(self, completion: str, spec: dict[str, Any]) -> VerifierResult:
        """Return the verdict; never raises on the completion, BadSpec on a spec that is none."""


def passed(name: str, **metrics: float) -> VerifierResult:
    """Everything passed."""
    return VerifierResult(name, "passed", 1.0, metrics=metrics)


def failed(
    name: str, category: str, feedback: str, score: float = 0.0, **metrics: float
) -> VerifierResult:
    """Something failed; partial credit stays below 1.0."""
    return VerifierResult(name, "failed", min(score, MAX_PARTIAL), category, feedback, metrics)


def skipped(name: str, why: str) -> VerifierResult:
    """The verifier has no say."""
    return VerifierResult(name, "skipped", None, feedback=why)


def error(name: str, why: str) -> VerifierResult:
    """Our own machinery failed; the model is not to be blamed."""
    return VerifierResult(name, "error", None, feedback=why)
