"""The output folder of a run: what it holds, and replacing only what an earlier run left there.

OUTPUT/run-local.json  what the training was started with; marks OUTPUT as ours, never published
OUTPUT/checkpoint-N    TRL's own, until the run is finished and after
OUTPUT/best            the adapter of the checkpoint with the best rewards, never published
OUTPUT/left-out.json   rows that could not be trained on, with their reasons
OUTPUT/data            rows filtered by this job, with their report.json
OUTPUT/adapter         the adapter with its card; run.json beside it says that the run is finished
OUTPUT/.train.lock     held by the run that is at work here, gone with it
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import OutputError, PimonoError
from pimono_sdpo.training.run_schema import REPORT, misfit, run_misfit

RUN_FILE = "run.json"
REPORT_FILE = "report.json"
LOCAL_FILE = "run-local.json"
PROBE_FILE = "probe.safetensors"
LEFT_OUT_FILE = "left-out.json"
ADAPTER = "adapter"
STAGING = ".adapter.partial"
# What the run log names as the end of a training that can be resumed.
CUT_SHORT = "time_limit"
# The adapter of the checkpoint where the reward was best, see guards.py.
BEST = "best"
BEST_PARTIAL = ".best.partial"
DATA = "data"
# Where an overwriting run keeps its rows until nothing can stop it from starting.
NEXT_DATA = ".data.next"
LOCK = ".train.lock"
# The mark goes last, so that a half-cleared folder is still known as ours.
FILES = (REPORT_FILE, PROBE_FILE, LEFT_OUT_FILE, RUN_FILE, LOCAL_FILE)
CHECKPOINT = re.compile(r"checkpoint-\d+")
# Transformers writes it last, so a checkpoint without it is incomplete.
LAST_OF_CHECKPOINT = "trainer_state.json"
Json = dict[str, Any]


def read_object(path: Path) -> Json | None:
    """Return the JSON object of a file, None without one."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        # Incomplete, or not ours.
        return None
    return content if isinstance(content, dict) else None


def is_ours(file: Path) -> bool:
    """Tell whether this project wrote the JSON file."""
    return "pimono_sdpo" in (read_object(file) or {})


def check_output(folder: Path, overwrite: bool = False) -> None:
    """Refuse a folder that cannot be written, or that holds a finished run or foreign files."""
    _check_place(folder)
    foreign = [path.name for path in sorted(folder.glob("*")) if _is_foreign(path)]
    if foreign:
        raise OutputError(
            f"`{folder}` holds `{foreign[0]}`, which no run of this job has left there; move it, "
            "or give another --run-name or --output_dir."
        )
    if (folder / RUN_FILE).exists() and not overwrite and not was_cut_short(folder):
        raise OutputError(
            f"`{folder}` holds a finished run; give another --run-name or --output_dir, or "
            "--overwrite to replace it."
        )


def was_cut_short(folder: Path) -> bool:
    """Tell whether the time limit ended the run in a folder before its last step."""
    guards = (read_object(folder / RUN_FILE) or {}).get("guards")
    return isinstance(guards, dict) and guards.get("stopped_by") == CUT_SHORT


def reopen(folder: Path) -> None:
    """Resume a run that was cut short: the adapter goes first, or `finalize` would restore it."""
    if was_cut_short(folder):
        if (folder / ADAPTER).is_dir():
            _remove(folder / ADAPTER, RUN_FILE)
        (folder / RUN_FILE).unlink()


