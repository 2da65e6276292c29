"""Run a spec on this machine: its limits, its folder, its uid, its supervisor."""

import dataclasses
import fcntl
import functools
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal

from pimono_sdpo.errors import PimonoError
from rewards.sandbox import folder, kernel, seccomp, supervisor, tree

MEBI = 1 << 20
NOTHING: Mapping[str, str] = MappingProxyType({})
Stopped = Literal["", "cpu", "wall", "memory", "processes", "disk", "files"]


class SandboxError(PimonoError):
    """No backend holds, or confinement failed; nothing untrusted was run."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the whole tree of processes may use.

    CPU seconds are tight, wall seconds loose: a loaded machine must not fail a correct program. The
    wall clock stands still while a program is ready to run and gets no CPU.
    Sizes are bytes. `processes` counts threads. `files` counts entries of the work folder.
    What the kernel buffers in pipes and socket pairs is bounded by the number of open files alone.
    """

    cpu_seconds: float = 10
    wall_seconds: float = 60
    memory: int = 512 * MEBI
    processes: int = 64
    open_files: int = 128
    file_size: int = 64 * MEBI
    disk: int = 128 * MEBI
    files: int = 2000
    output: int = MEBI


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a run.

    `exit_code` is None when `signal` ended it. `stdout` and `stderr` are the first bytes up to
    `Limits.output`; what is longer ends in a line `[... N bytes cut]`. `files` has those asked for
    that are there, regular, and not too large. `stopped` names the limit at which the tree was
    killed, "" when it ended by itself; a program whose allocation is refused ends by itself.
    """

    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    cpu_seconds: float
    wall_seconds: float
    backend: str
    stopped: Stopped = ""
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def timed_out(self) -> Literal["", "cpu", "wall"]:
        """Which clock ran out."""
        return self.stopped if self.stopped in ("cpu", "wall") else ""


# No /etc as a whole, which may hold secrets; no /proc, which shows other processes.
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store",
    "/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
    "/etc/localtime", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group",
    "/etc/ssl/openssl.cnf", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu",
)  # fmt: skip
# HF Jobs map uids up to 65535; this range belongs to nobody (systemd's table of uids).
UIDS = range(60578, 61184)


@functools.cache
def readable() -> tuple[str, ...]:
    """The system's programs and libraries, and those of this interpreter."""
    interpreter = [
        Path(prefix) / part
        for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix}
        for part in ("bin", "lib", "lib64", "pyvenv.cfg")
    ]
    libraries = [
        sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    ]
    paths = {*map(str, interpreter), *libraries}
    paths.add(str(Path(sys.executable).resolve().parent))
    return tuple(sorted(path for path in {*paths, *SYSTEM} if Path(path).exists()))


def needs_search(paths: Iterable[str]) -> bool:
    """Whether a stranger's uid can reach some of these paths only with CAP_DAC_READ_SEARCH."""
    on_the_way = {parent for path in paths for parent in _on_the_way(path)}
    return not all(parent.stat().st_mode & 0o001 for parent in on_the_way)


@functools.lru_cache(maxsize=256)
def _on_the_way(path: str) -> tuple[Path, ...]:
    return tuple(Path(path).resolve().parents)


