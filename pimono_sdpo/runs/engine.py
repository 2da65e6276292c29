"""The engine under every command that writes rows: part by part, resumed after a kill.

FOLDER/KIND/NNNNN.parquet   what a part gives, a file for each kind of rows
FOLDER/done/NNNNN.json      its record: made_from, counts, error, rows and sha256 of each file
FOLDER/attempts/            files that are being written

A part ends with its record, which says what it was made from; a rerun skips the parts whose record
still fits their input, code and options. An attempt writes into a folder of its own and renames its
files at the end, so that a worker that outlives its run or its node cannot spoil anything.
"""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection, get_context, parent_process, resource_tracker
from pathlib import Path
from shutil import rmtree
from threading import RLock, Thread, active_count, current_thread, main_thread
from typing import Any, Literal
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars, logging
from tqdm.auto import tqdm

from pimono_sdpo.errors import EngineError, ShardError, SourceError, require_extra
from pimono_sdpo.runs.folders import disk_trouble, writing
from pimono_sdpo.stage import Stage, code_hash, module_of, source_hash

DONE, ATTEMPTS = "done", "attempts"
EngineName = Literal["local", "ray"]
Json = dict[str, Any]


def _count_threads() -> int:
    """Count the threads of this process, those of libraries too; 0 where that is unknown."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 0


# What libraries start when they are imported is ready for a fork.
_AT_IMPORT = _count_threads()


class _Bar(tqdm):  # type: ignore[misc]
    """A bar without the thread that refreshes slow ones, which `miniters=1` makes needless."""

    monitor_interval = 0


@dataclass(frozen=True)
class Output:
    """The file that a part gives for one kind of rows; `schema` is None for that of its tables."""

    path: str
    schema: pa.Schema | None = None
    compression: str = "snappy"


@dataclass(frozen=True)
class Piece:
    """What a part yields: tables by kind of rows, counts to be added up, and how much of its units this was.

    With an `error` the part is written, and made again by the next run.
    """

    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    units: int = 0
    counts: Json = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Part:
    """A unit of work: what it reads and by which options and code, and what yields its pieces.

    `name` is for messages, `units` are for the bar. A part that runs in another process is pickled.
    """

    number: int
    name: str
    units: int
    input: Json
    options: Json
    run: Callable[[], Iterator[Piece]]
    stages: tuple[Stage, ...] = ()

    @property
    def made_from(self) -> Json:
        """What the files depend on; a change of any part makes them again."""
        return {"input": self.input, "options": self.options, "code": code_of(self.run, self.stages)}


def code_of(run: Callable[..., object], stages: Sequence[Stage]) -> str:
    """Return the hash of the code that reads a part, and of its stages."""
    hashes = [code_hash(run), *(source_hash(stage.fn) for stage in stages)]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


@dataclass(frozen=True)
class Job:
    """A part, where it is written, and what it is made from by the code of the run."""

    part: Part
    folder: Path
    outputs: Mapping[str, Output]
    made_from: Json


# A job's record, or a clause that says why there is none.
Outcome = Json | str
Engine = Callable[[list[Job], Callable[[int], object]], Iterator[tuple[Job, Outcome]]]


def run_parts(
    parts: Sequence[Part],
    folder: Path,
    outputs: Mapping[str, Output],
    *,
    desc: str | None = None,
    unit: str = "row",
    engine: Engine | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> dict[int, Json]:
    """Run every part that is not done yet, under a bar if it has a `desc`; return all records.

    Once `is_stopped`, no further part begins. ShardError comes after all other parts have been finished.
    """
    _clear(folder, parts, outputs)
    records, jobs, changed = {}, [], 0
    for part in parts:
        done = folder / DONE / f"{part.number:05}.json"
        record = json.loads(done.read_text()) if done.exists() else {"made_from": None}
        made_from = part.made_from
        files = [folder / output.path.format(part.number) for output in outputs.values()]
        is_whole = record.get("error") is None and all(file.exists() for file in files)
        if is_whole and record["made_from"] == made_from:
            records[part.number] = record
            continue
        before = record["made_from"] or made_from
        changed += before["options"] == made_from["options"] and before.get("code") != made_from["code"]
        # A record must never outlive the rows it speaks of.
        done.unlink(missing_ok=True)
        jobs.append(Job(part, folder, outputs, made_from))
    if changed:
        tqdm.write(f"The code has changed: {changed} finished parts are made again.", sys.stderr)
    failed: dict[int, str] = {}
    total, todo = sum(part.units for part in parts), sum(job.part.units for job in jobs)
    run = engine or partial(run_here, is_stopped=is_stopped)
    hidden = True if desc is None else None
    with (
        # What an earlier run finished does not count in the rate.
        _Bar(total=total, initial=total - todo, unit=unit, desc=desc, disable=hidden, miniters=1) as bar,
        hide_bars() if desc is not None else nullcontext(),
    ):
        for job, outcome in run(jobs, bar.update) if jobs else ():
            if isinstance(outcome, str):
                failed[job.part.number] = outcome
            else:
                records[job.part.number] = outcome
                bar.set_postfix(shards=f"{len(records)}/{len(parts)}")
    if failed:
        raise ShardError(
            f"{len(failed)} of {len(parts)} shards failed ({failed[min(failed)]}); finished ones "
            f"are kept in `{folder.name}`, and the same command repeats only what failed."
        )
    rmtree(folder / ATTEMPTS, ignore_errors=True)
    return dict(sorted(records.items()))


@contextmanager
def hide_bars() -> Iterator[None]:
    """Hide the bars and warnings of `datasets`, where a bar or a sentence of our own says more."""
    shown, verbosity = not are_progress_bars_disabled(), logging.get_verbosity()
    disable_progress_bars()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            enable_progress_bars()


def _clear(folder: Path, parts: Sequence[Part], outputs: Mapping[str, Output]) -> None:
    """Remove attempts, and files of parts that this run does not have."""
    kinds = (*(output.path for output in outputs.values()), f"{DONE}/{{:05}}.json")
    with writing(folder):
        rmtree(folder / ATTEMPTS, ignore_errors=True)
        (folder / ATTEMPTS).mkdir(parents=True)
        for kind in kinds:
            (folder / kind).parent.mkdir(exist_ok=True)
            ours = {folder / kind.format(part.number) for part in parts}
            for path in set(folder.glob(kind.replace("{:05}", "*"))) - ours:
                path.unlink()


def finish_part(job: Job, progress: Callable[[int], object] = lambda _: None) -> Outcome:
    """Write the files of a part, then its record, and return that, or why there is none."""
    part, number = job.part, job.part.number
    attempt = job.folder / ATTEMPTS / f"{number:05}-{uuid4().hex}"
    paths = {kind: output.path.format(number) for kind, output in job.outputs.items()}
    try:
        # Without parents: only a run makes the folder of a run.
        attempt.mkdir()
        record = {"made_from": job.made_from, **_write(job, attempt, progress)}
        record["sha256"] = {kind: sha256(attempt / kind) for kind in paths}
        (attempt / DONE).write_text(json.dumps(record))
        for kind, path in {**paths, DONE: f"{DONE}/{number:05}.json"}.items():
            (attempt / kind).replace(job.folder / path)
    except SourceError as problem:
        return str(problem).rstrip(".")
    except OSError as error:
        gone = f"`{job.folder}` is gone; run the command again"
        trouble = disk_trouble(error) if job.folder.is_dir() else gone
        if trouble is None:
            raise
        return f"`{part.name}` could not be written: {trouble}"
    finally:
        # At once: on a full disk the other parts need the room.
        rmtree(attempt, ignore_errors=True)
    return record


def _write(job: Job, attempt: Path, progress: Callable[[int], object]) -> Json:
    """Write the tables of all pieces; return their counts, the first error, and rows by kind."""
    counts: Json = {}
    error: str | None = None
    rows = dict.fromkeys(job.outputs, 0)
    with ExitStack() as stack:

        def open_writer(kind: str, schema: pa.Schema) -> pq.ParquetWriter:
            compression = job.outputs[kind].compression
            return stack.enter_context(pq.ParquetWriter(attempt / kind, schema, compression=compression))

        # A part without rows has files, too.
        writers = {kind: open_writer(kind, output.schema) for kind, output in job.outputs.items() if output.schema}
        for piece in job.part.run():
            for kind, table in piece.tables.items():
                if kind not in writers:
                    writers[kind] = open_writer(kind, table.schema)
                writers[kind].write_table(table.replace_schema_metadata(writers[kind].schema.metadata))
                rows[kind] += table.num_rows
            add_counts(counts, piece.counts)
            error = error or piece.error
            progress(piece.units)
    return {"counts": counts, "error": error, "rows": rows}


def add_counts(total: Json, more: Mapping[str, Any]) -> Json:
    """Add nested dicts of numbers to `total`, and return it.

    >>> add_counts({"runs": 1}, {"runs": 2, "dropped": {"too_long": 1}})
    {'runs': 3, 'dropped': {'too_long': 1}}
    """
    for name, value in more.items():
        if isinstance(value, Mapping):
            add_counts(total.setdefault(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value
    return total


def sum_counts(records: Iterable[Json]) -> Json:
    """Add up the counts of the records of parts."""
    total: Json = {}
    for record in records:
        add_counts(total, record["counts"])
    return total


def sha256(path: Path) -> str:
    """Hash a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def engine_of(name: EngineName, workers: int) -> Engine:
    """Return the engine of a name; raises EngineError when it cannot be used."""
    if name == "local":
        return partial(run_in_processes, workers=workers)
    if workers != 1:
        raise EngineError("--workers is for this machine; Ray takes every CPU, so leave it out.")
    require_extra("ray", "ray", "--engine ray")
    from pimono_sdpo.runs.ray import run_on_ray

    return run_on_ray


