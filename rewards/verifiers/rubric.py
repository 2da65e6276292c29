"""Combine the results of verifiers to a reward: gates first, then weighted grades.

range  0 to 1, or None without a verdict

    a gate failed                  its partial credit, scaled to at most GATE_SHARE
    a graded verifier failed       from GATE_SHARE (0 without gates) up to MAX_PARTIAL
    all that applied passed        1.0, and only then; at most MAX_PARTIAL if a graded verifier
                                   that passed has a score below 1.0
    any `error`, or nothing graded None: it counts neither for nor against the model; a verifier that
                                   was skipped is never a pass, and gates alone grade only in a rubric
                                   without graded verifiers
"""

import inspect
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, Protocol, cast

from pimono_sdpo.errors import OutputError, PimonoError
from pimono_sdpo.own_code import import_own
from pimono_sdpo.removed import refuse_removed
from pimono_sdpo.text import replace_surrogates, shorten

Status = Literal["passed", "failed", "error", "skipped"]
MAX_PARTIAL = 0.99


@dataclass(frozen=True, slots=True)
class VerifierResult:
    """The verdict of one verifier.

    `score` is 1.0 when everything passed (less if an answer differs from the reference in ways that
    the tests do not check), partial credit up to MAX_PARTIAL when something failed, and None without
    a verdict: `error` means that the verifier itself failed, which is never the fault of the model,
    `skipped` means that the verifier does not apply. `category` is one of the filter's categories, or
    `timeout`, `patch_apply`, `malformed_output`. `feedback` is for the teacher, "" when passed.
    """

    name: str
    status: Status
    score: float | None
    category: str | None = None
    feedback: str = ""
    metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A completion may contain half of a surrogate pair, which tokenizers and columns cannot store.
        object.__setattr__(self, "feedback", replace_surrogates(self.feedback))


class BadSpec(ValueError):
    """The spec of a row cannot be used; the message is a sentence with the reason."""


class Verifier(Protocol):
    """Scores the text of a completion by a spec, the decoded `verifier_spec` of its row."""

    def __call__(self, completion: str, spec: dict[str, Any]) -> VerifierResult:
        """Return the verdict; raises BadSpec for an invalid spec, never anything because of the completion."""


def passed(name: str, **metrics: float) -> VerifierResult:
    """Return a result in which everything passed."""
    return VerifierResult(name, "passed", 1.0, metrics=metrics)


def failed(name: str, category: str, feedback: str, score: float = 0.0, **metrics: float) -> VerifierResult:
    """Return a result in which something failed; partial credit stays below 1.0."""
    return VerifierResult(name, "failed", min(score, MAX_PARTIAL), category, feedback, metrics)


def skipped(name: str, why: str) -> VerifierResult:
    """Return a result of a verifier that does not apply."""
    return VerifierResult(name, "skipped", None, feedback=why)


def error(name: str, why: str) -> VerifierResult:
    """Return a result of a verifier that failed itself, which is not the fault of the model."""
    return VerifierResult(name, "error", None, feedback=why)


logger = logging.getLogger(__name__)
_WARNED: set[tuple[str, str]] = set()

GATE_SHARE = 0.2
MAX_FEEDBACK = 1200


class NotAVerifier(PimonoError):
    """A verifier of the rubric is not callable, or does not return a VerifierResult."""


