"""Run untrusted code so that it can do no harm; nothing else here starts any.

    ran = run([sys.executable, "main.py"], files={"main.py": answer}, stdin=b"[3, 1, 2]")

No network, no environment, no other processes; the system and the interpreter can be read, only a
folder of the run's own can be written, and everything is counted and limited. Where no backend
holds, `run` refuses. For many short runs of Python, a `Server` starts one interpreter.
"""

import functools
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from huggingface_hub import get_token

from rewards.sandbox import hub, kernel, landlock, local
from rewards.sandbox.local import NOTHING, Limits, Ran, SandboxError
from rewards.sandbox.supervisor import receive, send

__all__ = ["Backend", "Limits", "Ran", "SandboxError", "Server", "available", "run"]

# Strongest first. `hub` is never chosen by itself: it costs money and sends the code away.
LOCAL = ("bubblewrap", "landlock")

PROBE = """
import os, socket, sys
secret, outside, parent = sys.argv[1], sys.argv[2], int(sys.argv[3])
for name, attempt in {
    "reads a file outside": lambda: open(secret).read(),
    "writes outside": lambda: open(outside, "w"),
    "opens a socket": lambda: socket.socket(),
    "signals another process": lambda: os.kill(parent, 0),
    "lists processes": lambda: os.listdir("/proc"),
}.items():
    try:
        attempt()
    except OSError:
        continue
    print(name)
open("own", "w").write("works")
print("end")
"""


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
    return local.run_spec(
        command, files, stdin, limits, collect, env, local.cold(chosen), chosen, read
    )


class Server:
    """A warm interpreter; safe to use from several threads.

        with Server(imports=["json", "math"]) as server:
            ran = server.run(["main.py"], files={"main.py": answer})

    It imports once, and each run is a fork of it, with its own supervisor, folder and uid, confined
    as a cold run is before it runs anything untrusted. Import only what is trusted: it runs
    unconfined.
    """

    def __init__(self, imports: Sequence[str] = ()) -> None:
        choose("landlock")
        self._sending = threading.Lock()
        self._started = local.started([], "warm_server", "-I")
        self._control = self._started.__enter__()
        try:
            send(self._control.fileno(), {"imports": list(imports)})
            receive(self._control.fileno())
        except (EOFError, BrokenPipeError, ConnectionResetError) as ended:
            self.close()
            names = ", ".join(imports)
            raise SandboxError(f"the warm sandbox could not import {names}, see above") from ended

    def run(
        self,
        arguments: Sequence[str],
        *,
        files: Mapping[str, bytes | str] = NOTHING,
        stdin: bytes = b"",
        limits: Limits = Limits(),  # noqa: B008
        collect: Sequence[str] = (),
        env: Mapping[str, str] = NOTHING,
        read: Sequence[str] = (),
    ) -> Ran:
        """Run what `python ARGUMENTS...` would: a file of the folder, `-c CODE`, or `-m MODULE`."""
        return local.run_spec(
            arguments, files, stdin, limits, collect, env, self._exchange, "landlock", read
        )

    def _exchange(self, spec: dict[str, Any], stdin: bytes) -> dict[str, Any]:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, self._sending:
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
            return local.talk(ours, spec, stdin)

    def close(self) -> None:
        """End the interpreter; runs in progress are killed."""
        self._started.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Backend:
    """A way to run untrusted code; `why` says why it does not hold here, "" when it does."""

    name: str
    why: str

    @property
    def holds(self) -> bool:
        """Whether it can be used."""
        return not self.why


@functools.cache
def available() -> tuple[Backend, ...]:
    """Every backend, the strongest first; tried once per process."""
    missing = missing_in_kernel()
    no_bubblewrap = "" if shutil.which("bwrap") else "`bwrap` is not installed"
    return (
        Backend("bubblewrap", no_bubblewrap or missing or _broken("bubblewrap")),
        Backend("landlock", missing or _broken("landlock")),
        Backend("hub", "" if get_token() else "no Hugging Face token; set HF_TOKEN"),
    )


def choose(backend: str) -> str:
    """The backend of that name, or for `auto` the strongest that holds here; else SandboxError."""
    known = {one.name: one for one in available()}
    if backend == "auto":
        for name in LOCAL:
            if known[name].holds:
                return name
        why = "; ".join(f"{name}: {known[name].why}" for name in LOCAL)
        raise SandboxError(f"no sandbox holds on this machine, so nothing was run ({why})")
    if backend not in known:
        raise SandboxError(f"unknown sandbox `{backend}`; use auto or one of {', '.join(known)}")
    if not known[backend].holds:
        raise SandboxError(f"the sandbox `{backend}` does not hold here: {known[backend].why}")
    return backend


def missing_in_kernel() -> str:
    """What Landlock and seccomp lack here, "" when nothing."""
    if not sys.platform.startswith("linux"):
        return f"needs Linux, this is {sys.platform}"
    if kernel.MACHINE not in kernel.AUDIT_ARCH:
        return f"the seccomp filter is written for x86_64 and aarch64, this is {kernel.MACHINE}"
    version, needed = landlock.abi(), 3 if local.may_change_uid() else 6
    if version < needed:
        whose = "with a uid of its own" if needed == 3 else "without root"
        return f"the kernel {os.uname().release} has Landlock {version}, {whose} {needed} is needed"
    if not Path("/proc/thread-self/children").exists():
        return "the kernel has no /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN)"
    if (
        local.may_change_uid()
        and local.needs_search(local.readable())
        and not kernel.has_capability(kernel.CAP_DAC_READ_SEARCH)
    ):
        return (
            f"the interpreter {sys.executable} lies below a folder that only root may enter, and "
            "CAP_DAC_READ_SEARCH is not held; use an interpreter that everybody can read"
        )
    return ""


def _broken(backend: str) -> str:
    """What untrusted code could still do under a backend; "" when the probe was held."""
    descriptor, secret = tempfile.mkstemp()
    os.close(descriptor)
    Path(secret).chmod(0o666)
    arguments = [secret, f"{secret}-written", str(os.getppid())]
    command = [sys.executable, "-I", "-S", "-c", PROBE, *arguments]
    try:
        ran = local.run_spec(command, {}, b"", Limits(), (), {}, local.cold(backend), backend)
    except SandboxError as refusal:
        return str(refusal)
    finally:
        Path(secret).unlink()
    *escapes, end = ran.stdout.decode().split("\n")[:-1] or [""]
    if end != "end":
        return f"its self-test did not end: {ran.stderr.decode().strip()[-300:]}"
    return f"its self-test {', '.join(escapes)}" if escapes else ""
