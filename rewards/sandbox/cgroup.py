"""Limit memory with control groups of version 2, where the machine allows it.

They include memory that belongs to no single process, such as the kernel's buffers of pipes. A group
is created next to that of this process, since a group cannot have both processes and child groups.
"""

from __future__ import annotations

import os

MOUNT = "/sys/fs/cgroup"


def find() -> str:
    """Return the folder in which groups with a memory limit can be created, "" if they cannot."""
    if not os.path.exists("/proc/self/cgroup"):
        return ""
    paths = dict(line.split(":", 2)[1:] for line in _read("/proc/self/cgroup").splitlines())
    folder = f"{MOUNT}{os.path.dirname(paths.get('', '/'))}".rstrip("/")
    control = f"{folder}/cgroup.subtree_control"
    return folder if os.access(control, os.W_OK) and "memory" in _read(control).split() else ""


class Group:
    """A new group for a process and its later children; does nothing if it cannot be created."""

    def __init__(self, folder: str, pid: int) -> None:
        self.folder, self.size = folder, 0
        try:
            os.mkdir(folder)
        except OSError:
            self.folder = ""
            return
        try:
            _write(f"{folder}/cgroup.procs", str(pid))
        except OSError:
            self.remove()

    def limit_memory(self, size: int) -> None:
        """Set the total bytes of memory that the group may use."""
        if self.folder and size != self.size:
            _write(f"{self.folder}/memory.max", str(size))
            self.size = size

    def count_kills(self) -> int:
        """Return how many processes were killed because the group ran out of memory."""
        if not self.folder:
            return 0
        lines = (line.split() for line in _read(f"{self.folder}/memory.events").splitlines())
        return next((int(count) for event, count in lines if event == "oom_kill"), 0)

    def remove(self) -> None:
        """Remove the group, in which no process may be left."""
        if self.folder:
            os.rmdir(self.folder)
            self.folder = ""


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
