"""Parse a judge's reply: scores of both responses, a verdict, a reason, or what is wrong with it.

Time is linear in the reply, whatever it holds.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from pimono_sdpo.schema import DUEL_METRICS
from pimono_sdpo.text import replace_surrogates

Side = Literal["A", "B", "tie"]
# The last braces are enough for an object with two objects inside; trying all of them would take
# quadratic time on a hostile reply.
BRACES = 24
HIGHEST = 10
REASON_CHARS = 2_000
# Not strict: judges write line breaks into their reasons.
_DECODER = json.JSONDecoder(strict=False)
_OPENS = re.compile(r"\{")


@dataclass(frozen=True)
class Verdict:
    """Scores by metric of the response shown first and of the one shown second."""

    first: dict[str, float]
    second: dict[str, float]
    verdict: Side
    reason: str


def read_verdict(text: str) -> Verdict | str:
    """Return the last object with `A` and `B` in a reply, or in a few words what is wrong with it.

    >>> read_verdict("I prefer A.")
    'no JSON object with "A" and "B"'
    """
    starts = [match.start() for match in _OPENS.finditer(text)]
    fault, last = 'no JSON object with "A" and "B"', 0
    for start in reversed(starts[-BRACES:]):
        try:
            found, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        if not isinstance(found, dict) or "A" not in found or "B" not in found:
            continue
        if end < last:
            break  # before the last object, not around it
        read = _check_object(found)
        if isinstance(read, Verdict):
            return read
        fault, last = read, end
    return fault


def _check_object(found: dict[str, Any]) -> Verdict | str:
    sides = []
    for name in ("A", "B"):
        scores = _read_scores(found[name])
        if isinstance(scores, str):
            return f'"{name}" {scores}'
        sides.append(scores)
    verdict = str(found.get("verdict", "")).strip().lower()
    verdicts: dict[str, Side] = {"a": "A", "b": "B", "tie": "tie"}
    if verdict not in verdicts:
        return 'no "verdict" of "A", "B" or "tie"'
    reason = found.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        return 'no "reason"'
    reason = replace_surrogates(reason).strip()[:REASON_CHARS]
    return Verdict(sides[0], sides[1], verdicts[verdict], reason)


def _read_scores(given: object) -> dict[str, float] | str:
    if not isinstance(given, dict):
        return "is no object of metrics"
    scores = {}
    for name in DUEL_METRICS:
        value = given.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or not is_number or not 0 <= value <= HIGHEST or value % 1:
            return f'has no whole number from 0 to {HIGHEST} for "{name}"'
        scores[name] = float(value)
    return scores
