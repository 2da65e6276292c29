"""The stages of the trace filter, in order.

A new stage is one file with a STAGE, and one line here.
"""

from pimono_sdpo.schema import Unit
from pimono_sdpo.stage import Stage
from processors import context, evidence, grade, keep, names, redact, rows, split, threshold


def pipeline(
    unit: Unit = "session",
    min_score: float = 0.0,
    test_fraction: float = 0.0,
    history_chars: int = 0,
) -> tuple[Stage, ...]:
    """Return the stages for one unit of training, minimum score, test share and history."""
    return (
        evidence.stage(unit, history_chars),
        split.stage(test_fraction),
        names.STAGE,
        keep.STAGE,
        redact.STAGE,
        grade.STAGE,
        threshold.stage(min_score),
        context.STAGE,
        rows.STAGE,
    )


PIPELINE = pipeline()
