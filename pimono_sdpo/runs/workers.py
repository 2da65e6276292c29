"""Finish shards in this process or in several; every engine runs the same `finish_shard`.

An attempt writes into a folder of its own and gives its files their names at the end: whoever
else still writes the same shard, a worker that outlives its run or its node, spoils nothing.
"""

import hashlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import connection, get_context, parent_process, resource_tracker
from pathlib import Path
from shutil import rmtree
from threading import Thread
from typing import Any
from uuid import uuid4

from pimono_sdpo.errors import SourceError
from pimono_sdpo.runs.folders import disk_trouble
from pimono_sdpo.runs.shards import run_shard
from pimono_sdpo.stage import Stage
from pimono_sdpo.traces.sources import Shard

Json = dict[str, Any]
KINDS = ("rows", "prints", "rejects")
DONE = "done"
ATTEMPTS = "attempts"


@dataclass(frozen=True)
class Job:
    """A shard to run, its number in the source, and the folder of the run."""

    index: int
    shard: Shard
    stages: tuple[Stage, ...]
    work: Path
    made_from: Json


@dataclass(frozen=True)
class Outcome:
    """What became of a job: its record, or a clause that says why there is none.

    `peak` is the most memory the process that ran it has held, in bytes.
    """

    job: Job
    record: Json | None
    problem: str = ""
    peak: int = 0


Engine = Callable[[list[Job], Callable[[int], object]], Iterator[Outcome]]


def finish_shard(job: Job, progress: Callable[[int], object] = lambda _: None) -> Outcome:
    """Write `work/{rows,prints,rejects}/NNNNN.parquet`, then the record `work/done/NNNNN.json`.

    The record holds what the shard was made from, its counts and the sha256 of its files.
    """
    name = f"{job.index:05}.parquet"
    attempt = job.work / ATTEMPTS / f"{job.index:05}-{uuid4().hex}"
    try:
        # Not the folders above: when the run's folder is gone, nobody but a run makes it again.
        attempt.mkdir()
        for kind in (*KINDS, DONE):
            (attempt / kind).mkdir()
        tally = run_shard(job.shard, job.stages, attempt, name, progress)
        sums = {kind: sha256(attempt / kind / name) for kind in KINDS}
        record = {"made_from": job.made_from, **tally.to_json(), "sha256": sums}
        done = attempt / DONE / f"{job.index:05}.json"
        done.write_text(json.dumps(record))
        for path in (*(attempt / kind / name for kind in KINDS), done):
            path.replace(job.work / path.relative_to(attempt))
    except SourceError as problem:
        return Outcome(job, None, str(problem).rstrip("."))
    except OSError as error:
        trouble = disk_trouble(error) if job.work.is_dir() else f"`{job.work}` is gone; run again"
        if trouble is None:
            raise
        return Outcome(job, None, f"`{job.shard.path}` could not be written: {trouble}")
    finally:
        # At once: on a full disk the other shards need the room.
        rmtree(attempt, ignore_errors=True)
    return Outcome(job, record, peak=peak_memory())


def here(jobs: list[Job], progress: Callable[[int], object]) -> Iterator[Outcome]:
    """Run one job after the other in this process."""
    # Its memory is that of the run itself.
    return (replace(finish_shard(job, progress), peak=0) for job in jobs)


def in_processes(
    jobs: list[Job], progress: Callable[[int], object], workers: int
) -> Iterator[Outcome]:
    """Run jobs in new processes; `progress` hears of whole shards."""
    if min(workers, len(jobs)) < 2:
        yield from here(jobs, progress)
        return
    # Fork would copy the threads of Arrow in whatever state they are.
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=get_context("spawn"), initializer=_end_with_parent
    )
    try:
        with _interrupts_later():
            futures = {pool.submit(finish_shard, job): job for job in jobs}
        for future in as_completed(futures):
            job = futures[future]
            try:
                outcome = future.result()
            except BrokenProcessPool:
                # The pool takes no more work and does not tell which job it was.
                outcome = Outcome(
                    job, None, "a worker was killed, mostly for want of memory; try fewer --workers"
                )
            progress(job.shard.sessions)
            yield outcome
    finally:
        # After a bug or Ctrl-C nothing new begins.
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back; processes that begin meanwhile hold it back until they are ready for it."""
    # Its own start would let signals through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """End this worker at Ctrl-C and when its run is gone, rather than read on for nobody."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()


def peak_memory() -> int:
    """The most memory this process has held, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def sha256(path: Path) -> str:
    """Hash a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
