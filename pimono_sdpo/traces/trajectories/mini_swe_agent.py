"""mini-swe-agent's `.traj.json`, versions 1 (commands in fences) and 2 (calls of `bash`).

Format: https://mini-swe-agent.com/latest/usage/output_files/; version 1 is a bare list of messages
or has an object `info` beside them. The verdict is that of an evaluation beside the runs.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from pimono_sdpo.traces.trajectories.base import (
    BASH_TOOL,
    FormatError,
    Json,
    Message,
    Trajectory,
    call_written,
    find_verdict,
    join_text,
    read_code,
    read_json,
    read_message,
    read_or_explain,
)

NAME = "mini-swe-agent"
ABOUT = "mini-swe-agent's `.traj.json`"


def recognises(file: Path) -> bool:
    """Recognise a file by its name."""
    return file.name.endswith(".traj.json")


def count(file: Path) -> int:
    """Return the number of runs."""
    return 1


def read(file: Path) -> Iterator[Trajectory | str]:
    """Yield the run, or a clause why it cannot be read."""
    yield read_or_explain(partial(_read_run, file), file.name)


def _read_run(file: Path) -> Trajectory:
    whole = read_json(file)
    whole = {"messages": whole} if isinstance(whole, list) else whole
    run = read_trajectory(whole, file.name.removesuffix(".traj.json"))
    run.passed = find_verdict(file, run.task_id)
    return run


def read_trajectory(whole: Json, name: str) -> Trajectory:
    """Return the run of a trajectory, without a verdict; `name` is its task if it names none."""
    messages, info = whole.get("messages"), whole.get("info") or {}
    if not isinstance(messages, list):
        raise FormatError("it has no list of messages")
    status = str(info.get("exit_status") or "Submitted")
    said: list[Message] = []
    for message in messages:
        if message.get("role") != "exit":
            said.append(read_message(message))
            code = (message.get("extra") or {}).get("returncode")
            said[-1].failed = read_code(said[-1].text) if code is None else code != 0
        elif said and said[-1].role == "assistant" and status == "Submitted":
            # The command that submits has its output in the role `exit`, which else only says how
            # the run ended.
            text, calls = join_text(message.get("content")), said[-1].calls
            last = calls[-1].id if calls else ""
            said.append(Message("tool" if calls else "user", text, call_id=last, failed=False))
    if not any(one.calls for one in said):
        said = call_written(said)
    stats = info.get("model_stats") or {}
    config = info.get("config") or {}
    return Trajectory(
        task_id=str(whole.get("instance_id") or name),
        run_id="",
        messages=said,
        tools=[BASH_TOOL],
        model=(config.get("model") or {}).get("model_name"),
        patch=info.get("submission") or None,
        ended="final" if status == "Submitted" else status,
        cost=stats.get("instance_cost"),
    )
