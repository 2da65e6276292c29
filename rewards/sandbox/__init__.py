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
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Self

from pimono_sdpo.errors import PimonoError
from rewards.sandbox import cgroup, folder, kernel, landlock, processes, seccomp, zygote

MEBI = 1 << 20


class SandboxError(PimonoError):
    """No backend holds, or confinement failed; nothing untrusted was run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the whole tree of processes may use.

    CPU seconds are tight, wall seconds loose (0 is 5 times the CPU seconds, at least 15): a loaded
    machine must not fail a correct program. The wall clock stands still while a program is ready to
    run and gets no CPU. Sizes are bytes. `memory` has what sockets may hold; pipes are bounded by the
    number of open files, and by the kernel for each user. `processes` counts threads. `files` counts
    entries of the work folder.
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
    """Runs each command with a supervisor of its own, under a backend or the strongest that holds here."""

    def __init__(self, backend: str = "auto") -> None:
        self._wanted = backend

    @functools.cached_property
    def backend(self) -> str:
        """The name of the backend; SandboxError when it does not hold."""
        return choose(self._wanted)

    def run(
        self,
        command: Sequence[str],
        *,
        files: Mapping[str, bytes | str] | None = None,
        stdin: bytes = b"",
        limits: Limits = Limits(),
        collect: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Ran:
        """Run a command in a fresh folder that holds `files`.

        `collect` names files of that folder to bring back; `env` is added to a clean environment. Never
        take it from a dataset.
        A command that is not there exits with 127. Raises SandboxError when nothing could be run.
        """
        names = {_inside(name): content for name, content in (files or {}).items()}
        entries = {path for name in names for path in (PurePosixPath(name), *PurePosixPath(name).parents[:-1])}
        over_disk = sum(map(len, names.values())) > limits.disk
        if over_disk or len(entries) > limits.files:
            stopped: Literal["disk", "files"] = "disk" if over_disk else "files"
            return Ran(None, signal.SIGKILL, b"", b"", 0.0, 0.0, self.backend, stopped)
        spec: dict[str, Any] = {
            "command": list(command),
            "env": {"PATH": PATH, **CLEAN, **(env or {})},
            "files": {name: text.encode() if isinstance(text, str) else text for name, text in names.items()},
            "collect": [_inside(name) for name in collect],
            "limits": {name: getattr(limits, name) for name in Limits.__slots__}
            | {"wall_seconds": limits.wall_seconds or max(15, 5 * limits.cpu_seconds)},
        }
        with self._lane(limits.disk) as lane:
            # RLIMIT_NPROC counts every task of the uid. Without a uid of its own a run shares it with what
            # its user starts meanwhile, other runs included: it may then be refused a process that it
            # should have had, never get more.
            spec["tasks"] = limits.processes + (0 if lane.uid else processes.tasks_of(os.getuid()))
            report = lane.run(spec, stdin)
            if "refused" in report:
                raise SandboxError(f"the sandbox `{self.backend}` did not start: {report['refused']}")
        stdout, stderr = (
            kept + (f"\n[... {seen - len(kept)} bytes cut]\n".encode() if seen > len(kept) else b"")
            for kept, seen in report.pop("output")
        )
        code = report.pop("code")
        return Ran(
            exit_code=code if code >= 0 else None, signal=-code if code < 0 else None,
            stdout=stdout, stderr=stderr, backend=self.backend, **report,
        )  # fmt: skip

    def _lane(self, disk: int) -> AbstractContextManager["_Lane"]:
        return closing(_Lane(self.backend, disk))


class _Lane:
    """A supervisor with a uid and a folder; `control` leads to the warm interpreter that starts it, if one does."""

    def __init__(self, backend: str, disk: int, control: socket.socket | None = None) -> None:
        above = TMPFS if backend == "bubblewrap" else tempfile.gettempdir()
        self.folder = f"{above}/sandbox-{secrets.token_hex(8)}"
        with ExitStack() as stack:
            self.uid = stack.enter_context(_own_uid())
            stack.callback(self._remove_folder)
            if control:
                self.connection, theirs = socket.socketpair()
                stack.enter_context(self.connection)
                with theirs:
                    socket.send_fds(control, [b"."], [theirs.fileno()])
            else:
                prefix = _bubblewrap(disk, self.uid) if backend == "bubblewrap" else []
                self.connection = stack.enter_context(_started(prefix, "supervisor", "-IS"))
            stack.callback(self._end)
            self._ending = stack.pop_all()
        self._send(
            {
                "folder": self.folder,
                "tmpfs": "" if any(path.startswith(TMPFS) for path in (self.folder, *readable())) else TMPFS,
                "read": readable(),
                "cgroup": cgroups(),
                "uid": self.uid,
                "search": bool(self.uid) and needs_search((*readable(), above)),
                "filter": seccomp.program(own_uid=bool(self.uid)),
            }
        )

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

    def abandon(self) -> None:
        """Have what runs killed."""
        with suppress(OSError):  # it has gone
            self.connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the supervisor, and what runs."""
        self._ending.close()

    def _end(self) -> None:
        """Wait until nothing runs and nothing is left, so that the uid may be another's."""
        self.abandon()
        with suppress(OSError):
            while self.connection.recv(1 << 16):
                pass

    def _remove_folder(self) -> None:
        if Path(self.folder).exists():  # its supervisor was killed
            folder.remove(self.folder)
        if cgroups():
            with suppress(OSError):  # it has gone with its supervisor
                Path(cgroups(), Path(self.folder).name).rmdir()

    def _send(self, message: dict[str, Any], *descriptors: int) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # then there will be no report either
            zygote.send(self.connection.fileno(), message)
            if descriptors:
                socket.send_fds(self.connection, [b"."], descriptors)


