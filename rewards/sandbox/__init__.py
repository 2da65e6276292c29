"""Run untrusted code in a sandbox; nothing else in this project runs any.

    ran = run([sys.executable, "main.py"], files={"main.py": answer}, stdin=b"[3, 1, 2]")

The code has no network, no environment variables and no access to other processes. It can read the
system and the interpreter, can write only its own folder, and all resources are limited. If that
cannot be enforced on this machine, `run` refuses. For many short runs of Python, a `Server` starts
one interpreter.
"""

import fcntl
import functools
import os
import secrets
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
    """The sandbox does not work here, or confinement failed; nothing untrusted was run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a run, for all of its processes together.

    CPU seconds are strict, wall seconds are generous (0 means 5 times the CPU seconds, at least 15): a
    correct program must not fail on a busy machine. Time in which a program is ready to run and gets no
    CPU is not counted as wall time. Sizes are in bytes. `memory` includes the buffers of sockets; pipes
    are limited by the number of open files, and by the kernel per user. `processes` counts threads.
    `files` counts entries of the work folder.
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

    `exit_code` is None when `signal` ended the run. `stdout` and `stderr` are cut at `Limits.output`
    bytes, then followed by a line `[... N bytes cut]`. `files` has the files of `collect` that exist,
    are regular files, and are not too large. `stopped` is the limit that was exceeded, for which all
    processes were killed, "" when the run ended by itself; a program ends by itself when an allocation
    or a write is refused.
    """

    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    cpu_seconds: float
    wall_seconds: float
    stopped: Literal["", "cpu", "wall", "memory", "processes", "disk", "files"]
    files: dict[str, bytes] = field(default_factory=dict)


PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
# Numeric libraries must not start threads: an interpreter with threads cannot be forked.
CLEAN_ENV = {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Sandbox:
    """Runs each command under its own supervisor."""

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
        """Run a command in a fresh folder that contains `files`.

        `collect` names files of that folder to return; `env` is added to a clean environment. Never take
        the command or the environment from a dataset. A command that does not exist exits with 127.
        Raises SandboxError when nothing could be run.
        """
        _require_confinement()
        return self._run(command, files or {}, stdin, limits, collect, env or {})

    def _run(
        self,
        command: Sequence[str],
        files: Mapping[str, bytes | str],
        stdin: bytes,
        limits: Limits,
        collect: Sequence[str],
        env: Mapping[str, str],
    ) -> Ran:
        contents = {_check_name(name): content for name, content in files.items()}
        entries = {path for name in contents for path in (PurePosixPath(name), *PurePosixPath(name).parents[:-1])}
        over_disk = sum(map(len, contents.values())) > limits.disk
        if over_disk or len(entries) > limits.files:
            stopped: Literal["disk", "files"] = "disk" if over_disk else "files"
            return Ran(None, signal.SIGKILL, b"", b"", 0.0, 0.0, stopped)
        spec: dict[str, Any] = {
            "command": list(command),
            "env": {"PATH": PATH, **CLEAN_ENV, **env},
            "files": {name: text.encode() if isinstance(text, str) else text for name, text in contents.items()},
            "collect": [_check_name(name) for name in collect],
            "limits": {name: getattr(limits, name) for name in Limits.__slots__}
            | {"wall_seconds": limits.wall_seconds or max(15, 5 * limits.cpu_seconds)},
        }
        with self._supervisor() as supervisor:
            # RLIMIT_NPROC counts every task of the uid. A run without its own uid shares it with other
            # processes of the user, including other runs: it may then be refused a process within its
            # limit, but never gets more.
            spec["tasks"] = limits.processes + (0 if supervisor.uid else processes.count_tasks(os.getuid()))
            report = supervisor.run(spec, stdin)
            if "refused" in report:
                raise SandboxError(f"the sandbox did not start: {report['refused']}")
        stdout, stderr = (
            output + (f"\n[... {size - len(output)} bytes cut]\n".encode() if size > len(output) else b"")
            for output, size in report.pop("output")
        )
        code = report.pop("code")
        return Ran(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout=stdout,
            stderr=stderr,
            **report,
        )

    def _supervisor(self) -> AbstractContextManager["_Supervisor"]:
        return closing(_Supervisor())


class _Supervisor:
    """A supervisor process with its uid and folder; a warm interpreter starts it if `control` connects to one."""

    def __init__(self, control: socket.socket | None = None) -> None:
        parent = tempfile.gettempdir()
        self.folder = f"{parent}/sandbox-{secrets.token_hex(8)}"
        with ExitStack() as stack:
            self.uid = stack.enter_context(_lease_uid())
            stack.callback(self._remove_folder)
            if control:
                self.connection, remote = socket.socketpair()
                stack.enter_context(self.connection)
                with remote:
                    socket.send_fds(control, [b"."], [remote.fileno()])
            else:
                self.connection = stack.enter_context(_start_module("supervisor", "-IS"))
            stack.callback(self._wait)
            self._resources = stack.pop_all()
        self._send(
            {
                "folder": self.folder,
                "tmpfs": "" if any(path.startswith(TMPFS) for path in (self.folder, *readable())) else TMPFS,
                "read": readable(),
                "cgroup": cgroups(),
                "uid": self.uid,
                "search": bool(self.uid) and needs_search((*readable(), parent)),
                "filter": seccomp.program(own_uid=bool(self.uid)),
            }
        )

    def run(self, spec: dict[str, Any], stdin: bytes) -> dict[str, Any]:
        """Send a spec and the standard input of its run; wait for the report."""
        # A sealed file in memory: the run cannot change it.
        descriptor = os.memfd_create("stdin", os.MFD_ALLOW_SEALING)
        try:
            with open(descriptor, "r+b", closefd=False) as file:
                file.write(stdin)
                file.seek(0)
            seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
            self._send(spec, descriptor)
            return zygote.receive(self.connection.fileno())
        except (EOFError, ConnectionResetError):
            return {"refused": "its supervisor ended without a report, see its message above"}
        finally:
            os.close(descriptor)

    def abandon(self) -> None:
        """Make the supervisor kill its run."""
        with suppress(OSError):  # it has already ended
            self.connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End the supervisor and its run."""
        self._resources.close()

    def _wait(self) -> None:
        """Wait until the supervisor and all processes of its run have ended, so that the uid can be reused."""
        self.abandon()
        with suppress(OSError):
            while self.connection.recv(1 << 16):
                pass

    def _remove_folder(self) -> None:
        if Path(self.folder).exists():  # its supervisor was killed
            folder.remove(self.folder)
        if cgroups():
            with suppress(OSError):  # its supervisor has removed it
                Path(cgroups(), Path(self.folder).name).rmdir()

    def _send(self, message: dict[str, Any], *descriptors: int) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # `run` notices that there is no report
            zygote.send(self.connection.fileno(), message)
            if descriptors:
                socket.send_fds(self.connection, [b"."], descriptors)


run = Sandbox().run


class Server(Sandbox):
    """A warm interpreter that runs the equivalent of `python COMMAND...`: a file, `-c CODE`, or
    `-m MODULE`, which calls `main` of one of its imports from this package.

        with Server(imports=["json", "math"]) as server:
            ran = server.run(["main.py"], files={"main.py": answer})

    It imports its modules once. Each run is a fork of it, which is confined like any other run before
    it executes untrusted code. Concurrent runs each have their own supervisor, folder and uid, which
    later runs reuse when all processes of the last one have ended. Import only trusted modules, because
    imports are not confined. Safe to use from several threads, and from processes that are forked later.
    """

    def __init__(self, imports: Sequence[str] = ()) -> None:
        _require_confinement()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[_Supervisor] = []
        self._busy: set[_Supervisor] = set()
        self._interpreter = _start_module("warm_server", "-I")
        self._control = self._interpreter.__enter__()
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
    def _supervisor(self) -> Iterator[_Supervisor]:
        """A supervisor that no other thread is using; kept for later runs unless this one fails."""
        with self._lock:
            if self._process != os.getpid():  # the supervisors belong to the process that forked this one
                self._process, self._idle, self._busy = os.getpid(), [], set()
            supervisor = self._idle.pop() if self._idle else _Supervisor(self._control)
            self._busy.add(supervisor)
        try:
            yield supervisor
            self._idle.append(supervisor)
        except BaseException:
            supervisor.close()
            raise
        finally:
            self._busy.discard(supervisor)

    def close(self) -> None:
        """End the interpreter; runs in progress are killed."""
        if self._process == os.getpid():  # a fork does not own the supervisors
            for supervisor in list(self._busy):
                supervisor.abandon()
            while self._idle:
                self._idle.pop().close()
        self._interpreter.__exit__(None, None, None)

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
def find_problem() -> str:
    """Return why untrusted code cannot be confined on this machine, "" if it can; tried once per process."""
    return missing_in_kernel() or _find_escapes()


def _require_confinement() -> None:
    if why := find_problem():
        raise SandboxError(f"the sandbox does not work on this machine, so nothing was run ({why})")


def missing_in_kernel() -> str:
    """Return what Landlock or seccomp need and this machine lacks, "" when nothing is missing."""
    if not sys.platform.startswith("linux"):
        return f"needs Linux, this is {sys.platform}"
    if kernel.MACHINE not in kernel.AUDIT_ARCH:
        return f"the seccomp filter is written for x86_64 and aarch64, this is {kernel.MACHINE}"
    version, needed = landlock.abi(), 3 if may_change_uid() else 6
    if version < needed:
        user = "as root" if needed == 3 else "without root"
        return f"the kernel {os.uname().release} has Landlock {version}, {needed} is needed {user}"
    if not Path("/proc/thread-self/children").exists():
        return "the kernel has no /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN)"
    unreachable = may_change_uid() and needs_search(readable())
    if unreachable and not kernel.has_capabilities(kernel.CAP_DAC_READ_SEARCH):
        return (
            f"the interpreter {sys.executable} is below a folder that only root may enter, and this process "
            "does not have CAP_DAC_READ_SEARCH; use an interpreter that everybody can read"
        )
    return ""


def _find_escapes() -> str:
    """Return what untrusted code can still do here, "" when the probe is fully confined."""
    with tempfile.NamedTemporaryFile() as secret:
        Path(secret.name).chmod(0o666)
        arguments = [secret.name, f"{secret.name}-written", str(os.getppid())]
        try:
            ran = Sandbox()._run([sys.executable, "-I", "-S", "-c", PROBE, *arguments], {}, b"", Limits(), (), {})
        except SandboxError as refusal:
            return str(refusal)
    *escapes, end = ran.stdout.decode().split("\n")[:-1] or [""]
    if end != "end":
        return f"its self-test did not finish: {ran.stderr.decode().strip()[-300:]}"
    return f"its self-test {', '.join(escapes)}" if escapes else ""


# Not all of /etc, which may contain secrets, and not /proc, which shows other processes.
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
    "/etc/localtime", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group",
    "/etc/ssl/openssl.cnf", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu",
)  # fmt: skip


@functools.cache
def readable() -> tuple[str, ...]:
    """Return the paths of the system's programs and libraries, and of this interpreter."""
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
    """Whether another uid can reach some of these paths only with CAP_DAC_READ_SEARCH."""
    resolved = [Path(path).resolve() for path in paths]
    folders = {folder for path in resolved for folder in (path, *path.parents)}
    return not all(folder.stat().st_mode & 0o001 for folder in folders if folder.is_dir())


# A run may have its own tmpfs mounted over this folder.
TMPFS = "/dev/shm"


def _check_name(name: str) -> str:
    """Return the normalized name of a file in the work folder; raises SandboxError for a path outside of it."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise SandboxError(f"the file `{name}` would lie outside the work folder; name it relative to that folder")
    return str(path)


# HF Jobs map uids up to 65535; systemd's table of uids leaves this range unassigned.
UIDS = range(60578, 61184)


@contextmanager
def _lease_uid() -> Iterator[int]:
    """Yield a uid that no other run on this machine is using; 0 if this process may not change its uid."""
    if not may_change_uid():
        yield 0
        return
    for uid in UIDS:
        with socket.socket(socket.AF_UNIX) as lease:
            try:
                # Only one process can bind the name, and the kernel frees it when that process ends.
                lease.bind(f"\0pimono-sdpo-sandbox-{uid}")
            except OSError:
                continue
            yield uid
            return
    raise SandboxError(f"all {len(UIDS)} uids for sandboxes are in use; run fewer at a time")


@functools.cache
def cgroups() -> str:
    """Return the folder in which control groups with a memory limit can be created, "" where they cannot."""
    return cgroup.find()


@functools.cache
def may_change_uid() -> bool:
    """Whether a run can have its own uid, which needs root, possibly the root of a container."""
    return os.geteuid() == 0 and kernel.has_capabilities(
        kernel.CAP_CHOWN, kernel.CAP_KILL, kernel.CAP_SETGID, kernel.CAP_SETUID
    )


HERE = Path(__file__).resolve().parent
# The `__init__` modules of the packages import much that a supervisor does not need.
BOOT = """
import sys, types
for name, path in (("rewards", {0!r}), ("rewards.sandbox", {1!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from rewards.sandbox.{2} import main
main()
"""


@contextmanager
def _start_module(module: str, flags: str) -> Iterator[socket.socket]:
    """Start `main` of a module of this package in a clean interpreter; yield the socket connected to it."""
    code = BOOT.format(str(HERE.parent), str(HERE), module)
    connection, remote = socket.socketpair()
    with connection:
        # In its own session: Ctrl-C must not end it before it has killed its processes.
        with remote:
            process = subprocess.Popen(
                [sys.executable, flags, "-c", code],
                stdin=remote.fileno(),
                stdout=subprocess.DEVNULL,
                env=CLEAN_ENV,
                start_new_session=True,
                cwd="/",
            )
        try:
            yield connection
        finally:
            connection.close()
            process.wait()
