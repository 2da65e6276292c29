"""Run untrusted code so that it can do no harm; nothing else here starts any.

    ran = run([sys.executable, "main.py"], files={"main.py": answer}, stdin=b"[3, 1, 2]")

No network, no environment, no other processes; the system and the interpreter can be read, only a
folder of the run's own can be written, and everything is counted and limited. Where no backend
holds, `run` refuses. For many short runs of Python, a `Server` starts one interpreter.
"""

import fcntl
import functools
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Self

from pimono_sdpo.errors import PimonoError
from rewards.sandbox import folder, kernel, landlock, processes, seccomp, zygote

MEBI = 1 << 20
# Strongest first.
BACKENDS = ("bubblewrap", "landlock")


class SandboxError(PimonoError):
    """No backend holds, or confinement failed; nothing untrusted was run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the whole tree of processes may use.

    CPU seconds are tight, wall seconds loose (0 is 5 times the CPU seconds, at least 15): a loaded
    machine must not fail a correct program. The wall clock stands still while a program is ready to
    run and gets no CPU. Sizes are bytes. `processes` counts threads. `files` counts entries of the
    work folder. What the kernel buffers in pipes and socket pairs is bounded by the number of open
    files alone.
    """

    cpu_seconds: float = 10
    wall_seconds: float = 0
    memory: int = 512 * MEBI
    processes: int = 64
    open_files: int = 128
    file_size: int = 64 * MEBI
    disk: int = 128 * MEBI
    files: int = 2000
    output: int = MEBI


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a run.

    `exit_code` is None when `signal` ended it. `stdout` and `stderr` are the first bytes up to
    `Limits.output`; what is longer ends in a line `[... N bytes cut]`. `files` has those of
    `collect` that are there, regular, and not too large. `stopped` names the limit that was
    passed, at which the tree was killed if it still ran, "" when it ended by itself; a program
    whose allocation or write is refused ends by itself.
    """

    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    cpu_seconds: float
    wall_seconds: float
    backend: str
    stopped: Literal["", "cpu", "wall", "memory", "processes", "disk", "files"]
    files: dict[str, bytes] = field(default_factory=dict)


PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
# Numeric libraries that start threads could not be forked.
CLEAN = {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Sandbox:
    """Runs each command with a supervisor of its own, under a backend."""

    def __init__(self, backend: str) -> None:
        self.backend = backend

    def run(
        self,
        command: Sequence[str],
        *,
        files: Mapping[str, bytes | str] | None = None,
        stdin: bytes = b"",
        limits: Limits = Limits(),
        collect: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        read: Sequence[str] = (),
    ) -> Ran:
        """Run a command in a fresh folder that holds `files`.

        `collect` names files of that folder to bring back; `env` is added to a clean environment;
        `read` are files and folders that may be read beside the system's, such as a tool's. Never
        take them from a dataset.
        A command that is not there exits with 127. Raises SandboxError when nothing could be run.
        """
        with self._lane(tuple(read), limits.disk) as lane:
            report = lane.run(
                {
                    "command": list(command),
                    "limits": {
                        **{name: getattr(limits, name) for name in Limits.__slots__},
                        "wall_seconds": limits.wall_seconds or max(15, 5 * limits.cpu_seconds),
                        # RLIMIT_NPROC counts every task of the uid. Without a uid of its own a run shares
                        # it with what its user starts meanwhile, other runs included: it may then be
                        # refused a process that it should have had, never get more.
                        "tasks": limits.processes + (0 if lane.uid else processes.tasks_of(os.getuid())),
                    },
                    "env": {"PATH": PATH, **CLEAN, **(env or {})},
                    "files": {
                        _inside(name): content.encode() if isinstance(content, str) else content
                        for name, content in (files or {}).items()
                    },
                    "collect": [_inside(name) for name in collect],
                },
                stdin,
            )
            if "refused" in report:
                raise SandboxError(f"the sandbox `{self.backend}` did not start: {report['refused']}")
        stdout, stderr = (
            kept + (f"\n[... {seen - len(kept)} bytes cut]\n".encode() if seen > len(kept) else b"")
            for kept, seen in report["output"]
        )
        code = report["code"]
        return Ran(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout=stdout,
            stderr=stderr,
            cpu_seconds=report["cpu"],
            wall_seconds=report["wall"],
            backend=self.backend,
            stopped=report["stopped"],
            files={name: text for name, text in report["files"].items() if text is not None},
        )

    @contextmanager
    def _lane(self, read: tuple[str, ...], disk: int) -> Iterator["_Lane"]:
        """A supervisor for one run."""
        above = TMPFS if self.backend == "bubblewrap" else tempfile.gettempdir()
        with _own_uid() as uid:
            setup = _setup(uid, read, above)
            prefix = _bubblewrap(setup, disk) if self.backend == "bubblewrap" else []
            try:
                with _started(prefix, "supervisor", "-IS") as connection:
                    yield _Lane(connection, setup)
            finally:
                if Path(setup["folder"]).exists():  # its supervisor was killed
                    folder.remove(setup["folder"])


def _setup(uid: int, read: tuple[str, ...], above: str) -> dict[str, Any]:
    """What is the same for all runs of a supervisor."""
    base = f"{above}/sandbox-{secrets.token_hex(8)}"
    paths = (*readable(), *read)
    return {
        "folder": base,
        "tmpfs": "" if any(path.startswith(TMPFS) for path in (base, *paths)) else TMPFS,
        "read": paths,
        "uid": uid,
        "search": bool(uid) and needs_search((*paths, above)),
        "filter": seccomp.program(own_uid=bool(uid)),
    }


class _Lane:
    """A supervisor that takes one run after the other."""

    def __init__(self, connection: socket.socket, setup: dict[str, Any]) -> None:
        self.connection, self.uid = connection, setup["uid"]
        self._send(setup)

    def run(self, spec: dict[str, Any], stdin: bytes) -> dict[str, Any]:
        """Send a spec and the standard input of its run, wait for the report."""
        # A file in memory, sealed: it cannot be changed any more.
        given = os.memfd_create("stdin", os.MFD_ALLOW_SEALING)
        try:
            with open(given, "r+b", closefd=False) as file:
                file.write(stdin)
                file.seek(0)
            seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
            fcntl.fcntl(given, fcntl.F_ADD_SEALS, seals)
            self._send(spec, given)
            return zygote.receive(self.connection.fileno())
        except (EOFError, ConnectionResetError):
            return {"refused": "its supervisor ended without a report, see its message above"}
        finally:
            os.close(given)

    def end(self) -> None:
        """Wait until nothing runs and nothing is left, so that the uid may be another's."""
        with suppress(OSError):  # it has gone
            self.connection.shutdown(socket.SHUT_WR)
            while self.connection.recv(1 << 16):
                pass

    def _send(self, message: dict[str, Any], *descriptors: int) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # then there will be no report either
            zygote.send(self.connection.fileno(), message)
            if descriptors:
                socket.send_fds(self.connection, [b"."], descriptors)


