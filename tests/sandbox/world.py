"""The targets of the snippets: files, sockets and a process outside the sandbox, and their state."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rewards.sandbox import Limits, Ran, Server, run
from tests.sandbox.attacks import HEAD, LIMITED, REFUSED

# A clock is tight only where it alone has to stop the attack. Elsewhere it is far away, so that
# neither a slow nor a loaded machine changes what stops it.
LOOSE = Limits(cpu_seconds=15, wall_seconds=300)
TIGHT = {"cpu": Limits(cpu_seconds=0.5, wall_seconds=300), "wall": Limits(cpu_seconds=15, wall_seconds=1)}
ASKED = ("report.xml", "sub/token")


@dataclass
class World:
    """Everything outside that a snippet could reach."""

    folder: Path
    mark: str
    victim: subprocess.Popen[bytes]
    listeners: dict[str, socket.socket] = field(default_factory=dict)

    def described(self) -> str:
        ports = {n: self.listeners[n].getsockname()[1] for n in ("tcp", "udp")}
        return json.dumps(
            {
                "folder": str(self.folder),
                "mark": self.mark,
                "victim": self.victim.pid,
                "parent": os.getpid(),
                "work_mark": f"/tmp/{self.mark}",
                **ports,
            }
        )

    def damage(self) -> list[str]:
        """What was done to it, in words."""
        mine = self.folder / "mine"
        shm = Path("/dev/shm")
        checks = {
            "a file was planted": (self.folder / "planted").exists(),
            "a daemon wrote": any(path.exists() for path in (self.folder / "daemon", Path("/tmp", self.mark))),
            "a folder was removed": not (self.folder / "other" / "kept").exists(),
            "a mode was changed": mine.stat().st_mode & 0o777 != 0o600,
            "a file was emptied": mine.stat().st_size == 0,
            "a time was changed": mine.stat().st_mtime < 1000,
            "an attribute was set": bool(os.listxattr(mine)),
            "shared memory was left": any(self.mark in path.name for path in shm.iterdir()),
            "the victim died": self.victim.poll() is not None,
        }
        return [what for what, done in checks.items() if done] + [
            f"{name} was reached" for name, one in self.listeners.items() if _reached(one)
        ]


def _reached(listener: socket.socket) -> bool:
    try:
        if listener.type == socket.SOCK_STREAM:
            listener.accept()[0].close()
        else:
            listener.recv(10)
    except BlockingIOError:
        return False
    return True


@contextmanager
def make_world() -> Iterator[World]:
    """A world on which every user may act, so that only the sandbox stands in the way."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o777)
        (folder / "token").write_text("hunter2")
        (folder / "other").mkdir()
        (folder / "other").chmod(0o777)
        (folder / "other" / "kept").write_text("x")
        (folder / "mine").write_text("x")
        (folder / "mine").chmod(0o600)
        mark = f"mark-{folder.name}"
        leak = stack.enter_context((folder / "token").open())
        os.set_inheritable(leak.fileno(), True)
        victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={"SECRET": "hunter2"})
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        unix, stream, datagram = socket.AF_UNIX, socket.SOCK_STREAM, socket.SOCK_DGRAM
        world = World(folder, mark, victim)
        for name, kind, type_, address in (
            ("tcp", socket.AF_INET, stream, ("127.0.0.1", 0)),
            ("udp", socket.AF_INET, datagram, ("127.0.0.1", 0)),
            ("abstract", unix, stream, f"\0{mark}"),
            ("path", unix, stream, f"{folder}/s"),
            ("datagram", unix, datagram, f"{folder}/d"),
        ):
            listener = stack.enter_context(socket.socket(kind, type_))
            listener.bind(address)
            if type_ == stream:
                listener.listen()
            listener.setblocking(False)
            world.listeners[name] = listener
        for name in ("s", "d"):
            (folder / name).chmod(0o777)
        yield world


def limits_of(name: str) -> Limits:
    """The limits under which an attack runs."""
    stops = LIMITED[name][0] if name in LIMITED else set()
    if stops == {"wall"}:
        return TIGHT["wall"]
    return TIGHT["cpu"] if stops in ({"cpu"}, {"cpu", "wall"}) else LOOSE


def until(holds: Callable[[], bool], seconds: float = 120) -> None:
    """Wait for something; fail when it does not come for very long."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.02)


def source(name: str) -> str:
    """The program of an attack."""
    return HEAD + (LIMITED[name][1] if name in LIMITED else REFUSED[name])


def attack(name: str, world: World, server: Server | None = None) -> Ran:
    """Run an attack on a world, cold or by a warm server."""
    files: dict[str, bytes | str] = {"main.py": source(name), "sub/there": ""}
    limits = limits_of(name)
    arguments = ["main.py", world.described()]
    if server:
        ran = server.run(arguments, files=files, limits=limits, collect=ASKED)
    else:
        command = [sys.executable, *arguments]
        ran = run(command, files=files, limits=limits, collect=ASKED)
    if name == "daemon":
        time.sleep(2)
    return ran


def find_breaches(name: str, world: World, ran: Ran) -> list[str]:
    """How the attack succeeded; nothing when it was held."""
    found = world.damage()
    if b"BROKE OUT" in ran.stdout:
        found.append("it got what it wanted")
    if name in LIMITED and ran.stopped not in LIMITED[name][0]:
        found.append(f"stopped by `{ran.stopped}`, not by {sorted(LIMITED[name][0])}")
    if name not in LIMITED and ran.stopped:
        found.append(f"it ran into `{ran.stopped}`")
    if len(ran.stdout) > LOOSE.output + 100:
        found.append("its output was not cut")
    if any(b"hunter2" in content for content in ran.files.values()):
        found.append("a secret came back")
    return found
