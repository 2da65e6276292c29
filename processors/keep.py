"""Drop rows without a substantive prompt, without evidence, or that are hardly worth training on.

reads   problem, prompt, findings, tools
drops   no_messages, unknown_harness, no_prompt, no_evidence; expected_failure, no_information,
        only_a_slip, service_outage or permission_not_granted when none of it teaches anything;
        hardly_worth_it below `--min-worth`

The worth of an episode is the probability that somebody who reads it finds that its prompt can be
understood, that the evidence belongs to it and is real, and that a competent agent could have done
better. A logistic model of a few properties of the evidence estimates it;
tests/benchmarks/fit_worth.py fitted the weights to rows that were judged by hand.
"""

import math
from functools import partial
from typing import Any

from pimono_sdpo.stage import Filter, Row

_REASONS = {
    "expected": "expected_failure",
    "no_information": "no_information",
    "slip": "only_a_slip",
    "outside": "service_outage",
    "not_granted": "permission_not_granted",
}
LEAST_WORTH = 0.62
INTERCEPT = -0.33
# What each property of `describe` adds to the log-odds.
LOG_ODDS = {
    "failures": 0.87,
    "correction": 0.52,
    "resolved": 0.77,
    "short_request": -0.91,
    "gave_up": -0.74,
}
_SHORT = 50
# A judge gives no probability of its own.
_JUDGED = 0.9
_SUREST = 0.99


def keep(row: Row, min_worth: float = 0.0) -> str | None:
    """Return why a row is dropped; None keeps it."""
    if row["problem"]:
        return str(row["problem"])
    if not row["prompt"]:
        return "no_prompt"
    excuses = {item["excuse"] for item in row["findings"]}
    if excuses and "" not in excuses:
        return next(reason for excuse, reason in _REASONS.items() if excuse in excuses)
    if not excuses:
        return "no_evidence"
    is_poor = min_worth > 0 and estimate_worth(row) < min_worth
    return "hardly_worth_it" if is_poor else None


def estimate_worth(row: Row) -> float:
    """Return the probability that a row with evidence is worth training on."""
    described = describe(row)
    odds = INTERCEPT + sum(weight * described[name] for name, weight in LOG_ODDS.items())
    return 1 / (1 + math.exp(-odds))


def describe(row: Row) -> dict[str, float]:
    """Describe the evidence that is not excused.

    failures       the logarithm to base 2 of their number + 1
    correction     the log-odds of the surest one, 0 without any
    resolved       a later call resolved one of them
    short_request  in fewer than 50 bytes
    gave_up        no call followed any of the failures
    """
    own: list[Any] = [item for item in row["findings"] if not item["excuse"]]
    failures = [item for item in own if item["kind"] == "failure"]
    surest = max(
        (_find_probability(item) for item in own if item["kind"] == "correction"), default=0.5
    )
    called = [item["next"].partition(" ")[0] in row["tools"] for item in failures]
    return {
        "failures": math.log2(1 + len(failures)),
        "correction": math.log(surest / (1 - surest)),
        "resolved": float(any(item["resolved_at"] is not None for item in failures)),
        "short_request": float(len(row["prompt"].encode()) < _SHORT),
        "gave_up": float(bool(failures) and not any(called)),
    }


def _find_probability(item: Any) -> float:
    return _JUDGED if item["rule"] == "judge" else min(item["probability"], _SUREST)


def stage(min_worth: float) -> Filter:
    """Build the filter for a least worth, 0 to keep all that has evidence."""
    return Filter(
        partial(keep, min_worth=min_worth), reads=("problem", "prompt", "findings", "tools")
    )
