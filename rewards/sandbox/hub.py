"""Run a command in a Hugging Face Sandbox: a machine of its own, away from ours.

Never run by this project's tests: it needs a token, and each run is a paid Job. Other than the
local backends it has network, knows no CPU seconds (NaN), and keeps memory, processes and disk to
what the machine has; CPU seconds, file size and open files are limited by `ulimit`. Nothing of
ours is there: no token is forwarded, no environment.
"""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from huggingface_hub import Sandbox, get_token

from rewards.sandbox.local import Limits, Ran, SandboxError, inside

FOLDER = "/tmp/work"
# Arguments: CPU seconds, blocks of 512 bytes, open files, the file for standard input, the command.
LIMITED = """
ulimit -c 0; ulimit -t "$1"; ulimit -f "$2"; ulimit -n "$3"
input=$4; shift 4
exec "$@" < "$input"
"""
INPUT = "/tmp/stdin"


def limited(command: Sequence[str], limits: Limits) -> list[str]:
    """The command with its limits set around it."""
    numbers = (math.ceil(limits.cpu_seconds), limits.file_size // 512, limits.open_files)
    return ["sh", "-c", LIMITED, "sh", *map(str, numbers), INPUT, *command]


def run(
    command: Sequence[str],
    files: Mapping[str, bytes | str],
    stdin: bytes,
    limits: Limits,
    collect: Sequence[str],
    env: Mapping[str, str],
) -> Ran:
    """Start a Sandbox, run the command in it, bring back what was asked for, end it."""
    if not get_token():
        raise SandboxError("the sandbox `hub` needs a Hugging Face token; set HF_TOKEN")
    named = {f"{FOLDER}/{inside(name)}": content for name, content in files.items()}
    wanted = {name: f"{FOLDER}/{inside(name)}" for name in collect}
    with Sandbox.create(forward_hf_token=False) as sandbox:
        try:
            sandbox.files.mkdir(FOLDER)
            for path, content in {**named, INPUT: stdin}.items():
                sandbox.files.mkdir(str(PurePosixPath(path).parent))
                sandbox.files.write(path, content)
            begun = time.monotonic()
            done = sandbox.run(
                limited(command, limits),
                env=dict(env),
                cwd=FOLDER,
                timeout=limits.wall_seconds,
                check=False,
            )
            wall = time.monotonic() - begun
            back = {
                name: sandbox.files.read(path)
                for name, path in wanted.items()
                if sandbox.files.exists(path) and sandbox.files.stat(path).size <= limits.file_size
            }
        finally:
            sandbox.kill()
    return Ran(
        exit_code=done.exit_code,
        signal=done.signal,
        stdout=done.stdout.encode()[: limits.output],
        stderr=done.stderr.encode()[: limits.output],
        cpu_seconds=math.nan,
        wall_seconds=wall,
        backend="hub",
        stopped="wall" if done.timed_out else "cpu" if done.signal == 24 else "",
        files=back,
    )
