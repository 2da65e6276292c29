"""Turn a recorded session into a run: the columns of a rollout, with calls in the native protocol.

reads   session_id, source, trace
writes  RUN, one row per session

Only the active path is read. Calls without a result are left out, and so is everything before the
first request. Secrets and machine paths are redacted as in the filter. No recorder stores the tool
definitions, so they are inferred from how the session used the tools.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from pimono_sdpo.schema import Turn
from pimono_sdpo.stage import FlatMap, Row
from pimono_sdpo.traces.events import Event, decode_json
from pimono_sdpo.traces.parse import Trace, match_results, read_trace
from processors.redact import redact_text
from processors.rollouts.conversation import make_call_turn, make_turn
from processors.rollouts.steps import RUN
from processors.split import split

Json = dict[str, Any]
REPEATS = 3
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


def read_session(row: Row, test_fraction: float) -> list[Json]:
    """Return the run of one session."""
    trace = read_trace(row["trace"] or b"")
    session = redact_string(row["session_id"] or trace.session_id or row["source"], trace.cwd)
    turns, steps, _ = read_turns(trace)
    where = {"cwd": trace.cwd, "source": row["source"]}
    return [
        {
            **dict.fromkeys(RUN),
            "run_id": session,
            "task_id": session,
            "protocol": "native",
            "messages": turns,
            "tools": infer_tools(steps, trace.harness),
            "steps": steps,
            "files_touched": [],
            "n_steps": len(steps),
            "n_tool_calls": sum(step["kind"] != "final" for step in steps),
            "loop_detections": sum(step["kind"] == "loop" for step in steps),
            "error": trace.problem,
            **split(where, test_fraction),
        }
    ]


def read_turns(
    trace: Trace, events: Sequence[Event] | None = None
) -> tuple[list[Turn], list[Json], dict[int, int]]:
    """Return turns, steps, and the number of the turn of each event by its index.

    `events` replaces the events of the active path.
    """
    matched = match_results(trace.events)
    turns: list[Turn] = []
    steps: list[Json] = []
    place: dict[int, int] = {}
    pending = ""
    for event in _active_events(trace) if events is None else events:
        text = redact_string(event.text, trace.cwd)
        if event.kind == "assistant":
            if event.stop_reason not in {"aborted", "error"} and text.strip():
                pending = f"{pending}\n\n{text}" if pending else text
                place[event.index] = len(turns)
            continue
        if event.kind == "tool_call" and turns:
            result = trace.events[matched[event.index]] if event.index in matched else None
            if result is None:
                continue
            args = _redact_json(decode_json(event.arguments), trace.cwd)
            place[event.index], place[result.index] = len(turns), len(turns) + 1
            steps.append(_make_step(event, result, args, len(turns), steps))
            call_id = event.call_id or f"call_{event.index}"
            turns.append(make_call_turn(event.tool_name, args, call_id, pending))
            answer = redact_string(result.text, trace.cwd)
            more = {"tool_call_id": call_id, "name": event.tool_name}
            turns.append(make_turn("tool", answer, **more))
            pending = ""
        elif event.kind in {"user", "bash", "custom_message", "compaction"} and text.strip():
            _add_text(turns, steps, pending)
            pending = ""
            shown = (
                f"$ {redact_string(event.arguments, trace.cwd)}\n{text}"
                if event.arguments
                else text
            )
            place[event.index] = len(turns)
            if turns and turns[-1]["role"] == "user":
                place[event.index] -= 1
                shown = f"{turns.pop()['content']}\n\n{shown}"
            turns.append(make_turn("user", shown))
    _add_text(turns, steps, pending)
    return turns, steps, place


def _active_events(trace: Trace) -> Iterable[Event]:
    return (event for event in trace.events if event.on_active_branch and not event.is_subagent)


def _add_text(turns: list[Turn], steps: list[Json], text: str) -> None:
    """Add a text of the assistant without a call, unless no request came before it."""
    if text and turns:
        step = {"index": len(steps), "kind": "final", "name": None, "args": None, "ok": True}
        steps.append(
            {**step, "error": None, "n_context": len(turns), "tests_ok": None, "malformed": None}
        )
        turns.append(make_turn("assistant", text))


def _make_step(call: Event, result: Event, args: Any, at: int, before: Sequence[Json]) -> Json:
    last = [(step["name"], step["args"]) for step in before[1 - REPEATS :]]
    is_loop = isinstance(args, dict) and last == [(call.tool_name, args)] * (REPEATS - 1)
    readable = isinstance(args, dict)
    return {
        "index": len(before),
        "kind": "loop" if is_loop else "tool_call" if readable else "parse_error",
        "name": call.tool_name,
        "args": args,
        "ok": not result.is_error,
        "error": result.text[:200] if result.is_error else None,
        "n_context": at,
        "tests_ok": None,
        "malformed": None,
    }


def infer_tools(steps: Sequence[Json], harness: str) -> list[Json]:
    """Infer the tools of a session from the arguments of their calls.

    An argument is required if every call has it, and typed if its type never changes.
    """
    used: dict[str, list[Json]] = {}
    for step in steps:
        if step["kind"] in {"tool_call", "loop"} and step["ok"]:
            used.setdefault(step["name"], []).append(step["args"])
    return [_infer_tool(name, calls, harness) for name, calls in sorted(used.items())]


def _infer_tool(name: str, calls: list[Json], harness: str) -> Json:
    types: dict[str, set[str]] = {}
    for args in calls:
        for key, value in args.items():
            types.setdefault(key, set()).add(TYPES.get(type(value), "object"))
    properties = {
        key: {"type": next(iter(kinds))} if len(kinds) == 1 else {}
        for key, kinds in sorted(types.items())
    }
    required = [key for key in properties if all(key in args for args in calls)]
    schema = {"type": "object", "properties": properties, "required": required}
    about = {"name": name, "description": f"The tool `{name}` of {harness}.", "parameters": schema}
    return {"type": "function", "function": about}


def redact_string(text: str, cwd: str) -> str:
    """Return a text without secrets and machine paths."""
    return redact_text(text, cwd)[0] if text else text


def _redact_json(value: Any, cwd: str) -> Any:
    """Redact every string of decoded JSON, including keys."""
    if isinstance(value, str):
        return redact_string(value, cwd)
    if isinstance(value, list):
        return [_redact_json(one, cwd) for one in value]
    if isinstance(value, dict):
        return {redact_string(key, cwd): _redact_json(one, cwd) for key, one in value.items()}
    return value


def build_stage(test_fraction: float = 0.0) -> FlatMap:
    """Return the stage; `test_fraction` of the repositories go to the test split."""
    return FlatMap(
        partial(read_session, test_fraction=test_fraction),
        reads=("session_id", "source", "trace"),
        writes=RUN,
    )
