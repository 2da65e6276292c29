"""Read SWE-agent's `.traj` and mini-swe-agent's `.traj.json`; the verdict is in an evaluation beside them.

swe-agent.com/latest/usage/trajectories: the conversation is `history`, with tool calls, or with the
command of an answer in `action`. mini-swe-agent.com/latest/usage/output_files: `messages` with
calls of `bash`, or with commands in fences in version 1, which may also be a bare list of messages.
"""

from functools import cache
from pathlib import Path

from pimono_sdpo.traces.events import decode_json
from pimono_sdpo.traces.trajectories import base

REPORTS = ("results.json", "report.json", "*.report.json", "eval.json", "*evaluation.json")


def _find_verdict(file: Path, task: str) -> bool | None:
    """Return the verdict on a run from an evaluation of SWE-bench beside it or up to two folders above.

    Such a report lists `resolved_ids` and `unresolved_ids`, or `resolved` and `unresolved`.
    """
    folders = map(_read_verdicts, (file.parent, *file.parent.parents[:2]))
    return next((verdicts[task] for verdicts in folders if task in verdicts), None)


@cache
def _read_verdicts(folder: Path) -> dict[str, bool]:
    """Return the verdicts of a folder by task; the first file with a verdict counts."""
    verdicts: dict[str, bool] = {}
    for file in (file for pattern in REPORTS for file in sorted(folder.glob(pattern))):
        report = decode_json(file.read_text(encoding="utf-8", errors="replace"))
        for name, passed in (("resolved", True), ("unresolved", False)):
            tasks = report.get(f"{name}_ids", report.get(name)) if isinstance(report, dict) else None
            for task in tasks if isinstance(tasks, list) else ():
                verdicts.setdefault(str(task), passed)
    return verdicts


def _read_mini(file: Path) -> base.Trajectory:
    content = base.read_json(file)
    content = {"messages": content} if isinstance(content, list) else content
    run = read_trajectory(content, file.name.removesuffix(".traj.json"))
    run.passed = _find_verdict(file, run.task_id)
    return run


def read_trajectory(content: base.Json, name: str) -> base.Trajectory:
    """Return the run of mini-swe-agent's JSON, without a verdict; `name` is the default for its task."""
    recorded, info = content.get("messages"), content.get("info") or {}
    if not isinstance(recorded, list):
        raise base.FormatError("it has no list of messages")
    status = str(info.get("exit_status") or "Submitted")
    messages: list[base.Message] = []
    for message in recorded:
        if message.get("role") != "exit":
            messages.append(base.read_message(message))
            code = (message.get("extra") or {}).get("returncode")
            messages[-1].failed = base.read_code(messages[-1].text) if code is None else code != 0
        elif messages and messages[-1].role == "assistant" and status == "Submitted":
            # The output of the command that submits has the role `exit`, which otherwise only says
            # how the run ended.
            text, calls = base.join_text(message.get("content")), messages[-1].calls
            last = calls[-1].id if calls else ""
            messages.append(base.Message("tool" if calls else "user", text, call_id=last, failed=False))
    if not any(message.calls for message in messages):
        base.call_written(messages)
    stats = info.get("model_stats") or {}
    config = info.get("config") or {}
    return base.Trajectory(
        task_id=str(content.get("instance_id") or name),
        messages=messages,
        tools=[base.BASH_TOOL],
        model=(config.get("model") or {}).get("model_name"),
        patch=info.get("submission") or None,
        ended="final" if status == "Submitted" else status,
        cost=stats.get("instance_cost"),
    )


def _read(file: Path) -> base.Trajectory:
    content = base.read_json(file)
    history, info = content.get("history"), content.get("info") or {}
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
        # The call that ends the run has no result.
        if call.arguments["command"].startswith("submit"):
            call.name = "submit"
    stats = info.get("model_stats") or {}
    task = file.name.removesuffix(".traj")
    status = str(info.get("exit_status") or "error")
    return base.Trajectory(
        task_id=task,
        messages=messages,
        tools=[] if has_calls else [base.BASH_TOOL],
        passed=_find_verdict(file, task),
        patch=info.get("submission") or None,
        ended="final" if status.startswith("submitted") else status,
        prompt_tokens=stats.get("tokens_sent"),
        completion_tokens=stats.get("tokens_received"),
        cost=stats.get("instance_cost"),
    )


FORMATS = (
    base.Format(
        name="mini-swe-agent",
        about="mini-swe-agent's `.traj.json`",
        recognises=lambda file: file.name.endswith(".traj.json"),
        read=_read_mini,
    ),
    base.Format("swe-agent", "SWE-agent's `.traj`", lambda file: file.suffix == ".traj", _read),
)
