"""Restrict with Landlock which paths a process can read and write, and forbid TCP and outside signals.

Source: the kernel's `Documentation/userspace-api/landlock.rst`; system calls 444 to 446, which are the
same on every machine.
"""

from __future__ import annotations

import os
import stat
import struct

from rewards.sandbox.kernel import check, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = EXECUTE | READ_FILE | READ_DIR
# Bits 6 to 12 create entries; these create device nodes and sockets, which stay forbidden.
DEVICE_NODES = 1 << 6 | 1 << 11
SOCKETS = 1 << 9
TCP = 3
SCOPES = 3  # abstract sockets and signals


def abi() -> int:
    """Return the version of Landlock in this kernel, 0 if it has none."""
    return max(0, syscall(444, None, 0, 1))


def ruleset(read: Sequence[str], write: Sequence[str], devices: Sequence[str]) -> int:
    """Return a descriptor of a ruleset, with which processes can restrict themselves.

    Paths in `read` may be read and executed, `write` are folders in which everything except device
    nodes and sockets may be created, `devices` may be read and written. Missing paths are ignored.
    """
    version = abi()
    # All accesses to files that this version can forbid.
    every = (1 << 13 + (version >= 2) + (version >= 3) + (version >= 5)) - 1
    attributes = struct.pack("QQQ", every, TCP * (version >= 4), SCOPES * (version >= 6))
    size = 8 + 8 * (version >= 4) + 8 * (version >= 6)
    rules = check(syscall(444, attributes, size, 0), "landlock_create_ruleset")
    for paths, access in (
        (read, READ),
        (write, every & ~DEVICE_NODES & ~SOCKETS & ~IOCTL_DEV),
        (devices, READ_FILE | WRITE_FILE | TRUNCATE),
    ):
        for path in paths:
            _allow(rules, path, access & every)
    return rules


def restrict(rules: int) -> None:
    """Restrict this thread and its later children; `no_new_privs` must be set."""
    check(syscall(446, rules, 0), "landlock_restrict_self")


def _allow(rules: int, path: str, access: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(beneath).st_mode):
            access &= ON_FILES
        rule = struct.pack("=Qi", access, beneath)
        check(syscall(445, rules, 1, rule, 0), f"landlock_add_rule for {path}")
    finally:
        os.close(beneath)
