"""Ask models about the rows of a dataset or of parquet shards: bounded, in order, resumable.

    answered = map_rows(turns, stage.answer, ANSWER, in_flight=32, desc="answers")

The rows of a shard fit into memory, their results, too. The journal is the cache: nothing is taken
from a cache of `datasets`.

A shard of which some rows have an error is written, too, and asked again by the next run: the
journal answers what was answered before, so that only the rest is paid for.
"""

import asyncio
import json
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Features, List, disable_progress_bars, enable_progress_bars
from datasets.utils import are_progress_bars_disabled

from pimono_sdpo.runs.engine import DONE, Output, Part, Piece, run_parts, sha256

Json = dict[str, Any]


class _Bounded:
    """A row function with at most so many rows under way; `Dataset.map` takes the bound method.

    Ctrl-C cancels the rows. Left to Python, it would be raised inside of one of them, and
    `datasets` would wait for ever for the others.
    """

    def __init__(self, one: Callable[[Json], Awaitable[Json]], in_flight: int) -> None:
        self.one = one
        self.in_flight = in_flight
        self.watching: asyncio.AbstractEventLoop | None = None
        self.interrupted = False
        self.slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    async def row(self, row: Json) -> Json:
        loop = asyncio.get_running_loop()
        if self.watching is None and threading.current_thread() is threading.main_thread():
            self.watching = loop
            loop.add_signal_handler(signal.SIGINT, self._interrupt)
        async with self.slots.setdefault(loop, asyncio.Semaphore(self.in_flight)):
            return await self.one(dict(row))

    def _interrupt(self) -> None:
        self.interrupted = True
        for task in asyncio.all_tasks(self.watching):
            task.cancel()

    def end(self) -> None:
        """Give Ctrl-C back, and let rows that were cancelled clean up."""
        if self.watching is None:
            return
        self.watching.remove_signal_handler(signal.SIGINT)
        if left := asyncio.all_tasks(self.watching):
            self.watching.run_until_complete(asyncio.gather(*left, return_exceptions=True))


def map_rows(
    rows: Dataset,
    one: Callable[[Json], Awaitable[Json]],
    features: Features,
    *,
    in_flight: int,
    desc: str,
) -> Dataset:
    """Return a dataset of what `one` makes of each row: exactly the columns of `features`.

    `one` must not raise on what a row holds: one exception loses the whole call.
    """
    bounded = _Bounded(one, in_flight)

    def run() -> Dataset:
        return rows.map(
            bounded.row,
            features=features,
            remove_columns=rows.column_names,
            keep_in_memory=True,
            load_from_cache_file=False,
            new_fingerprint=f"{desc}-of-this-run",
            desc=desc,
        )

    with _quiet_without_terminal():
        if not _in_a_loop():
            try:
                return run()
            except asyncio.CancelledError:
                if not bounded.interrupted:
                    raise
                raise KeyboardInterrupt from None
            finally:
                bounded.end()
        # A notebook has a loop of its own, in which no other can run.
        with ThreadPoolExecutor(1) as beside:
            return beside.submit(run).result()


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def _quiet_without_terminal() -> Iterator[None]:
    if sys.stderr.isatty() or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


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
        rows = max(rows, _count_finished(out / DONE / f"{number:05}.json", given, options))
        if rows:
            run = partial(_ask, path, rows, one, features, in_flight, out.name)
            parts.append(Part(number, path.name, rows, {**given, "rows": rows}, options, run))
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


def _count_finished(record: Path, given: Json, options: Json) -> int:
    """Return of how many rows of this input a shard was made with these options."""
    if not record.is_file():
        return 0
    made = json.loads(record.read_text())["made_from"]
    same = made["input"]["sha256"] == given["sha256"] and made["options"] == options
    return int(made["input"]["rows"]) if same else 0


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
