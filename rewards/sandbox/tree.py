"""The processes below this one: what they use, and their end.

The caller is their subreaper: whoever loses its parent becomes its child, daemons included.
"""

import os
import time

TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE_S = 10
# Page tables, too: a huge map of nothing costs nothing else.
HELD = (b"RssAnon", b"RssShmem", b"VmSwap", b"VmPTE", b"HugetlbPages")


class Survived(Exception):
    """Some process could not be killed."""


def below() -> list[int]:
    """Every descendant, zombies included."""
    found: list[int] = []
    todo = [os.getpid()]
    while todo:
        pid = todo.pop()
        children = _children(pid)
        found += children
        todo += children
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            children += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended while we looked
    return children


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 65536)
    finally:
        os.close(descriptor)


def usage(pids: list[int], burnt: dict[tuple[int, int], float]) -> tuple[float, int, int]:
    """CPU seconds (of children waited for, too), bytes of memory, and threads of those alive.

    `burnt` keeps the CPU seconds of every process ever seen, by pid and start: where a parent
    ignores SIGCHLD, nobody is told of them.
    """
    cpu, memory, threads = 0.0, 0, 0
    for pid in pids:
        try:
            fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            status = _read(f"/proc/{pid}/status")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        cpu += sum(map(int, fields[11:15])) / TICKS
        burnt[pid, int(fields[19])] = sum(map(int, fields[11:13])) / TICKS
        threads += int(fields[17])
        for line in status.splitlines():
            if line.startswith(HELD):
                memory += int(line.split()[1]) * 1024
    return cpu, memory, threads


def delay(pids: list[int]) -> float:
    """Seconds for which a thread was ready to run and got no CPU, of the one that waited most.

    Not the sum: threads that get in each other's way must not gain time by it.
    """
    longest = 0
    for pid in pids:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                longest = max(longest, int(_read(f"/proc/{pid}/task/{task}/schedstat").split()[1]))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
    return longest / 1e9


def deleted_bytes(pids: list[int]) -> int:
    """Disk held by open files that no folder lists any more; of processes that can be seen."""
    held: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
                entry = os.stat(f"/proc/{pid}/fd/{name}")  # noqa: PTH116
                if entry.st_nlink == 0:
                    held[entry.st_dev, entry.st_ino] = entry.st_blocks * 512
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended, or it is another user's and we hold no CAP_SYS_PTRACE
    return sum(held.values())


def mapped_bytes(pids: list[int]) -> tuple[int, int]:
    """Bytes of shared memory, and of files that no folder lists any more, that are mapped.

    By their size: pages that were given back stay with the mapping without being in any process.
    """
    memory: dict[bytes, int] = {}
    files: dict[bytes, int] = {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/maps", "rb") as maps:  # noqa: PTH123
                lines = maps.read().splitlines()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended, or it is another user's and we hold no CAP_SYS_PTRACE
        for line in lines:
            if line.endswith(b"(deleted)"):
                span, rights, _, device, inode, path = line.split(None, 5)
                first, _, last = span.partition(b"-")
                if b"s" in rights:
                    held = memory if path.startswith(b"/dev/zero") else files
                    size = int(last, 16) - int(first, 16)
                    key = device + b":" + inode
                    held[key] = max(held.get(key, 0), size)
    return sum(memory.values()), sum(files.values())


def tasks_of(uid: int) -> int:
    """Threads of a user, for RLIMIT_NPROC, which counts them all."""
    tasks = 0
    for name in os.listdir("/proc"):  # noqa: PTH208
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid:  # noqa: PTH116
                tasks += len(os.listdir(f"/proc/{name}/task"))  # noqa: PTH208
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
    return tasks


def kill(uid: int) -> None:
    """Kill everything below and, given a uid of its own, everything of that uid at one stroke.

    Done when no child is left: orphans become children of this process.
    """
    deadline = time.monotonic() + PATIENCE_S
    while reap():
        if time.monotonic() > deadline:
            raise Survived(f"processes {below()} outlived SIGKILL for {PATIENCE_S} s")
        if uid:
            _kill_user(uid)
        for pid in below():
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                continue  # it ended while we looked
        time.sleep(0.0005)


def reap() -> bool:
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
