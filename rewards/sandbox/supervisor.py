"""Run one spec: start it confined, watch its whole tree, kill what is left, report.

A process of its own: it becomes the parent of orphans, which must not happen to the caller. It
talks to the caller over one socket, a spec and the descriptor of its standard input in, a report
out, as `marshal` between two processes of the same interpreter. What the input holds never is in
this memory, which a warm run inherits; when the caller goes away, it kills the processes.
"""

from __future__ import annotations

import _socket
import marshal
import os
import resource
import select
import sys
import time

from rewards.sandbox import folder, kernel, landlock, processes
from rewards.sandbox.kernel import prctl

TYPE_CHECKING = False  # `typing` costs as much as everything else that is imported here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

SIGXCPU = 24

TICK_MS = 20
TICKS_PER_MEASURE = 4
CHUNK = 1 << 16


class Abandoned(Exception):
    """The caller went away."""


def send(descriptor: int, message: dict[str, Any]) -> None:
    """Write one message."""
    body = marshal.dumps(message)
    data = memoryview(len(body).to_bytes(8, "little") + body)
    while data:
        data = data[os.write(descriptor, data) :]


def receive(descriptor: int) -> dict[str, Any]:
    """Read one message; EOFError when the other side went away."""
    body = _exactly(descriptor, int.from_bytes(_exactly(descriptor, 8), "little"))
    message: dict[str, Any] = marshal.loads(body)
    return message


def _exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise EOFError("the other side of the sandbox went away")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def serve(connection: int, start: Callable[[dict[str, Any]], NoReturn]) -> None:
    """Take one spec, run it, report; what refuses to be confined is reported as `refused`."""
    spec = receive(connection)
    itself = _socket.socket(fileno=os.dup(connection))
    message, extra, _, _ = itself.recvmsg(1, _socket.CMSG_LEN(4))
    itself.close()
    if not message or not extra:
        raise EOFError("the other side of the sandbox went away")
    given = int.from_bytes(extra[0][2][:4], sys.byteorder)
    try:
        report = _Run(spec, connection, given, start).report()
    except Abandoned:
        time.sleep(1)  # a caller that lives removes it itself
        if os.path.exists(spec["folder"]):  # noqa: PTH110
            folder.remove(spec["folder"])
        return
    except (OSError, kernel.KernelError, processes.Survived) as refusal:
        report = {"refused": str(refusal)}
    send(connection, report)


def execute(spec: dict[str, Any]) -> NoReturn:
    """Become the command."""
    command = spec["command"]
    try:
        os.execvpe(command[0], command, spec["env"])
    except OSError as missing:
        os.write(2, f"{command[0]}: {missing.strerror}\n".encode())
        os._exit(127)


class _Run:
    def __init__(
        self,
        spec: dict[str, Any],
        connection: int,
        given: int,
        start: Callable[[dict[str, Any]], NoReturn],
    ) -> None:
        self.spec, self.connection = spec, connection
        self.limits = spec["limits"]
        prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        _make_folder(spec)
        pipes = [os.pipe() for _ in range(3)]
        self.begun = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            _child(spec, given, [writer for _, writer in pipes], start)
        os.close(given)
        for _, writer in pipes:
            os.close(writer)
        self.readers = [pipes[0][0], pipes[1][0]]
        self.kept: list[bytearray] = [bytearray(), bytearray()]
        self.seen = [0, 0]
        self.burnt: dict[tuple[int, int], float] = {}
        with open(pipes[2][0], "rb") as status:  # noqa: PTH123
            refusal = status.read().decode()
        if refusal:
            processes.kill(spec["uid"])
            raise kernel.KernelError(refusal)

    def report(self) -> dict[str, Any]:
        """Watch until the command ends or a limit is reached."""
        try:
            stopped, code = self._watch()
        finally:
            processes.kill(self.spec["uid"])
        wall = time.monotonic() - self.begun
        for reader in self.readers:
            os.set_blocking(reader, False)
            while self._read(reader):
                pass
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime
        # The kernel may be first: with SIGXCPU, and with SIGKILL where that signal is ignored.
        over = cpu > self.limits["cpu_seconds"]
        if not stopped and (code == -SIGXCPU or (code == -9 and over)):
            stopped = "cpu"
        if not stopped:  # at a stroke, between two looks
            size, entries = folder.measure(self.spec["folder"], self.limits["files"])
            over_disk = "disk" if size > self.limits["disk"] else ""
            stopped = "files" if entries > self.limits["files"] else over_disk
        output = list(zip(map(bytes, self.kept), self.seen, strict=True))
        base, most = self.spec["folder"], self.limits["file_size"]
        files = {name: folder.read(base, f"work/{name}", most) for name in self.spec["collect"]}
        report = {"code": code, "stopped": stopped, "cpu": cpu, "wall": wall}
        return {**report, "output": output, "files": files}

    def _watch(self) -> tuple[str, int]:
        end = os.pidfd_open(self.pid)
        poll = select.poll()
        poll.register(end, select.POLLIN)
        poll.register(self.connection, select.POLLIN)
        # Not yet the output: a short run is not to be interrupted at every line that it writes.
        unheard = list(self.readers)
        last_look, looks, stopped = 0.0, 0, ""
        while not stopped:
            for descriptor, _ in poll.poll(TICK_MS):
                if descriptor == end:
                    return "", os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                if descriptor == self.connection:
                    raise Abandoned
                if not self._read(descriptor):
                    poll.unregister(descriptor)
            # Not at every chunk of output: a look costs more than a read.
            if time.monotonic() - last_look >= TICK_MS / 1000:
                last_look, looks = time.monotonic(), looks + 1
                while unheard:
                    poll.register(unheard.pop(), select.POLLIN)
                stopped = self._exceeded(looks)
        os.kill(self.pid, 9)
        return stopped, os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _exceeded(self, looks: int) -> str:
        limits = self.limits
        pids = processes.below()
        cpu, memory, threads = processes.usage(pids, self.burnt)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = max(cpu + used.ru_utime + used.ru_stime, sum(self.burnt.values()))
        if cpu > limits["cpu_seconds"]:
            return "cpu"
        late = time.monotonic() - self.begun - limits["wall_seconds"]
        if late > 0 and late > processes.delay(pids):
            return "wall"
        if memory > limits["memory"]:
            return "memory"
        if threads > limits["processes"]:
            return "processes"
        if looks % TICKS_PER_MEASURE == 1:
            size, entries = folder.measure(self.spec["folder"], limits["files"])
            if entries > limits["files"]:
                return "files"
            shared, unlisted = processes.mapped_bytes(pids)
            if size + max(unlisted, processes.deleted_bytes(pids)) > limits["disk"]:
                return "disk"
            if shared > limits["memory"]:
                return "memory"
            for pid in pids:  # the zombies of ended daemons would count as processes
                if pid != self.pid:
                    try:
                        os.waitpid(pid, os.WNOHANG)
                    except ChildProcessError:
                        continue  # a grandchild: its parent collects it
        return ""

    def _read(self, reader: int) -> bool:
        """Take output; whether there may be more."""
        try:
            chunk = os.read(reader, CHUNK)
        except BlockingIOError:
            return False  # somebody unkillable would still hold it; all are dead
        which = self.readers.index(reader)
        self.seen[which] += len(chunk)
        room = self.limits["output"] - len(self.kept[which])
        self.kept[which] += chunk[: max(0, room)]
        return bool(chunk)


