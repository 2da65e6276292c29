"""The folder a run writes: held by one run at a time, replaced as a whole, only if ours.

NAME            what the last finished run published
.NAME.partial   where the present run works; it stays after a kill
.NAME.old       the earlier output, for the moment in which the new one takes its name
"""

import errno
import fcntl
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pimono_sdpo.errors import OutputError

LOCK = "lock"
REPORT = "report.json"
PART = "part.json"
SUITE = "suite.json"
PICTURES = ("funnel.png", "scores.png", "categories.png", "report.png")
# The file that tells a folder is ours, and all else that may be in such a folder.
PUBLISHED = {
    REPORT: frozenset(
        {
            *(REPORT, "README.md", "report.md", "suite.json", *PICTURES),
            *("data", "rejects", "traces", "together"),
        }
    ),
    PART: frozenset({PART, "rows", "prints", "rejects", "done"}),
    SUITE: frozenset({SUITE, "repos"}),
}
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
BROKEN_DISK = (errno.EIO, errno.EROFS, errno.ESTALE)


@contextmanager
def only_run(out: Path, mark: str = REPORT) -> Iterator[Path]:
    """Hold the folder to work in for this run alone; raises OutputError when that cannot be.

    Only what an earlier run published under the same mark may be there and be replaced. The lock
    goes with the process, however it ends.
    """
    work = _work_folder(out, mark)
    with held(work / LOCK, out):
        _recover(out)
        try:
            yield work
        except (OSError, sqlite3.Error) as error:
            trouble = disk_trouble(error) if work.is_dir() else "the folder is gone;"
            if trouble is None:
                raise
            raise OutputError(
                f"`{work}` could not be written: {trouble} and run again; what is finished waits."
            ) from error


@contextmanager
def held(lock_file: Path, out: Path) -> Iterator[None]:
    """Hold a lock for one run at a time; raises OutputError, which names `out`.

    The folder of the lock is made. The lock goes with the process, however it ends.
    """
    try:
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_file.open("w")
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
        yield


def _work_folder(out: Path, mark: str) -> Path:
    if out.exists() and not out.is_dir():
        raise OutputError(f"`{out}` is a file; give the name of a folder that may be replaced.")
    if not out.name:
        raise OutputError(f"`{out}` cannot be replaced; give the name of a folder.")
    work = out.with_name(f".{out.name}.partial")
    for folder, is_ours in (
        (out, mark_of(out) is not None),
        (_old_folder(out), mark_of(_old_folder(out)) is not None),
        (work, (work / LOCK).is_file()),
    ):
        if folder.is_dir() and any(folder.iterdir()) and not is_ours:
            raise OutputError(
                f"`{folder}` holds files that are not of an earlier filter run; give another "
                "folder to write to."
            )
    if out.exists() and mark_of(out) not in (None, mark):
        held = {PART: "a part of a divided run", SUITE: "a task suite"}.get(
            mark_of(out) or "", "the rows of a whole run"
        )
        raise OutputError(f"`{out}` holds {held}; give another folder, or remove it.")
    return work


def mark_of(folder: Path) -> str | None:
    """The file that tells that a run of ours published this folder, which holds nothing else."""
    for mark, published in PUBLISHED.items():
        if (folder / mark).is_file() and {path.name for path in folder.iterdir()} <= published:
            content = read_json(folder / mark)
            ours = "tasks" if mark == SUITE else "pimono_sdpo"
            return mark if isinstance(content, dict) and ours in content else None
    return None


def read_json(path: Path) -> object:
    """Return what a JSON file holds, None when it is no JSON: somebody else's."""
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


def disk_trouble(error: OSError | sqlite3.Error) -> str | None:
    """Say what a disk has against being written and what to do; None when it is something else."""
    if isinstance(error, sqlite3.Error):
        # The low byte; a disk without room is told as either.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        full = code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
        return f"{error}; make room" if full else None
    if error.errno in NO_ROOM:
        return f"{os.strerror(error.errno)}; make room"
    return f"{os.strerror(error.errno)}; mend the disk" if error.errno in BROKEN_DISK else None


def apart(given: Path, out: Path) -> None:
    """Raise OutputError when what is read and what is written lie inside each other."""
    if out.is_relative_to(given) or given.is_relative_to(out):
        raise OutputError(
            f"`{out}` and the source lie inside each other, where a run would read or replace the "
            "wrong files; give another folder."
        )


def another_part(out: Path, part: tuple[int, int]) -> None:
    """Raise OutputError when a folder holds another part than this one."""
    there = read_json(out / PART) if mark_of(out) == PART else None
    if isinstance(there, dict) and (there["part"], there["parts"]) != part:
        raise OutputError(
            f"`{out}` holds part {there['part']} of {there['parts']}; give each part a folder of "
            "its own."
        )


def _old_folder(out: Path) -> Path:
    return out.with_name(f".{out.name}.old")


def _recover(out: Path) -> None:
    """Finish what a kill between the two renames of `publish_folder` has left."""
    old = _old_folder(out)
    if not old.exists():
        return
    if out.exists():
        remove(old, mark_of(old) or REPORT)
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
