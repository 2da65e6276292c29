"""Keep rows with a substantive prompt, concrete evidence and enough score.

reads   problem, prompt, categories, score
drops   no_messages, unknown_harness, no_prompt, no_evidence, below_min_score
"""

from functools import partial

from pimono_sdpo.stage import Filter, Row


def keep(row: Row, min_score: float) -> str | None:
    """Say why a row is dropped; None keeps it."""
    if row["problem"]:
        return str(row["problem"])
    if not row["prompt"]:
        return "no_prompt"
    if not row["categories"]:
        return "no_evidence"
    return "below_min_score" if row["score"] < min_score else None


def stage(min_score: float) -> Filter:
    """Build the filter for a minimum score."""
    return Filter(
        partial(keep, min_score=min_score), reads=("problem", "prompt", "categories", "score")
    )
