"""Scores of stored completions, and of the correction model."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import SourceError

Json = dict[str, Any]


def run_rescore(
    source: str, out: Path, gates: Sequence[str], graded: Sequence[str], workers: int | None = None
) -> Json:
    """Score the completions of `source` under `out` and return the report.

    `workers` are threads; without a number there are as many as CPUs.

    Raises SourceError, OutputError or EmptySelection.
    """
    from pimono_sdpo.runs.folders import require_disjoint
    from rewards.rescore import rescore_dataset, rubric_of

    rubric = rubric_of(gates, graded)
    if Path(source).exists():
        require_disjoint(Path(source).resolve(), out.resolve())
    return rescore_dataset(source, out, rubric, workers or os.cpu_count() or 1)


def evaluate_corrections(labels: Path, traces: Path) -> str:
    """Measure the correction model, each author left out in turn; return a table."""
    from processors.corrections import evaluate as evaluation

    for path in (labels, traces):
        if not path.exists():
            raise SourceError(f"`{path}` does not exist; give the labels and their traces.")
    return evaluation.render(evaluation.evaluate_corrections(labels, traces))
