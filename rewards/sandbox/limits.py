"""What a run may use, and what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from pimono_sdpo.errors import PimonoError

MEBI = 1 << 20
NOTHING: Mapping[str, str] = MappingProxyType({})
Stopped = Literal["", "cpu", "wall", "memory", "processes", "disk", "files"]


class SandboxError(PimonoError):
    """No backend holds, or confinement failed; nothing untrusted was run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the whole tree of processes may use.

    CPU seconds are tight, wall seconds loose: a loaded machine must not fail a correct program. The
    wall clock stands still while a program is ready to run and gets no CPU.
    Sizes are bytes. `processes` counts threads. `files` counts entries of the work folder.
    What the kernel buffers in pipes and socket pairs is bounded by the number of open files alone.
    """

    cpu_seconds: float = 10
    wall_seconds: float = 60
    memory: int = 512 * MEBI
    processes: int = 64
    open_files: int = 128
    file_size: int = 64 * MEBI
    disk: int = 128 * MEBI
    files: int = 2000
    output: int = MEBI


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a run.

    `exit_code` is None when `signal` ended it. `stdout` and `stderr` are the first bytes up to
    `Limits.output`; what is longer ends in a line `[... N bytes cut]`. `files` has those asked for
    that are there, regular, and not too large. `stopped` names the limit at which the tree was
    killed, "" when it ended by itself; a program whose allocation is refused ends by itself.
    """

    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    cpu_seconds: float
    wall_seconds: float
    backend: str
    stopped: Stopped = ""
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def timed_out(self) -> Literal["", "cpu", "wall"]:
        """Which clock ran out."""
        return self.stopped if self.stopped in ("cpu", "wall") else ""