@contextmanager
def workspace(files: Mapping[str, bytes | str]) -> Iterator[str]:
    """A folder of its own with `work`, which holds the files, and `tmp`; removed afterwards."""
    base = tempfile.mkdtemp(prefix="sandbox-")
    try:
        work = Path(base, "work")
        work.mkdir()
        Path(base, "tmp").mkdir()
        for name, content in files.items():
            target = work / inside(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
        yield base
    finally:
        folder.remove(base)


def inside(name: str) -> str:
    """The name of a file of the work folder, or SandboxError."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise SandboxError(
            f"the file `{name}` would lie outside the work folder; name it relative to that folder"
        )
    return str(path)


@contextmanager
def own_uid() -> Iterator[int]:
    """A uid that no other run on this machine has now; 0 where we may not change ours."""
    if not may_change_uid():
        yield 0
        return
    for uid in UIDS:
        lease = socket.socket(socket.AF_UNIX)
        try:
            # The kernel lets one process have the name, and frees it when that process ends.
            lease.bind(f"\0pimono-sdpo-sandbox-{uid}")
        except OSError:
            lease.close()
            continue
        with lease:
            yield uid
        return
    raise SandboxError(f"all {len(UIDS)} uids for sandboxes are in use; run fewer at a time")


def may_change_uid() -> bool:
    """Whether a run can have its own uid: as root, also as root of a container."""
    needed = (kernel.CAP_CHOWN, kernel.CAP_KILL, kernel.CAP_SETGID, kernel.CAP_SETUID)
    return os.geteuid() == 0 and all(kernel.has_capability(capability) for capability in needed)


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

# Numeric libraries that start threads could not be forked.
CLEAN = {"LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

Exchange = Callable[[dict[str, Any], bytes], dict[str, Any]]


def run_spec(
    command: Sequence[str],
    files: Mapping[str, bytes | str],
    stdin: bytes,
    limits: Limits,
    collect: Sequence[str],
    env: Mapping[str, str],
    exchange: Exchange,
    backend: str,
    read: Sequence[str] = (),
) -> Ran:
    """Make the folder, lease a uid, let `exchange` run the spec, collect, clean up."""
    wanted = [inside(name) for name in collect]
    with workspace(files) as base, own_uid() as uid:
        work = f"{base}/work"
        paths = (*readable(), *read)
        spec = {
            "command": list(command),
            "limits": dataclasses.asdict(limits),
            # Nothing of the caller's environment but what is given.
            "env": {
                "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
                "HOME": work,
                "TMPDIR": f"{base}/tmp",
                **CLEAN,
                **env,
            },
            "folder": base,
            "cwd": work,
            "read": paths,
            "uid": uid,
            "search": bool(uid) and needs_search((*paths, base)),
            "filter": seccomp.program(inert_modes=not uid),
            # RLIMIT_NPROC counts every task of the uid. Without a uid of its own a run shares it
            # with what its user starts meanwhile, other runs included: it may then be refused a
            # process that it should have had, never get more.
            "tasks": limits.processes + (0 if uid else tree.tasks_of(os.getuid())),
        }
        report = exchange(spec, stdin)
        if "refused" in report:
            raise SandboxError(f"the sandbox `{backend}` did not start: {report['refused']}")
        found = {name: folder.read(base, f"work/{name}", limits.file_size) for name in wanted}
    stdout, stderr = map(_marked, report["output"], report["seen"])
    return Ran(
        exit_code=report["code"] if report["code"] >= 0 else None,
        signal=-report["code"] if report["code"] < 0 else None,
        stdout=stdout,
        stderr=stderr,
        cpu_seconds=report["cpu"],
        wall_seconds=report["wall"],
        backend=backend,
        stopped=report["stopped"],
        files={name: content for name, content in found.items() if content is not None},
    )


def _marked(kept: bytes, seen: int) -> bytes:
    cut = seen - len(kept)
    return kept + f"\n[... {cut} bytes cut]\n".encode() if cut else kept


def cold(backend: str) -> Exchange:
    """Return an exchange with a fresh supervisor, inside bubblewrap where that is the backend."""

    def exchange(spec: dict[str, Any], stdin: bytes) -> dict[str, Any]:
        prefix = _bubblewrap(spec) if backend == "bubblewrap" else []
        with started(prefix, "supervisor", "-IS") as connection:
            return talk(connection, spec, stdin)

    return exchange


def _bubblewrap(spec: dict[str, Any]) -> list[str]:
    """Namespaces around the supervisor, which confines what it starts as it does without them."""
    arguments = [
        shutil.which("bwrap") or "bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc",
        "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session",
        "--tmpfs", "/", "--proc", "/proc", "--chdir", "/",
    ]  # fmt: skip
    for device in supervisor.DEVICES:  # not `--dev`, which wants devices that small machines lack
        arguments += ["--dev-bind-try", device, device]
    bound = [path for path in (*spec["read"], str(HERE)) if not path.startswith("/proc/")]
    # The folders on the way are bubblewrap's own, and closed to all but its user otherwise.
    on_the_way = {str(parent) for path in bound for parent in Path(path).parents} - {"/", *bound}
    for parent in sorted(on_the_way):
        arguments += ["--perms", "0755", "--dir", parent]
    for path in bound:
        arguments += ["--ro-bind", path, path]
    arguments += ["--bind", spec["folder"], spec["folder"]]
    if spec["uid"]:
        for capability in ("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "KILL",
                           "SETGID", "SETUID", "SETPCAP", "SYS_PTRACE"):  # fmt: skip
            arguments += ["--cap-add", f"CAP_{capability}"]
    return [*arguments, "--"]


@contextmanager
def started(prefix: list[str], module: str, flags: str) -> Iterator[socket.socket]:
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


def talk(connection: socket.socket, spec: dict[str, Any], stdin: bytes) -> dict[str, Any]:
    """Send a spec and the standard input of its run, wait for the report."""
    given = _sealed(stdin)
    try:
        supervisor.send(connection.fileno(), spec)
        socket.send_fds(connection, [b"."], [given])
        return supervisor.receive(connection.fileno())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return {"refused": "its supervisor ended without a report, see its message above"}
    finally:
        os.close(given)


def _sealed(data: bytes) -> int:
    """A file in memory that cannot be changed any more, at its start."""
    given = os.memfd_create("stdin", os.MFD_ALLOW_SEALING)
    with open(given, "wb", closefd=False) as file:
        file.write(data)
    every_seal = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(given, fcntl.F_ADD_SEALS, every_seal)
    os.lseek(given, 0, os.SEEK_SET)
    return given
