"""Give up everything that untrusted code must not have; the last thing that happens before it."""

from __future__ import annotations

import os
import resource

from rewards.sandbox import kernel, landlock, seccomp
from rewards.sandbox.kernel import prctl

TYPE_CHECKING = False  # see supervisor.py
if TYPE_CHECKING:
    from typing import Any

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def confine(spec: dict[str, Any]) -> None:
    """Confine this process, which becomes the first of the run, as `spec` says; never half.

    Raises KernelError or OSError when something is refused: then nothing untrusted may start.
    """
    with open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123
        score.write("1000")
    _limit(spec["limits"], spec["tasks"])
    if spec["uid"]:
        prctl(kernel.PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(spec["uid"], spec["uid"], spec["uid"])
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    kernel.keep_capabilities(*([kernel.CAP_DAC_READ_SEARCH] if spec["search"] else []))
    prctl(kernel.PR_SET_PDEATHSIG, 9)
    prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict(spec["read"], [spec["folder"]], DEVICES)
    seccomp.install(spec["filter"])


def _limit(limits: dict[str, Any], tasks: int) -> None:
    """Set rlimits; `tasks` bounds the processes and threads of the uid."""
    # Later than the supervisor, which counts the whole tree and says what happened.
    seconds = 1 - int(-limits["cpu_seconds"] // 1)
    _set(resource.RLIMIT_CPU, seconds, seconds + 1)
    _set(resource.RLIMIT_DATA, limits["memory"])
    # Every thread's stack counts as data, as large as the soft limit.
    _set(resource.RLIMIT_STACK, 8 << 20, 64 << 20)
    _set(resource.RLIMIT_FSIZE, limits["file_size"])
    _set(resource.RLIMIT_NOFILE, limits["open_files"])
    _set(resource.RLIMIT_NPROC, tasks)
    _set(resource.RLIMIT_MEMLOCK, 0)
    # 1, not 0, also keeps the kernel from handing a core to a program of the system (core(5)).
    _set(resource.RLIMIT_CORE, 1)


def _set(what: int, soft: int, hard: int | None = None) -> None:
    """Set a limit; one that is already lower stays."""
    ceiling = resource.getrlimit(what)[1]
    hard = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        hard = min(hard, ceiling)
    resource.setrlimit(what, (min(soft, hard), hard))
