"""A seccomp filter: no network, no namespaces, nothing that reaches another process or outlives us.

The program is classic BPF, assembled here. Calls that are unknown to this table because they are
newer than it answer ENOSYS, as on an older kernel.
"""

import ctypes
import errno
import functools
import struct

from rewards.sandbox.kernel import AUDIT_ARCH, MACHINE, PR_SET_SECCOMP, checked, prctl

NEWEST = 462
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, EQUAL, AT_LEAST, MASK, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
NEW_NAMESPACE = 0x7E020000
CLONE_PARENT = 0x8000

# (x86_64, aarch64); None where the machine lacks the call.
Numbers = tuple[int | None, int | None]

REFUSED: dict[str, Numbers] = {
    # network: `socketpair` alone stays
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242),
    # descriptors on their way through a socket hold files that no process has open
    "sendmsg": (46, 211), "sendmmsg": (307, 269),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "kcmp": (312, 272), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "migrate_pages": (256, 238), "move_pages": (279, 239),
    # files by another way than their path
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    # names of files elsewhere, which no right to read them is needed for
    "inotify_add_watch": (254, 27),
    # namespaces and mounts
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "unshare": (272, 97), "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "statmount": (457, 457), "listmount": (458, 458),
    # large and often broken parts of the kernel
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "fanotify_init": (300, 262), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "modify_ldt": (154, None), "lookup_dcookie": (212, 18),
    # memory and queues that no process owns
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190),
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186),
    "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180),
    "mq_unlink": (241, 181), "io_setup": (206, 0), "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    # the machine
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89), "quotactl": (179, 60),
    "quotactl_fd": (443, 443), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161),
    "setdomainname": (171, 162), "syslog": (103, 116), "iopl": (172, None), "ioperm": (173, None),
    "vhangup": (153, 58), "nfsservctl": (180, 42), "uselib": (134, None), "_sysctl": (156, None),
    "personality": (135, 92),
}  # fmt: skip

# Refused unless the argument of that index is 0, which means the caller itself.
OWN_ONLY: dict[str, tuple[Numbers, int]] = {
    "prlimit64": ((302, 261), 0), "setpriority": ((141, 140), 1), "ioprio_set": ((251, 30), 1),
    "sched_setscheduler": ((144, 119), 0), "sched_setparam": ((142, 118), 0),
    "sched_setattr": ((314, 274), 0),
}  # fmt: skip

# The same, where another process may be of the same user; threads pin each other otherwise.
OWN_USER: tuple[Numbers, int] = ((203, 122), 0)  # sched_setaffinity

# Refused when the argument of that index has that value.
REFUSED_VALUES: tuple[tuple[Numbers, int, int], ...] = (
    ((157, 167), 0, 4),  # prctl(PR_SET_DUMPABLE): hides memory and open files from the watchdog
    ((141, 140), 0, 2),  # setpriority(PRIO_USER)
    ((251, 30), 0, 3),  # ioprio_set(IOPRIO_WHO_USER)
    ((16, 29), 1, 0x5412),  # ioctl(TIOCSTI): types into a terminal
    ((16, 29), 1, 0x541C),  # ioctl(TIOCLINUX)
    ((16, 29), 1, 0x40086602),  # ioctl(FS_IOC_SETFLAGS)
    ((16, 29), 1, 0x401C5820),  # ioctl(FS_IOC_FSSETXATTR)
)

# Landlock does not know these, which change files outside that everybody may write; so they answer
# success and do nothing, as under fakeroot: tools that copy go on.
INERT: tuple[Numbers, ...] = (
    (132, None), (235, None), (261, None), (280, 88),  # utime
    (188, 5), (189, 6), (190, 7), (197, 14), (198, 15), (199, 16),  # xattr
)  # fmt: skip
# The same without a uid of its own: a process would change its user's files.
INERT_MODES: tuple[Numbers, ...] = (
    (90, None), (91, 52), (268, 53), (452, 452),  # chmod
    (92, None), (93, 55), (94, None), (260, 54),  # chown
)  # fmt: skip

Code = list[tuple[int, int, int, int]]


@functools.cache
def program(*, inert_modes: bool) -> bytes:
    """The filter for this machine."""
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
    for numbers in REFUSED.values():
        code += _when(numbers[column], [refuse])
    for numbers, index in [*OWN_ONLY.values(), *([OWN_USER] if inert_modes else [])]:
        code += _when(numbers[column], [_argument(index), (EQUAL, 1, 0, 0), refuse])
    for numbers, index, value in REFUSED_VALUES:
        code += _when(numbers[column], [_argument(index), (EQUAL, 0, 1, value), refuse])
    clone = [_argument(0), (MASK, 0, 0, NEW_NAMESPACE | CLONE_PARENT), (EQUAL, 1, 0, 0), refuse]
    code += _when((56, 220)[column], clone)
    # Would fill a disk at one stroke; libc then writes.
    code += _when((285, 47)[column], [(RETURN, 0, 0, ERRNO | errno.EOPNOTSUPP)])
    code += _when(435, [unknown])  # clone3 hides its flags behind a pointer; libc then uses clone
    # A datagram pair could still be pointed at any socket; a stream cannot.
    stream = [_argument(1), (MASK, 0, 0, 0xF), (EQUAL, 1, 0, 1), refuse]
    code += _when((53, 199)[column], stream)
    for numbers in (*INERT, *(INERT_MODES if inert_modes else ())):
        code += _when(numbers[column], [(RETURN, 0, 0, ERRNO)])
    code.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def _argument(index: int) -> tuple[int, int, int, int]:
    return (LOAD, 0, 0, 16 + 8 * index)


def _when(number: int | None, then: Code) -> Code:
    """`then` for that call; afterwards the accumulator holds the call's number again."""
    if number is None:
        return []
    body = then if then[-1][0] == RETURN and len(then) == 1 else [*then, (LOAD, 0, 0, 0)]
    return [(EQUAL, 0, len(body), number), *body]


def install(code: bytes) -> None:
    """Filter this thread and its later children; `no_new_privs` must be set."""
    buffer = ctypes.create_string_buffer(code, len(code))
    fprog = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    holder = ctypes.create_string_buffer(fprog, len(fprog))
    checked(prctl(PR_SET_SECCOMP, 2, ctypes.addressof(holder)), "seccomp")
