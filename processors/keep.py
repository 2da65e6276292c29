"""Drop rows without a substantive prompt or without evidence that can teach; rate the others.

reads   problem, prompt, findings, worth
drops   no_messages, unknown_harness, no_prompt, no_evidence; expected_failure, no_information,
        only_a_slip, service_outage or permission_not_granted when none of it teaches anything;
        hardly_worth_it below `--min-worth`
"""

import math
import re
from functools import partial

from pimono_sdpo.stage import Filter, Row

_REASONS = {
    "expected": "expected_failure",
    "no_information": "no_information",
    "slip": "only_a_slip",
    "outside": "service_outage",
    "not_granted": "permission_not_granted",
}
# Of 1,033 rows of tests/data/evidence/worth.csv that could be read again, readers called 29 % worth training on where
# even the two turns before the request are short, and 38 % of the others.
SHORT_LEAD_IN = 0.25
_DIGITS = re.compile(r"\d+")


def keep(row: Row, min_worth: float | None = None) -> str | None:
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
    return "hardly_worth_it" if min_worth is not None and row["worth"] < min_worth else None


def rate(row: Row, is_clear: bool) -> float:
    """Return the worth of the evidence that is not excused; `is_clear`, if the prompt says what is asked.

    log2(1 + distinct failures that the agent caused) + 2 x the probability of the likeliest correction
    """
    findings = [item for item in row["findings"] if not item["excuse"]]
    # Repeated failures differ in times and counts.
    own = {_DIGITS.sub("", item["text"])[:300] for item in findings if item["kind"] == "failure" and item["fault"]}
    likeliest = max((item["probability"] for item in findings if item["kind"] == "correction"), default=0.0)
    worth = math.log2(1 + len(own)) + 2 * likeliest - (0.0 if is_clear else SHORT_LEAD_IN)
    return round(max(worth, 0.0), 3) if findings else 0.0


def stage(min_worth: float | None) -> Filter:
    """Build the filter for a least worth, None to keep all that has evidence."""
    return Filter(partial(keep, min_worth=min_worth), reads=("problem", "prompt", "findings", "worth"))
