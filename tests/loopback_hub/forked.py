"""Runs Python as clients of the Hub, each in a process forked from one that has imported already.

`serve` answers each line on its standard input, a JSON object with `arguments` (as after `python`:
-c SCRIPT or -m MODULE, and what follows), `cwd`, `env` and `output`, with the exit code of a process
that has run them; what it wrote is in the files `output`.out and `output`.err.
"""

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
SERVE = "import sys; from tests.loopback_hub.forked import serve; serve(sys.argv[1:])"


class Forked:
    """The process that forks; `env` is what it imports with."""

    def __init__(self, modules: tuple[str, ...], env: dict[str, str]) -> None:
        self.folder = TemporaryDirectory(prefix="forked-")
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *modules],
            # Where libraries leave what they write on import.
            cwd=self.folder.name,
            env={**env, "PYTHONPATH": os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, arguments: Sequence[str], cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        output = Path(self.folder.name) / "output"
        asked = {"arguments": arguments, "cwd": str(cwd), "env": env, "output": str(output)}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        out, err = (Path(f"{output}.{stream}") for stream in ("out", "err"))
        return subprocess.CompletedProcess(arguments, code, out.read_text(), err.read_text())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.folder.cleanup()


def serve(modules: list[str]) -> None:
    """Fork for each line of the standard input until it ends."""
    for module in modules:
        importlib.import_module(module)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            become(**json.loads(line))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def become(arguments: list[str], cwd: str, env: dict[str, str], output: str) -> NoReturn:
    """Run the arguments as `python` would, and end."""
    signal.alarm(600)  # a guard against hanging
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    streams = [open(f"{output}.{name}", "w") for name in ("out", "err")]  # noqa: SIM115, PTH123
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    for number, stream in enumerate(streams, 1):
        os.dup2(stream.fileno(), number)
    code: Any = 0
    try:
        sys.argv = arguments[1:]
        if arguments[0] == "-c":
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)
