"""The stages of the trace filter, top to bottom.

Adding a stage is one file with one STAGE, and one line here.
"""

from pimono_sdpo.schema import Unit
from pimono_sdpo.stage import Stage
from processors import context, evidence, grade, keep, redact, rows


def pipeline(unit: Unit = "session", min_score: float = 0.0) -> tuple[Stage, ...]:
    """Return the stages for one unit of training and one minimum score."""
    return (
        evidence.stage(unit),
        redact.STAGE,
        grade.STAGE,
        keep.stage(min_score),
        context.STAGE,
        rows.STAGE,
    )


PIPELINE = pipeline()
