"""Make the parts of a dataset, and resume after a kill.

FOLDER/NAME.parquet   the rows of a part and, with `kept` false, its rejects

The footer of a file says what the part was made from, and has its counts. A part is finished if its file can be read
and was made from the same input, code and options; the next run makes only the others. A file is written under
another name, flushed to the disk and renamed, so that a worker that outlives its run or its node does no harm.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars, logging
from tqdm.auto import tqdm

from pimono_sdpo.errors import ShardError, SourceError
from pimono_sdpo.runs.folders import explain_disk_error, flush, writing
from pimono_sdpo.stage import Stage, code_hash, source_hash

# The key of the footer.
MADE = b"pimono_sdpo"
UNFINISHED = ".tmp"
Json = dict[str, Any]


class _Bar(tqdm):  # type: ignore[misc]
    """A bar without tqdm's monitor thread, which is unnecessary with `miniters=1`."""

    monitor_interval = 0


@dataclass(frozen=True)
class Piece:
    """A piece of the output of a part: a table, counts to be added up, and how many units are done.

    With an `error` the part is written, but the next run makes it again.
    """

    table: pa.Table | None = None
    units: int = 0
    counts: Json = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Part:
    """A part: the name of its file, its input and options, and the function that yields its pieces.

    `input` describes the input but for the content of `files`, which is hashed where the part is made, and may also be
    folders. `title` is for messages, `units` are for the bar. A part that runs in another process is pickled.
    """

    name: str
    title: str
    units: int
    input: Json
    options: Json
    run: Callable[[], Iterator[Piece]]
    schema: pa.Schema
    files: tuple[Path, ...] = ()
    stages: tuple[Stage, ...] = ()

    def path(self, folder: Path) -> Path:
        """Return the file of the part in the folder of a run."""
        return folder / f"{self.name}.parquet"

    @property
    def code(self) -> str:
        """A hash of the code of the part's function and of its stages."""
        hashes = [code_hash(self.run), *(source_hash(stage.fn) for stage in self.stages)]
        return hashlib.sha256("".join(hashes).encode()).hexdigest()

    def describe(self) -> Json:
        """Return what the rows depend on; after any change they are made again."""
        return {"input": self.input, "content": hash_files(self.files), "options": self.options, "code": self.code}


@dataclass(frozen=True)
class Made:
    """The file of a part, the number of its rows and rejects, and its footer."""

    file: Path
    rows: int
    made_from: Json
    counts: Json
    error: str | None


def hash_files(files: Iterable[Path]) -> str:
    """Hash sizes and contents of files and of all files in folders.

    Sizes alone would miss an edit in place, and times differ between a file and its copy on another machine. xxHash
    reads more than a gigabyte in a second, parsing a session 40 MB.
    """
    whole = xxhash.xxh3_128()
    for path in files:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_dir():
                continue
            try:
                with file.open("rb") as stream:
                    whole.update(hashlib.file_digest(stream, xxhash.xxh3_128).digest())
                    whole.update(f"{stream.tell()},".encode())
            except OSError as error:
                # Reading it will say so.
                whole.update(f"error {error.errno},".encode())
    return whole.hexdigest()


def read_made(file: Path) -> Made | None:
    """Read the footer of a part; None if the file is missing, truncated or of another version."""
    try:
        metadata = pq.read_metadata(file)
        return Made(file, metadata.num_rows, **json.loads(metadata.metadata[MADE]))
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None


def make_part(part: Part, folder: Path, progress: Callable[[int], object] = lambda _: None) -> str | None:
    """Write the file of a part unless it is finished; return None, or a clause that says what failed."""
    unfinished = folder / f".{part.name}-{uuid4().hex}{UNFINISHED}"
    try:
        made_from = part.describe()
        made = read_made(part.path(folder))
        if made is not None and made.error is None and made.made_from == made_from:
            progress(part.units)
            return None
        _write(part, made_from, unfinished, progress)
        flush(unfinished)
        unfinished.replace(part.path(folder))
        flush(folder)
    except SourceError as error:
        return str(error).rstrip(".")
    except OSError as error:
        removed = f"`{folder}` was removed; run the command again"
        reason = explain_disk_error(error) if folder.is_dir() else removed
        if reason is None:
            raise
        return f"`{part.title}` could not be written: {reason}"
    finally:
        # At once, since on a full disk the other parts need the space.
        unfinished.unlink(missing_ok=True)
    return None


