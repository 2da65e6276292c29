"""Make system calls that Python does not provide, through libc.

Imported before untrusted code starts, in an interpreter without site-packages: only the standard
library, and little of it, because every import delays every cold run.
"""

import ctypes
import os
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
# ctypes passes a bare int as 32 bits.
LIBC.syscall.restype = ctypes.c_long
LIBC.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]

LIBC.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]

MACHINE = os.uname().machine
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAP_CHOWN, CAP_DAC_READ_SEARCH, CAP_KILL, CAP_SETGID, CAP_SETUID = 0, 2, 5, 6, 7
SYS_CAPSET = {"x86_64": 126, "aarch64": 91}


class KernelError(Exception):
    """A call that confinement needs was refused; the message names it."""


def check(result: int, call: str) -> int:
    """Return the result of a call; raises KernelError with the name of the call if it failed."""
    if result < 0:
        raise KernelError(f"{call} was refused: {os.strerror(ctypes.get_errno())}")
    return result


def prctl(option: int, value: int, third: int = 0) -> int:
    """`prctl(2)`."""
    return check(LIBC.prctl(option, value, third, 0, 0), f"prctl({option}, {value})")


def syscall(number: int, *arguments: object) -> int:
    """`syscall(2)`; integers go as 64 bits."""
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return int(LIBC.syscall(ctypes.c_long(number), *wide))


def keep_capabilities(*kept: int) -> None:
    """Drop all other capabilities; commands that are executed later keep these, too."""
    mask = sum(1 << capability for capability in kept)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)
    check(syscall(SYS_CAPSET[MACHINE], header, data), "capset")
    for capability in kept:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)


def has_capabilities(*wanted: int) -> bool:
    """Whether this process has all of these capabilities in effect."""
    with open("/proc/thread-self/status") as status:
        effective = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    return all(effective >> capability & 1 for capability in wanted)


CLONE_NEWNS = 0x20000
MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_REC, MS_PRIVATE = 2, 4, 32, 1 << 14, 1 << 18


def unshare_mounts() -> None:
    """Make later mounts visible only to this process and its later children."""
    check(LIBC.unshare(CLONE_NEWNS), "unshare")
    check(LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount")


def mount_tmpfs(path: str, size: int, entries: int, *, again: bool = False) -> None:
    """Mount a tmpfs, or with `again` change the size of the mounted one."""
    options = f"size={size},nr_inodes={entries},mode=755".encode()
    flags = MS_NOSUID | MS_NODEV | (MS_REMOUNT if again else 0)
    check(LIBC.mount(b"tmpfs", path.encode(), b"tmpfs", flags, options), f"mount of a tmpfs at {path}")


def install_filter(code: bytes) -> None:
    """Filter the system calls of this thread and its later children; `no_new_privs` must be set."""
    buffer = ctypes.create_string_buffer(code, len(code))
    fprog = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    holder = ctypes.create_string_buffer(fprog, len(fprog))
    check(prctl(PR_SET_SECCOMP, 2, ctypes.addressof(holder)), "seccomp")
