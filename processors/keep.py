"""Drop rows without a substantive prompt, without evidence, or that are hardly worth training on.

reads   problem, prompt, findings, worth, is_best
drops   no_messages, unknown_harness, no_prompt, no_evidence; expected_failure, no_information,
        only_a_slip, service_outage or permission_not_granted when none of it teaches anything;
        hardly_worth_it below `--min-worth`, or below BEST_SHARE of it for the best of a session

The worth of an episode is the probability that somebody who reads it finds that its prompt can be
understood, that the evidence belongs to it and is real, and that a competent agent could have done
better. A logistic model of a few properties of the evidence estimates it;
tests/benchmarks/fit_worth.py fitted the weights to rows that were judged by hand.
"""

import math
import re
from functools import partial
from operator import itemgetter
from typing import Any

from pimono_sdpo.stage import Filter, Row

_REASONS = {
    "expected": "expected_failure",
    "no_information": "no_information",
    "slip": "only_a_slip",
    "outside": "service_outage",
    "not_granted": "permission_not_granted",
}
LEAST_WORTH, BEST_SHARE = 0.75, 0.8
INTERCEPT = -1.02
# What each property of `describe` adds to the log-odds.
LOG_ODDS = {
    "own_faults": 1.05,
    "own_code": 0.4,
    "other_failures": 0.38,
    "correction": 0.39,
    "changed_again": 0.99,
    "no_call": -0.82,
}
_SURE = 0.997
_DIGITS = re.compile(r"\d+")


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
    return "hardly_worth_it" if row["worth"] < min_worth * (BEST_SHARE if row["is_best"] else 1) else None


def estimate_worth(row: Row) -> float:
    """Return the probability that a row with evidence is worth training on."""
    odds = INTERCEPT + sum(LOG_ODDS[name] * value for name, value in describe(row).items())
    return 1 / (1 + math.exp(-odds))


def rate_episodes(rows: list[dict[str, Any]]) -> None:
    """Set the `worth` of each episode of a session, and `is_best` of the first that none exceeds."""
    for row in rows:
        row["worth"] = estimate_worth(row) if any(not item["excuse"] for item in row["findings"]) else 0.0
    best = max(rows, key=itemgetter("worth"))
    for row in rows:
        row["is_best"] = row is best


def describe(row: Row) -> dict[str, float]:
    """Describe the evidence that is not excused.

    own_faults      the logarithm to base 2 of the number of different faults of the agent + 1
    own_code        one of these is code that does not run
    other_failures  as own_faults, of the failures that do not show a fault
    correction      the log-odds of the surest correction, at least 0
    changed_again   on a correction the agent changed a file again
    no_call         the agent only answered
    """
    own: list[Any] = [item for item in row["findings"] if not item["excuse"]]
    failures = [item for item in own if item["kind"] == "failure"]
    faults = {item["fault"] for item in own} - {""}
    # Repeats differ in times and counts.
    alike = [{_DIGITS.sub("", i["text"])[:300] for i in failures if is_own is bool(i["fault"])}
             for is_own in (True, False)]  # fmt: skip
    return {
        "own_faults": math.log2(1 + len(alike[0])),
        "own_code": float("code" in faults),
        "other_failures": math.log2(1 + len(alike[1])),
        "correction": max([0.0, *(_weigh(i) for i in own if i["kind"] == "correction")]),
        "changed_again": float("again" in faults),
        "no_call": float(row["counts"]["tool_calls"] == 0),
    }


def _weigh(item: Any) -> float:
    """Return the log-odds of a correction; a judge gives no probability."""
    likely = _SURE if item["rule"] == "judge" else min(item["probability"], _SURE)
    return math.log(likely / (1 - likely))


def stage(min_worth: float) -> Filter:
    """Build the filter for a least worth, 0 to keep all that has evidence."""
    return Filter(partial(keep, min_worth=min_worth), reads=("problem", "prompt", "findings", "worth", "is_best"))
