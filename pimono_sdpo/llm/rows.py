"""Map an async function over the rows of a dataset: bounded, in order, results in memory.

    answered = map_rows(turns, stage.answer, ANSWER, in_flight=32, desc="answers")

The rows of a shard fit into memory, their results, too. The journal is the cache: nothing is taken
from a cache of `datasets`.
"""

import asyncio
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from datasets import Dataset, Features, disable_progress_bars, enable_progress_bars
from datasets.utils import are_progress_bars_disabled

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
