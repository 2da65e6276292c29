"""Open a folder of rollouts: shards of ROLLOUT rows, and the suite they were made of.

data/*.parquet    the rollouts
suite.json        the suite, whose tasks say on which side of the split they are
traces/           a JSONL trace per run; naming it means the folder around it
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

from pimono_sdpo.errors import SourceError
from pimono_sdpo.suites.suite import NAME, TaskRow, load

NEEDED = ("run_id", "task_id", "messages", "steps", "protocol", "tests_ok")
ROWS = 32
Json = dict[str, Any]


@dataclass(frozen=True)
class Rollouts:
    """The shards of a folder in order, and the tasks of its suite by id."""

    folder: Path
    files: tuple[Path, ...]
    name: str
    tasks: dict[str, TaskRow]

    def split_of(self, task_id: str) -> str:
        """The side of a task: what its suite says, without one what the shards are called."""
        task = self.tasks.get(task_id)
        if task is None:
            held_out = all(file.name.startswith("test-") for file in self.files)
        else:
            held_out = task["split"] == "test"
        return "test" if held_out else "train"

    def by_task(self) -> dict[str, list[tuple[Path, int]]]:
        """Where the rollouts of each task are: a shard and the number of the row, in order."""
        places: dict[str, list[tuple[Path, int]]] = {}
        for file in self.files:
            with _told(file):
                column = pq.read_table(file, columns=["task_id"]).column("task_id")
            for number, task_id in enumerate(column.to_pylist()):
                places.setdefault(task_id, []).append((file, number))
        return places


def open_rollouts(source: str | Path) -> Rollouts | None:
    """Return the rollouts of a folder, None when it holds none; raises SourceError."""
    folder = Path(source)
    if folder.name == "traces" and (folder.parent / "data").is_dir():
        folder = folder.parent
    files = tuple(sorted((folder / "data").glob("*.parquet")))
    if not files:
        return None
    for file in files:
        with _told(file):
            columns = pq.read_schema(file).names
        if any(name not in columns for name in NEEDED):
            return None
    if not (folder / NAME).exists():
        # Made by other means, or the suite was lost: no patch can be tested again.
        return Rollouts(folder, files, folder.resolve().name, {})
    suite = load(folder, repos=False)
    return Rollouts(folder, files, suite.name, {task["task_id"]: task for task in suite.tasks})


def rows_at(places: Sequence[tuple[Path, int]]) -> list[Json]:
    """Return the rows at these places; the last shards that were read stay in memory."""
    rows = []
    for file, number in places:
        rows += list(Dataset(_shard(file).slice(number, 1)))
    return rows


@lru_cache(maxsize=2)
def _shard(file: Path) -> pa.Table:
    with _told(file):
        return pq.read_table(file)


def rows_of(file: Path, columns: list[str] | None = None) -> Iterator[Json]:
    """Yield the rows of a shard, a few in memory at a time; raises SourceError."""
    for table in tables_of(file, columns):
        yield from Dataset(table)


def tables_of(file: Path, columns: list[str] | None = None) -> Iterator[pa.Table]:
    """Yield the tables of a shard, a few rows each; raises SourceError."""
    with _told(file), pq.ParquetFile(file) as parquet:
        for batch in parquet.iter_batches(ROWS, columns=columns):
            yield pa.Table.from_batches([batch])


@contextmanager
def _told(file: Path) -> Iterator[None]:
    """Name the shard that cannot be read, and the way out."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise SourceError(f"`{file}` cannot be read ({reason}); make it again.") from error


def is_same(file: Path) -> Json:
    """What tells that a file is the one it was."""
    stat = file.stat()
    return {"name": file.name, "bytes": stat.st_size, "time": stat.st_mtime_ns}