def _check_place(folder: Path) -> None:
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise OutputError(f"`{there}` is a file; give the name of a folder as --output_dir.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"`{there}` cannot be written; give another --output_dir.")


def _is_foreign(path: Path) -> bool:
    """Tell whether a run would take this for its own although it is not."""
    if path.name == ADAPTER:
        ours = is_ours(path / RUN_FILE) and not path.is_symlink()
    elif path.name in (*FILES, STAGING, BEST, BEST_PARTIAL) or CHECKPOINT.fullmatch(path.name):
        ours = is_ours(path.parent / LOCAL_FILE) or is_ours(path.parent / RUN_FILE)
    else:
        return False
    there = path.exists() or path.is_symlink()
    return there and not ours and not _is_empty(path)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def check_data(folder: Path) -> None:
    """Refuse to replace data that this job did not make."""
    data = folder / DATA
    if data.exists() and not _is_empty(data) and not is_ours(data / REPORT_FILE):
        raise OutputError(
            f"`{data}` holds files that are not of an earlier filter run; give another --run-name "
            "or --output_dir."
        )


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold the output folder for this run alone; raises OutputError when another one is at work.

    The lock is released with the process, however it ends.
    """
    _check_place(folder)
    path = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = path.open("a")
    except OSError as error:
        raise OutputError(
            f"`{folder}` cannot be written ({error.strerror}); give another --output_dir."
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _busy(folder) from error
        except OSError as error:
            raise OutputError(
                f"The disk of `{folder}` cannot lock files ({error.strerror}); give another "
                "--output_dir."
            ) from error
        # The run before may have removed the file after it was opened here.
        if not path.exists() or not os.path.samestat(path.stat(), os.fstat(lock.fileno())):
            raise _busy(folder)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _busy(folder: Path) -> OutputError:
    return OutputError(
        f"Another run is at work in `{folder}`; wait for it, or give another --run-name or "
        "--output_dir."
    )


@contextmanager
def leave_as_found(folder: Path) -> Iterator[None]:
    """Remove empty folders, and rows prepared for a run that cannot start."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    except PimonoError:
        drop_next_data(folder)
        raise
    finally:
        for place in new:
            if _is_empty(place):
                place.rmdir()


def drop_next_data(folder: Path) -> None:
    """Remove rows that were prepared for a run that does not take place."""
    if is_ours(folder / NEXT_DATA / REPORT_FILE):
        shutil.rmtree(folder / NEXT_DATA)


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of a run."""
    whole = [
        path
        for path in folder.glob("checkpoint-*")
        if CHECKPOINT.fullmatch(path.name) and read_object(path / LAST_OF_CHECKPOINT)
    ]
    return max(whole, key=lambda path: int(path.name.rsplit("-", 1)[1]), default=None)


def clear_output(folder: Path, keep_data: bool) -> None:
    """Remove what an earlier run of this job left, and nothing else; see check_output.

    Rows made for the new run take their place.
    """
    try:
        ours = [folder / name for name in (STAGING, BEST, BEST_PARTIAL)]
        for path in [*ours, *folder.glob("checkpoint-*"), folder / ADAPTER]:
            if path.is_dir() and not _is_foreign(path):
                _remove(path, RUN_FILE)
        if not keep_data and is_ours(folder / DATA / REPORT_FILE):
            _remove(folder / DATA, REPORT_FILE)
        if is_ours(folder / NEXT_DATA / REPORT_FILE):
            (folder / NEXT_DATA).replace(folder / DATA)
        for path in [folder / name for name in FILES]:
            if path.is_file() and not _is_foreign(path):
                path.unlink()
    except OSError as error:
        raise OutputError(
            f"What `{folder}` holds cannot be replaced ({error.strerror}); give another "
            "--output_dir."
        ) from error


def _remove(folder: Path, mark: str) -> None:
    """Remove a folder, its mark last, so that after a kill it is still known as ours."""
    for path in folder.iterdir():
        if path.name == mark:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    shutil.rmtree(folder)


def write_json(content: Json, path: Path) -> None:
    """Write JSON under a temporary name, then rename."""
    _write(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", path)


def _write(text: str, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    temporary.write_text(text)
    temporary.replace(path)


def begin(folder: Path, local: Json) -> None:
    """Write down what the training starts with; from here on OUTPUT is ours."""
    folder.mkdir(parents=True, exist_ok=True)
    reopen(folder)
    write_json(local, folder / LOCAL_FILE)


def staging_folder(folder: Path) -> Path:
    """Return an empty folder for assembling the adapter."""
    staging = folder / STAGING
    if staging.exists():
        shutil.rmtree(staging)
    return staging


def finish(folder: Path, staging: Path, report: Json | None, run: Json) -> None:
    """Give the adapter its name, with the run and the report in it and beside it."""
    if report is not None:
        write_json(report, staging / REPORT_FILE)
    # Last, since it marks the folder as complete.
    write_json(run, staging / RUN_FILE)
    finalize(folder)


def finalize(folder: Path) -> None:
    """Give a complete adapter its name; this also finishes what a kill has interrupted."""
    staging, adapter = folder / STAGING, folder / ADAPTER
    if is_ours(staging / RUN_FILE):
        if _is_foreign(adapter):
            raise OutputError(
                f"`{adapter}` is not of this run, and the trained adapter is in `{staging}`; "
                "move `adapter` away and start again with the same arguments."
            )
        if adapter.exists():
            _remove(adapter, RUN_FILE)
        staging.replace(adapter)
    if is_ours(adapter / RUN_FILE) and not (folder / RUN_FILE).exists():
        # run.json last, since it marks the run as finished.
        for name in (REPORT_FILE, RUN_FILE):
            if (adapter / name).is_file():
                _write((adapter / name).read_text(), folder / name)


def read_finished(output: Path) -> tuple[Json | None, Json]:
    """Return the report of the rows, if any, and the run log; raises OutputError."""
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
