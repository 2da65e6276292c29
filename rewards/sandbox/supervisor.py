"""Run specs one after the other: start each confined, watch its whole tree, have what is left killed, report.

It talks to the caller over one socket: first comes a setup, then for each run a spec and the
descriptor of its standard input, and a report goes out, as `marshal` between two processes of the
same interpreter. What the input holds never is in this memory. What starts the runs is its zygote.
When the caller goes away, the processes are killed.
"""

from __future__ import annotations

import _socket
import os
import select
import struct
import sys
import time

from rewards.sandbox import cgroup, folder, kernel, processes, zygote
from rewards.sandbox.zygote import receive, send

TYPE_CHECKING = False  # `typing` costs as much as everything else that is imported here
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

SIGXCPU = 24

TICK_MS = 20
TICKS_PER_MEASURE = 4
# The share of the wall clock in which it is not asked who waits for a CPU.
SHORT = 0.2
# Bytes for the process that starts runs.
SPARE = 64 << 20
CHUNK = 1 << 16


class Abandoned(Exception):
    """The caller went away."""


def serve(connection: int, start: Callable[[dict[str, Any]], NoReturn]) -> None:
    """Take specs and run them until the caller has no more; what cannot be run is `refused`, and the last."""
    setup = receive(connection)
    supervisor = None
    try:
        supervisor = _Supervisor(setup, connection, start)
        while True:
            send(connection, supervisor.run(receive(connection)))
    except (EOFError, Abandoned, BrokenPipeError):
        pass
    except (OSError, kernel.KernelError) as refusal:
        send(connection, {"refused": str(refusal)})
    if supervisor:
        supervisor.close()


def execute(spec: dict[str, Any]) -> NoReturn:
    """Become the command."""
    command = spec["command"]
    try:
        os.execvpe(command[0], command, spec["env"])
    except OSError as missing:
        os.write(2, f"{command[0]}: {missing.strerror}\n".encode())
        os._exit(127)


