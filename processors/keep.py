"""Drop rows without a substantive prompt, without evidence, or that are hardly worth training on.

reads   problem, prompt, findings, worth, is_best
drops   no_messages, unknown_harness, no_prompt, no_evidence; expected_failure, no_information,
        only_a_slip, service_outage or permission_not_granted when none of it teaches anything;
        hardly_worth_it below `--min-worth`, or below BEST_SHARE of it for the best of a session

The worth of an episode is the probability that a strict reader finds that its prompt can be
understood, that the evidence belongs to it and is real, and that a competent agent could have done
better. A logistic model estimates it from a few properties of the evidence;
benchmarks/fit_worth.py fits its weights to rows that readers have scored.
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
BEST_SHARE = 0.9
INTERCEPT = -1.31
# What each property of `describe` adds to the log-odds.
LOG_ODDS = {
    "faults": 0.33,
    "several_failures": 0.2,
    "fixed_by_edit": 0.27,
    "fixed_at_once": -0.19,
    "failed_edits": -0.13,
    "message_length": 0.04,
    "correction": 0.54,
    "correction_odds": 0.22,
    "shared_words": 0.46,
    "changed_again": 0.27,
}
SEVERAL = 3
# Events from a failure to the result that resolved it.
AT_ONCE = 3
_EDITS = frozenset({"edit", "write"})
_SURE = 0.997
_DIGITS = re.compile(r"\d+")
_WORD = re.compile(r"\w{3,}")
_WORDS_CHARS = 6000


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

    faults            log2 of 1 + the number of distinct failures that the agent caused
    several_failures  there are at least SEVERAL distinct failures
    fixed_by_edit     log2 of 1 + the number of failures that a change of a file resolved
    fixed_at_once     every failure that was resolved was resolved within AT_ONCE events
    failed_edits      log2 of 1 + the number of failed changes of files
    message_length    log2 of 1 + the mean length of the messages, in units of 50 characters
    correction        the user corrected the agent
    correction_odds   the log-odds of the most likely correction
    shared_words      the share of the words of that correction that are also in the request
    changed_again     after a correction the agent changed a file again
    """
    findings: list[Any] = [item for item in row["findings"] if not item["excuse"]]
    failures = [item for item in findings if item["kind"] == "failure"]
    corrections = [item for item in findings if item["kind"] == "correction"]
    # Repeated failures differ in times and counts.
    distinct = {(bool(item["fault"]), _DIGITS.sub("", item["text"])[:300]) for item in failures}
    delays = [item["resolved_at"] - item["event_index"] for item in failures if item["resolved_at"] is not None]
    length = sum(len(item["text"]) for item in failures) / max(len(failures), 1)
    surest = max(corrections, key=_log_odds, default=None)
    words = _split_words(surest["text"]) if surest else set()
    shared = words & _split_words(row["prompt"]) if words else set()
    return {
        "faults": math.log2(1 + sum(is_own for is_own, _ in distinct)),
        "several_failures": float(len({text for _, text in distinct}) >= SEVERAL),
        "fixed_by_edit": math.log2(1 + sum(item["resolved_by"].partition(" ")[0] in _EDITS for item in failures)),
        "fixed_at_once": float(bool(delays) and max(delays) <= AT_ONCE),
        "failed_edits": math.log2(1 + sum(item["tool"] in _EDITS for item in failures)),
        "message_length": math.log2(1 + length / 50),
        "correction": float(bool(corrections)),
        "correction_odds": _log_odds(surest) if surest else 0.0,
        "shared_words": len(shared) / max(len(words), 1),
        "changed_again": float(any(item["fault"] == "again" for item in findings)),
    }


def _log_odds(correction: Any) -> float:
    """Return the log-odds of a correction; a judge gives no probability."""
    probability = _SURE if correction["rule"] == "judge" else min(correction["probability"], _SURE)
    return math.log(probability / (1 - probability))


def _split_words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text[:_WORDS_CHARS])}


def stage(min_worth: float) -> Filter:
    """Build the filter for a least worth, 0 to keep all that has evidence."""
    return Filter(partial(keep, min_worth=min_worth), reads=("problem", "prompt", "findings", "worth", "is_best"))
