"""Make parts in worker processes."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process, resource_tracker
from pathlib import Path
from threading import RLock, Thread, active_count, current_thread, main_thread

from datasets.utils import disable_progress_bars
from tqdm import tqdm

from pimono_sdpo.program import escape_warnings
from pimono_sdpo.runs.engine import Part, make_part, run_here
from pimono_sdpo.stage import module_of


def _count_threads() -> int:
    """Count all threads of this process, including those of libraries; 0 if that is unknown."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 0


# Threads that libraries start on import can be forked safely.
_AT_IMPORT = _count_threads()


def run_in_processes(
    parts: Sequence[Part], folder: Path, progress: Callable[[int], object], workers: int
) -> Iterator[tuple[Part, str | None]]:
    """Make the parts in worker processes; `progress` is called after each part."""
    workers = min(workers, len(parts))
    if workers < 2:
        yield from run_here(parts, folder, progress)
        return
    # A fork saves the imports, but copies locks that other threads hold at that moment. A fork server
    # has only imported what the parts need, so that its forks are safe.
    is_alone = active_count() == 1 and 0 < _count_threads() == _AT_IMPORT
    context = get_context("fork" if is_alone else "forkserver")
    functions = [parts[0].run, *(stage.fn for stage in parts[0].stages)]
    context.set_forkserver_preload([__name__, *set(map(module_of, functions))])
    pool = ProcessPoolExecutor(workers, context, initializer=_prepare_worker)
    try:
        with _delay_interrupts():
            futures = {pool.submit(make_part, part, folder): part for part in parts}
        for future in as_completed(futures):
            part = futures[future]
            try:
                failure = future.result()
            except BrokenProcessPool:
                # The pool is broken for all parts and does not say which of them was killed.
                failure = "a worker was killed, most likely for lack of memory; try fewer --workers"
            progress(part.units)
            yield part, failure
    finally:
        # After a bug or Ctrl-C, no further part begins.
        pool.shutdown(cancel_futures=True)


@contextmanager
def _delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C; processes started meanwhile block it until `_prepare_worker` runs in them."""
    # Starting it later would unblock the signal.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # Another thread of this process may still receive the signal. Python then handles it in the
    # main thread, where it would interrupt sending the data that a starting worker reads.
    interrupts: list[int] = []
    is_main = current_thread() is main_thread()
    handler = signal.signal(signal.SIGINT, lambda *_: interrupts.append(1)) if is_main else None
    try:
        yield
    finally:
        if is_main:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if interrupts:
            signal.raise_signal(signal.SIGINT)


def _prepare_worker() -> None:
    """Make this worker exit on Ctrl-C, and when its parent process exits."""
    disable_progress_bars()
    escape_warnings()
    # The default lock is a semaphore of the system, which a killed worker would leave behind.
    tqdm.set_lock(RLock())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()
