"""The folder a filter run writes: held by one run at a time, replaced as a whole, only if ours.

NAME            what the last finished run published
.NAME.partial   where the present run works; it stays after a kill
.NAME.old       the earlier output, for the moment in which the new one takes its name
"""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pimono_sdpo.errors import OutputError

LOCK = "lock"
REPORT = "report.json"
PUBLISHED = frozenset({"README.md", "data", "rejects", REPORT, "report.png"})


@contextmanager
def only_run(out: Path) -> Iterator[Path]:
    """Hold the folder to work in for this run alone; raises OutputError when that cannot be.

    The lock goes with the process, however it ends.
    """
    work = _work_folder(out)
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = (work / LOCK).open("w")
    except OSError as error:
        raise OutputError(
            f"`{out}` cannot be written ({error.strerror}); give another folder."
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputError(
                f"Another run is writing `{out}`; wait for it, or give another folder."
            ) from error
        _recover(out)
        yield work


def _work_folder(out: Path) -> Path:
    if out.exists() and not out.is_dir():
        raise OutputError(f"`{out}` is a file; give the name of a folder that may be replaced.")
    if not out.name:
        raise OutputError(f"`{out}` cannot be replaced; give the name of a folder.")
    work = out.with_name(f".{out.name}.partial")
    for folder, is_ours in (
        (out, _is_finished(out)),
        (_old_folder(out), _is_finished(_old_folder(out))),
        (work, (work / LOCK).is_file()),
    ):
        if folder.is_dir() and any(folder.iterdir()) and not is_ours:
            raise OutputError(
                f"`{folder}` holds files that are not of an earlier filter run; give another "
                "folder to write to."
            )
    return work


def _is_finished(folder: Path) -> bool:
    """Tell whether a folder holds what a run of ours published, and nothing else."""
    report = folder / REPORT
    if not report.is_file() or not {path.name for path in folder.iterdir()} <= PUBLISHED:
        return False
    try:
        content = json.loads(report.read_bytes())
    except ValueError:
        # Somebody else's report.
        return False
    return isinstance(content, dict) and "pimono_sdpo" in content


def _old_folder(out: Path) -> Path:
    return out.with_name(f".{out.name}.old")


def _recover(out: Path) -> None:
    """Finish what a kill between the two renames of `publish_folder` has left."""
    old = _old_folder(out)
    if not old.exists():
        return
    if out.exists():
        remove(old, REPORT)
    else:
        old.replace(out)


def remove(folder: Path, mark: str) -> None:
    """Remove a folder of ours, its mark last: killed in between, it is still known as ours."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name == mark):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    folder.rmdir()


def publish_folder(finished: Path, out: Path) -> None:
    """Give a finished folder its name; an earlier output is replaced as a whole."""
    if out.exists():
        out.replace(_old_folder(out))
    finished.replace(out)
    _recover(out)
