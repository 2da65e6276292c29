"""Start runs one after the other, watch all of their processes against the limits, kill them and report.

It communicates with the caller over one socket: it receives a setup, then for each run a spec and the
descriptor of its standard input, and sends a report. Messages are encoded with `marshal`, because both
processes run the same interpreter. The input is never in the memory of this process. Its zygote starts
the runs. When the caller ends, all processes are killed.
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
# Waiting for a CPU is measured only after this share of the wall seconds.
UNMEASURED_SHARE = 0.2
# Bytes for the zygote.
ZYGOTE_MEMORY = 64 << 20
CHUNK = 1 << 16


class Abandoned(Exception):
    """The caller has closed the connection."""


def serve(connection: int, start: Callable[[dict[str, Any]], NoReturn]) -> None:
    """Receive specs and run them until the caller closes the connection or a run is `refused`."""
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
    """Replace this process by the command."""
    command = spec["command"]
    try:
        os.execvpe(command[0], command, spec["env"])
    except OSError as missing:
        os.write(2, f"{command[0]}: {missing.strerror}\n".encode())
        os._exit(127)


class _Supervisor:
    def __init__(self, setup: dict[str, Any], connection: int, start: Callable[[dict[str, Any]], NoReturn]) -> None:
        self.setup, self.connection, self.socket = setup, connection, _socket.socket(fileno=connection)
        # In its own tmpfs if the machine allows it, so that the kernel limits the disk.
        self.tmpfs: tuple[int, int] | None = None
        if setup["tmpfs"]:
            try:
                kernel.unshare_mounts()
                self._limit_tmpfs((1 << 20, 64))
                setup["folder"] = setup["tmpfs"] + "/" + setup["folder"].rpartition("/")[2]
            except kernel.KernelError:
                pass  # then disk usage is only measured
        self.base = setup["folder"]
        os.mkdir(self.base)
        self.control, remote = _socket.socketpair()
        self.zygote = os.fork()
        if self.zygote == 0:
            try:
                zygote.serve(remote, setup, start)
            finally:
                os._exit(1)
        remote.close()
        name = self.base.rpartition("/")[2]
        self.group = cgroup.Group(f"{setup['cgroup']}/{name}" if setup["cgroup"] else "", self.zygote)
        self.cpu_before = 0.0
        self._receive_answer()

    def close(self) -> None:
        """Wait until all processes have ended; remove the folder, unless it is in the tmpfs of this process."""
        self.control.close()
        os.waitpid(self.zygote, 0)
        self.group.remove()
        if self.tmpfs is None:
            folder.remove(self.base)

    def run(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Run one spec; return the report."""
        _, extra, _, _ = self.socket.recvmsg(1, _socket.CMSG_LEN(4))
        if not extra:
            raise EOFError("the other process of the sandbox has ended")
        stdin = int.from_bytes(extra[0][2][:4], sys.byteorder)
        self.limits = limits = spec["limits"]
        self.readers: list[int] = []
        if self.tmpfs is not None:
            # More than the limits, so that this process can still report which limit was exceeded.
            self._limit_tmpfs((limits["disk"] * 5 // 4, limits["files"] * 5 // 4 + 64))
        # Again more than the limits, so that the measurements come first.
        self.group.limit_memory((limits["memory"] + limits["disk"]) * 5 // 4 + ZYGOTE_MEMORY)
        kills = self.group.count_kills()
        folder.fill(self.base, spec["files"], self.setup["uid"])
        try:
            self._start(spec, stdin)
            stopped, (code, cpu), wall = self._watch()
            if not stopped and self.group.count_kills() > kills:
                stopped = "memory"
            report = self._report(stopped, code, cpu - self.cpu_before, spec["collect"])
            self.cpu_before = cpu
        finally:
            for reader in self.readers:
                os.close(reader)
        folder.empty(self.base)
        return {**report, "wall_seconds": wall}

    def _limit_tmpfs(self, size_and_entries: tuple[int, int]) -> None:
        if self.tmpfs != size_and_entries:
            kernel.mount_tmpfs(self.setup["tmpfs"], *size_and_entries, again=self.tmpfs is not None)
            self.tmpfs = size_and_entries

    def _receive_answer(self) -> dict[str, Any]:
        try:
            answer = receive(self.control.fileno())
        except EOFError:
            answer = {"refused": "the process that starts the runs has ended"}
        if "refused" in answer:
            raise kernel.KernelError(answer["refused"])
        return answer

    def _start(self, spec: dict[str, Any], stdin: int) -> None:
        out, err = os.pipe(), os.pipe()
        run_socket, remote = _socket.socketpair()
        self.readers = [out[0], err[0]]
        self.outputs: list[bytearray] = [bytearray(), bytearray()]
        self.sizes = [0, 0]
        self.process_cpu: dict[tuple[int, int], float] = {}
        self.delays: dict[int, float] = {}
        self.wait = self.measured_at = 0.0
        self.started_at = time.monotonic()
        descriptors = struct.pack(zygote.DESCRIPTORS, stdin, out[1], err[1], remote.fileno())
        self.control.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
        for descriptor in (stdin, out[1], err[1]):
            os.close(descriptor)
        remote.close()
        env = {"HOME": f"{self.base}/work", "TMPDIR": f"{self.base}/tmp", **spec["env"]}
        try:
            send(run_socket.fileno(), {"env": env, **{name: spec[name] for name in ("command", "limits", "tasks")}})
            refusal = run_socket.recv(CHUNK).decode()
        except (BrokenPipeError, ConnectionResetError):
            refusal = "it ended before it was confined"
        run_socket.close()
        if refusal:
            raise kernel.KernelError(refusal)

    def _report(self, stopped: str, code: int, cpu: float, collect: list[str]) -> dict[str, Any]:
        limits = self.limits
        for reader in self.readers:
            os.set_blocking(reader, False)
            while self._read(reader):
                pass
        # The kernel may stop the run first: with SIGXCPU, or with SIGKILL if that signal is ignored.
        if not stopped and (code == -SIGXCPU or (code == -9 and cpu > limits["cpu_seconds"])):
            stopped = "cpu"
        stopped = stopped or self._exceeded_storage(0)  # the last measurement may have missed a single large write
        output = list(zip(map(bytes, self.outputs), self.sizes, strict=True))
        read = {name: folder.read(self.base, f"work/{name}", limits["file_size"]) for name in collect}
        files = {name: content for name, content in read.items() if content is not None}
        return {"code": code, "stopped": stopped, "cpu_seconds": cpu, "output": output, "files": files}

    def _watch(self) -> tuple[str, tuple[int, float], float]:
        """Watch until all processes have ended.

        Returns the exceeded limit, the exit code with the CPU seconds of all runs, and the wall seconds.
        """
        control = self.control.fileno()
        poll = select.poll()
        poll.register(control, select.POLLIN)
        poll.register(self.connection, select.POLLIN)
        # Output is polled only after the first tick, so that a short run does not wake this process with every line.
        unpolled = list(self.readers)
        last_check, checks, stopped, ended = 0.0, 0, "", False
        while not stopped and not ended:
            for descriptor, _ in poll.poll(TICK_MS):
                if descriptor == control:
                    ended = True
                elif descriptor == self.connection:
                    raise Abandoned
                elif not self._read(descriptor):
                    poll.unregister(descriptor)
            # Not for every chunk of output, because a check costs more than a read.
            if not ended and time.monotonic() - last_check >= TICK_MS / 1000:
                last_check, checks = time.monotonic(), checks + 1
                while unpolled:
                    poll.register(unpolled.pop(), select.POLLIN)
                stopped = self._exceeded(checks)
        if stopped:
            self.control.send(b".")
        answer = self._receive_answer()
        return stopped, (answer["code"], answer["cpu"]), time.monotonic() - self.started_at

    def _exceeded(self, checks: int) -> str:
        limits = self.limits
        pids = processes.list_descendants(self.zygote)
        cpu, memory, threads = processes.measure_usage(pids, self.process_cpu)
        cpu = max(cpu + processes.children_cpu_seconds(self.zygote) - self.cpu_before, sum(self.process_cpu.values()))
        if cpu > limits["cpu_seconds"]:
            return "cpu"
        wall = time.monotonic() - self.started_at
        if (
            wall > limits["wall_seconds"] * UNMEASURED_SHARE
            and self._measure_wait(pids, wall) > limits["wall_seconds"]
        ):
            return "wall"
        if memory > limits["memory"]:
            return "memory"
        if threads > limits["processes"]:
            return "processes"
        if checks % TICKS_PER_MEASURE == 1:
            shared, unlisted, areas = processes.measure_maps(pids)
            deleted, buffered = processes.measure_open_files(pids)
            over_memory = "memory" if max(shared, memory + buffered + areas) > limits["memory"] else ""
            return self._exceeded_storage(max(unlisted, deleted)) or over_memory
        return ""

    def _measure_wait(self, pids: list[int], wall: float) -> float:
        """Return the wall seconds, without those in which a thread was ready to run and got no CPU.

        A run cannot gain time by letting its threads compete, because they use CPU seconds meanwhile.
        """
        delays = processes.cpu_delays(pids)
        delayed = sum(max(0.0, delay - self.delays.get(task, 0.0)) for task, delay in delays.items())
        self.wait += max(0.0, wall - self.measured_at - delayed)
        self.delays, self.measured_at = delays, wall
        return self.wait

    def _exceeded_storage(self, unlisted: int) -> str:
        """Return the limit that the folder exceeds, counting `unlisted` bytes of files that were unlinked."""
        size, entries = folder.measure(self.base, self.limits["files"])
        over_disk = "disk" if size + unlisted > self.limits["disk"] else ""
        return "files" if entries > self.limits["files"] else over_disk

    def _read(self, reader: int) -> bool:
        """Read a chunk of output; return whether there may be more."""
        try:
            chunk = os.read(reader, CHUNK)
        except BlockingIOError:
            return False  # nothing more can come: all processes have been killed
        which = self.readers.index(reader)
        self.sizes[which] += len(chunk)
        room = self.limits["output"] - len(self.outputs[which])
        self.outputs[which] += chunk[: max(0, room)]
        return bool(chunk)


def main() -> None:
    """Run the commands of the caller, which is connected to standard input."""
    serve(0, execute)