def _make_folder(spec: dict[str, Any]) -> None:
    """Make the folder of a run, in a tmpfs of its own where the machine allows it.

    What the tmpfs has beyond the limits leaves time to say which limit was reached.
    """
    limits = spec["limits"]
    if spec["tmpfs"]:
        try:
            size, entries = limits["disk"] * 5 // 4, limits["files"] * 5 // 4 + 64
            kernel.mount_tmpfs(spec["tmpfs"], size, entries)
            spec["folder"] = spec["tmpfs"] + "/" + spec["folder"].rpartition("/")[2]
        except kernel.KernelError:
            pass  # only counted, then
    base = spec["folder"]
    folder.make(base, spec.pop("files"), spec["uid"])
    spec["env"] = {"HOME": f"{base}/work", "TMPDIR": f"{base}/tmp", **spec["env"]}


def _child(
    spec: dict[str, Any],
    given: int,
    writers: list[int],
    start: Callable[[dict[str, Any]], NoReturn],
) -> NoReturn:
    """Confine this process and start; on a refusal say so through the third writer and end."""
    status = writers[2]
    try:
        os.setsid()
        for target, source in enumerate((given, writers[0], writers[1])):
            os.dup2(source, target)
        os.closerange(3, status)
        os.closerange(status + 1, os.sysconf("SC_OPEN_MAX"))
        os.chdir(f"{spec['folder']}/work")
        os.umask(0o022)
        confine(spec)
    except (OSError, kernel.KernelError, ValueError) as refusal:
        os.write(status, f"confinement failed: {refusal}".encode())
        os._exit(125)
    os.close(status)
    start(spec)


def main() -> None:
    """Serve the caller on standard input, with commands."""
    serve(0, execute)


DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def confine(spec: dict[str, Any]) -> None:
    """Confine this process, which becomes the first of the run, as `spec` says; never half.

    Raises KernelError or OSError when something is refused: then nothing untrusted may start.
    """
    with open("/proc/self/oom_score_adj", "w") as score:  # noqa: PTH123
        score.write("1000")
    limits = spec["limits"]
    # Later than the supervisor, which counts the whole tree and says what happened.
    seconds = 1 - int(-limits["cpu_seconds"] // 1)
    for what, soft, hard in (
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_DATA, limits["memory"], limits["memory"]),
        # Every thread's stack counts as data, as large as the soft limit.
        (resource.RLIMIT_STACK, 8 << 20, 64 << 20),
        (resource.RLIMIT_FSIZE, limits["file_size"], limits["file_size"]),
        (resource.RLIMIT_NOFILE, limits["open_files"], limits["open_files"]),
        (resource.RLIMIT_NPROC, spec["tasks"], spec["tasks"]),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        # 1, not 0, also keeps the kernel from handing a core to a program of the system (core(5)).
        (resource.RLIMIT_CORE, 1, 1),
    ):
        ceiling = resource.getrlimit(what)[1]
        highest = hard if ceiling == resource.RLIM_INFINITY else min(hard, ceiling)
        resource.setrlimit(what, (min(soft, highest), highest))
    if spec["uid"]:
        prctl(kernel.PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(spec["uid"], spec["uid"], spec["uid"])
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    kernel.keep_capabilities(*([kernel.CAP_DAC_READ_SEARCH] if spec["search"] else []))
    prctl(kernel.PR_SET_PDEATHSIG, 9)
    prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    landlock.restrict(spec["read"], [spec["folder"]], DEVICES)
    kernel.install_filter(spec["filter"])
