"""Import modules once and fork a supervisor for each connection of a `Server`.

It never reads the spec of a run: each request passes a socket, from which a forked supervisor reads
it. So no run can find data of another run in the memory it inherits. It is started with a clean
environment, and its control socket is its only descriptor.
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

# The modules of this package, which are hidden from answers. Without a reference they would be torn down.
OWN: dict[str, types.ModuleType] = {}


def main() -> None:
    """Import the modules, report it, then fork a supervisor for every socket; end when the caller ends."""
    try:
        for name in receive(0)["imports"]:
            importlib.import_module(name)
    except ImportError as error:
        send(0, {"missing": error.name or name})
        return
    # Collected here, because iterating over all modules in each run would copy their memory pages.
    OWN.update({name: module for name, module in sys.modules.items() if name.startswith("rewards")})
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
            # Replaced rather than closed: the standard input of a run becomes number 0, which must not be reused.
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            serve(connection, interpret)
            os._exit(0)
        os.close(connection)


def interpret(spec: dict[str, Any]) -> NoReturn:
    """Run the equivalent of `python COMMAND...` in this process, and exit."""
    for name in OWN:
        sys.modules.pop(name, None)
    os.environ.update(spec["env"])
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        _run(spec["command"])
        code = 0
    except SystemExit as system_exit:
        code = system_exit.code if isinstance(system_exit.code, int) else int(system_exit.code is not None)
        if not isinstance(system_exit.code, int | None):
            print(system_exit.code, file=sys.stderr)  # noqa: T201
    except BaseException as failure:  # shown as Python shows it
        # Without the frames of this module.
        inner = failure.__traceback__
        while inner and inner.tb_frame.f_code.co_filename == __file__:
            inner = inner.tb_next
        traceback.print_exception(failure.with_traceback(inner))
        code = 1
    if threading := sys.modules.get("threading"):  # not imported here, because that would slow down every fork
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
        sys.modules.update({name: module for name, module in OWN.items() if ".sandbox" not in name})
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