def run(
    command: Sequence[str],
    *,
    files: Mapping[str, bytes | str] | None = None,
    stdin: bytes = b"",
    limits: Limits = Limits(),
    collect: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    read: Sequence[str] = (),
    backend: str = "auto",
) -> Ran:
    """Run a command as `Sandbox.run` does, under a backend or the strongest that holds here."""
    return Sandbox(choose(backend)).run(
        command, files=files, stdin=stdin, limits=limits, collect=collect, env=env, read=read
    )


class Server(Sandbox):
    """A warm interpreter, which runs what `python COMMAND...` would: a file, `-c CODE`,
    or `-m MODULE`, one of its imports of this package, for the function `main` of it.

        with Server(imports=["json", "math"]) as server:
            ran = server.run(["main.py"], files={"main.py": answer})

    It imports once, and each run is a fork of it, confined as a cold run is before it runs anything
    untrusted. Runs at the same time have a supervisor, folder and uid each; the next run gets them
    when nothing of the last one is left. Import only what is trusted: it runs unconfined. Safe to use
    from several threads, and from processes that are forked later.
    """

    def __init__(self, imports: Sequence[str] = ()) -> None:
        super().__init__(choose("landlock"))
        self.imports = tuple(imports)
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: dict[tuple[str, ...], list[tuple[_Lane, ExitStack]]] = {}
        self._busy: set[_Lane] = set()
        self._started = _started([], "warm_server", "-I")
        self._control = self._started.__enter__()
        try:
            zygote.send(self._control.fileno(), {"imports": self.imports})
            missing = zygote.receive(self._control.fileno()).get("missing")
        except (EOFError, BrokenPipeError, ConnectionResetError) as ended:
            self.close()
            raise SandboxError("the warm sandbox ended before it was ready, see above") from ended
        if missing:
            self.close()
            raise SandboxError(f"the warm sandbox could not import {missing}; install it")

    @contextmanager
    def _lane(self, read: tuple[str, ...], disk: int) -> Iterator[_Lane]:
        """A supervisor that no other thread uses now; kept for later runs unless this one fails."""
        with self._lock:
            if self._process != os.getpid():  # the lanes are those of the process that forked this one
                self._process, self._idle, self._busy = os.getpid(), {}, set()
            idle = self._idle.setdefault(read, [])
            lane, ending = idle.pop() if idle else self._new_lane(read)
            self._busy.add(lane)
        try:
            yield lane
        except BaseException:
            ending.close()
            raise
        else:
            idle.append((lane, ending))
        finally:
            self._busy.discard(lane)

    def _new_lane(self, read: tuple[str, ...]) -> tuple[_Lane, ExitStack]:
        with ExitStack() as stack:
            setup = _setup(stack.enter_context(_own_uid()), read, tempfile.gettempdir())
            ours, theirs = socket.socketpair()
            stack.enter_context(ours)
            with theirs:
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
            lane = _Lane(ours, setup)
            stack.callback(lane.end)
            return lane, stack.pop_all()

    def close(self) -> None:
        """End the interpreter; runs in progress are killed."""
        if self._process == os.getpid():  # not in a fork of the process that uses them
            for lane in list(self._busy):
                lane.connection.shutdown(socket.SHUT_WR)
            while self._idle:
                for _, ending in self._idle.popitem()[1]:
                    ending.close()
        self._started.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


