"""Run a command's work in parts, in this process, in worker processes or on Ray, and resume after a kill.

FOLDER/KIND/NNNNN.parquet   the output of a part, one file for each kind of rows
FOLDER/done/NNNNN.json      its record: made_from, counts, error, rows and sha256 of each file
FOLDER/attempts/            files that are being written

The record of a part is written last and says what the part was made from; a rerun skips the parts
whose record matches their input, code and options. Each attempt writes into its own folder and
renames its files at the end, so that a worker that outlives its run or its node does no harm.
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

from pimono_sdpo.console import escape_warnings
from pimono_sdpo.errors import EngineError, ShardError, SourceError, require_extra
from pimono_sdpo.runs.folders import explain_disk_error, writing
from pimono_sdpo.stage import Stage, code_hash, module_of, source_hash

DONE, ATTEMPTS = "done", "attempts"
EngineName = Literal["local", "ray"]
Json = dict[str, Any]


def _count_threads() -> int:
    """Count all threads of this process, including those of libraries; 0 if that is unknown."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 0


# Threads that libraries start on import can be forked safely.
_AT_IMPORT = _count_threads()


class _Bar(tqdm):  # type: ignore[misc]
    """A bar without tqdm's monitor thread, which is unnecessary with `miniters=1`."""

    monitor_interval = 0


@dataclass(frozen=True)
class Output:
    """The file that a part writes for one kind of rows; without a `schema`, the schema is that of its tables."""

    path: str
    schema: pa.Schema | None = None
    compression: str = "snappy"


@dataclass(frozen=True)
class Piece:
    """What a part yields: tables by kind of rows, counts to be added up, and how many units are done.

    With an `error` the part is written, but the next run repeats it.
    """

    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    units: int = 0
    counts: Json = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Part:
    """A unit of work: its input, options and stages, and the function `run` that yields its pieces.

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
        """What the files depend on; after any change they are written again."""
        return {"input": self.input, "options": self.options, "code": code_of(self.run, self.stages)}


def code_of(run: Callable[..., object], stages: Sequence[Stage]) -> str:
    """Hash the code of a part's function and of its stages."""
    hashes = [code_hash(run), *(source_hash(stage.fn) for stage in stages)]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


