"""Parse a judge's reply: scores of both responses, a verdict, a reason, or a parse error.

An agent that is blind to the pull request cannot know its file names, identifiers and codes before
it has seen them: an answer that uses them was not given blind.

Time is linear in the reply, whatever it holds.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pimono_sdpo.schema import DUEL_METRICS
from pimono_sdpo.text import replace_surrogates
from processors.salient_tokens import KINDS, MAX_LENGTH, find_tokens

# Shorter ones are in any two texts.
SHORTEST = 4
MOST = 32


def leaked_terms(answer: str, hidden: str, visible: Iterable[str]) -> list[str]:
    """Return the lower-cased terms, in order of appearance, at most MOST.

    A term is no leak when what is visible holds it, or holds the last part of a path.

    >>> hidden = "--- a/src/flush_guard.py\\n+flush_pending_rows(buffer)"
    >>> leaked_terms("Look at src/flush_guard.py", hidden, ["Rows are lost in src/parser.py"])
    ['src/flush_guard.py']
    >>> leaked_terms("Look at src/flush_guard.py", hidden, ["$ ls src\\nflush_guard.py parser.py"])
    []
    """
    only_there = hidden.lower()
    seen = "\n".join(visible).lower()
    found = {term: None for kind in KINDS for term in map(_spelled, find_tokens(kind, answer))}
    told = [term for term in found if SHORTEST <= len(term) <= MAX_LENGTH and term in only_there]
    leaks = [term for term in told if term not in seen and _last(term) not in seen]
    # A part of another leak is not one of its own.
    whole = [term for term in leaks if not any(term != one and term in one for one in leaks)]
    return sorted(whole, key=answer.lower().find)[:MOST]


def _spelled(term: str) -> str:
    return term.lower().strip("./@-")


def _last(term: str) -> str:
    """The file of a path; a place in it stays with it."""
    return term.rpartition("/")[2]


Side = Literal["A", "B", "tie"]
# Of an object with two objects inside, the last braces are enough; more would cost a hostile reply
# the square of its length.
BRACES = 24
HIGHEST = 10
REASON_CHARS = 2_000
# Not strict: judges put line ends into their reasons.
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
    """The last object in a reply that has `A` and `B`, or what is wrong with it in a few words.

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
            break  # one before the last, not around it
        read = _checked(found)
        if isinstance(read, Verdict):
            return read
        fault, last = read, end
    return fault


def _checked(found: dict[str, Any]) -> Verdict | str:
    sides = []
    for name in ("A", "B"):
        scores = _scores(found[name])
        if isinstance(scores, str):
            return f'"{name}" {scores}'
        sides.append(scores)
    said = str(found.get("verdict", "")).strip().lower()
    verdicts: dict[str, Side] = {"a": "A", "b": "B", "tie": "tie"}
    if said not in verdicts:
        return 'no "verdict" of "A", "B" or "tie"'
    reason = found.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        return 'no "reason"'
    told = replace_surrogates(reason).strip()[:REASON_CHARS]
    return Verdict(sides[0], sides[1], verdicts[said], told)


def _scores(given: object) -> dict[str, float] | str:
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
