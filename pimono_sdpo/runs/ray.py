"""Make parts as Ray tasks on all nodes of a cluster; imported only for `--engine ray`.

Source and output must be in folders that all nodes share: each task writes its own file, and this process then reads
it. If a node dies, Ray repeats its tasks on another one.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from logging import ERROR
from pathlib import Path

import ray
from ray import exceptions

from pimono_sdpo.errors import EngineError
from pimono_sdpo.runs.engine import Part, make_part, read_made


def run_on_ray(
    parts: Sequence[Part], folder: Path, progress: Callable[[int], object]
) -> Iterator[tuple[Part, str | None]]:
    """Make parts on the cluster of RAY_ADDRESS, on one that runs on this machine, or on a new local one."""
    starts_ray = not ray.is_initialized()
    if starts_ray:
        _connect()
    try:
        if len(ray.nodes()) == 1:  # type: ignore[no-untyped-call]
            sys.stderr.write("Ray has this machine alone; here it is slower than --workers 2.\n")
        pending = {ray.remote(make_part).remote(part, folder): part for part in parts}
        while pending:
            (ready, *_), _ = ray.wait(list(pending), num_returns=1)
            part = pending.pop(ready)
            try:
                failure = ray.get(ready) or check_part(part, folder)
            except exceptions.RayError as error:
                # A task that a node cannot read is both; any other error in a task is a bug.
                if isinstance(error, exceptions.RayTaskError) and not isinstance(error, exceptions.RaySystemError):
                    raise
                problem = str(error).splitlines()[-1]
                failure = (
                    f"a node cannot make `{part.title}` ({type(error).__name__}: {problem}); every node needs this "
                    "version of the package and enough memory"
                )
            progress(part.units)
            yield part, failure
    finally:
        if starts_ray:
            ray.shutdown()


def check_part(part: Part, folder: Path) -> str | None:
    """Return why the file of a part is not here, or not one of this version."""
    made = read_made(part.path(folder))
    if made is None:
        return f"`{part.title}` was made on a node that does not see `{folder}`; give folders that all nodes share"
    if made.made_from["code"] != part.code:
        return f"`{part.title}` was made by another version of this package; install the same on all nodes"
    return None


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
