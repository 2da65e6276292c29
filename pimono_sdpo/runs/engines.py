"""Tell what runs the shards: processes of this machine, or a Ray cluster."""

from functools import partial
from importlib.util import find_spec
from typing import Literal

from pimono_sdpo.errors import EngineError
from pimono_sdpo.runs.workers import Engine, in_processes


def engine_of(name: Literal["local", "ray"], workers: int) -> Engine:
    """Return the engine of a name; raises EngineError when it is not there."""
    if name == "local":
        return partial(in_processes, workers=workers)
    if workers != 1:
        raise EngineError(
            "--workers is for this machine and Ray takes every CPU of its cluster; leave it out."
        )
    if not find_spec("ray"):
        raise EngineError(
            'Ray is not installed; install the extra: pip install "pimono-sdpo[ray]".'
        )
    from pimono_sdpo.runs.ray_engine import on_ray

    return on_ray
