"""Drop rows without a substantive prompt, without evidence, or that are hardly worth training on.

reads   problem, prompt, findings
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
LEAST_WORTH = 0.7
INTERCEPT = 0.02
# What each property of `describe` adds to the log-odds.
LOG_ODDS = {"failures": 0.51, "sure_correction": 0.93, "resolved": 1.03, "environment": -0.80}
_SURE = 0.9
_LOOKUPS = {"command_error", "missing_file_or_command"}


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

    failures         the logarithm to base 2 of their number + 1
    sure_correction  the user corrected the agent, with a probability of at least 0.9
    resolved         a later call resolved one of the failures
    environment      a permission was missing, or nothing failed but what was looked for is missing
    """
    own: list[Any] = [item for item in row["findings"] if not item["excuse"]]
    failures = [item for item in own if item["kind"] == "failure"]
    kinds = [set(item["categories"]) for item in failures]
    return {
        "failures": math.log2(1 + len(failures)),
        "sure_correction": float(any(_is_sure(item) for item in own)),
        "resolved": float(any(item["resolved_at"] is not None for item in failures)),
        "environment": float(
            any("permission_auth" in found for found in kinds)
            or (bool(kinds) and all(found <= _LOOKUPS for found in kinds))
        ),
    }


def _is_sure(item: Any) -> bool:
    """Return whether a finding is a correction beyond doubt; a judge gives no probability."""
    is_certain = item["rule"] == "judge" or item["probability"] >= _SURE
    return bool(item["kind"] == "correction" and is_certain)


def stage(min_worth: float) -> Filter:
    """Build the filter for a least worth, 0 to keep all that has evidence."""
    return Filter(partial(keep, min_worth=min_worth), reads=("problem", "prompt", "findings"))