@dataclass(frozen=True, slots=True)
class RubricResult:
    """The verdict of all verifiers on one completion."""

    reward: float | None
    results: tuple[VerifierResult, ...]

    @property
    def passed(self) -> bool:
        """Whether at least one verifier applied, and all that applied passed."""
        return self.reward == 1.0

    def feedback(self) -> str:
        """Return the failures for the teacher, shortened in the middle to MAX_FEEDBACK characters.

        "" when everything passed or there is no verdict: the teacher never sees errors of verifiers.
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
    """Gates, run in order until one fails, and graded verifiers with their weights.

    Picklable if its verifiers are: functions of a module, or `functools.partial` of them.
    """

    gates: Sequence[Verifier] = ()
    graded: Sequence[tuple[Verifier, float]] = ()

    def __post_init__(self) -> None:
        if not self.gates and not self.graded:
            raise ValueError("there are no verifiers")
        for verifier in (*self.gates, *(graded for graded, _ in self.graded)):
            if not callable(verifier):
                raise NotAVerifier(f"{verifier!r:.80} is not a verifier; give a function such as `tests.verify`.")
        if any(not 0 < weight < math.inf for _, weight in self.graded):
            raise ValueError("a weight is not positive")

    def __call__(self, completion: str, spec: dict[str, Any]) -> RubricResult:
        """Verify one completion by the decoded spec of its row.

        Raises BadSpec for a spec that a verifier cannot use, NotAVerifier if one does not return a VerifierResult.
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
                return RubricResult(GATE_SHARE * _credit(result), tuple(results))
        graded = [(_run(verifier, completion, spec), weight) for verifier, weight in self.graded]
        results += [result for result, _ in graded]
        statuses = {result.status for result in results} - {"skipped"}
        credits = [(_credit(result), weight) for result, weight in graded if result.status != "skipped"]
        if "error" in statuses or not statuses or (graded and not credits):
            return RubricResult(None, tuple(results))
        if "failed" not in statuses and all(credit == 1.0 for credit, _ in credits):
            return RubricResult(1.0, tuple(results))
        share = sum(credit * weight for credit, weight in credits) / sum(weight for _, weight in credits)
        floor = GATE_SHARE if self.gates else 0.0
        return RubricResult(min(MAX_PARTIAL, floor + (MAX_PARTIAL - floor) * share), tuple(results))


def _run(verifier: Verifier, completion: str, spec: dict[str, Any]) -> VerifierResult:
    name = getattr(verifier, "__qualname__", repr(verifier))
    try:
        result: object = verifier(completion, spec)
    except Exception as exception:
        # A user's verifier may fail after hours of training: that must neither count against the model
        # nor end the training. Errors with a sentence for the user, and bugs of this package, are raised.
        function = verifier.func if isinstance(verifier, partial) else verifier
        package = str(getattr(function, "__module__", "")).partition(".")[0]
        if isinstance(exception, BadSpec | PimonoError) or package == "rewards":
            raise
        why = f"{type(exception).__name__}: {exception}"
        if (kind := (name, type(exception).__name__)) not in _WARNED:
            _WARNED.add(kind)
            text = "Verifier `%s` raised %s. Its completions get a neutral reward; fix the verifier."
            logger.warning(text, name, " ".join(why.split()))
        return error(name, why)
    if not isinstance(result, VerifierResult):
        raise NotAVerifier(f"`{name}` is not a verifier: it returns {type(result).__name__}, not VerifierResult.")
    return result


def _credit(result: VerifierResult) -> float:
    if result.status == "passed" and result.score in (1.0, None):
        return 1.0
    return min(max(result.score or 0.0, 0.0), MAX_PARTIAL)


def build_rubric(gates: Sequence[str], graded: Sequence[str]) -> Rubric:
    """Build a rubric from names: a module of `rewards.verifiers`, or `module:name` of your own function.

    A graded verifier may have a weight, as in `syntax=0.5`. Raises OutputError for anything else.
    """
    weighted = [name.partition("=") for name in graded]
    names = [*gates, *(name for name, _, _ in weighted)]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise OutputError(f"The verifier `{repeated}` is given twice; give each once, as a gate or graded.")
    try:
        return Rubric(
            tuple(map(import_verifier, gates)),
            tuple((import_verifier(name), float(weight or 1)) for name, _, weight in weighted),
        )
    except ValueError as error:
        raise OutputError(
            f"The rubric cannot be built ({error}); name verifiers such as tool_calls, or syntax=0.5 with its weight."
        ) from error


def import_verifier(name: str) -> Verifier:
    """Import a verifier by its name; raises OutputError or OwnCodeError if there is none."""
    refuse_removed(f"verifier {name}")
    verifier: object = None
    if ":" in name or Path(__file__).with_name(f"{name}.py").is_file():
        verifier = import_own(name if ":" in name else f"rewards.verifiers.{name}:verify")
    try:
        inspect.signature(cast("Verifier", verifier)).bind("", {})
    except (TypeError, ValueError):  # not callable, or with other arguments
        verifier = None
    if not isinstance(verifier, FunctionType | partial):
        raise OutputError(
            f"`{name}` is not a verifier; give a module of rewards.verifiers, such as tool_calls, "
            "or module:name of a function of a completion and a spec."
        )
    return verifier
