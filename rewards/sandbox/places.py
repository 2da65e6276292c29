"""Which paths a run may read, where it works, and the uid it gets."""

import functools
import os
import shutil
import socket
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from rewards.sandbox import folder, kernel
from rewards.sandbox.limits import SandboxError

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


def environment(work: str, more: Mapping[str, str]) -> dict[str, str]:
    """A fresh environment: nothing of the caller's but what is given."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": work,
        "TMPDIR": str(Path(work).parent / "tmp"),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        **more,
    }


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


def bwrap() -> str | None:
    """Where bubblewrap is."""
    return shutil.which("bwrap")
