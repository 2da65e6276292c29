"""Ask models about the rows of a dataset: bounded and in order.

    answered = map_rows(turns, stage.answer, ANSWER, in_flight=32, desc="answers")

The rows fit into memory, their results, too. The journal is the cache: nothing is taken from a
cache of `datasets`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from datasets import Dataset, Features, List
from tqdm import tqdm

from pimono_sdpo.runs.engine import hide_bars

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
        given = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
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


def answers_of(rows: Dataset, one: RowFunction, features: Features, in_flight: int, desc: str) -> list[Json]:
    """Return all rows that `one` makes of these, in order."""

    async def wrapped(row: Json) -> Json:
        return {"rows": await one(row)}

    nested = Features({"rows": List(dict(features))})
    mapped = map_rows(rows, wrapped, nested, in_flight=in_flight, desc=desc)
    return [row for made in mapped["rows"] for row in made]
