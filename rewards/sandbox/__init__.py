"""Run untrusted code so that it can do no harm; nothing else here starts any.

    ran = run([sys.executable, "main.py"], files={"main.py": answer}, stdin=b"[3, 1, 2]")

No network, no environment, no other processes; the system and the interpreter can be read, only a
folder of the run's own can be written, and everything is counted and limited. Where no backend
holds, `run` refuses.
"""

import functools
from collections.abc import Mapping, Sequence

from rewards.sandbox import hub, local
from rewards.sandbox.backends import Backend, available, choose, prefix
from rewards.sandbox.limits import NOTHING, Limits, Ran, SandboxError

__all__ = ["Backend", "Limits", "Ran", "SandboxError", "available", "run"]


def run(
    command: Sequence[str],
    *,
    files: Mapping[str, bytes | str] = NOTHING,
    stdin: bytes = b"",
    limits: Limits = Limits(),  # noqa: B008
    backend: str = "auto",
    collect: Sequence[str] = (),
    env: Mapping[str, str] = NOTHING,
    read: Sequence[str] = (),
) -> Ran:
    """Run a command in a fresh folder that holds `files`, and return what came of it.

    `collect` names files of that folder to bring back; `env` is added to a clean environment;
    `read` are files and folders that may be read beside the system's, such as a tool's. Never take
    them from a dataset.
    A command that is not there exits with 127. Raises SandboxError when nothing could be run.
    """
    chosen = choose(backend)
    if chosen == "hub":
        if read:
            raise SandboxError("the sandbox `hub` has no files of this machine; leave `read` out")
        return hub.run(command, files, stdin, limits, collect, env)
    exchange = local.cold(functools.partial(prefix, chosen))
    return local.run_spec(command, files, stdin, limits, collect, env, exchange, chosen, read)