PROBE = """
import os, socket, sys
secret, outside, parent = sys.argv[1], sys.argv[2], int(sys.argv[3])
for name, attempt in {
    "reads a file outside": lambda: open(secret).read(),
    "writes outside": lambda: open(outside, "w"),
    "opens a socket": lambda: socket.socket(),
    "signals another process": lambda: os.kill(parent, 0),
    "lists processes": lambda: os.listdir("/proc"),
}.items():
    try:
        attempt()
    except OSError:
        continue
    print(name)
open("own", "w").write("works")
print("end")
"""


@functools.cache
def available() -> dict[str, str]:
    """Return why each backend does not hold here, "" when it does; tried once per process."""
    missing = missing_in_kernel()
    no_bubblewrap = "" if shutil.which("bwrap") else "`bwrap` is not installed"
    return {
        "bubblewrap": no_bubblewrap or missing or _broken("bubblewrap"),
        "landlock": missing or _broken("landlock"),
    }


def choose(backend: str) -> str:
    """The backend of that name, or for `auto` the strongest that holds here; else SandboxError."""
    known = available()
    if backend != "auto" and backend not in known:
        raise SandboxError(f"unknown sandbox `{backend}`; use auto or one of {', '.join(known)}")
    wanted = BACKENDS if backend == "auto" else (backend,)
    for name in wanted:
        if not known[name]:
            return name
    why = "; ".join(f"{name}: {known[name]}" for name in wanted)
    raise SandboxError(f"no sandbox holds on this machine, so nothing was run ({why})")


def missing_in_kernel() -> str:
    """What Landlock and seccomp lack here, "" when nothing."""
    if not sys.platform.startswith("linux"):
        return f"needs Linux, this is {sys.platform}"
    if kernel.MACHINE not in kernel.AUDIT_ARCH:
        return f"the seccomp filter is written for x86_64 and aarch64, this is {kernel.MACHINE}"
    version, needed = landlock.abi(), 3 if may_change_uid() else 6
    if version < needed:
        whose = "with a uid of its own" if needed == 3 else "without root"
        return f"the kernel {os.uname().release} has Landlock {version}, {whose} {needed} is needed"
    if not Path("/proc/thread-self/children").exists():
        return "the kernel has no /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN)"
    unreachable = may_change_uid() and needs_search(readable())
    if unreachable and not kernel.has_capabilities(kernel.CAP_DAC_READ_SEARCH):
        return (
            f"the interpreter {sys.executable} lies below a folder that only root may enter, and "
            "CAP_DAC_READ_SEARCH is not held; use an interpreter that everybody can read"
        )
    return ""


def _broken(backend: str) -> str:
    """What untrusted code could still do under a backend; "" when the probe was held."""
    with tempfile.NamedTemporaryFile() as secret:
        Path(secret.name).chmod(0o666)
        arguments = [secret.name, f"{secret.name}-written", str(os.getppid())]
        try:
            ran = Sandbox(backend).run([sys.executable, "-I", "-S", "-c", PROBE, *arguments])
        except SandboxError as refusal:
            return str(refusal)
    *escapes, end = ran.stdout.decode().split("\n")[:-1] or [""]
    if end != "end":
        return f"its self-test did not end: {ran.stderr.decode().strip()[-300:]}"
    return f"its self-test {', '.join(escapes)}" if escapes else ""