@dataclass(frozen=True)
class Job:
    """A part, where it is written, and its `made_from`, which includes the code of the driver."""

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
    """Run every part that is not done yet, with a progress bar if there is a `desc`; return all records.

    Once `is_stopped`, no further part begins. ShardError is raised after all other parts are finished.
    """
    _clear(folder, parts, outputs)
    records, jobs, changed = {}, [], 0
    for part in parts:
        done = folder / DONE / f"{part.number:05}.json"
        record = json.loads(done.read_text()) if done.exists() else {"made_from": None}
        made_from = part.made_from
        files = [folder / output.path.format(part.number) for output in outputs.values()]
        is_complete = record.get("error") is None and all(file.exists() for file in files)
        if is_complete and record["made_from"] == made_from:
            records[part.number] = record
            continue
        before = record["made_from"] or made_from
        changed += before["options"] == made_from["options"] and before.get("code") != made_from["code"]
        # A record must not exist without its files.
        done.unlink(missing_ok=True)
        jobs.append(Job(part, folder, outputs, made_from))
    if changed:
        tqdm.write(f"The code has changed: {changed} finished parts are made again.", sys.stderr)
    failed: dict[int, str] = {}
    total, todo = sum(part.units for part in parts), sum(job.part.units for job in jobs)
    run = engine or partial(run_here, is_stopped=is_stopped)
    hidden = True if desc is None else None
    with (
        # Parts of an earlier run do not count in the rate.
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
    """Hide the bars and warnings of `datasets` while we show a bar or a message of our own."""
    were_enabled, verbosity = not are_progress_bars_disabled(), logging.get_verbosity()
    disable_progress_bars()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if were_enabled:
            enable_progress_bars()


def _clear(folder: Path, parts: Sequence[Part], outputs: Mapping[str, Output]) -> None:
    """Remove attempts, and the files of parts that this run does not have."""
    patterns = (*(output.path for output in outputs.values()), f"{DONE}/{{:05}}.json")
    with writing(folder):
        rmtree(folder / ATTEMPTS, ignore_errors=True)
        (folder / ATTEMPTS).mkdir(parents=True)
        for pattern in patterns:
            (folder / pattern).parent.mkdir(exist_ok=True)
            expected = {folder / pattern.format(part.number) for part in parts}
            for path in set(folder.glob(pattern.replace("{:05}", "*"))) - expected:
                path.unlink()


def finish_part(job: Job, progress: Callable[[int], object] = lambda _: None) -> Outcome:
    """Write the files of a part and then its record; return the record, or a clause that says what failed."""
    part, number = job.part, job.part.number
    attempt = job.folder / ATTEMPTS / f"{number:05}-{uuid4().hex}"
    paths = {kind: output.path.format(number) for kind, output in job.outputs.items()}
    try:
        # Without parents: the folder exists unless the run has been removed.
        attempt.mkdir()
        record = {"made_from": job.made_from, **_write(job, attempt, progress)}
        record["sha256"] = {kind: sha256(attempt / kind) for kind in paths}
        (attempt / DONE).write_text(json.dumps(record))
        for kind, path in {**paths, DONE: f"{DONE}/{number:05}.json"}.items():
            (attempt / kind).replace(job.folder / path)
    except SourceError as error:
        return str(error).rstrip(".")
    except OSError as error:
        removed = f"`{job.folder}` was removed; run the command again"
        reason = explain_disk_error(error) if job.folder.is_dir() else removed
        if reason is None:
            raise
        return f"`{part.name}` could not be written: {reason}"
    finally:
        # At once, since on a full disk the other parts need the space.
        rmtree(attempt, ignore_errors=True)
    return record


def _write(job: Job, attempt: Path, progress: Callable[[int], object]) -> Json:
    """Write the tables of all pieces; return their counts, the first error, and the number of rows by kind."""
    counts: Json = {}
    error: str | None = None
    rows = dict.fromkeys(job.outputs, 0)
    with ExitStack() as stack:

        def open_writer(kind: str, schema: pa.Schema) -> pq.ParquetWriter:
            compression = job.outputs[kind].compression
            return stack.enter_context(pq.ParquetWriter(attempt / kind, schema, compression=compression))

        # A part without rows has files as well.
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
    """Add up the counts in the records of parts."""
    total: Json = {}
    for record in records:
        add_counts(total, record["counts"])
    return total


def sha256(path: Path) -> str:
    """Hash a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def engine_of(name: EngineName, workers: int) -> Engine:
    """Return an engine by name; raises EngineError if it cannot be used."""
    if name == "local":
        return partial(run_in_processes, workers=workers)
    if workers != 1:
        raise EngineError("--workers is for this machine; Ray uses all CPUs, so leave it out.")
    require_extra("ray", "ray", "--engine ray")
    from pimono_sdpo.runs.ray import run_on_ray

    return run_on_ray


def run_here(
    jobs: list[Job], progress: Callable[[int], object], is_stopped: Callable[[], bool] = lambda: False
) -> Iterator[tuple[Job, Outcome]]:
    """Run the jobs in this process, one after the other."""
    for job in jobs:
        if is_stopped():
            return
        yield job, finish_part(job, progress)


def run_in_processes(
    jobs: list[Job], progress: Callable[[int], object], workers: int
) -> Iterator[tuple[Job, Outcome]]:
    """Run the jobs in worker processes; `progress` is called after each part."""
    workers = min(workers, len(jobs))
    if workers < 2:
        yield from run_here(jobs, progress)
        return
    # A fork saves the imports, but copies locks that other threads hold at that moment. A fork server
    # has only imported what the parts need, so that its forks are safe.
    is_alone = active_count() == 1 and 0 < _count_threads() == _AT_IMPORT
    context = get_context("fork" if is_alone else "forkserver")
    functions = [jobs[0].part.run, *(stage.fn for stage in jobs[0].part.stages)]
    context.set_forkserver_preload([__name__, *set(map(module_of, functions))])
    pool = ProcessPoolExecutor(workers, context, initializer=_prepare_worker)
    try:
        with _delay_interrupts():
            futures = {pool.submit(finish_part, job): job for job in jobs}
        for future in as_completed(futures):
            job = futures[future]
            try:
                outcome = future.result()
            except BrokenProcessPool:
                # The pool is broken for all jobs and does not say which of them was killed.
                outcome = "a worker was killed, most likely for lack of memory; try fewer --workers"
            progress(job.part.units)
            yield job, outcome
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
