"""Read Harbor's Agent Trajectory Interchange Format (ATIF 1.0 to 1.7): `trajectory.json` of a trial.

Format: https://harborframework.com/docs/trajectory-format. The verdict is the reward of the trial,
from `verifier/reward.txt` or `result.json` in its folder.

A file names the one that continues it (`continued_trajectory_ref`); they are one run. The continuation
repeats steps as context (`is_copied_context`), which are not learned again, and are left out where
the run has them. Steps that no model wrote (`llm_call_count` 0) are context only.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
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
    parts = [_read_content(one) for one in [file, *_list_continuations(file)]]
    content, last = parts[0], parts[-1]
    trial = file.parent.parent if file.parent.name == "agent" else file.parent
    result = _read_value(trial / "result.json") or {}
    agent = content.get("agent") or {}
    totals = _count_tokens(parts)
    verifier = result.get("verifier_result") or {}
    rewards = (
        _read_value(trial / "verifier" / "reward.txt"),
        verifier.get("reward"),
        (verifier.get("rewards") or {}).get("reward"),
    )
    output = trial / "verifier" / "test-stdout.txt"
    missing = last.get("continued_trajectory_ref")
    error = f"its continuation {missing} is not there" if missing else None
    return base.Trajectory(
        task_id=str(result.get("task_name") or trial.name.rpartition("__")[0] or trial.name),
        run_id=str(content.get("session_id") or content.get("trajectory_id") or trial.name),
        messages=_join(parts),
        tools=next(filter(None, ((part.get("agent") or {}).get("tool_definitions") for part in parts)), []),
        model=agent.get("model_name"),
        passed=base.to_verdict(next((one for one in rewards if one is not None), None)),
        test_output=output.read_text("utf-8", "replace") if output.exists() else None,
        error=str(result["exception_info"])[:300] if result.get("exception_info") else error,
        prompt_tokens=totals.get("total_prompt_tokens"),
        completion_tokens=totals.get("total_completion_tokens"),
        cost=totals.get("total_cost_usd"),
    )


def _read_content(file: Path) -> base.Json:
    content: base.Json = base.read_json(file)
    steps = content.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise base.FormatError("it has no list of steps")
    return content


def _list_continuations(file: Path) -> list[Path]:
    """Return the files that continue the run of a file, in order; one that is not there ends the list."""
    found = [file.resolve()]
    while later := _find_continuation(found[-1]):
        if later in found:
            break
        found.append(later)
    return found[1:]


def _find_continuation(file: Path) -> Path | None:
    try:
        name = base.read_json(file).get("continued_trajectory_ref")
    except (AttributeError, base.FormatError):
        return None
    if not isinstance(name, str) or not name:
        return None
    # The path may be that of the container in which the agent ran.
    places = (file.parent / name, file.parent / PurePosixPath(name).name)
    return next((place.resolve() for place in places if place.is_file() and _recognises(place)), None)


def _join(parts: list[base.Json]) -> list[base.Message]:
    """Return the messages of a run, without copies of steps that it has."""
    messages: list[base.Message] = []
    known: set[str] = set()
    for part in parts:
        shown = [(step, _identify(step)) for step in part["steps"]]
        for step, key in shown:
            is_copy = step.get("is_copied_context") is True
            if is_copy and key in known:
                continue
            made = list(_read_step(step))
            made[0].learned = not is_copy and step.get("llm_call_count") != 0
            messages.extend(made)
        known.update(key for _, key in shown)
    return messages


def _identify(step: base.Json) -> str:
    """Return what a step says and does; copies may have another number, other metrics and no observation."""
    calls = [(call.get("function_name"), call.get("arguments")) for call in step.get("tool_calls") or ()]
    return repr((step.get("source"), base.join_text(step.get("message")), calls))


def _count_tokens(parts: list[base.Json]) -> base.Json:
    """Return the totals of a run; those of several files are the sums of the steps that are not copies."""
    if len(parts) == 1:
        return parts[0].get("final_metrics") or {}
    metrics = [
        step.get("metrics") or {}
        for part in parts
        for step in part["steps"]
        if step.get("is_copied_context") is not True
    ]
    totals = {}
    for name in ("prompt_tokens", "completion_tokens", "cost_usd"):
        values = [one[name] for one in metrics if type(one.get(name)) in {int, float}]
        totals[f"total_{name}"] = sum(values) if values else None
    return totals


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
    continuations=_list_continuations,
)
