"""Which ways to run untrusted code hold on this machine, found out by trying them."""

import functools
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import get_token

from rewards.sandbox import kernel, landlock, local
from rewards.sandbox.confine import DEVICES
from rewards.sandbox.limits import Limits, Ran, SandboxError

# Strongest first. `hub` is never chosen by itself: it costs money and sends the code away.
LOCAL = ("bubblewrap", "landlock")

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


@dataclass(frozen=True, slots=True)
class Backend:
    """A way to run untrusted code; `why` says why it does not hold here, "" when it does."""

    name: str
    why: str

    @property
    def holds(self) -> bool:
        """Whether it can be used."""
        return not self.why


@functools.cache
def available() -> tuple[Backend, ...]:
    """Every backend, the strongest first; tried once per process."""
    return (
        Backend("bubblewrap", _missing_bubblewrap() or _broken("bubblewrap")),
        Backend("landlock", missing_in_kernel() or _broken("landlock")),
        Backend("hub", "" if get_token() else "no Hugging Face token; set HF_TOKEN"),
    )


def choose(backend: str) -> str:
    """The backend of that name, or for `auto` the strongest that holds here; else SandboxError."""
    known = {one.name: one for one in available()}
    if backend == "auto":
        for name in LOCAL:
            if known[name].holds:
                return name
        why = "; ".join(f"{name}: {known[name].why}" for name in LOCAL)
        raise SandboxError(f"no sandbox holds on this machine, so nothing was run ({why})")
    if backend not in known:
        raise SandboxError(f"unknown sandbox `{backend}`; use auto or one of {', '.join(known)}")
    if not known[backend].holds:
        raise SandboxError(f"the sandbox `{backend}` does not hold here: {known[backend].why}")
    return backend


def prefix(backend: str, spec: dict[str, Any]) -> list[str]:
    """What stands before the supervisor's command line."""
    return _bubblewrap(spec) if backend == "bubblewrap" else []


def missing_in_kernel() -> str:
    """What Landlock and seccomp lack here, "" when nothing."""
    if not sys.platform.startswith("linux"):
        return f"needs Linux, this is {sys.platform}"
    if kernel.MACHINE not in kernel.AUDIT_ARCH:
        return f"the seccomp filter is written for x86_64 and aarch64, this is {kernel.MACHINE}"
    version, needed = landlock.abi(), 3 if local.may_change_uid() else 6
    if version < needed:
        whose = "with a uid of its own" if needed == 3 else "without root"
        return f"the kernel {os.uname().release} has Landlock {version}, {whose} {needed} is needed"
    if not Path("/proc/thread-self/children").exists():
        return "the kernel has no /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN)"
    if _unreachable():
        return (
            f"the interpreter {sys.executable} lies below a folder that only root may enter, and "
            "CAP_DAC_READ_SEARCH is not held; use an interpreter that everybody can read"
        )
    return ""


def _unreachable() -> bool:
    return (
        local.may_change_uid()
        and local.needs_search(local.readable())
        and not kernel.has_capability(kernel.CAP_DAC_READ_SEARCH)
    )


def _missing_bubblewrap() -> str:
    if not local.bwrap():
        return "`bwrap` is not installed"
    return missing_in_kernel()


def _bubblewrap(spec: dict[str, Any]) -> list[str]:
    """Namespaces around the supervisor, which confines what it starts as it does without them."""
    arguments = [
        local.bwrap() or "bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc",
        "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session",
        "--tmpfs", "/", "--proc", "/proc", "--chdir", "/",
    ]  # fmt: skip
    for device in DEVICES:  # not `--dev`, which wants devices that small machines lack
        arguments += ["--dev-bind-try", device, device]
    bound = [path for path in (*spec["read"], str(local.HERE)) if not path.startswith("/proc/")]
    # The folders on the way are bubblewrap's own, and closed to all but its user otherwise.
    on_the_way = {str(parent) for path in bound for parent in Path(path).parents} - {"/", *bound}
    for folder in sorted(on_the_way):
        arguments += ["--perms", "0755", "--dir", folder]
    for path in bound:
        arguments += ["--ro-bind", path, path]
    arguments += ["--bind", spec["folder"], spec["folder"]]
    if spec["uid"]:
        for capability in ("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "KILL",
                           "SETGID", "SETUID", "SETPCAP", "SYS_PTRACE"):  # fmt: skip
            arguments += ["--cap-add", f"CAP_{capability}"]
    return [*arguments, "--"]


def _broken(backend: str) -> str:
    """What untrusted code could still do under a backend; "" when the probe was held."""
    descriptor, secret = tempfile.mkstemp()
    os.close(descriptor)
    Path(secret).chmod(0o666)
    arguments = [secret, f"{secret}-written", str(os.getppid())]
    command = [sys.executable, "-I", "-S", "-c", PROBE, *arguments]
    try:
        ran = run_local(command, backend=backend)
    except SandboxError as refusal:
        return str(refusal)
    finally:
        Path(secret).unlink()
    *escapes, end = ran.stdout.decode().split("\n")[:-1] or [""]
    if end != "end":
        return f"its self-test did not end: {ran.stderr.decode().strip()[-300:]}"
    return f"its self-test {', '.join(escapes)}" if escapes else ""


def run_local(command: Sequence[str], *, backend: str) -> Ran:
    """Run a command with defaults under one local backend, tried or not."""
    exchange = local.cold(functools.partial(prefix, backend))
    return local.run_spec(command, {}, b"", Limits(), (), {}, exchange, backend)
