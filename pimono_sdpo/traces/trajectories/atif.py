"""Read Harbor's Agent Trajectory Interchange Format (ATIF 1.0 to 1.7): `trajectory.json` of a trial.

Format: https://harborframework.com/docs/trajectory-format. The verdict is the reward of the trial,
from `verifier/reward.txt` or `result.json` in its folder.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pimono_sdpo.traces.events import decode_json
from pimono_sdpo.traces.trajectories import base

_VERSION = re.compile(rb'"schema_version"\s*:\s*"ATIF-v1')
SOURCES: dict[object, base.Role] = {"system": "system", "user": "user", "agent": "assistant"}


def _recognises(file: Path) -> bool:
    # terminus-2 also writes summaries of its runs, which have no verdict.
    if file.suffix != ".json" or ".summarization-" in file.name:
        return False
    with file.open("rb") as stream:
        return _VERSION.search(stream.read(1 << 16)) is not None


def _read(file: Path) -> base.Trajectory:
    content = base.read_json(file)
    steps = content.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise base.FormatError("it has no list of steps")
    trial = file.parent.parent if file.parent.name == "agent" else file.parent
    result = _read_value(trial / "result.json") or {}
    agent = content.get("agent") or {}
    totals = content.get("final_metrics") or {}
    verifier = result.get("verifier_result") or {}
    rewards = (
        _read_value(trial / "verifier" / "reward.txt"),
        verifier.get("reward"),
        (verifier.get("rewards") or {}).get("reward"),
    )
    output = trial / "verifier" / "test-stdout.txt"
    return base.Trajectory(
        task_id=str(result.get("task_name") or trial.name.rpartition("__")[0] or trial.name),
        run_id=str(content.get("session_id") or content.get("trajectory_id") or trial.name),
        messages=[message for step in steps for message in _read_step(step)],
        tools=agent.get("tool_definitions") or [],
        model=agent.get("model_name"),
        passed=base.to_verdict(next((one for one in rewards if one is not None), None)),
        test_output=output.read_text("utf-8", "replace") if output.exists() else None,
        error=str(result["exception_info"])[:300] if result.get("exception_info") else None,
        prompt_tokens=totals.get("total_prompt_tokens"),
        completion_tokens=totals.get("total_completion_tokens"),
        cost=totals.get("total_cost_usd"),
    )


def _read_step(step: base.Json) -> Iterator[base.Message]:
    """Yield the message of a step and the results of its observation."""
    role = SOURCES.get(step.get("source"))
    if role is None:
        raise base.FormatError(f"a step has the source {step.get('source')!r}")
    calls = [
        base.Call(str(call.get("tool_call_id")), str(call.get("function_name")), call.get("arguments"))
        for call in step.get("tool_calls") or ()
    ]
    yield base.Message(role, base.join_text(step.get("message")), calls)
    results = list((step.get("observation") or {}).get("results") or ())
    if calls and len(results) == 1 and results[0].get("source_call_id") is None:
        # Several calls with one observation: it becomes the result of the last call.
        results = [*({} for _ in calls[1:]), *results]
    for number, result in enumerate(results):
        call_id = result.get("source_call_id")
        if call_id is None and number < len(calls):
            call_id = calls[number].id
        text = base.join_text(result.get("content"))
        # The model sees the result of an action without a call as a user message.
        yield base.Message("tool" if calls else "user", text, call_id=str(call_id or ""))


def _read_value(file: Path) -> Any:
    return decode_json(file.read_text("utf-8", "replace").strip()) if file.exists() else None


FORMAT = base.Format(
    name="atif",
    about="Harbor's ATIF: JSON with `schema_version` ATIF-v1, such as a trial's `trajectory.json`",
    recognises=_recognises,
    # Subagents' runs inside the file are not read.
    read=_read,
)