def _write(part: Part, made_from: Json, file: Path, progress: Callable[[int], object]) -> None:
    """Write the tables of all pieces; the sum of their counts and the first error go into the footer."""
    counts: Json = {}
    error: str | None = None
    # The checksums of pages show other damage than a truncated file.
    with pq.ParquetWriter(file, part.schema.remove_metadata(), write_page_checksum=True) as writer:
        for piece in part.run():
            if piece.table is not None:
                writer.write_table(piece.table.replace_schema_metadata())
            add_counts(counts, piece.counts)
            error = error or piece.error
            progress(piece.units)
        footer = {"made_from": made_from, "counts": counts, "error": error}
        writer.add_key_value_metadata({MADE: json.dumps(footer)})


def run_here(
    parts: Sequence[Part],
    folder: Path,
    progress: Callable[[int], object],
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Part, str | None]]:
    """Make the parts in this process, one after the other; once `is_stopped`, no further one begins."""
    for part in parts:
        if is_stopped():
            return
        yield part, make_part(part, folder, progress)


Engine = Callable[[Sequence[Part], Path, Callable[[int], object]], Iterator[tuple[Part, str | None]]]


def run_shards(
    parts: Sequence[Part],
    folder: Path,
    *,
    desc: str | None = None,
    unit: str = "row",
    engine: Engine = run_here,
    only: tuple[int, int] | None = None,
) -> list[Made]:
    """Make every part that is not finished, with a progress bar if there is a `desc`; return all of them in order.

    With `only` (i, n), make each n-th part from the i-th on, while other processes make the others. ShardError is
    raised after all other parts are finished.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        expected = {part.path(folder) for part in parts}
        for path in folder.iterdir() if only is None else ():
            if path.suffix == UNFINISHED or (path.suffix == ".parquet" and path not in expected):
                path.unlink()
    chosen = parts if only is None else parts[only[0] - 1 :: only[1]]
    if changed := sum(_is_of_other_code(part, folder) for part in chosen):
        tqdm.write(f"The code has changed: {changed} finished parts are made again.", sys.stderr)
    done: set[str] = set()
    failed: dict[str, str] = {}
    total, hidden = sum(part.units for part in chosen), True if desc is None else None
    with (
        _Bar(total=total, unit=unit, desc=desc, disable=hidden, miniters=1) as bar,
        hide_bars() if desc is not None else nullcontext(),
    ):
        for part, failure in engine(chosen, folder, bar.update):
            if failure is not None:
                failed[part.name] = failure
                continue
            done.add(part.name)
            bar.set_postfix(shards=f"{len(done)}/{len(chosen)}")
    if failed:
        first = next(failed[part.name] for part in chosen if part.name in failed)
        raise ShardError(
            f"{len(failed)} of {len(chosen)} shards failed ({first}); finished ones are kept in "
            f"`{folder.parent.name}`, and the same command repeats only what failed."
        )
    return [made for part in chosen if part.name in done and (made := read_made(part.path(folder)))]


def _is_of_other_code(part: Part, folder: Path) -> bool:
    made = read_made(part.path(folder))
    return made is not None and made.made_from["options"] == part.options and made.made_from["code"] != part.code


@contextmanager
def hide_bars() -> Iterator[None]:
    """Hide the bars and warnings of `datasets` while we show a bar or a message of our own."""
    were_enabled, verbosity = not are_progress_bars_disabled(), logging.get_verbosity()
    disable_progress_bars()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if were_enabled:
            enable_progress_bars()


def add_counts(total: Json, more: Mapping[str, Any]) -> Json:
    """Add nested dicts of numbers to `total`, and return it.

    >>> add_counts({"runs": 1}, {"runs": 2, "dropped": {"too_long": 1}})
    {'runs': 3, 'dropped': {'too_long': 1}}
    """
    for name, value in more.items():
        if isinstance(value, Mapping):
            add_counts(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value
    return total


def sum_counts(parts: Iterable[Made]) -> Json:
    """Add up the counts of parts."""
    total: Json = {}
    for made in parts:
        add_counts(total, made.counts)
    return total
