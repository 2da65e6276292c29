"""Whether training rows hold tasks of a test suite.

columns read  task_id, split (rows of the split `test` are not trained on)
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.errors import SourceError
from pimono_sdpo.suites.suite import Suite

BATCH = 10_000
NAMES = ("task_id", "split")


class Leakage(SourceError):
    """Rows to train on were made of tasks that are to be tested."""


def check_leakage(rows: Iterable[Mapping[str, Any]], test_suite: Suite) -> int:
    """Return how many training rows there are, none of a task of `test_suite`.

    `rows` may be a `Dataset`, of which two columns are read. Raises Leakage that names tasks, and
    SourceError for a row without `task_id`.
    """
    held_out = {task["task_id"] for task in test_suite.tasks}
    names = getattr(rows, "column_names", None)
    if isinstance(names, list) and "task_id" in names:
        wanted = [name for name in NAMES if name in names]
        rows = rows.select_columns(wanted)  # type: ignore[attr-defined]
    number, leaked = 0, Counter[str]()
    for row in rows:
        task = row.get("task_id")
        if not isinstance(task, str):
            raise SourceError(
                f"Row {number + 1} has no `task_id`, so nobody knows whether it may be trained on; "
                "give rows with it."
            )
        if row.get("split") == "test":
            continue
        number += 1
        leaked.update([task] if task in held_out else [])
    if leaked:
        some = ", ".join(f"`{name}` ({count})" for name, count in sorted(leaked.items())[:5])
        more = f" and {len(leaked) - 5} more" if len(leaked) > 5 else ""
        raise Leakage(
            f"{leaked.total()} of {number} training rows are of tasks of the test suite "
            f"`{test_suite.name}`: {some}{more}; drop these rows, or divide the suite first."
        )
    return number


def rows_of(source: Path) -> Iterator[dict[str, Any]]:
    """Yield `task_id` and `split` of rows: parquet, JSON lines, a saved dataset, or a folder.

    Of a folder, files below it count that have a `task_id`; raises SourceError when none does.
    """
    files = _files(source)
    found = False
    for path in files:
        for row in _of_file(path):
            if source.is_dir() and "task_id" not in row:
                break
            found = True
            yield row
    if not found:
        raise SourceError(
            f"`{source}` has no rows with `task_id`; give parquet, JSON lines or a saved dataset."
        )


def _files(source: Path) -> list[Path]:
    if not source.exists():
        raise SourceError(f"`{source}` does not exist; give rows as parquet or JSON lines.")
    if source.is_file():
        return [source]
    endings = (".parquet", ".jsonl", ".arrow")
    return sorted(path for path in source.rglob("*") if path.suffix in endings and path.is_file())


def _of_file(path: Path) -> Iterator[dict[str, Any]]:
    try:
        yield from _of_lines(path) if path.suffix in (".jsonl", ".json") else _of_table(path)
    except (OSError, ValueError) as error:
        raise SourceError(f"`{path}` cannot be read ({str(error)[:200]}); mend it.") from error


def _of_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in filter(str.strip, lines):
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("a line is no object")
            yield {key: row[key] for key in NAMES if key in row}


def _of_table(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".arrow":
        # As `Dataset.save_to_disk` writes it.
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
            for batch in stream:
                yield from _rows(batch.select([n for n in NAMES if n in stream.schema.names]))
        return
    file = pq.ParquetFile(path)
    columns = [name for name in NAMES if name in file.schema_arrow.names]
    for batch in file.iter_batches(batch_size=BATCH, columns=columns):
        yield from _rows(batch)


def _rows(batch: Any) -> list[dict[str, Any]]:
    return batch.to_pylist() if batch.num_columns else [{}] * batch.num_rows
