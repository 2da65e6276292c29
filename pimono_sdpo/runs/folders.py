"""The folder that a run writes: locked, replaced as a whole, and only if a run published it.

NAME            what the last finished run published
.NAME.partial   where the present run works; it stays after a kill
.NAME.old       the earlier output, for the moment in which the new one takes its name
"""

import errno
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pimono_sdpo.errors import OutputError, PimonoError
from pimono_sdpo.text import replace_surrogates

LOCK = "lock"
REPORT = "report.json"
PART = "part.json"
SUITE = "suite.json"
PICTURES = ("funnel.svg", "scores.svg", "categories.svg", "report.svg")
# The file that tells a folder is ours, and all other files that a run puts there.
PUBLISHED = {
    REPORT: re.compile(
        rf"(README|report)\.md|{SUITE}|{'|'.join(PICTURES)}|traces/[^/]+\.jsonl"
        r"|(data|rejects)/[\w-]+-\d{5}(-of-\d{5})?\.parquet|together/[a-z]+(_meta)?\.jsonl"
    ),
    PART: re.compile(r"(rows|prints|rejects)/\d{5}\.parquet"),
    SUITE: re.compile(r"repos/.+"),
}
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE)
# As libraries in Rust, such as safetensors, end their own errors, and what PyTorch says when it could not write all.
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_TORCH_ERROR = re.compile(r"inline_container.*unexpected pos|PytorchStreamWriter failed writing")


@contextmanager
def only_run(out: Path, mark: str = REPORT, stage: str | None = None) -> Iterator[Path]:
    """Hold the folder to work in for this run alone.

    Only what an earlier run published under the same mark and stage may be there and be replaced.
    """
    work = require_replaceable(out, mark)
    require_stage(out, stage)
    with lock(work / LOCK, out):
        _recover(out)
        try:
            yield work
        except (PimonoError, KeyboardInterrupt):
            if not any(path.is_file() and path.name != LOCK for path in work.rglob("*")):
                remove(work, LOCK)
            raise


@contextmanager
def writing(out: Path, advice: str = "use another folder") -> Iterator[None]:
    """Explain why a file or folder cannot be written."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"Cannot write `{out}` ({error.strerror}); {advice}.") from error


@contextmanager
def lock(file: Path, out: Path) -> Iterator[None]:
    """Hold a lock file, whose folder is made, until the process ends; also explains a full disk."""
    held = FileLock(file, timeout=0)
    with writing(out):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            held.acquire()
        except Timeout as error:
            raise OutputError(f"Another run is writing `{out}`; wait for it, or use another folder.") from error
    try:
        yield
    except Exception as error:
        if (trouble := disk_trouble(error)) is None:
            raise
        raise OutputError(
            f"`{out}` could not be written: {trouble}. Run the same command again to resume; what is finished is kept."
        ) from error
    finally:
        held.release()


def require_replaceable(out: Path, mark: str = REPORT) -> Path:
    """Return the folder in which a run of `out` works; raises OutputError like `only_run`."""
    if not out.name or (out.exists() and not out.is_dir()):
        raise OutputError(f"`{out}` is not a folder that can be replaced; use the name of one.")
    if replace_surrogates(str(out)) != str(out):
        raise OutputError(f"The path `{out}` is not UTF-8, which Arrow cannot write to; use another folder.")
    work = out.with_name(f".{out.name}.partial")
    for folder in (out, _old_folder(out), work):
        if not (folder == work and (work / LOCK).is_file()):
            _refuse_foreign(folder)
    if (found := mark_of(out)) not in (None, mark):
        raise OutputError(f"`{out}` holds another command's {found}; use another folder, or remove it.")
    return work


def require_stage(out: Path, stage: str | None) -> None:
    """Refuse a folder that has the output of another stage; rows of the filter are of None."""
    report = read_json(out / REPORT)
    if report and report.get("stage") != stage:
        raise OutputError(f"`{out}` has the output of another command; give another folder.")


def mark_of(folder: Path) -> str | None:
    """Return the file by which a published folder is known, None when it holds anything else."""
    mark, foreign = _inspect(folder)
    return None if foreign else mark


def _inspect(folder: Path) -> tuple[str | None, str]:
    """Return the file by which a folder is known as published, and one that no run puts into such a folder."""
    mark = next((name for name in PUBLISHED if (folder / name).is_file()), None)
    if not mark or ("tasks" if mark == SUITE else "pimono_sdpo") not in read_json(folder / mark):
        return None, ""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return mark, next((name for name in names if name != mark and not PUBLISHED[mark].fullmatch(name)), "")


def _refuse_foreign(folder: Path) -> None:
    """Raise OutputError when a folder holds a file that no run has put there."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    mark, foreign = _inspect(folder)
    if mark is None or foreign:
        such = f", such as `{foreign}`; move them, or" if foreign else ";"
        raise OutputError(
            f"`{folder}` holds files that no earlier run of this command wrote{such} use another folder."
        )


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; an empty one for a file that is missing, cut off or holds no object."""
    try:
        content = json.loads(path.read_bytes()) if path.is_file() else None
    except ValueError:
        content = None
    return content if isinstance(content, dict) else {}


def disk_trouble(error: Exception) -> str | None:
    """Return why the disk cannot be written and what to do; None for any other error."""
    if isinstance(error, sqlite3.Error):
        # SQLite reports a full disk as either.
        full = getattr(error, "sqlite_errorname", "").startswith(("SQLITE_FULL", "SQLITE_IOERR"))
        return f"{error}; make room" if full else None
    found = _OS_ERROR.search(str(error))
    number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
    if number is None and _TORCH_ERROR.search(str(error)):
        number = errno.EIO
    return f"{os.strerror(number)}; make room, or check the disk" if number in DISK_ERRORS else None


def require_disjoint(given: Path, out: Path) -> None:
    """Raise OutputError when the source and the output lie inside each other."""
    if out.is_relative_to(given) or given.is_relative_to(out):
        raise OutputError(
            f"`{out}` and the source lie inside each other, so a run would read or replace the "
            "wrong files; use another folder."
        )


def _old_folder(out: Path) -> Path:
    return out.with_name(f".{out.name}.old")


def _recover(out: Path) -> None:
    """Finish what a kill between the two renames of `publish_folder` interrupted."""
    old = _old_folder(out)
    if old.exists() and out.exists():
        remove(old, mark_of(old) or REPORT)
    elif old.exists():
        old.replace(out)


def remove(folder: Path, mark: str) -> None:
    """Remove a folder, its mark last: after a kill in between, it is still known as ours."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir(), key=lambda path: path.name == mark):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    folder.rmdir()


def make_output(work: Path, *folders: str) -> Path:
    """Return WORK/out with these empty folders, without what a run that was killed left there."""
    finished = work / "out"
    shutil.rmtree(finished, ignore_errors=True)
    for name in ("", *folders):
        (finished / name).mkdir(parents=True, exist_ok=True)
    return finished


def publish_folder(finished: Path, out: Path, report: object = None) -> None:
    """Give WORK/out its name, with its report, in place of an earlier output; remove WORK."""
    if report is not None:
        (finished / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    if out.exists():
        # What came there during the run.
        _refuse_foreign(out)
        out.replace(_old_folder(out))
    finished.replace(out)
    _recover(out)
    remove(finished.parent, LOCK)
