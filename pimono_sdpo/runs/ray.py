"""Run parts as Ray tasks on all nodes of a cluster; imported only for `--engine ray`.

Source and output must be in folders that all nodes share: each task writes its own shard, and this
process only collects the records. If a node dies, its tasks are repeated on another one.
"""

import os
import pickle
import socket
from collections.abc import Callable, Iterator
from logging import ERROR
from typing import Any
from uuid import uuid4

import ray
from ray import exceptions

from pimono_sdpo.errors import EngineError
from pimono_sdpo.runs.engine import Job, Outcome, code_of, finish_part

MAX_RETRIES = 5
TOKEN = "driver"
LOST = (
    exceptions.LocalRayletDiedError,
    exceptions.NodeDiedError,
    exceptions.OutOfMemoryError,
    exceptions.TaskUnschedulableError,
    exceptions.WorkerCrashedError,
)


def run_on_ray(jobs: list[Job], progress: Callable[[int], object]) -> Iterator[tuple[Job, Outcome]]:
    """Run jobs on the cluster of RAY_ADDRESS, on one that runs on this machine, or on a new local one."""
    starts_ray = not ray.is_initialized()
    if starts_ray:
        _connect()
    try:
        token = uuid4().hex
        (jobs[0].folder / TOKEN).write_text(token)
        task = ray.remote(max_retries=MAX_RETRIES)(build_task())
        pending = {task.remote(pickle.dumps(job), token): job for job in jobs}
        while pending:
            (ready, *_), _ = ray.wait(list(pending), num_returns=1)
            job = pending.pop(ready)
            try:
                outcome: Outcome = ray.get(ready)
            except LOST as error:
                times = MAX_RETRIES + 1
                outcome = f"`{job.part.name}` was lost {times} times with its node ({type(error).__name__})"
            progress(job.part.units)
            yield job, outcome
    finally:
        if starts_ray:
            ray.shutdown()


def _connect() -> None:
    # Ray would send usage statistics to its developers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS", "auto")
    host, _, port = address.rpartition(":")
    try:
        if host and "/" not in host and port.isdigit():
            # Ray itself tries for minutes before it gives up.
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(logging_level=ERROR, log_to_driver=False)
    except OSError as error:
        raise EngineError(
            f"No Ray cluster answers at `{address}`; start it with `ray start`, or unset "
            "RAY_ADDRESS to run on this machine."
        ) from error


def build_task() -> Callable[[bytes, str], Any]:
    """Return a function that is pickled by value, so that it can report a missing package.

    Its signature must not name a type of this package.
    """

    def finish(job: bytes, token: str) -> Any:
        try:
            from pimono_sdpo.runs.ray import finish_on_node

            unpacked = pickle.loads(job)
        except (ImportError, AttributeError) as error:
            return f"node `{socket.gethostname()}` does not have this version of the package ({error})"
        return finish_on_node(unpacked, token)

    return finish


def finish_on_node(job: Job, token: str) -> Outcome:
    """Run a part if this node has the folder of the run and the code of its driver."""
    host, token_file = socket.gethostname(), job.folder / TOKEN
    if not token_file.is_file() or token_file.read_text() != token:
        return f"node `{host}` does not see `{job.folder}`; give folders that all nodes share"
    if job.made_from["code"] != code_of(job.part.run, job.part.stages):
        return f"node `{host}` has another version of this package; install the same everywhere"
    return finish_part(job)
