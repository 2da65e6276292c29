"""Ask models about the rows of parquet shards: one shard in, one out, on the engine of `runs`.

A shard of which some rows have an error is written, too, and asked again by the next run: the
journal answers what was answered before, so that only the rest is paid for.
"""

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, List

from pimono_sdpo.llm.rows import map_rows
from pimono_sdpo.runs.engine import DONE, Output, Part, Piece, run_parts, sha256

Json = dict[str, Any]
RowFunction = Callable[[Json], Awaitable[list[Json]]]


@dataclass(frozen=True)
class Asked:
    """What became of a stage: rows written, those with an error, and the first of the errors."""

    shards: int
    finished: int
    rows: int
    errors: int
    error: str | None


def ask_shards(
    inputs: Sequence[Path],
    out: Path,
    one: RowFunction,
    features: Features,
    *,
    made_by: str,
    in_flight: int,
    is_stopped: Callable[[], bool],
    limit: int | None = None,
) -> Asked:
    """Write `out/NAME-NNNNN.parquet` for each input shard, with what `one` makes of its rows.

    `one` returns rows of `features`, which have a column `error`. `made_by` names code, prompts and
    options: a shard made otherwise, or of other input, is made again. With `limit`, only the first
    rows of all are asked about.
    """
    parts = []
    left = limit
    for path in inputs:
        rows = pq.read_metadata(path).num_rows
        rows = rows if left is None else min(rows, left)
        left = None if left is None else left - rows
        if rows:
            number = int(path.stem.rpartition("-")[2])
            given = {"sha256": sha256(path), "rows": rows}
            run = partial(_ask, path, rows, one, features, in_flight, out.name)
            parts.append(Part(number, path.name, rows, given, {"made_by": made_by}, run))
    out.mkdir(parents=True, exist_ok=True)
    outputs = {"rows": Output(f"{out.name}-{{:05}}.parquet", features.arrow_schema)}
    records = run_parts(parts, out, outputs, is_stopped=is_stopped).records.values()
    return Asked(
        shards=len(parts),
        finished=sum(record["error"] is None for record in records),
        rows=sum(record["rows"]["rows"] for record in records),
        errors=sum(record["counts"]["errors"] for record in records),
        error=next((record["error"] for record in records if record["error"]), None),
    )


def _ask(
    path: Path, rows: int, one: RowFunction, features: Features, in_flight: int, desc: str
) -> Iterator[Piece]:
    given = Dataset(pq.read_table(path).slice(0, rows))
    answers = answers_of(given, one, features, in_flight, desc)
    errors = [row["error"] for row in answers if row["error"] is not None]
    table = pa.Table.from_pylist(answers, schema=features.arrow_schema)
    yield Piece({"rows": table}, rows, {"errors": len(errors)}, errors[0] if errors else None)


def is_of(shard: Path, given: Path) -> bool:
    """Tell whether a shard was made of this input as it is now; True without a record of it."""
    record = shard.parent / DONE / f"{shard.stem.rpartition('-')[2]}.json"
    if not record.is_file():
        return True
    read = json.loads(record.read_text())["made_from"]["input"]["sha256"]
    return given.is_file() and bool(read == sha256(given))


def answers_of(
    rows: Dataset, one: RowFunction, features: Features, in_flight: int, desc: str
) -> list[Json]:
    """Return all rows that `one` makes of these, in order."""

    async def wrapped(row: Json) -> Json:
        return {"rows": await one(row)}

    nested = Features({"rows": List(dict(features))})
    mapped = map_rows(rows, wrapped, nested, in_flight=in_flight, desc=desc)
    return [row for made in mapped["rows"] for row in made]
