"""Lock the output folder of a run, and replace it atomically if an earlier run wrote it.

NAME            the output of the last finished run
.NAME.partial   the working folder of the current run; it stays after a kill
.NAME.old       the earlier output while the new one is renamed
"""

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import OutputError, PimonoError
from pimono_sdpo.text import replace_surrogates

LOCK = "lock"
# The folder of parts in a working folder.
PARTS = "parts"
REPORT = "report.json"
SUITE = "suite.json"
# The plots of an earlier version, and that of a duel.
PICTURES = ("funnel.svg", "scores.svg", "categories.svg", "report.svg")
# The mark of a published folder, and the pattern of all other files that a run writes into it.
PUBLISHED = {
    REPORT: re.compile(
        rf"(README|report)\.md|{SUITE}|{'|'.join(PICTURES)}|traces/[^/]+\.jsonl"
        r"|(data|rejects)/[\w-]+-\d{5}(-of-\d{5})?\.parquet|together/[a-z]+(_meta)?\.jsonl"
    ),
    SUITE: re.compile(r"repos/.+"),
}
# How file systems without locks answer, such as some mounts of remote storage.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE)
# How Rust libraries such as safetensors report errors of the system, and how PyTorch reports a failed write.
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_TORCH_ERROR = re.compile(r"inline_container.*unexpected pos|PytorchStreamWriter failed writing")


@contextmanager
def only_run(out: Path, mark: str = REPORT, stage: str | None = None, shared: bool = False) -> Iterator[Path]:
    """Lock and yield the working folder of `out`; runs that are `shared` may work in it at the same time.

    Raises OutputError unless `out` is new, empty or the output of a run with the same mark and stage.
    """
    work = require_replaceable(out, mark)
    require_stage(out, stage)
    with lock(work / LOCK, out, shared):
        _recover(out)
        try:
            yield work
        except (PimonoError, KeyboardInterrupt):
            if not any(path.is_file() and path.name != LOCK for path in work.rglob("*")):
                remove(work, LOCK)
            raise


@contextmanager
def writing(out: Path, advice: str = "use another folder") -> Iterator[None]:
    """Turn an OSError into an OutputError that names the file or folder."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"Cannot write `{out}` ({error.strerror}); {advice}.") from error


@contextmanager
def lock(file: Path, out: Path, shared: bool = False) -> Iterator[None]:
    """Hold a lock file, creating its folder; errors of the disk become an OutputError about `out`."""
    with writing(out):
        file.parent.mkdir(parents=True, exist_ok=True)
        opened = file.open("a")
        try:
            fcntl.flock(opened, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            opened.close()
            raise OutputError(f"Another run is writing `{out}`; wait for it, or use another folder.") from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
    try:
        yield
    except Exception as error:
        if (reason := explain_disk_error(error)) is None:
            raise
        raise OutputError(
            f"`{out}` could not be written: {reason}. Run the same command again to resume; finished work is kept."
        ) from error
    finally:
        opened.close()


def require_replaceable(out: Path, mark: str = REPORT) -> Path:
    """Return the working folder of `out`; raises OutputError like `only_run`."""
    if not out.name or (out.exists() and not out.is_dir()):
        raise OutputError(f"`{out}` is not a folder that can be replaced; use the name of one.")
    if replace_surrogates(str(out)) != str(out):
        raise OutputError(f"The path `{out}` is not UTF-8, so Arrow cannot write to it; use another folder.")
    work = out.with_name(f".{out.name}.partial")
    for folder in (out, _old_folder(out), work):
        if not (folder == work and (work / LOCK).is_file()):
            _refuse_foreign(folder)
    if (other := mark_of(out)) not in (None, mark):
        raise OutputError(f"`{out}` holds another command's {other}; use another folder, or remove it.")
    return work


def require_stage(out: Path, stage: str | None) -> None:
    """Raise OutputError if a folder has the output of another stage; the stage of the filter is None."""
    report = read_json(out / REPORT)
    if report and report.get("stage") != stage:
        raise OutputError(f"`{out}` has the output of another command; give another folder.")


def mark_of(folder: Path) -> str | None:
    """Return the mark of a published folder, None for any other folder or one with other files."""
    mark, foreign = _inspect(folder)
    return None if foreign else mark


def _inspect(folder: Path) -> tuple[str | None, str]:
    """Return the mark of a published folder, and a file in it that no run writes, or ""."""
    mark = next((name for name in PUBLISHED if (folder / name).is_file()), None)
    if not mark or ("tasks" if mark == SUITE else "pimono_sdpo") not in read_json(folder / mark):
        return None, ""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return mark, next((name for name in names if name != mark and not PUBLISHED[mark].fullmatch(name)), "")


def _refuse_foreign(folder: Path) -> None:
    """Raise OutputError if a folder contains a file that no run wrote."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    mark, foreign = _inspect(folder)
    if mark is None or foreign:
        advice = f", such as `{foreign}`; move them, or" if foreign else ";"
        raise OutputError(
            f"`{folder}` holds files that no earlier run of this command wrote{advice} use another folder."
        )


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; {} if the file is missing, truncated or holds something else."""
    try:
        content = json.loads(path.read_bytes()) if path.is_file() else None
    except ValueError:
        content = None
    return content if isinstance(content, dict) else {}


def explain_disk_error(error: Exception) -> str | None:
    """Return why the disk cannot be written and what to do; None for any other error."""
    if isinstance(error, OSError):
        number = error.errno
    elif match := _OS_ERROR.search(str(error)):
        number = int(match[1])
    else:
        number = errno.EIO if _TORCH_ERROR.search(str(error)) else None
    return f"{os.strerror(number)}; make room, or check the disk" if number in DISK_ERRORS else None


def require_disjoint(source: Path, out: Path) -> None:
    """Raise OutputError if the source and the output are the same folder or one contains the other."""
    if out.is_relative_to(source) or source.is_relative_to(out):
        raise OutputError(
            f"`{out}` and the source lie inside each other, so a run would read or replace the "
            "wrong files; use another folder."
        )


def _old_folder(out: Path) -> Path:
    return out.with_name(f".{out.name}.old")


def _recover(out: Path) -> None:
    """Complete `publish_folder` if it was killed between its two renames."""
    old = _old_folder(out)
    if old.exists() and out.exists():
        remove(old, mark_of(old) or REPORT)
    elif old.exists():
        old.replace(out)


def remove(folder: Path, mark: str) -> None:
    """Remove a folder, its mark last, so that it is still recognised as ours after a kill."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir(), key=lambda path: path.name == mark):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    folder.rmdir()


def make_output(work: Path, *folders: str) -> Path:
    """Return a new folder WORK/out with these empty folders; files of a killed run are removed."""
    finished = work / "out"
    shutil.rmtree(finished, ignore_errors=True)
    for name in ("", *folders):
        (finished / name).mkdir(parents=True, exist_ok=True)
    return finished


def flush(path: Path) -> None:
    """Wait until a file or the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_folder(finished: Path, out: Path, report: object = None) -> None:
    """Write the report, rename WORK/out to `out` in place of an earlier output, and remove WORK."""
    if report is not None:
        (finished / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    # Afterwards, nothing is left to write it again from.
    for path in (*finished.rglob("*"), finished):
        flush(path)
    if out.exists():
        # Files may have appeared there during the run.
        _refuse_foreign(out)
        out.replace(_old_folder(out))
    finished.replace(out)
    _recover(out)
    remove(finished.parent, LOCK)
