"""Ask models about the rows of a dataset or of parquet shards: bounded, in order, resumable.

    answered = map_rows(turns, stage.answer, ANSWER, in_flight=32, desc="answers")

The rows of a shard fit into memory, their results, too. The journal is the cache: nothing is taken
from a cache of `datasets`.

A shard of which some rows have an error is written, too, and asked again by the next run: the
journal answers what was answered before, so that only the rest is paid for.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, List
from tqdm import tqdm

from pimono_sdpo.runs.engine import DONE, Output, Part, Piece, hide_bars, run_parts, sha256

Json = dict[str, Any]


def map_rows(
    rows: Dataset,
    one: Callable[[Json], Awaitable[Json]],
    features: Features,
    *,
    in_flight: int,
    desc: str,
) -> Dataset:
    """Return a dataset of what `one` makes of each row: exactly the columns of `features`.

    `one` must not raise on what a row holds: one exception loses the whole call. Ctrl-C cancels the
    rows under way.
    """

    async def ask_all(given: list[Json]) -> list[Json]:
        slots = asyncio.Semaphore(in_flight)
        # Only on a terminal.
        with tqdm(total=len(given), desc=desc, disable=None) as bar:

            async def ask(row: Json) -> Json:
                async with slots:
                    made = await one(row)
                bar.update()
                return made

            return await asyncio.gather(*map(ask, given))

    # `map` takes coroutine functions, too, but after Ctrl-C it would go on waiting for the others.
    def make(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        given = [
            dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)
        ]
        made = asyncio.run(ask_all(given))
        return {name: [row[name] for row in made] for name in features}

    run = partial(
        rows.map,
        make,
        batched=True,
        batch_size=None,
        features=features,
        remove_columns=rows.column_names,
        keep_in_memory=True,
        load_from_cache_file=False,
        new_fingerprint=f"{desc}-of-this-run",
    )
    with hide_bars():
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return run()
        # A notebook has a loop of its own, in which no other can run.
        with ThreadPoolExecutor(1) as beside:
            return beside.submit(run).result()


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
    rows of all are asked about; a finished shard with more rows stays as it is.
    """
    parts = []
    left = limit
    for path in inputs:
        rows = pq.read_metadata(path).num_rows
        rows = rows if left is None else min(rows, left)
        left = None if left is None else left - rows
        number = int(path.stem.rpartition("-")[2])
        given, options = {"sha256": sha256(path)}, {"made_by": made_by}
        made = _read_origin(out / DONE / f"{number:05}.json")
        if made and made["options"] == options and made["input"]["sha256"] == given["sha256"]:
            rows = max(rows, made["input"]["rows"])
        if rows:
            run = partial(_ask, path, rows, one, features, in_flight, out.name)
            parts.append(Part(number, path.name, rows, {**given, "rows": rows}, options, run))
    out.mkdir(parents=True, exist_ok=True)
    outputs = {"rows": Output(f"{out.name}-{{:05}}.parquet", features.arrow_schema)}
    records = run_parts(parts, out, outputs, is_stopped=is_stopped).values()
    return Asked(
        shards=len(parts),
        finished=sum(record["error"] is None for record in records),
        rows=sum(record["rows"]["rows"] for record in records),
        errors=sum(record["counts"]["errors"] for record in records),
        error=next((record["error"] for record in records if record["error"]), None),
    )


def _read_origin(record: Path) -> Json | None:
    """Return what a finished shard was made of, None without a record of it."""
    return json.loads(record.read_text())["made_from"] if record.is_file() else None


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
    made = _read_origin(shard.parent / DONE / f"{shard.stem.rpartition('-')[2]}.json")
    return made is None or (given.is_file() and bool(made["input"]["sha256"] == sha256(given)))


def answers_of(
    rows: Dataset, one: RowFunction, features: Features, in_flight: int, desc: str
) -> list[Json]:
    """Return all rows that `one` makes of these, in order."""

    async def wrapped(row: Json) -> Json:
        return {"rows": await one(row)}

    nested = Features({"rows": List(dict(features))})
    mapped = map_rows(rows, wrapped, nested, in_flight=in_flight, desc=desc)
    return [row for made in mapped["rows"] for row in made]
