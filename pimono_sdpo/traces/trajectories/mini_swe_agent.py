"""mini-swe-agent's `.traj.json`, versions 1 (commands in fences) and 2 (calls of `bash`).

Format: https://mini-swe-agent.com/latest/usage/output_files/; version 1 is a bare list of messages
or has an object `info` beside them. The verdict is that of an evaluation beside the runs.
"""

from pathlib import Path

from pimono_sdpo.traces.trajectories import base


def _read(file: Path) -> base.Trajectory:
    whole = base.read_json(file)
    whole = {"messages": whole} if isinstance(whole, list) else whole
    run = read_trajectory(whole, file.name.removesuffix(".traj.json"))
    run.passed = base.find_verdict(file, run.task_id)
    return run


def read_trajectory(whole: base.Json, name: str) -> base.Trajectory:
    """Return the run of a trajectory, without a verdict; `name` is its task if it names none."""
    messages, info = whole.get("messages"), whole.get("info") or {}
    if not isinstance(messages, list):
        raise base.FormatError("it has no list of messages")
    status = str(info.get("exit_status") or "Submitted")
    said: list[base.Message] = []
    for message in messages:
        if message.get("role") != "exit":
            said.append(base.read_message(message))
            code = (message.get("extra") or {}).get("returncode")
            said[-1].failed = base.read_code(said[-1].text) if code is None else code != 0
        elif said and said[-1].role == "assistant" and status == "Submitted":
            # The command that submits has its output in the role `exit`, which else only says how
            # the run ended.
            text, calls = base.join_text(message.get("content")), said[-1].calls
            last = calls[-1].id if calls else ""
            said.append(base.Message("tool" if calls else "user", text, call_id=last, failed=False))
    if not any(one.calls for one in said):
        base.call_written(said)
    stats = info.get("model_stats") or {}
    config = info.get("config") or {}
    return base.Trajectory(
        task_id=str(whole.get("instance_id") or name),
        run_id="",
        messages=said,
        tools=[base.BASH_TOOL],
        model=(config.get("model") or {}).get("model_name"),
        patch=info.get("submission") or None,
        ended="final" if status == "Submitted" else status,
        cost=stats.get("instance_cost"),
    )


FORMAT = base.Format(
    name="mini-swe-agent",
    about="mini-swe-agent's `.traj.json`",
    recognises=lambda file: file.name.endswith(".traj.json"),
    read=_read,
)
