"""Open a folder of rollouts: shards of ROLLOUT rows, and the suite they were made of.

data/*.parquet    the rollouts
suite.json        the suite, whose tasks say on which side of the split they are
traces/           a JSONL trace per run; naming it means the folder around it
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

from pimono_sdpo.errors import SourceError

NEEDED = ("run_id", "task_id", "messages", "steps", "protocol", "tests_ok")
ROWS = 32
Json = dict[str, Any]


@dataclass(frozen=True)
class Rollouts:
    """The shards of a folder in order, and the tasks of its suite by id."""

    folder: Path
    files: tuple[Path, ...]
    suite: Json
    tasks: dict[str, Json]

    @property
    def name(self) -> str:
        """The suite's name, or the folder's."""
        return str(self.suite.get("name") or self.folder.resolve().name)

    def split_of(self, task_id: str) -> str:
        """The side of a task: `test` when its suite says so."""
        task = self.tasks.get(task_id, {})
        side = task.get("split") or (task.get("metadata") or {}).get("split")
        return "test" if (side or self.suite.get("split")) == "test" else "train"


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
    suite = _suite(folder / "suite.json")
    tasks = {task["task_id"]: task for task in suite.get("tasks", ())}
    return Rollouts(folder, files, suite, tasks)


def _suite(path: Path) -> Json:
    if not path.exists():
        return {}
    try:
        suite = json.loads(path.read_text())
    except ValueError as error:
        raise SourceError(f"`{path}` is no JSON ({error}); make the rollouts again.") from error
    tasks = suite.get("tasks", []) if isinstance(suite, dict) else None
    if not isinstance(tasks, list) or not all(
        isinstance(t, dict) and "task_id" in t for t in tasks
    ):
        raise SourceError(f"`{path}` is no suite: it has no `tasks` with `task_id`; mend it.")
    found: Json = suite
    return found


def rows_of(file: Path, columns: list[str] | None = None) -> Iterator[Json]:
    """Yield the rows of a shard, a few in memory at a time; raises SourceError."""
    with _told(file), pq.ParquetFile(file) as parquet:
        for batch in parquet.iter_batches(ROWS, columns=columns):
            yield from Dataset(pa.Table.from_batches([batch]))


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
