"""Run a tool that reads untrusted files, such as a linter or a compiler, in the sandbox.

`cold` starts a supervisor for each run; `in_server` forks one from a warm interpreter, which then
starts the tool.
"""

import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rewards import sandbox
from rewards.sandbox import Limits, Ran
from rewards.sandbox.warm import Server

# One thread each: a stack per core would count as memory, and many runs go on at once.
ENVIRONMENT = {
    "RAYON_NUM_THREADS": "1",
    "TOKIO_WORKER_THREADS": "1",
    "GOMAXPROCS": "1",
    "NO_COLOR": "1",
}
_EXEC = """
import os, sys
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except FileNotFoundError:
    os._exit(127)
except PermissionError:
    os._exit(126)
"""
# Packages of npm start these through Node, which costs ten times as much; the program is beside.
_BESIDE = {"biome": "@biomejs/cli-linux-*/biome", "esbuild": "@esbuild/linux-*/bin/esbuild"}


class Tool(Protocol):
    """Runs a command on files; 127 when it is not there."""

    def __call__(
        self,
        command: Sequence[str],
        files: Mapping[str, bytes | str],
        limits: Limits,
        read: Sequence[str] = (),
        env: Mapping[str, str] = ENVIRONMENT,
    ) -> Ran:
        """Return what came of it; raises SandboxError when nothing could be run."""


def cold(
    command: Sequence[str],
    files: Mapping[str, bytes | str],
    limits: Limits,
    read: Sequence[str] = (),
    env: Mapping[str, str] = ENVIRONMENT,
) -> Ran:
    """Run a command in a sandbox of its own."""
    return sandbox.run(command, files=files, limits=limits, read=read, env=env)


def in_server(server: Server) -> Tool:
    """Return what runs commands from a warm interpreter, which needs no imports of its own."""

    def run(
        command: Sequence[str],
        files: Mapping[str, bytes | str],
        limits: Limits,
        read: Sequence[str] = (),
        env: Mapping[str, str] = ENVIRONMENT,
    ) -> Ran:
        return server.run(["-c", _EXEC, *command], files=files, limits=limits, read=read, env=env)

    return run


def program(name: str) -> str | None:
    """Return where the native program of that name is: beside Python, on PATH, or in its package.

    A script, such as those npm puts on the PATH, is only followed to the program that it starts.
    """
    where = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    found = shutil.which(name, path=where)
    if found is None:
        return None
    itself = Path(found).resolve()
    if _native(itself):
        return str(itself)
    machine = "arm64" if platform.machine() == "aarch64" else "x64"
    for parent in itself.parents:
        if parent.name == "node_modules" and name in _BESIDE:
            for beside in sorted(parent.glob(_BESIDE[name])):
                if machine in str(beside.relative_to(parent)) and _native(beside):
                    return str(beside)
    return None


def _native(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"
