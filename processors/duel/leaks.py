"""Name the terms of an answer that only the hidden information holds.

An agent that is blind to the pull request cannot know its file names, identifiers and codes before
it has seen them: an answer that uses them was not given blind.
"""

from collections.abc import Iterable

from processors.terms import KINDS, MAX_LENGTH, tokens_of

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
    found = {term: None for kind in KINDS for term in map(_spelled, tokens_of(kind, answer))}
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