run = Sandbox().run


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
        super().__init__("landlock")
        _ = self.backend
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[_Lane] = []
        self._busy: set[_Lane] = set()
        self._started = _started([], "warm_server", "-I")
        self._control = self._started.__enter__()
        try:
            zygote.send(self._control.fileno(), {"imports": list(imports)})
            missing = zygote.receive(self._control.fileno()).get("missing")
            why = f"could not import {missing}; install it" if missing else ""
        except (EOFError, OSError):
            why = "ended before it was ready, see above"
        if why:
            self.close()
            raise SandboxError(f"the warm sandbox {why}")

    @contextmanager
    def _lane(self, disk: int) -> Iterator[_Lane]:
        """A supervisor that no other thread uses now; kept for later runs unless this one fails."""
        with self._lock:
            if self._process != os.getpid():  # the lanes are those of the process that forked this one
                self._process, self._idle, self._busy = os.getpid(), [], set()
            lane = self._idle.pop() if self._idle else _Lane(self.backend, disk, self._control)
            self._busy.add(lane)
        try:
            yield lane
            self._idle.append(lane)
        except BaseException:
            lane.close()
            raise
        finally:
            self._busy.discard(lane)

    def close(self) -> None:
        """End the interpreter; runs in progress are killed."""
        if self._process == os.getpid():  # not in a fork of the process that uses them
            for lane in list(self._busy):
                lane.abandon()
            while self._idle:
                self._idle.pop().close()
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
    """Return why each backend, the strongest first, does not hold here, "" when it does; tried once per process."""
    missing = missing_in_kernel()
    no_bubblewrap = "" if shutil.which("bwrap") else "`bwrap` is not installed"
    return {
        "bubblewrap": no_bubblewrap or missing or _broken("bubblewrap"),
        "landlock": missing or _broken("landlock"),
    }


def choose(backend: str) -> str:
    """The backend of that name, or for `auto` the strongest that holds here; else SandboxError."""
    known = available()
    if backend not in ("auto", *known):
        raise SandboxError(f"unknown sandbox `{backend}`; use auto or one of {', '.join(known)}")
    wanted = {backend: known[backend]} if backend in known else known
    if held := [name for name, why in wanted.items() if not why]:
        return held[0]
    why = "; ".join(f"{name}: {why}" for name, why in wanted.items())
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
        tried = Sandbox()
        tried.backend = backend  # not chosen among those that were tried
        try:
            ran = tried.run([sys.executable, "-I", "-S", "-c", PROBE, *arguments])
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
def cgroups() -> str:
    """The folder in which groups of processes with a limit of memory can be made, "" where none can."""
    return cgroup.find()


@functools.cache
def may_change_uid() -> bool:
    """Whether a run can have its own uid: as root, also as root of a container."""
    return os.geteuid() == 0 and kernel.has_capabilities(
        kernel.CAP_CHOWN, kernel.CAP_KILL, kernel.CAP_SETGID, kernel.CAP_SETUID
    )


def _bubblewrap(disk: int, uid: int) -> list[str]:
    """Namespaces around the supervisor, which confines what it starts as it does without them."""
    arguments = [
        shutil.which("bwrap") or "bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc",
        "--unshare-uts", "--unshare-cgroup-try", "--new-session",
        "--tmpfs", "/", "--proc", "/proc", "--chdir", "/",
    ]  # fmt: skip
    for device in (*zygote.DEVICES, zygote.ZERO):  # not `--dev`, which wants devices that small machines lack
        arguments += ["--dev-bind-try", device, device]
    bound = [path for path in (*readable(), str(HERE)) if not path.startswith("/proc/")]
    # The folders on the way are bubblewrap's own, and closed to all but its user otherwise.
    on_the_way = {str(parent) for path in bound for parent in Path(path).parents} - {"/", *bound}
    for parent in sorted(on_the_way):
        arguments += ["--perms", "0755", "--dir", parent]
    for path in bound:
        arguments += ["--ro-bind", path, path]
    arguments += ["--size", str(disk * 5 // 4), "--tmpfs", TMPFS]
    if cgroups():
        arguments += ["--bind", cgroups(), cgroups()]
    if uid:
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
