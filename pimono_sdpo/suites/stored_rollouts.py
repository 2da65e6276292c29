"""Read and write folders of rollouts: shards of ROLLOUT rows, and their suite.

data/*.parquet    the rollouts
suite.json        the suite, which has the split of each task
traces/           a JSONL trace per run; this folder may be given instead of its parent

`prefs` and `eval` write such a folder, `rollouts`, next to their own files; its parent may also be given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features

from pimono_sdpo.errors import SourceError
from pimono_sdpo.runs.parquet import read_rows
from pimono_sdpo.stage import iterate_rows
from pimono_sdpo.suites.suite import NAME, TaskRow, load_suite
from pimono_sdpo.traces.harness.simple import ROLLOUT_COLUMNS, encode_session

NEEDED = ("run_id", "task_id", "messages", "steps", "protocol", "tests_ok")
ROLLOUTS = "rollouts"
Json = dict[str, Any]


@dataclass(frozen=True)
class Rollouts:
    """The shards of a folder in order, and the tasks of its suite by id, none without a suite."""

    folder: Path
    files: tuple[Path, ...]
    name: str
    tasks: dict[str, TaskRow]

    def split_of(self, task_id: str) -> str:
        """Return the split of a task according to its suite or, without a suite, the names of the shards."""
        if task := self.tasks.get(task_id):
            return task["split"] or "train"
        return "test" if all(file.name.startswith("test-") for file in self.files) else "train"

    def by_task(self) -> dict[str, list[tuple[Path, int]]]:
        """Return the rollouts of each task as pairs of shard and row number, in order."""
        positions: dict[str, list[tuple[Path, int]]] = {}
        for file in self.files:
            for number, task_id in enumerate(pq.read_table(file, columns=["task_id"])[0].to_pylist()):
                positions.setdefault(task_id, []).append((file, number))
        return positions


def open_rollouts(source: str | Path) -> Rollouts | None:
    """Return the rollouts of a folder, None if it has none; raises SourceError for damaged files."""
    folder = Path(source)
    if folder.name == "traces" and (folder.parent / "data").is_dir():
        folder = folder.parent
    if not (folder / "data").is_dir() and (folder / ROLLOUTS / "data").is_dir():
        folder /= ROLLOUTS
    files = tuple(sorted((folder / "data").glob("*.parquet")))
    for file in files:
        try:
            names = pq.read_schema(file).names
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"Cannot read `{file}` ({str(error)[:200]}); write it again.") from error
        if not set(NEEDED) <= set(names):
            return None
    if not files:
        return None
    if not (folder / NAME).exists():
        # Without a suite, patches cannot be tested again.
        return Rollouts(folder, files, folder.resolve().name, {})
    suite = load_suite(folder, repos=False)
    return Rollouts(folder, files, suite.name, {task["task_id"]: task for task in suite.tasks})


def read_rows_at(positions: Sequence[tuple[Path, int]]) -> list[Json]:
    """Return the rows at these positions, pairs of file and row number; the last two row groups stay in memory."""
    tables = (_read_row(file, number) for file, number in positions)
    return [row for table in tables for row in iterate_rows(table, Features.from_arrow_schema(table.schema))]


def _read_row(file: Path, number: int) -> pa.Table:
    for group, rows in enumerate(_count_rows(file)):
        if number < rows:
            return _read_group(file, group).slice(number, 1)
        number -= rows
    raise IndexError(f"{file} has fewer rows")


@lru_cache(maxsize=2)
def _count_rows(file: Path) -> list[int]:
    metadata = pq.read_metadata(file)
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


@lru_cache(maxsize=2)
def _read_group(file: Path, group: int) -> pa.Table:
    with pq.ParquetFile(file) as parquet:
        return parquet.read_row_group(group)


def write_sessions(files: Sequence[Path], finished: Path) -> None:
    """Write each run of the parts in these files as a session below `sessions`."""
    for number, file in enumerate(files):
        folder = finished / "sessions" / f"{number:05}"
        folder.mkdir(parents=True)
        for row in read_rows([file], ROLLOUT_COLUMNS):
            if row["run_id"] is not None:  # no reject
                (folder / f"{row['run_id']}.jsonl").write_bytes(encode_session(row))
