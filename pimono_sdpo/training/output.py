"""Know what a run's output folder holds: checkpoints, rows, a finished run.

OUTPUT/checkpoint-N   TRL's own, until the run is finished and after
OUTPUT/data           rows filtered by this job, with their report.json
OUTPUT/adapter        the adapter with its card; run.json beside it says that the run is finished
"""

import json
import shutil
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import OutputError

RUN_FILE = "run.json"
REPORT_FILE = "report.json"
ADAPTER = "adapter"
DATA = "data"
# Transformers writes it last, so a checkpoint without it was cut off.
LAST_OF_CHECKPOINT = "trainer_state.json"
Json = dict[str, Any]


def check_output(folder: Path) -> None:
    """Refuse a folder that holds a finished run; raises OutputError."""
    if (folder / RUN_FILE).exists():
        raise OutputError(
            f"`{folder}` holds a finished run; give another --run_name or --output_dir, or "
            "--overwrite to replace it."
        )


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest whole checkpoint of a run; one that was cut off is passed over."""
    whole = [path.parent for path in folder.glob(f"checkpoint-*/{LAST_OF_CHECKPOINT}")]
    return max(whole, key=lambda path: int(path.name.rsplit("-", 1)[1]), default=None)


def clear_output(folder: Path, keep_data: bool) -> None:
    """Remove what an earlier run of this job left, and nothing else."""
    for name in (RUN_FILE, REPORT_FILE):
        (folder / name).unlink(missing_ok=True)
    ours = [folder / ADAPTER, *folder.glob("checkpoint-*")]
    if not keep_data and (folder / DATA / REPORT_FILE).exists():
        ours.append(folder / DATA)
    for path in ours:
        shutil.rmtree(path, ignore_errors=True)


def write_json(content: Json, path: Path) -> None:
    """Write JSON under a temporary name, then rename."""
    temporary = path.with_name(f".{path.name}.partial")
    temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    temporary.replace(path)


def staging_folder(folder: Path) -> Path:
    """Return an empty place for the adapter to be put together in."""
    staging = folder / f".{ADAPTER}.partial"
    shutil.rmtree(staging, ignore_errors=True)
    return staging


def finish(folder: Path, staging: Path, report: Json | None, run: Json) -> None:
    """Give the adapter its name, with the run and the report in it and beside it."""
    for place in (staging, folder):
        if report is not None:
            write_json(report, place / REPORT_FILE)
    write_json(run, staging / RUN_FILE)
    shutil.rmtree(folder / ADAPTER, ignore_errors=True)
    staging.replace(folder / ADAPTER)
    # Last, since it marks the run as finished.
    write_json(run, folder / RUN_FILE)