class _Supervisor:
    def __init__(self, setup: dict[str, Any], connection: int, start: Callable[[dict[str, Any]], NoReturn]) -> None:
        self.setup, self.connection, self.socket = setup, connection, _socket.socket(fileno=connection)
        # In a tmpfs of its own where the machine allows it: the kernel bounds the disk then.
        self.tmpfs: tuple[int, int] | None = None
        if setup["tmpfs"]:
            try:
                kernel.unshare_mounts()
                self._bound((1 << 20, 64))
                setup["folder"] = setup["tmpfs"] + "/" + setup["folder"].rpartition("/")[2]
            except kernel.KernelError:
                pass  # only counted, then
        self.base = setup["folder"]
        os.mkdir(self.base)
        self.control, theirs = _socket.socketpair()
        self.zygote = os.fork()
        if self.zygote == 0:
            try:
                zygote.serve(theirs, setup, start)
            finally:
                os._exit(1)
        theirs.close()
        name = self.base.rpartition("/")[2]
        self.group = cgroup.Group(f"{setup['cgroup']}/{name}" if setup["cgroup"] else "", self.zygote)
        self.cpu_before = 0.0
        self._answer()

    def close(self) -> None:
        """Wait until nothing runs; remove the folder, unless it ends with this process."""
        self.control.close()
        os.waitpid(self.zygote, 0)
        self.group.remove()
        if self.tmpfs is None:
            folder.remove(self.base)

    def run(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Run one spec; return the report."""
        _, extra, _, _ = self.socket.recvmsg(1, _socket.CMSG_LEN(4))
        if not extra:
            raise EOFError("the other side of the sandbox went away")
        given = int.from_bytes(extra[0][2][:4], sys.byteorder)
        self.limits = limits = spec["limits"]
        self.readers: list[int] = []
        if self.tmpfs is not None:
            # What it has beyond the limits leaves time to say which limit was reached.
            self._bound((limits["disk"] * 5 // 4, limits["files"] * 5 // 4 + 64))
        # Counters come first, which say what was too much.
        self.group.bound((limits["memory"] + limits["disk"]) * 5 // 4 + SPARE)
        kills = self.group.kills()
        folder.fill(self.base, spec["files"], self.setup["uid"])
        try:
            self._start(spec, given)
            stopped, (code, cpu), wall = self._watch()
            if not stopped and self.group.kills() > kills:
                stopped = "memory"
            report = self._report(stopped, code, cpu - self.cpu_before, spec["collect"])
            self.cpu_before = cpu
        finally:
            for reader in self.readers:
                os.close(reader)
        folder.empty(self.base)
        return {**report, "wall_seconds": wall}

    def _bound(self, size_and_entries: tuple[int, int]) -> None:
        if self.tmpfs != size_and_entries:
            kernel.mount_tmpfs(self.setup["tmpfs"], *size_and_entries, again=self.tmpfs is not None)
            self.tmpfs = size_and_entries

    def _answer(self) -> dict[str, Any]:
        try:
            answer = receive(self.control.fileno())
        except EOFError:
            answer = {"refused": "the process that starts its runs was ended"}
        if "refused" in answer:
            raise kernel.KernelError(answer["refused"])
        return answer

    def _start(self, spec: dict[str, Any], given: int) -> None:
        out, err = os.pipe(), os.pipe()
        talk, theirs = _socket.socketpair()
        self.readers = [out[0], err[0]]
        self.kept: list[bytearray] = [bytearray(), bytearray()]
        self.seen = [0, 0]
        self.burnt: dict[tuple[int, int], float] = {}
        self.delays: dict[int, float] = {}
        self.waited = self.looked = 0.0
        self.begun = time.monotonic()
        handed = struct.pack(zygote.DESCRIPTORS, given, out[1], err[1], theirs.fileno())
        self.control.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, handed)])
        for descriptor in (given, out[1], err[1]):
            os.close(descriptor)
        theirs.close()
        env = {"HOME": f"{self.base}/work", "TMPDIR": f"{self.base}/tmp", **spec["env"]}
        try:
            send(talk.fileno(), {"env": env, **{name: spec[name] for name in ("command", "limits", "tasks")}})
            refusal = talk.recv(CHUNK).decode()
        except (BrokenPipeError, ConnectionResetError):
            refusal = "it ended before it was confined"
        talk.close()
        if refusal:
            raise kernel.KernelError(refusal)

    def _report(self, stopped: str, code: int, cpu: float, collect: list[str]) -> dict[str, Any]:
        limits = self.limits
        for reader in self.readers:
            os.set_blocking(reader, False)
            while self._read(reader):
                pass
        # The kernel may be first: with SIGXCPU, and with SIGKILL where that signal is ignored.
        if not stopped and (code == -SIGXCPU or (code == -9 and cpu > limits["cpu_seconds"])):
            stopped = "cpu"
        stopped = stopped or self._stored(0)  # at a stroke, between two looks
        output = list(zip(map(bytes, self.kept), self.seen, strict=True))
        read = {name: folder.read(self.base, f"work/{name}", limits["file_size"]) for name in collect}
        files = {name: content for name, content in read.items() if content is not None}
        return {"code": code, "stopped": stopped, "cpu_seconds": cpu, "output": output, "files": files}

    def _watch(self) -> tuple[str, tuple[int, float], float]:
        """Watch until nothing of the run is left; return the limit, exit code with all CPU seconds, wall seconds."""
        end = self.control.fileno()
        poll = select.poll()
        poll.register(end, select.POLLIN)
        poll.register(self.connection, select.POLLIN)
        # Not yet the output: a short run is not to be interrupted at every line that it writes.
        unheard = list(self.readers)
        last_look, looks, stopped, ended = 0.0, 0, "", False
        while not stopped and not ended:
            for descriptor, _ in poll.poll(TICK_MS):
                if descriptor == end:
                    ended = True
                elif descriptor == self.connection:
                    raise Abandoned
                elif not self._read(descriptor):
                    poll.unregister(descriptor)
            # Not at every chunk of output: a look costs more than a read.
            if not ended and time.monotonic() - last_look >= TICK_MS / 1000:
                last_look, looks = time.monotonic(), looks + 1
                while unheard:
                    poll.register(unheard.pop(), select.POLLIN)
                stopped = self._exceeded(looks)
        if stopped:
            self.control.send(b".")
        answer = self._answer()
        return stopped, (answer["code"], answer["cpu"]), time.monotonic() - self.begun

    def _exceeded(self, looks: int) -> str:
        limits = self.limits
        pids = processes.below(self.zygote)
        cpu, memory, threads = processes.usage(pids, self.burnt)
        cpu = max(cpu + processes.of_children(self.zygote) - self.cpu_before, sum(self.burnt.values()))
        if cpu > limits["cpu_seconds"]:
            return "cpu"
        wall = time.monotonic() - self.begun
        if wall > limits["wall_seconds"] * SHORT and self._waited(pids, wall) > limits["wall_seconds"]:
            return "wall"
        if memory > limits["memory"]:
            return "memory"
        if threads > limits["processes"]:
            return "processes"
        if looks % TICKS_PER_MEASURE == 1:
            shared, unlisted, areas = processes.mapped_bytes(pids)
            deleted, buffered = processes.opened_bytes(pids)
            over_memory = "memory" if max(shared, memory + buffered + areas) > limits["memory"] else ""
            return self._stored(max(unlisted, deleted)) or over_memory
        return ""

    def _waited(self, pids: list[int], wall: float) -> float:
        """Return the wall seconds but those in which a thread was ready to run and got no CPU.

        Threads that get in each other's way gain no time by it: they use CPU.
        """
        delays = processes.delays(pids)
        delayed = sum(max(0.0, now - self.delays.get(task, 0.0)) for task, now in delays.items())
        self.waited += max(0.0, wall - self.looked - delayed)
        self.delays, self.looked = delays, wall
        return self.waited

    def _stored(self, unlisted: int) -> str:
        """Return the limit that the folder has passed, with bytes that are in no folder."""
        size, entries = folder.measure(self.base, self.limits["files"])
        over_disk = "disk" if size + unlisted > self.limits["disk"] else ""
        return "files" if entries > self.limits["files"] else over_disk

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


def main() -> None:
    """Serve the caller on standard input, with commands."""
    serve(0, execute)
