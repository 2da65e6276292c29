"""Drop rows that score less than `--min-score`.

reads   score
drops   below_min_score
"""

from functools import partial

from pimono_sdpo.stage import Filter, Row


def check_score(row: Row, min_score: float) -> str | None:
    """Return why a row is dropped; None keeps it."""
    return "below_min_score" if row["score"] < min_score else None


def stage(min_score: float) -> Filter:
    """Build the filter for a minimum score."""
    return Filter(partial(check_score, min_score=min_score), reads=("score",))
