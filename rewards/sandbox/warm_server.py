"""What `Server` starts: an interpreter that has imported what it needs, and forks.

It never reads what is to be run: each request brings a socket, and a forked supervisor reads the
spec from there. So no run finds anything of another one in the memory it inherits. Started with a
clean environment and no descriptors but its control socket.
"""

import atexit
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
import types
from pathlib import Path
from typing import Any, NoReturn

from rewards.sandbox.supervisor import serve
from rewards.sandbox.zygote import receive, send

# This package's modules, which an answer is not to find. One that is kept nowhere would be taken apart.
OWN: dict[str, types.ModuleType] = {}


def main() -> None:
    """Import, say so, then fork a supervisor for every socket that comes; end with the caller."""
    try:
        for name in receive(0)["imports"]:
            importlib.import_module(name)
    except ImportError as error:
        send(0, {"missing": error.name or name})
        return
    # Here, because to look at all names in each run would copy the pages that they lie on.
    OWN.update({name: one for name, one in sys.modules.items() if name.startswith("rewards")})
    gc.collect()
    gc.freeze()
    send(0, {})
    # The kernel collects ended supervisors.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control = socket.socket(fileno=0)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        (connection,) = descriptors
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # Not closed: a run's standard input takes number 0, which must not be given away.
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            serve(connection, interpret)
            os._exit(0)
        os.close(connection)


def interpret(spec: dict[str, Any]) -> NoReturn:
    """Do what `python COMMAND...` does, in this process, and end it."""
    for name in OWN:
        sys.modules.pop(name, None)
    os.environ.update(spec["env"])
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        _run(spec["command"])
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if not isinstance(leaving.code, int | None):
            print(leaving.code, file=sys.stderr)  # noqa: T201
    except BaseException as failure:  # whatever the program raised is shown as Python shows it
        # From the program's first frame on.
        inner = failure.__traceback__
        while inner and inner.tb_frame.f_code.co_filename == __file__:
            inner = inner.tb_next
        traceback.print_exception(failure.with_traceback(inner))
        code = 1
    if threading := sys.modules.get("threading"):  # imported here, it would cost every fork
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(code & 0xFF)


def _run(command: list[str]) -> None:
    first, *rest = command
    if first == "-m":
        sys.argv = rest
        sys.modules.update({n: one for n, one in OWN.items() if ".sandbox" not in n})
        sys.modules[rest[0]].main()
        return
    if first == "-c":
        name, source = "<string>", rest[0].encode()
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
    else:
        name, source = str(Path(first).absolute()), Path(first).read_bytes()
        sys.argv = command
        sys.path.insert(0, str(Path(first).resolve().parent))
        sys.modules["__main__"].__file__ = name
    names = sys.modules["__main__"].__dict__
    names["__builtins__"] = __builtins__
    exec(compile(source, name, "exec", dont_inherit=True), names)
