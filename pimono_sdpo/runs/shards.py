"""Run a pipeline over one input shard: one shard in, one shard out, nothing half-written."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.schema import PRINT, REJECT, SDPO_ROW
from pimono_sdpo.stage import Filter, Row, Stage, apply_rows, name_of
from pimono_sdpo.traces.sources import Shard, read_sessions

Json = dict[str, Any]


@dataclass
class Tally:
    """What happened to the rows of a shard, addable over shards."""

    stages: list[tuple[str, int, int]] = field(default_factory=list)
    dropped: Counter[tuple[str, str]] = field(default_factory=Counter)
    columns: dict[str, Counter[str]] = field(default_factory=dict)

    def count(self, stage: Stage, before: Sized, after: Sequence[Row]) -> None:
        """Note the rows that went in and came out, and the columns the stage wants counted."""
        self.stages.append((name_of(stage), len(before), len(after)))
        if isinstance(stage, Filter):
            return
        for column in stage.tallies:
            counter = self.columns.setdefault(column, Counter())
            for row in after:
                counter.update(row[column])

    def to_json(self) -> Json:
        """Return plain lists and dicts."""
        return {
            "stages": [list(stage) for stage in self.stages],
            "dropped": [[*key, count] for key, count in sorted(self.dropped.items())],
            "columns": {name: dict(sorted(c.items())) for name, c in self.columns.items()},
        }


class Rows:
    """The rows of a table, each made when it is asked for.

    A trace is a large thing: its memory serves the next one when nobody holds it any more.
    """

    def __init__(self, table: pa.Table) -> None:
        """Take the columns; no value is copied yet."""
        self._table = table

    def __len__(self) -> int:
        """How many."""
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[Row]:
        """Yield them as `to_pylist` would list them."""
        for values in zip(*self._table.columns, strict=True):
            yield {n: v.as_py() for n, v in zip(self._table.column_names, values, strict=True)}


def run_shard(
    shard: Shard,
    stages: Sequence[Stage],
    work: Path,
    name: str,
    progress: Callable[[int], object],
) -> Tally:
    """Write `work/{rows,prints,rejects}/NAME`, each under a temporary name first.

    `prints` holds the PRINT columns of `rows`, in the same order. `progress` is called with the
    number of sessions done.
    """
    total = Tally()
    rows, prints, rejects = (work / kind / name for kind in ("rows", "prints", "rejects"))
    with (
        pq.ParquetWriter(_temporary(rows), SDPO_ROW.arrow_schema) as rows_out,
        pq.ParquetWriter(_temporary(prints), PRINT.arrow_schema) as prints_out,
        pq.ParquetWriter(_temporary(rejects), REJECT.arrow_schema) as rejects_out,
    ):
        for table in read_sessions(shard):
            kept, dropped = run_stages(Rows(table), stages, total)
            for out, rows_of in ((rows_out, kept), (prints_out, kept), (rejects_out, dropped)):
                out.write_table(pa.Table.from_pylist(rows_of, out.schema))
            progress(table.num_rows)
    for path in (rejects, prints, rows):
        _temporary(path).replace(path)
    return total


def run_stages(
    rows: Rows | list[Row], stages: Iterable[Stage], tally: Tally
) -> tuple[list[Row], list[Json]]:
    """Run the stages over rows in memory; return the kept rows and the rejects with reasons."""
    rejects: list[Json] = []
    for stage in stages:
        after: list[Row] = []
        if isinstance(stage, Filter):
            for row in rows:
                reason = stage.fn(row)
                if reason is None:
                    after.append(row)
                else:
                    rejects.append(_reject(row, name_of(stage), reason))
                    tally.dropped[name_of(stage), reason] += 1
        else:
            after = apply_rows(rows, stage)
        tally.count(stage, rows, after)
        rows = after
    return list(rows), rejects


def _reject(row: Row, stage: str, reason: str) -> Json:
    score = row.get("score")
    return {
        "session_id": row["session_id"],
        "source": row["source"],
        "episode": row["episode"],
        "stage": stage,
        "drop_reason": reason,
        "detail": row["harness"] if score is None else f"{row['harness']}, score {score:g}",
        "counts": row["counts"],
    }


def write_atomically(path: Path, content: bytes) -> None:
    """Write under a temporary name, then rename."""
    temporary = _temporary(path)
    temporary.write_bytes(content)
    temporary.replace(path)


def _temporary(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")
