"""The output folder of a run: lock it, find its newest intact checkpoint, write and clear its files.

OUTPUT/run-local.json  the arguments that the training was started with; never published
OUTPUT/checkpoint-N    TRL's checkpoints, which stay after the run
OUTPUT/best            the adapter of the checkpoint with the best rewards; never published
OUTPUT/left-out.json   rows that could not be trained on, with the reasons
OUTPUT/data            rows filtered by this job, with their report.json
OUTPUT/adapter         the adapter with its card; once the run is finished, run.json lies beside it
OUTPUT/.train.lock     the lock of a running training

A folder with run.json or run-local.json was written by a run and may be replaced by one.
"""

import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from pimono_sdpo.errors import OutputError
from pimono_sdpo.runs.folders import lock, read_json

RUN_FILE = "run.json"
REPORT_FILE = "report.json"
LOCAL_FILE = "run-local.json"
PROBE_FILE = "probe.safetensors"
LEFT_OUT_FILE = "left-out.json"
ADAPTER = "adapter"
WEIGHTS = ("adapter_model.safetensors", "adapter_config.json")
STAGING = ".adapter.partial"
# The value of `stopped_by` in the run log of a training that can be resumed.
CUT_SHORT = "time_limit"
# The adapter of the checkpoint with the best reward, see guards.py.
BEST = "best"
BEST_PARTIAL = ".best.partial"
DATA = "data"
LOCK = ".train.lock"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
# Transformers writes it last, so a checkpoint without it is incomplete.
LAST_OF_CHECKPOINT = "trainer_state.json"
# Besides checkpoints; the files by which OUTPUT is recognised are last, so that they are removed last.
WRITTEN = (ADAPTER, STAGING, BEST, BEST_PARTIAL, REPORT_FILE, PROBE_FILE, LEFT_OUT_FILE, RUN_FILE, LOCAL_FILE)
Json = dict[str, Any]


def read_written(path: Path) -> Json:
    """Return a report or run log that this package wrote; raises OutputError."""
    content = read_json(path)
    if "pimono_sdpo" not in content:
        raise OutputError(f"`{path}` was not written by pimono-sdpo; run the command that makes it again.")
    return content


def check_output(folder: Path, overwrite: bool = False) -> None:
    """Raise OutputError when a folder holds a finished run, or files that no run has written."""
    is_ours = any("pimono_sdpo" in read_json(folder / name) for name in (RUN_FILE, LOCAL_FILE))
    foreign = [path.name for path in _list_written(folder) if not (is_ours or _is_empty(path))]
    alternative = "give another --run-name or --output_dir"
    if foreign:
        raise OutputError(
            f"`{folder}` holds `{foreign[0]}`, which no training has written; move it, or {alternative}."
        )
    if (folder / RUN_FILE).exists() and not overwrite and not was_cut_short(folder):
        raise OutputError(f"`{folder}` holds a finished run; {alternative}, or --overwrite to replace it.")


def was_cut_short(folder: Path) -> bool:
    """Return whether the time limit ended the run in a folder before its last step."""
    guards = read_json(folder / RUN_FILE).get("guards", {})
    return bool(guards.get("stopped_by") == CUT_SHORT)


def _list_written(folder: Path) -> list[Path]:
    """Return the files and folders with names that a run gives."""
    checkpoints = [path for path in folder.glob("checkpoint-*") if CHECKPOINT.fullmatch(path.name)]
    return [*checkpoints, *filter(Path.exists, map(folder.joinpath, WRITTEN))]


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Lock the output folder; new folders that stay empty are removed."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with lock(folder / LOCK, folder):
            try:
                yield
            finally:
                (folder / LOCK).unlink(missing_ok=True)
    finally:
        for path in filter(_is_empty, new):
            path.rmdir()


def last_checkpoint(folder: Path, damaged: dict[str, str] | None = None) -> Path | None:
    """Return the newest intact checkpoint; add newer, damaged ones and a damaged file of each to `damaged`."""
    numbered = {
        int(match[1]): path for path in folder.glob("checkpoint-*") if (match := CHECKPOINT.fullmatch(path.name))
    }
    for _, checkpoint in sorted(numbered.items(), reverse=True):
        if not read_json(checkpoint / LAST_OF_CHECKPOINT):
            continue
        file = next(filter(_is_damaged, sorted(checkpoint.rglob("*"))), None)
        if file is None:
            return checkpoint
        if damaged is not None:
            damaged[checkpoint.name] = file.relative_to(checkpoint).as_posix()
    return None


def _is_damaged(path: Path) -> bool:
    """Return whether a file of weights or optimizer state cannot be read."""
    try:
        if path.suffix == ".safetensors":
            # This compares the sizes in the header with the size of the file.
            with safe_open(path, "pt"):
                return False
        return path.suffix in (".pt", ".pth") and zipfile.ZipFile(path).testzip() is not None
    except (OSError, SafetensorError, zipfile.BadZipFile):
        return True


def clear_output(folder: Path) -> None:
    """Remove the files of an earlier run, and nothing else; see check_output."""
    for path in _list_written(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def write_json(content: Json, path: Path) -> None:
    """Write JSON atomically: under a temporary name, which is then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    temporary.write_text(f"{text}\n")
    temporary.replace(path)


def begin(folder: Path, local: Json) -> None:
    """Record what the training starts or resumes with; from here on OUTPUT may be replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(local, folder / LOCAL_FILE)
    if was_cut_short(folder):
        (folder / RUN_FILE).unlink()


def finish(folder: Path, report: Json | None, run: Json) -> None:
    """Move the adapter from STAGING to ADAPTER, and write run log and report into it and beside it.

    A run that is killed here resumes from its last checkpoint and finishes again.
    """
    _write_logs(folder / STAGING, report, run)
    shutil.rmtree(folder / ADAPTER, ignore_errors=True)
    (folder / STAGING).replace(folder / ADAPTER)
    _write_logs(folder, report, run)


def _write_logs(folder: Path, report: Json | None, run: Json) -> None:
    if report is not None:
        write_json(report, folder / REPORT_FILE)
    # Last, since it marks the run as finished.
    write_json(run, folder / RUN_FILE)


def read_finished(output: Path) -> Json:
    """Return the run log of a training; raises OutputError."""
    if not (output / RUN_FILE).is_file() or not (output / ADAPTER).is_dir():
        raise OutputError(f"`{output}` holds no finished run; train first.")
    return read_written(output / RUN_FILE)
