"""Ask about each row of parquet shards; one shard in, one out; a rerun skips what is finished.

A shard is finished when all its rows were answered. One with errors is written, too, and made again
by the next run: the journal answers what was answered before, so that only the rest is paid for.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, List

from pimono_sdpo.llm.rows import map_rows

Json = dict[str, Any]
RowFunction = Callable[[Json], Awaitable[list[Json]]]
MARK = b"pimono_sdpo"


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
    out.mkdir(parents=True, exist_ok=True)
    counts = _counts(inputs, limit)
    inputs = [path for path, count in zip(inputs, counts, strict=True) if count]
    names = [f"{out.name}-{path.stem.rpartition('-')[2]}.parquet" for path in inputs]
    for path in out.glob("*.parquet"):
        if path.name not in names:
            path.unlink()
    states = []
    for path, name, count in zip(inputs, names, filter(None, counts), strict=True):
        made_of = f"{made_by}{count}".encode()
        given_bytes = path.read_bytes()
        print_of = hashlib.sha256(given_bytes + made_of).hexdigest()
        state = _state(out / name)
        if state is None or state["made_of"] != print_of or state["errors"]:
            if is_stopped():
                continue
            given = Dataset(pq.read_table(path).slice(0, count))
            rows = answers_of(given, one, features, in_flight, out.name)
            errors = [row["error"] for row in rows if row["error"] is not None]
            state = {
                "made_of": print_of,
                "input": hashlib.sha256(given_bytes).hexdigest(),
                "rows": len(rows),
                "errors": len(errors),
                "error": errors[0] if errors else None,
            }
            _write(rows, features, state, out / name)
        states.append(state)
    return Asked(
        shards=len(inputs),
        finished=sum(not state["errors"] for state in states),
        rows=sum(state["rows"] for state in states),
        errors=sum(state["errors"] for state in states),
        error=next((state["error"] for state in states if state["error"]), None),
    )


def is_of(shard: Path, given: Path) -> bool:
    """Whether a shard was made of this input as it is now; True when it does not tell."""
    told = (_state(shard) or {}).get("input")
    if told is None:
        return True
    return given.is_file() and bool(told == hashlib.sha256(given.read_bytes()).hexdigest())


def _counts(inputs: Sequence[Path], limit: int | None) -> list[int]:
    """How many of each shard's rows are wanted."""
    counts: list[int] = []
    for path in inputs:
        rows = pq.read_metadata(path).num_rows
        counts.append(rows if limit is None else min(rows, max(limit - sum(counts), 0)))
    return counts


def answers_of(
    rows: Dataset, one: RowFunction, features: Features, in_flight: int, desc: str
) -> list[Json]:
    """All rows that `one` makes of these, in order."""

    async def wrapped(row: Json) -> Json:
        return {"rows": await one(row)}

    nested = Features({"rows": List(dict(features))})
    mapped = map_rows(rows, wrapped, nested, in_flight=in_flight, desc=desc)
    return [row for made in mapped["rows"] for row in made]


def _state(path: Path) -> Json | None:
    """What a written shard tells of itself; None when there is none."""
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (FileNotFoundError, pa.ArrowInvalid):
        return None
    state: Json | None = json.loads(metadata[MARK]) if MARK in metadata else None
    return state


def _write(rows: list[Json], features: Features, state: Json, path: Path) -> None:
    schema = features.arrow_schema
    schema = schema.with_metadata({**schema.metadata, MARK: json.dumps(state)})
    temporary = path.with_suffix(".tmp")
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary)
    temporary.replace(path)