# No /etc as a whole, which may hold secrets; no /proc, which shows other processes.
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
    "/etc/localtime", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group",
    "/etc/ssl/openssl.cnf", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu",
)  # fmt: skip


@functools.cache
def readable() -> tuple[str, ...]:
    """The system's programs and libraries, and those of this interpreter."""
    paths = {
        f"{prefix}/{part}"
        for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)
        for part in ("bin", "lib", "lib64", "pyvenv.cfg")
    }
    paths |= {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths |= {str(Path(sys.executable).resolve().parent), *SYSTEM}
    return tuple(sorted(path for path in paths if Path(path).exists()))


@functools.lru_cache(maxsize=256)
def needs_search(paths: tuple[str, ...]) -> bool:
    """Whether a stranger's uid can reach some of these paths only with CAP_DAC_READ_SEARCH."""
    resolved = [Path(path).resolve() for path in paths]
    on_the_way = {folder for path in resolved for folder in (path, *path.parents)}
    return not all(folder.stat().st_mode & 0o001 for folder in on_the_way if folder.is_dir())


# A run may have a tmpfs of its own over this folder.
TMPFS = "/dev/shm"


def _inside(name: str) -> str:
    """The name of a file of the work folder, or SandboxError."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise SandboxError(f"the file `{name}` would lie outside the work folder; name it relative to that folder")
    return str(path)


# HF Jobs map uids up to 65535; this range belongs to nobody (systemd's table of uids).
UIDS = range(60578, 61184)


@contextmanager
def _own_uid() -> Iterator[int]:
    """A uid that no other run on this machine has now; 0 where we may not change ours."""
    if not may_change_uid():
        yield 0
        return
    for uid in UIDS:
        with socket.socket(socket.AF_UNIX) as lease:
            try:
                # The kernel lets one process have the name, and frees it when that process ends.
                lease.bind(f"\0pimono-sdpo-sandbox-{uid}")
            except OSError:
                continue
            yield uid
            return
    raise SandboxError(f"all {len(UIDS)} uids for sandboxes are in use; run fewer at a time")


@functools.cache
def may_change_uid() -> bool:
    """Whether a run can have its own uid: as root, also as root of a container."""
    return os.geteuid() == 0 and kernel.has_capabilities(
        kernel.CAP_CHOWN, kernel.CAP_KILL, kernel.CAP_SETGID, kernel.CAP_SETUID
    )


def _bubblewrap(setup: dict[str, Any], disk: int) -> list[str]:
    """Namespaces around the supervisor, which confines what it starts as it does without them."""
    arguments = [
        shutil.which("bwrap") or "bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc",
        "--unshare-uts", "--unshare-cgroup-try", "--new-session",
        "--tmpfs", "/", "--proc", "/proc", "--chdir", "/",
    ]  # fmt: skip
    for device in zygote.DEVICES:  # not `--dev`, which wants devices that small machines lack
        arguments += ["--dev-bind-try", device, device]
    bound = [path for path in (*setup["read"], str(HERE)) if not path.startswith("/proc/")]
    # The folders on the way are bubblewrap's own, and closed to all but its user otherwise.
    on_the_way = {str(parent) for path in bound for parent in Path(path).parents} - {"/", *bound}
    for parent in sorted(on_the_way):
        arguments += ["--perms", "0755", "--dir", parent]
    for path in bound:
        arguments += ["--ro-bind", path, path]
    arguments += ["--size", str(disk * 5 // 4), "--tmpfs", TMPFS]
    if setup["uid"]:
        for capability in ("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "KILL",
                           "SETGID", "SETUID", "SETPCAP", "SYS_PTRACE"):  # fmt: skip
            arguments += ["--cap-add", f"CAP_{capability}"]
    return [*arguments, "--"]


HERE = Path(__file__).resolve().parent
# The packages' own `__init__` import much that a supervisor has no use for.
BOOT = """
import sys, types
for name, path in (("rewards", {0!r}), ("rewards.sandbox", {1!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from rewards.sandbox.{2} import main
main()
"""


@contextmanager
def _started(prefix: list[str], module: str, flags: str) -> Iterator[socket.socket]:
    """Start `main` of a module of this package in a clean interpreter; the socket to it."""
    code = BOOT.format(str(HERE.parent), str(HERE), module)
    ours, theirs = socket.socketpair()
    with ours:
        # Its own session: Ctrl-C must not end it before it has killed the tree.
        with theirs:
            process = subprocess.Popen(
                [*prefix, sys.executable, flags, "-c", code],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=CLEAN,
                start_new_session=True,
                cwd="/",
            )
        try:
            yield ours
        finally:
            ours.close()
            process.wait()
