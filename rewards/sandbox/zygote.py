"""Fork and confine the process of each run, and kill all of its processes at the end.

A zygote never reads the spec of a run, which arrives on the run's own socket: so no run can find data
of another run in the memory it inherits. Orphaned processes of a run become its children. The seccomp
filter applies to the zygote itself, so that every process it forks has it from the start.
"""

from __future__ import annotations

import marshal
import os
import resource
import select
import struct

from rewards.sandbox import kernel, landlock, processes
from rewards.sandbox.kernel import prctl

TYPE_CHECKING = False  # `typing` costs as much as everything else that is imported here
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable
    from typing import Any, NoReturn

DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
# A process that may write to it can map it as shared memory.
ZERO = "/dev/zero"
COLLECT_MS = 80
DESCRIPTORS = "4i"
# The descriptor of a run's socket to its supervisor, until the run starts.
RUN_SOCKET = 3


def send(descriptor: int, message: dict[str, Any]) -> None:
    """Write one message."""
    body = marshal.dumps(message)
    data = memoryview(len(body).to_bytes(8, "little") + body)
    while data:
        data = data[os.write(descriptor, data) :]


def receive(descriptor: int) -> dict[str, Any]:
    """Read one message; raises EOFError when the other process has ended."""
    body = _read_exactly(descriptor, int.from_bytes(_read_exactly(descriptor, 8), "little"))
    message: dict[str, Any] = marshal.loads(body)
    return message


def _read_exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise EOFError("the other process of the sandbox has ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def serve(control: _socket.socket, setup: dict[str, Any], start: Callable[[dict[str, Any]], NoReturn]) -> None:
    """Start a run for each message on `control`, which passes its descriptors, until `control` is closed.

    A message during a run kills it. The answer to each run has its exit code, and the CPU seconds of
    all runs so far.
    """
    channel = control.fileno()
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.closerange(3, channel)
    os.closerange(channel + 1, os.sysconf("SC_OPEN_MAX"))
    os.umask(0o022)
    try:
        prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        rules = landlock.ruleset([*setup["read"], ZERO], [setup["folder"]], DEVICES)
        prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.install_filter(setup["filter"])
    except (OSError, kernel.KernelError) as refusal:
        send(channel, {"refused": f"confinement failed: {refusal}"})
        return
    send(channel, {})
    room = struct.calcsize(DESCRIPTORS)
    while True:
        message, extra, _, _ = control.recvmsg(1, 2 * room + 64)
        if not message:
            return
        if not extra:
            continue  # the run ended before the message to kill it arrived
        descriptors = struct.unpack(DESCRIPTORS, extra[0][2])
        if (pid := os.fork()) == 0:
            _start_run(setup, rules, descriptors, start)
        for descriptor in descriptors:
            os.close(descriptor)
        code = _wait(pid, control)
        try:
            processes.kill(setup["uid"])
        except processes.Survived as refusal:
            send(channel, {"refused": str(refusal)})
            return
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        send(channel, {"code": code, "cpu": used.ru_utime + used.ru_stime})


def _wait(pid: int, control: _socket.socket) -> int:
    """Wait for a run's first process; return its exit code, or the negative number of the signal that ended it."""
    process = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.register(control, select.POLLIN)
    try:
        while True:
            for descriptor, _ in poll.poll(COLLECT_MS):
                if descriptor != process:  # the supervisor wants the run killed, or has ended
                    poll.unregister(control)
                    control.recv(1)
                    os.kill(pid, 9)
            # Collect every ended process, because zombies of daemons would count as processes.
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == pid:
                    return os.waitstatus_to_exitcode(ended[1])
    finally:
        os.close(process)


def _start_run(
    setup: dict[str, Any], rules: int, descriptors: tuple[int, ...], start: Callable[[dict[str, Any]], NoReturn]
) -> NoReturn:
    """Confine this process and start the run; if confinement fails, report it and exit."""
    try:
        os.setsid()
        rules = os.dup(rules)  # to a number above those that are assigned next
        for target, source in enumerate(descriptors):
            os.dup2(source, target)
        os.closerange(RUN_SOCKET + 1, rules)
        os.closerange(rules + 1, os.sysconf("SC_OPEN_MAX"))
        spec = receive(RUN_SOCKET)
        os.chdir(f"{setup['folder']}/work")
        confine(setup, spec["limits"], spec["tasks"], rules)
        os.close(rules)
    except (OSError, EOFError, kernel.KernelError, ValueError) as refusal:
        os.write(RUN_SOCKET, f"confinement failed: {refusal}".encode())
        os._exit(125)
    os.close(RUN_SOCKET)
    start(spec)


def confine(setup: dict[str, Any], limits: dict[str, Any], tasks: int, rules: int) -> None:
    """Confine this process, which becomes the first process of a run.

    Raises KernelError or OSError when any step is refused; then nothing untrusted may start.
    """
    score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.write(score, b"1000")
    os.close(score)
    # Above the supervisor's limit, which counts all processes and can report the reason.
    seconds = 1 - int(-limits["cpu_seconds"] // 1)
    for resource_limit, soft, hard in (
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_DATA, limits["memory"], limits["memory"]),
        # The stack of every thread counts as data, with the size of the soft limit.
        (resource.RLIMIT_STACK, 8 << 20, 64 << 20),
        (resource.RLIMIT_FSIZE, limits["file_size"], limits["file_size"]),
        (resource.RLIMIT_NOFILE, limits["open_files"], limits["open_files"]),
        (resource.RLIMIT_NPROC, tasks, tasks),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        # 1 rather than 0 also keeps the kernel from piping a core dump to a program of the system (core(5)).
        (resource.RLIMIT_CORE, 1, 1),
    ):
        ceiling = resource.getrlimit(resource_limit)[1]
        highest = hard if ceiling == resource.RLIM_INFINITY else min(hard, ceiling)
        resource.setrlimit(resource_limit, (min(soft, highest), highest))
    if uid := setup["uid"]:
        prctl(kernel.PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    kernel.keep_capabilities(*([kernel.CAP_DAC_READ_SEARCH] if setup["search"] else []))
    prctl(kernel.PR_SET_PDEATHSIG, 9)
    landlock.restrict(rules)
