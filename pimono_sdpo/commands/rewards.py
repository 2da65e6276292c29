"""Score stored completions with verifiers."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def run_rescore(
    source: str, out: Path, gates: Sequence[str], graded: Sequence[str], workers: int | None = None
) -> Json:
    """Score the completions of `source` under `out` and return the report.

    `workers` are threads; without a number there are as many as CPUs.

    Raises SourceError, OutputError or EmptySelection.
    """
    from pimono_sdpo.runs.folders import apart
    from rewards.rescore import rescore_dataset, rubric_of

    rubric = rubric_of(gates, graded)
    if Path(source).exists():
        apart(Path(source).resolve(), out.resolve())
    return rescore_dataset(source, out, rubric, workers or os.cpu_count() or 1)
