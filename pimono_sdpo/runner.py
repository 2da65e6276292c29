"""Run a pipeline over all shards of a source: resumed, in parallel, and past a shard that fails.

Work happens in a sibling folder `.NAME.partial`. Each shard ends with a small JSON that says what
it was made from; a rerun skips what is already there for the same input, code and options.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import OutputError, ShardError, SourceError
from pimono_sdpo.export import Shard
from pimono_sdpo.shards import run_shard, write_atomically
from pimono_sdpo.stage import Stage, name_of

Json = dict[str, Any]
FOLDERS = ("rows", "prints", "rejects", "done")


def run_shards(
    shards: Sequence[Shard],
    stages: Sequence[Stage],
    work: Path,
    options: Json,
    progress: Callable[[int], object],
    workers: int = 1,
) -> list[Json]:
    """Run every shard that is not done yet; return one record per shard, in their order.

    `progress` is called with the number of sessions done. The output does not depend on `workers`.
    Raises ShardError when shards failed, after all others have been finished.
    """
    _clear_strangers(work, len(shards))
    made_from = [_fingerprint(shard, stages, options) for shard in shards]
    records: dict[int, Json] = {}
    todo = []
    for index, shard in enumerate(shards):
        done = work / "done" / f"{index:05}.json"
        record = json.loads(done.read_text()) if done.exists() else {}
        if record.get("made_from") == made_from[index]:
            records[index] = record
            progress(shard.sessions)
        else:
            # A record must never outlive the rows it speaks of.
            done.unlink(missing_ok=True)
            todo.append(index)
    jobs = [(index, shards[index], stages, work, made_from[index]) for index in todo]
    failed: dict[int, str] = {}
    for index, result in _results(jobs, progress, workers):
        if isinstance(result, str):
            failed[index] = result
        else:
            records[index] = result
    if failed:
        first = min(failed)
        raise ShardError(
            f"{len(failed)} of {len(shards)} shards failed ({failed[first].rstrip('.')}); the "
            f"others are done and wait in `{work.name}`: mend or leave out what failed and run "
            "again."
        )
    return [records[index] for index in range(len(shards))]


Job = tuple[int, Shard, Sequence[Stage], Path, Json]


def _results(
    jobs: list[Job], progress: Callable[[int], object], workers: int
) -> Iterator[tuple[int, Json | str]]:
    """Yield each job's index with its record, or with the sentence that says why there is none."""
    if workers == 1 or len(jobs) < 2:
        for job in jobs:
            yield job[0], _finish(*job, progress)
        return
    # Fork would copy the threads of Arrow in whatever state they are.
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=get_context("spawn")) as pool:
        futures: dict[Future[Json | str], Job] = {
            pool.submit(_finish, *job, _no_progress): job for job in jobs
        }
        for future in as_completed(futures):
            index, shard, *_ = futures[future]
            try:
                yield index, future.result()
            except BrokenProcessPool:
                # Killed from outside, mostly for want of memory; the pool takes no more work.
                yield index, f"a worker was killed while it or another read `{shard.path}`"
            progress(shard.sessions)


def _finish(
    index: int,
    shard: Shard,
    stages: Sequence[Stage],
    work: Path,
    made_from: Json,
    progress: Callable[[int], object],
) -> Json | str:
    try:
        tally = run_shard(shard, stages, work, f"{index:05}.parquet", progress)
        record = {"made_from": made_from, **tally.to_json()}
        write_atomically(work / "done" / f"{index:05}.json", json.dumps(record).encode())
    except SourceError as problem:
        return str(problem)
    except OSError as error:
        # Reading tells its own problems; what is left is a disk that takes no more.
        return f"`{shard.path}` could not be written: {error.strerror or error}"
    return record


def _no_progress(_: int) -> None:
    """A worker's batches are not told one by one."""


def _clear_strangers(work: Path, count: int) -> None:
    """Remove what an earlier run left that was killed and had more shards than this one."""
    try:
        for name in FOLDERS:
            (work / name).mkdir(parents=True, exist_ok=True)
            for path in (work / name).iterdir():
                if not path.stem.isdigit() or int(path.stem) >= count:
                    path.unlink()
    except OSError as error:
        raise OutputError(
            f"`{work}` cannot be written ({error.strerror}); give another folder."
        ) from error


def _fingerprint(shard: Shard, stages: Sequence[Stage], options: Json) -> Json:
    """What a finished shard depends on; a change of any part makes it again."""
    files = [
        [file.name, stat.st_size, stat.st_mtime_ns]
        for file in shard.files
        for stat in (file.stat(),)
    ]
    return {
        "input": [shard.path, shard.layout, shard.sessions, shard.revision, files],
        "stages": [[name_of(stage), stage.code] for stage in stages],
        "options": options,
    }
