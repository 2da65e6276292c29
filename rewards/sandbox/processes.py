"""Measure and kill the descendants of this process.

The caller is their subreaper: a process whose parent ends becomes its child, daemons included. A
process may end while it is measured, and without CAP_SYS_PTRACE the descriptors and maps of another
user's processes cannot be read: such a process counts with the values that could be read.
"""

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False  # `typing` costs as much as everything else that a supervisor imports
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    Result = TypeVar("Result")

TICKS = os.sysconf("SC_CLK_TCK")
KILL_TIMEOUT_S = 10
# The most that the kernel buffers for data written to one end of a socket pair and not yet read.
SOCKET_BYTES = 208 << 10
# The kernel's memory for each area of a memory map.
AREA_BYTES = 350
# The largest piece of shared memory that the seccomp filter allows; /proc does not show how much of it is in use.
SHARED_BYTES = 4 << 20
# Including page tables: a huge empty map uses nothing else.
MEMORY_FIELDS = (b"RssAnon", b"RssShmem", b"VmSwap", b"VmPTE", b"HugetlbPages")


class Survived(Exception):
    """A process could not be killed."""


def _each_existing(measure: Callable[[int], Result], numbers: Iterable[int]) -> Iterator[Result]:
    """Yield the result for each process, thread or descriptor that still exists and is accessible."""
    for number in numbers:
        try:
            result = measure(number)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        yield result


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _list_numbers(folder: str) -> Iterator[int]:
    return map(int, filter(str.isdigit, os.listdir(folder)))


def _read_threads(pid: int, name: str) -> list[bytes]:
    """Return the content of a file of /proc for each thread."""
    tasks = _list_numbers(f"/proc/{pid}/task")
    return list(_each_existing(lambda task: _read(f"/proc/{pid}/task/{task}/{name}"), tasks))


def _find_live_thread(pid: int) -> int:
    """Return the pid, or another thread if the first thread has ended, which then shows nothing in /proc."""
    ended = _read(f"/proc/{pid}/statm").startswith(b"0 ")
    return next((task for task in _list_numbers(f"/proc/{pid}/task") if task != pid), pid) if ended else pid


def list_descendants(pid: int) -> list[int]:
    """Return every descendant of a process, zombies included."""
    descendants: list[int] = []
    pending = [pid]
    while pending:
        for lists in _each_existing(lambda pid: _read_threads(pid, "children"), [pending.pop()]):
            children = [int(child) for text in lists for child in text.split()]
            descendants += children
            pending += children
    return descendants


def measure_usage(pids: list[int], process_cpu: dict[tuple[int, int], float]) -> tuple[float, int, int]:
    """Return CPU seconds (including children waited for), bytes of memory, and threads of live processes.

    `process_cpu` collects the CPU seconds of every process ever seen, by pid and start time: if a
    parent ignores SIGCHLD, the CPU seconds of its children are not reported anywhere else.
    """

    def measure(pid: int) -> tuple[float, int, int]:
        fields = list(map(int, _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1:]))
        status = _read(f"/proc/{_find_live_thread(pid)}/status").splitlines()
        process_cpu[pid, fields[18]] = sum(fields[10:12]) / TICKS
        memory = sum(int(line.split()[1]) * 1024 for line in status if line.startswith(MEMORY_FIELDS))
        return sum(fields[10:14]) / TICKS, memory, fields[16]

    measured = list(_each_existing(measure, pids))
    return sum(cpu for cpu, _, _ in measured), sum(size for _, size, _ in measured), sum(n for _, _, n in measured)


def children_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of the children that a process has waited for."""
    return sum(map(int, _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[13:15])) / TICKS


def cpu_delays(pids: list[int]) -> dict[int, float]:
    """Return the seconds for which each thread was ready to run and got no CPU."""
    delays: dict[int, float] = {}
    for tasks in _each_existing(lambda pid: list(_list_numbers(f"/proc/{pid}/task")), pids):
        waits = _each_existing(lambda task: (task, _read(f"/proc/{task}/schedstat").split()[1]), tasks)
        delays |= {task: int(nanoseconds) / 1e9 for task, nanoseconds in waits}
    return delays


def measure_open_files(pids: list[int]) -> tuple[int, int]:
    """Return the bytes on disk of open files that were unlinked, and the memory that open sockets may use."""

    def list_open(pid: int) -> list[os.stat_result]:
        folder = f"/proc/{_find_live_thread(pid)}/fd"
        return list(_each_existing(lambda fd: os.stat(f"{folder}/{fd}"), _list_numbers(folder)))

    files = {(file.st_dev, file.st_ino): file for opened in _each_existing(list_open, pids) for file in opened}
    sockets = sum(stat.S_ISSOCK(file.st_mode) for file in files.values())
    return sum(file.st_blocks * 512 for file in files.values() if file.st_nlink == 0), sockets * SOCKET_BYTES


def measure_maps(pids: list[int]) -> tuple[int, int, int]:
    """Return the bytes that shared memory may use, of mapped files that were unlinked, and of the maps themselves."""
    shared: set[bytes] = set()
    files: dict[bytes, int] = {}
    areas = 0
    for maps in _each_existing(lambda pid: _read(f"/proc/{_find_live_thread(pid)}/maps"), pids):
        lines = maps.splitlines()
        areas += len(lines)
        for line in lines:
            if not line.endswith(b"(deleted)"):
                continue
            span, _, offset, device, inode, path = line.split(None, 5)
            key = device + b":" + inode
            if path.startswith(b"/dev/zero"):
                shared.add(key)
            else:
                first, _, last = span.partition(b"-")
                files[key] = max(files.get(key, 0), int(offset, 16) + int(last, 16) - int(first, 16))
    return len(shared) * SHARED_BYTES, sum(files.values()), areas * AREA_BYTES


def count_tasks(uid: int) -> int:
    """Return the number of threads of a user, all of which count for RLIMIT_NPROC."""

    def count(pid: int) -> int:
        is_own = os.stat(f"/proc/{pid}").st_uid == uid
        return len(list(_list_numbers(f"/proc/{pid}/task"))) if is_own else 0

    return sum(_each_existing(count, _list_numbers("/proc")))


def kill(uid: int) -> None:
    """Kill every descendant and, if the run has its own uid, all processes of that uid at once.

    Returns when no child is left: orphans become children of this process.
    """
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while _collect_ended():
        if time.monotonic() > deadline:
            raise Survived(f"processes {list_descendants(os.getpid())} outlived SIGKILL for {KILL_TIMEOUT_S} s")
        if uid:
            _kill_user(uid)
        list(_each_existing(lambda pid: os.kill(pid, 9), list_descendants(os.getpid())))
        time.sleep(0.0005)


def _collect_ended() -> bool:
    """Collect the children that have ended; return whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _kill_user(uid: int) -> None:
    killer = os.fork()
    if killer == 0:
        try:
            os.setresuid(uid, uid, uid)
            os.kill(-1, 9)
        except ProcessLookupError:
            pass  # no process is left
        finally:
            os._exit(0)
    os.waitpid(killer, 0)
