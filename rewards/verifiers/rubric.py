"""Verifier results, and the rubric that combines them: gates, then weighted grades.

range  0 to 1, or None when nothing was judged

    a gate failed          its partial credit, scaled below GATE_SHARE
    a graded one failed    from GATE_SHARE (0 without gates) up to MAX_PARTIAL
    all that had a say passed    1.0, and never otherwise; up to MAX_PARTIAL if a graded one
                                 that passed has a score below 1.0
    any `error`, or nothing had a say    None: neither for nor against the model
"""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from pimono_sdpo.errors import PimonoError
from pimono_sdpo.text import replace_surrogates, shorten

Status = Literal["passed", "failed", "error", "skipped"]
MAX_PARTIAL = 0.99


@dataclass(frozen=True, slots=True)
class VerifierResult:
    """One verdict.

    `score` is 1.0 when everything passed (less where an answer differs from the reference beyond
    the tests), partial credit up to MAX_PARTIAL when something failed, and None when nothing was
    judged: `error` is our own fault and never the model's, `skipped` means that the verifier does
    not apply. `category` is one of the filter's, or `timeout`, `patch_apply`, `malformed_output`.
    `feedback` is for the teacher, "" when passed.
    """

    name: str
    status: Status
    score: float | None
    category: str | None = None
    feedback: str = ""
    metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # What a completion says may hold half a character, which no tokenizer and no column can.
        object.__setattr__(self, "feedback", replace_surrogates(self.feedback))


class BadSpec(ValueError):
    """The spec of a row cannot be used; one sentence says why."""


class Verifier(Protocol):
    """Scores the text of a completion by a spec, the decoded `verifier_spec` of its row."""

    def __call__(self, completion: str, spec: dict[str, Any]) -> VerifierResult:
        """Return the verdict; never raises for a completion, BadSpec for an invalid spec."""


def passed(name: str, **metrics: float) -> VerifierResult:
    """Everything passed."""
    return VerifierResult(name, "passed", 1.0, metrics=metrics)


def failed(name: str, category: str, feedback: str, score: float = 0.0, **metrics: float) -> VerifierResult:
    """Something failed; partial credit stays below 1.0."""
    return VerifierResult(name, "failed", min(score, MAX_PARTIAL), category, feedback, metrics)


def skipped(name: str, why: str) -> VerifierResult:
    """The verifier does not apply."""
    return VerifierResult(name, "skipped", None, feedback=why)


def error(name: str, why: str) -> VerifierResult:
    """Our own machinery failed, which is not the fault of the model."""
    return VerifierResult(name, "error", None, feedback=why)


logger = logging.getLogger(__name__)
_WARNED: set[tuple[str, str]] = set()

GATE_SHARE = 0.2
MAX_FEEDBACK = 1200


class NotAVerifier(PimonoError):
    """What the rubric has is no function, or returns something other than a VerifierResult."""


@dataclass(frozen=True, slots=True)
class RubricResult:
    """What all verifiers together say of one completion."""

    reward: float | None
    results: tuple[VerifierResult, ...]

    @property
    def passed(self) -> bool:
        """Whether every verifier that applied passed, and one did apply."""
        return self.reward == 1.0

    def feedback(self) -> str:
        """Return what failed, for the teacher, head and tail of at most MAX_FEEDBACK characters.

        "" when everything passed, and when there was no verdict: the teacher never sees our errors.
        """
        if self.reward is None:
            return ""
        texts = (r.feedback for r in self.results if r.status == "failed" and r.feedback)
        return shorten("\n\n".join(texts), MAX_FEEDBACK)

    def to_row(self) -> dict[str, Any]:
        """Return plain columns: lists with one entry per verifier, `metrics` as JSON text."""
        return {
            "reward": self.reward,
            "passed": self.passed,
            "verifier": [r.name for r in self.results],
            "status": [r.status for r in self.results],
            "verifier_score": [r.score for r in self.results],
            "category": [r.category for r in self.results],
            "feedback": [r.feedback for r in self.results],
            "metrics": [json.dumps(r.metrics, sort_keys=True) for r in self.results],
        }


@dataclass(frozen=True, slots=True)
class Rubric:
    """Gates in order, of which the first failure ends it; graded verifiers with their weights.

    Picklable when its verifiers are: functions of a module, or `functools.partial` of them.
    """

    gates: Sequence[Verifier] = ()
    graded: Sequence[tuple[Verifier, float]] = ()

    def __post_init__(self) -> None:
        if not self.gates and not self.graded:
            raise ValueError("there are no verifiers")
        if named := [one for one in (*self.gates, *(one for one, _ in self.graded)) if not callable(one)]:
            raise NotAVerifier(f"{named[0]!r:.80} is not a verifier; give a function such as `tests.verify`.")
        if any(not 0 < weight < math.inf for _, weight in self.graded):
            raise ValueError("a weight is not positive")

    def __call__(self, completion: str, spec: dict[str, Any]) -> RubricResult:
        """Verify one completion by the decoded spec of its row.

        Raises BadSpec for a spec that a verifier cannot use, NotAVerifier for another function.
        """
        if not isinstance(spec, dict):
            raise BadSpec("`verifier_spec` is not a JSON object")
        results: list[VerifierResult] = []
        for gate in self.gates:
            result = _run(gate, completion, spec)
            results.append(result)
            if result.status == "error":
                return RubricResult(None, tuple(results))
            if result.status == "failed":
                return RubricResult(GATE_SHARE * _partial(result), tuple(results))
        graded = [(_run(verifier, completion, spec), weight) for verifier, weight in self.graded]
        results += [result for result, _ in graded]
        statuses = {result.status for result in results} - {"skipped"}
        if "error" in statuses or not statuses:
            return RubricResult(None, tuple(results))
        credits = [(_credit(result), weight) for result, weight in graded if result.status != "skipped"]
        if "failed" not in statuses and all(credit == 1.0 for credit, _ in credits):
            return RubricResult(1.0, tuple(results))
        share = sum(credit * weight for credit, weight in credits) / sum(weight for _, weight in credits)
        floor = GATE_SHARE if self.gates else 0.0
        return RubricResult(min(MAX_PARTIAL, floor + (MAX_PARTIAL - floor) * share), tuple(results))


def _run(verifier: Verifier, completion: str, spec: dict[str, Any]) -> VerifierResult:
    name = getattr(verifier, "__qualname__", repr(verifier))
    try:
        result: object = verifier(completion, spec)
    except Exception as fault:
        # A verifier of the user's own may fail after hours: that must neither count against the
        # model nor end the training. Refusals that say why, and bugs of ours, are raised.
        function = verifier.func if isinstance(verifier, partial) else verifier
        package = str(getattr(function, "__module__", "")).partition(".")[0]
        if isinstance(fault, BadSpec | PimonoError) or package == "rewards":
            raise
        why = f"{type(fault).__name__}: {fault}"
        if (kind := (name, type(fault).__name__)) not in _WARNED:
            _WARNED.add(kind)
            text = "Verifier `%s` raised %s. Those completions get a neutral reward; fix it."
            logger.warning(text, name, " ".join(why.split()))
        return error(name, why)
    if not isinstance(result, VerifierResult):
        raise NotAVerifier(f"`{name}` is not a verifier: it returns {type(result).__name__}, not VerifierResult.")
    return result


def _credit(result: VerifierResult) -> float:
    return 1.0 if result.status == "passed" and result.score in (1.0, None) else _partial(result)


def _partial(result: VerifierResult) -> float:
    return min(max(result.score or 0.0, 0.0), MAX_PARTIAL)
