"""Build a seccomp filter that forbids the network, namespaces, and access to other processes.

It also forbids objects that outlive the run. The program is classic BPF, assembled from the table
`seccomp.toml`. System calls newer than the table return ENOSYS, as on an older kernel.
"""

import errno
import functools
import struct
import tomllib
from pathlib import Path

from rewards.sandbox.kernel import AUDIT_ARCH, MACHINE
from rewards.sandbox.processes import SHARED_BYTES

NEWEST = 462
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, EQUAL, MORE, AT_LEAST, MASK, RETURN = 0x20, 0x15, 0x25, 0x35, 0x54, 0x06
NEW_NAMESPACE = 0x7E020000
CLONE_PARENT = 0x8000
SHARED_ANONYMOUS = 0x21

Code = list[tuple[int, int, int, int]]


@functools.cache
def program(*, own_uid: bool) -> bytes:
    """Return the filter for this machine, for a run with or without its own uid."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    column = list(AUDIT_ARCH).index(MACHINE)
    refuse = (RETURN, 0, 0, ERRNO | errno.EPERM)
    unknown = (RETURN, 0, 0, ERRNO | errno.ENOSYS)
    code: Code = [
        (LOAD, 0, 0, 4),
        (EQUAL, 1, 0, AUDIT_ARCH[MACHINE]),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, 0),
        (AT_LEAST, 0, 1, NEWEST + 1),  # also x32, whose numbers start at 2**30
        unknown,
    ]
    for calls in table["refused"].values():
        for numbers in calls.values():
            code += _when(numbers[column], [refuse])
    for rule in (table["own_only"] | ({} if own_uid else table["own_only_of_user"])).values():
        code += _when(rule["call"][column], [_argument(rule["argument"]), (EQUAL, 1, 0, 0), refuse])
    for rule in table["refused_values"].values():
        comparison = (EQUAL, 0, 1, rule["value"])
        code += _when(rule["call"][column], [_argument(rule["argument"]), comparison, refuse])
    clone = [_argument(0), (MASK, 0, 0, NEW_NAMESPACE | CLONE_PARENT), (EQUAL, 1, 0, 0), refuse]
    code += _when((56, 220)[column], clone)
    # fallocate could fill a disk in one call; libc then writes instead.
    code += _when((285, 47)[column], [(RETURN, 0, 0, ERRNO | errno.EOPNOTSUPP)])
    code += _when(435, [unknown])  # the flags of clone3 are behind a pointer; libc then uses clone
    # One end of a datagram pair could be connected to any socket; that of a stream cannot.
    stream = [_argument(1), (MASK, 0, 0, 0xF), (EQUAL, 1, 0, 1), refuse]
    code += _when((53, 199)[column], stream)
    size, shared = _argument(1), _argument(3)
    large = [(*size[:3], size[3] + 4), (EQUAL, 0, 2, 0), size, (MORE, 0, 1, SHARED_BYTES), refuse]
    code += _when((9, 222)[column], [shared, (MASK, 0, 0, SHARED_ANONYMOUS), (EQUAL, 0, 5, SHARED_ANONYMOUS), *large])
    for numbers in (table["inert"] | ({} if own_uid else table["inert_without_uid"])).values():
        code += _when(numbers[column], [(RETURN, 0, 0, ERRNO)])
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def _argument(index: int) -> tuple[int, int, int, int]:
    return (LOAD, 0, 0, 16 + 8 * index)


def _when(number: int, then: Code) -> Code:
    """Return code that runs `then` for a system call; afterwards the accumulator has the call's number again."""
    if number < 0:
        return []
    body = then if then[-1][0] == RETURN and len(then) == 1 else [*then, (LOAD, 0, 0, 0)]
    return [(EQUAL, 0, len(body), number), *body]
