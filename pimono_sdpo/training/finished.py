"""Read what a finished run wrote down, whole or not at all."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import OutputError
from pimono_sdpo.training.output import ADAPTER, REPORT_FILE, RUN_FILE, read_object
from pimono_sdpo.training.shapes import REPORT, misfit, run_misfit

Json = dict[str, Any]


def read_finished(output: Path) -> tuple[Json | None, Json]:
    """Return the report, None when the rows had none, and the run log; raises OutputError."""
    if not (output / RUN_FILE).is_file() or not (output / ADAPTER).is_dir():
        raise OutputError(
            f"`{output}` holds no finished run; train first, or give its --run_name or "
            "--output_dir."
        )
    run = _read(output / RUN_FILE, run_misfit)
    report = output / REPORT_FILE
    return _read(report, partial(misfit, shape=REPORT)) if report.exists() else None, run


def _read(path: Path, misfit_of: Callable[[object], str | None]) -> Json:
    content = read_object(path)
    problem = misfit_of(content)
    if content is None or problem:
        raise OutputError(
            f"`{path}` is not as this job writes it (see `{problem}`); train again with "
            "--overwrite or into another folder."
        )
    return content
