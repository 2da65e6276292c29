"""Finish shards as Ray tasks, on every node of a cluster; imported only when asked for.

Source and output must lie in folders that all nodes share: a task writes its shard itself, and
this process only gathers the records. A task whose node dies is run again on another.
"""

import os
import pickle
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from logging import ERROR
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    OutOfMemoryError,
    TaskUnschedulableError,
    WorkerCrashedError,
)

from pimono_sdpo.errors import EngineError
from pimono_sdpo.runs.shards import run_shard
from pimono_sdpo.runs.workers import Job, Outcome, finish_shard
from pimono_sdpo.stage import source_hash

MAX_RETRIES = 5
TOKEN = "driver"
LOST = (
    LocalRayletDiedError,
    NodeDiedError,
    OutOfMemoryError,
    TaskUnschedulableError,
    WorkerCrashedError,
)


def on_ray(jobs: list[Job], progress: Callable[[int], object]) -> Iterator[Outcome]:
    """Run jobs on the cluster RAY_ADDRESS names, one that runs here, or one of this machine alone.

    `progress` hears of whole shards. Raises EngineError when there is no such cluster.
    """
    ours = not ray.is_initialized()
    if ours:
        _connect()
    try:
        token = uuid4().hex
        (jobs[0].work / TOKEN).write_text(token)
        task = ray.remote(max_retries=MAX_RETRIES)(shipped())
        pending = {task.remote(pickle.dumps(_everywhere(job)), token): job for job in jobs}
        while pending:
            (ready, *_), _ = ray.wait(list(pending), num_returns=1)
            job = pending.pop(ready)
            try:
                told: Outcome | str = ray.get(ready)
            except LOST as error:
                name = type(error).__name__
                told = f"`{job.shard.path}` was lost {MAX_RETRIES + 1} times with its node ({name})"
            progress(job.shard.sessions)
            yield Outcome(job, None, told) if isinstance(told, str) else told
    finally:
        if ours:
            ray.shutdown()


def _connect() -> None:
    # Ray would report to its makers on what it runs.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS", "auto")
    host, _, port = address.rpartition(":")
    try:
        if host and "/" not in host and port.isdigit():
            # Ray itself asks for minutes before it gives up.
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(logging_level=ERROR, log_to_driver=False)
    except OSError as error:
        raise EngineError(
            f"No Ray cluster answers at `{address}`; start it with `ray start`, or unset "
            "RAY_ADDRESS to run on this machine."
        ) from error


def shipped() -> Callable[[bytes, str], Any]:
    """Make a function that travels as a whole, so that it can say that the package is not there.

    It takes a pickled job and returns an Outcome or a clause; no type of ours may be in its head.
    """

    def finish(job: bytes, token: str) -> Any:
        try:
            from pimono_sdpo.runs.ray_engine import finish_on_node

            unpacked = pickle.loads(job)
        except (ImportError, AttributeError) as error:
            return f"node `{socket.gethostname()}` lacks this version of this package ({error})"
        return finish_on_node(unpacked, token)

    return finish


def _everywhere(job: Job) -> Job:
    """Name files from the root: a node works in another folder than this process."""
    files = tuple(file.absolute() for file in job.shard.files)
    return replace(job, shard=replace(job.shard, files=files, root=job.shard.root.absolute()))


def finish_on_node(job: Job, token: str) -> Outcome | str:
    """Finish a shard, if this node sees the folder of the run and has the code of its driver."""
    host = socket.gethostname()
    if not _reads(job.work / TOKEN, token):
        return f"node `{host}` does not see `{job.work}`; give folders that all nodes share"
    here = [source_hash(run_shard), *(source_hash(stage.fn) for stage in job.stages)]
    if here != [job.made_from["reader"], *(stage.code for stage in job.stages)]:
        return f"node `{host}` has another version of this package; install the same everywhere"
    return finish_shard(job)


def _reads(path: Path, token: str) -> bool:
    return path.is_file() and path.read_text() == token
