"""Control groups, where the machine lets us make some: they bound memory that no process shows as its own.

Such as what the kernel keeps of pipes. A group is made below that of this process in version 1, and beside it
in version 2, in which a group has either processes or groups below it.
"""

from __future__ import annotations

import os

MOUNT = "/sys/fs/cgroup"


def find() -> str:
    """Return the folder in which groups with a limit of memory can be made, "" where none can."""
    if not os.path.exists("/proc/self/cgroup"):
        return ""
    paths = dict(line.split(":", 2)[1:] for line in _read("/proc/self/cgroup").splitlines())
    if "memory" in paths:
        folder = f"{MOUNT}/memory{paths['memory']}".rstrip("/")
        return folder if os.access(f"{folder}/memory.limit_in_bytes", os.W_OK) else ""
    folder = f"{MOUNT}{os.path.dirname(paths.get('', '/'))}".rstrip("/")
    control = f"{folder}/cgroup.subtree_control"
    return folder if os.access(control, os.W_OK) and "memory" in _read(control).split() else ""


class Group:
    """A group of its own for a process and its later children; none where it cannot be made."""

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

    def bound(self, size: int) -> None:
        """Set the bytes of memory that it may have in all."""
        if self.folder and size != self.size:
            name = "memory.max" if os.path.exists(f"{self.folder}/memory.max") else "memory.limit_in_bytes"
            _write(f"{self.folder}/{name}", str(size))
            self.size = size

    def kills(self) -> int:
        """Return how many processes were killed since it had no memory left."""
        if not self.folder:
            return 0
        name = "memory.events" if os.path.exists(f"{self.folder}/memory.events") else "memory.oom_control"
        lines = (line.split() for line in _read(f"{self.folder}/{name}").splitlines())
        return next((int(count) for what, count in lines if what == "oom_kill"), 0)

    def remove(self) -> None:
        """Remove it; nothing is in it any more."""
        if self.folder:
            os.rmdir(self.folder)
            self.folder = ""


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
