"""SWE-agent's `.traj`, with text actions or tool calls.

Format: https://swe-agent.com/latest/usage/trajectories/. The conversation is `history`; an answer
without a call has its command in `action`. The verdict is that of an evaluation beside the runs.
"""

from pathlib import Path

from pimono_sdpo.traces.trajectories import base


def _read(file: Path) -> base.Trajectory:
    whole = base.read_json(file)
    history, info = whole.get("history"), whole.get("info") or {}
    if not isinstance(history, list) or not all(isinstance(one, dict) for one in history):
        raise base.FormatError("it has no list `history`")
    messages = []
    for entry in history:
        if entry.get("is_demo"):
            continue
        message, action = base.read_message(entry), entry.get("action")
        if message.role == "assistant" and not message.calls and isinstance(action, str) and action:
            message.text = str(entry.get("thought") or "").strip()
            message.calls = [base.Call("", "bash", {"command": action.strip("\n")})]
        messages.append(message)
    base.take_results(messages)
    has_calls = any(one.get("tool_calls") for one in history)
    for call in messages[-1].calls if messages and not has_calls else ():
        # What ends the run has no result.
        if call.arguments["command"].startswith("submit"):
            call.name = "submit"
    stats = info.get("model_stats") or {}
    task = file.name.removesuffix(".traj")
    status = str(info.get("exit_status") or "error")
    return base.Trajectory(
        task_id=task,
        run_id="",
        messages=messages,
        tools=[] if has_calls else [base.BASH_TOOL],
        passed=base.find_verdict(file, task),
        patch=info.get("submission") or None,
        ended="final" if status.startswith("submitted") else status,
        prompt_tokens=stats.get("tokens_sent"),
        completion_tokens=stats.get("tokens_received"),
        cost=stats.get("instance_cost"),
    )


FORMAT = base.Format(
    name="swe-agent", about="SWE-agent's `.traj`", recognises=lambda file: file.suffix == ".traj", read=_read
)
