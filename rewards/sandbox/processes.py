"""The processes below this one: what they use, and their end.

The caller is their subreaper: whoever loses its parent becomes its child, daemons included.
A process may end while it is looked at, and without CAP_SYS_PTRACE the descriptors and maps of
another user's are closed to us: such a process counts as far as it could be seen.
"""

from __future__ import annotations

import os
import stat
import time

TYPE_CHECKING = False  # `typing` costs as much as everything else that a supervisor imports
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    Found = TypeVar("Found")

TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE_S = 10
# What the kernel keeps of what was written into one end of a pair and not read, at most.
SOCKET_BYTES = 208 << 10
# What it keeps of each area of a memory map.
AREA_BYTES = 350
# What one piece of shared memory may have: as long as any page of it is mapped, nothing says how much it holds.
SHARED_BYTES = 4 << 20
# Page tables, too: a huge map of nothing costs nothing else.
HELD = (b"RssAnon", b"RssShmem", b"VmSwap", b"VmPTE", b"HugetlbPages")


class Survived(Exception):
    """Some process could not be killed."""


def _of_those_there(look: Callable[[int], Found], numbers: Iterable[int]) -> Iterator[Found]:
    for number in numbers:
        try:
            found = look(number)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        yield found


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _numbers(folder: str) -> Iterator[int]:
    return map(int, filter(str.isdigit, os.listdir(folder)))


def _of_threads(pid: int, name: str) -> list[bytes]:
    """The same file of each thread."""
    tasks = _numbers(f"/proc/{pid}/task")
    return list(_of_those_there(lambda task: _read(f"/proc/{pid}/task/{task}/{name}"), tasks))


def _alive(pid: int) -> int:
    """The process or, where its first thread ended before the others and shows nothing, another thread."""
    ended = _read(f"/proc/{pid}/statm").startswith(b"0 ")
    return next((task for task in _numbers(f"/proc/{pid}/task") if task != pid), pid) if ended else pid


def below(pid: int) -> list[int]:
    """Every descendant, zombies included."""
    found: list[int] = []
    todo = [pid]
    while todo:
        for lists in _of_those_there(lambda pid: _of_threads(pid, "children"), [todo.pop()]):
            children = [int(child) for each in lists for child in each.split()]
            found += children
            todo += children
    return found


def usage(pids: list[int], burnt: dict[tuple[int, int], float]) -> tuple[float, int, int]:
    """CPU seconds (of children waited for, too), bytes of memory, and threads of those alive.

    `burnt` keeps the CPU seconds of every process ever seen, by pid and start: where a parent
    ignores SIGCHLD, nobody is told of them.
    """

    def look(pid: int) -> tuple[float, int, int]:
        fields = list(map(int, _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1:]))
        status = _read(f"/proc/{_alive(pid)}/status").splitlines()
        burnt[pid, fields[18]] = sum(fields[10:12]) / TICKS
        held = sum(int(line.split()[1]) * 1024 for line in status if line.startswith(HELD))
        return sum(fields[10:14]) / TICKS, held, fields[16]

    seen = list(_of_those_there(look, pids))
    return sum(s[0] for s in seen), sum(s[1] for s in seen), sum(s[2] for s in seen)


def of_children(pid: int) -> float:
    """CPU seconds of the children that a process has waited for."""
    return sum(map(int, _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[13:15])) / TICKS


def delays(pids: list[int]) -> dict[int, float]:
    """Seconds for which each thread was ready to run and got no CPU."""
    found: dict[int, float] = {}
    for each in _of_those_there(lambda pid: list(_numbers(f"/proc/{pid}/task")), pids):
        waited = _of_those_there(lambda task: (task, _read(f"/proc/{task}/schedstat").split()[1]), each)
        found |= {task: int(nanoseconds) / 1e9 for task, nanoseconds in waited}
    return found


def opened_bytes(pids: list[int]) -> tuple[int, int]:
    """Disk held by open files that no folder lists any more, and memory that open sockets may hold."""

    def opened(pid: int) -> list[os.stat_result]:
        folder = f"/proc/{_alive(pid)}/fd"
        return list(_of_those_there(lambda fd: os.stat(f"{folder}/{fd}"), _numbers(folder)))

    found = {(e.st_dev, e.st_ino): e for each in _of_those_there(opened, pids) for e in each}
    sockets = sum(stat.S_ISSOCK(e.st_mode) for e in found.values())
    return sum(e.st_blocks * 512 for e in found.values() if e.st_nlink == 0), sockets * SOCKET_BYTES


def mapped_bytes(pids: list[int]) -> tuple[int, int, int]:
    """Bytes that shared memory may hold, of mapped files that no folder lists any more, and of the maps themselves."""
    shared: set[bytes] = set()
    files: dict[bytes, int] = {}
    areas = 0
    for maps in _of_those_there(lambda pid: _read(f"/proc/{_alive(pid)}/maps"), pids):
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


def tasks_of(uid: int) -> int:
    """Threads of a user, for RLIMIT_NPROC, which counts them all."""

    def look(pid: int) -> int:
        own = os.stat(f"/proc/{pid}").st_uid == uid
        return len(list(_numbers(f"/proc/{pid}/task"))) if own else 0

    return sum(_of_those_there(look, _numbers("/proc")))


def kill(uid: int) -> None:
    """Kill everything below and, given a uid of its own, everything of that uid at one stroke.

    Done when no child is left: orphans become children of this process.
    """
    deadline = time.monotonic() + PATIENCE_S
    while _any_left():
        if time.monotonic() > deadline:
            raise Survived(f"processes {below(os.getpid())} outlived SIGKILL for {PATIENCE_S} s")
        if uid:
            _kill_user(uid)
        list(_of_those_there(lambda pid: os.kill(pid, 9), below(os.getpid())))
        time.sleep(0.0005)


def _any_left() -> bool:
    """Collect those that ended; whether any child is left."""
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
            pass  # nobody left
        finally:
            os._exit(0)
    os.waitpid(killer, 0)
