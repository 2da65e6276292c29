"""Run a command confined on this machine: start its supervisor, exchange spec and report."""

import dataclasses
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rewards.sandbox import folder, places, seccomp, supervisor, tree
from rewards.sandbox.limits import Limits, Ran, SandboxError

HERE = Path(__file__).resolve().parent
# The packages' own `__init__` import much that a supervisor has no use for.
BOOT = """
import sys, types
for name, path in (("rewards", {0!r}), ("rewards.sandbox", {1!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from rewards.sandbox.{2} import main
main()
"""

# Numeric libraries that start threads could not be forked.
CLEAN = {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

Exchange = Callable[[dict[str, Any], bytes], dict[str, Any]]


def boot(module: str) -> str:
    """Python code that runs `main` of a module of this package, and imports little else."""
    return BOOT.format(str(HERE.parent), str(HERE), module)


def run_spec(
    command: Sequence[str],
    files: Mapping[str, bytes | str],
    stdin: bytes,
    limits: Limits,
    collect: Sequence[str],
    env: Mapping[str, str],
    exchange: Exchange,
    backend: str,
    read: Sequence[str] = (),
) -> Ran:
    """Make the folder, lease a uid, let `exchange` run the spec, collect, clean up."""
    wanted = [places.inside(name) for name in collect]
    with places.workspace(files) as base, places.own_uid() as uid:
        work = f"{base}/work"
        readable = (*places.readable(), *read)
        spec = {
            "command": list(command),
            "limits": dataclasses.asdict(limits),
            "env": places.environment(work, env),
            "folder": base,
            "cwd": work,
            "read": readable,
            "uid": uid,
            "search": bool(uid) and places.needs_search((*readable, base)),
            "filter": seccomp.program(inert_modes=not uid),
            "tasks": _most_tasks(uid, limits),
        }
        report = exchange(spec, stdin)
        if "refused" in report:
            raise SandboxError(f"the sandbox `{backend}` did not start: {report['refused']}")
        found = {name: folder.read(base, f"work/{name}", limits.file_size) for name in wanted}
    stdout, stderr = map(_marked, report["output"], report["seen"])
    return Ran(
        exit_code=report["code"] if report["code"] >= 0 else None,
        signal=-report["code"] if report["code"] < 0 else None,
        stdout=stdout,
        stderr=stderr,
        cpu_seconds=report["cpu"],
        wall_seconds=report["wall"],
        backend=backend,
        stopped=report["stopped"],
        files={name: content for name, content in found.items() if content is not None},
    )


def _most_tasks(uid: int, limits: Limits) -> int:
    """RLIMIT_NPROC, which counts every task of the uid.

    Without a uid of its own a run shares it with what its user starts meanwhile, other runs
    included: it may then be refused a process that it should have had, never get more.
    """
    return limits.processes + (0 if uid else tree.tasks_of(os.getuid()))


def _marked(kept: bytes, seen: int) -> bytes:
    cut = seen - len(kept)
    return kept + f"\n[... {cut} bytes cut]\n".encode() if cut else kept


def cold(prefix: Callable[[dict[str, Any]], list[str]]) -> Exchange:
    """An exchange with a fresh supervisor, started behind `prefix` (nothing, or bubblewrap)."""

    def exchange(spec: dict[str, Any], stdin: bytes) -> dict[str, Any]:
        with started(prefix(spec), "supervisor", "-IS") as connection:
            return talk(connection, spec, stdin)

    return exchange


@contextmanager
def started(prefix: list[str], module: str, flags: str) -> Iterator[socket.socket]:
    """Start `main` of a module of this package in a clean interpreter; the socket to it."""
    ours, theirs = socket.socketpair()
    with ours:
        # Its own session: Ctrl-C must not end it before it has killed the tree.
        with theirs:
            process = subprocess.Popen(
                [*prefix, sys.executable, flags, "-c", boot(module)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=CLEAN,
                start_new_session=True,
                cwd="/",
            )
        try:
            yield ours
        finally:
            ours.close()
            process.wait()


def talk(connection: socket.socket, spec: dict[str, Any], stdin: bytes) -> dict[str, Any]:
    """Send a spec and the standard input of its run, wait for the report."""
    given = _sealed(stdin)
    try:
        supervisor.send(connection.fileno(), spec)
        socket.send_fds(connection, [b"."], [given])
        return supervisor.receive(connection.fileno())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return {"refused": "its supervisor ended without a report, see its message above"}
    finally:
        os.close(given)


def _sealed(data: bytes) -> int:
    """A file in memory that cannot be changed any more, at its start."""
    given = os.memfd_create("stdin", os.MFD_ALLOW_SEALING)
    with open(given, "wb", closefd=False) as file:
        file.write(data)
    every_seal = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(given, fcntl.F_ADD_SEALS, every_seal)
    os.lseek(given, 0, os.SEEK_SET)
    return given