def run_here(
    jobs: list[Job], progress: Callable[[int], object], is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[tuple[Job, Outcome]]:
    """Run one job after the other in this process."""
    for job in jobs:
        if is_stopped():
            return
        yield job, finish_part(job, progress)


def run_in_processes(
    jobs: list[Job], progress: Callable[[int], object], workers: int
) -> Iterator[tuple[Job, Outcome]]:
    """Run jobs in new processes; `progress` is called after each part."""
    if min(workers, len(jobs)) < 2:
        yield from run_here(jobs, progress)
        return
    # A fork spares the imports, but copies what another thread holds in whatever state it is; the
    # server of forks has imported what the parts need, and nothing has run in it.
    is_alone = active_count() == 1 and 0 < _count_threads() == _AT_IMPORT
    context = get_context("fork" if is_alone else "forkserver")
    functions = [jobs[0].part.run, *(stage.fn for stage in jobs[0].part.stages)]
    context.set_forkserver_preload([__name__, *set(map(module_of, functions))])
    pool = ProcessPoolExecutor(min(workers, len(jobs)), context, initializer=_prepare_worker)
    try:
        with _delay_interrupts():
            futures = {pool.submit(finish_part, job): job for job in jobs}
        for future in as_completed(futures):
            job = futures[future]
            try:
                outcome = future.result()
            except BrokenProcessPool:
                # The pool takes no more work and does not tell which job it was.
                outcome = "a worker was killed, most likely for lack of memory; try fewer --workers"
            progress(job.part.units)
            yield job, outcome
    finally:
        # After a bug or Ctrl-C nothing new begins.
        pool.shutdown(cancel_futures=True)


@contextmanager
def _delay_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back; processes that start meanwhile hold it back until they are ready for it."""
    # Its own start would let signals through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    # Another thread of this process may still receive the signal; Python then handles it in this
    # one, where it would break off what a starting worker reads.
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
    """Make this worker end at Ctrl-C, and when its run is gone."""
    disable_progress_bars()
    # A lock among processes is a semaphore, which a worker that is killed would leave behind.
    tqdm.set_lock(RLock())
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()
