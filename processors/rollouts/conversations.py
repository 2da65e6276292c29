"""Turn a recorded session into a run: the same columns as a rollout, calls of the native protocol.

Both protocols are read: `native` has `tool_calls` and turns of role `tool`; `json` has calls as
JSON objects in the text of the assistant and results as turns of the user.

A model learns the protocol it will be asked in: rows of recorded sessions, whose calls are native,
serve an agent of the json protocol only when they are written in it.

reads   session_id, source, trace
writes  RUN, one row per session

The active path alone is read. Calls that were never answered are left out, and so is what came
before the first request. Secrets and machine paths are redacted as in the filter. No recorder keeps
the definitions of the tools: they are told by how the session used them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pimono_sdpo.schema import TURN, Turn
from pimono_sdpo.stage import FlatMap, Row
from pimono_sdpo.text import shorten
from pimono_sdpo.traces.events import Event, decoded
from pimono_sdpo.traces.parse import Trace, match_results, read_trace
from processors.redact import redact_text
from processors.rollouts.actions import Action, Run, native_call
from processors.rollouts.steps import RUN
from processors.split import split

Json = dict[str, Any]


def turn_of(role: str, content: str | None, **more: Any) -> Turn:
    """Return a turn with every column of TURN."""
    return complete({"role": role, "content": content, **more})


def complete(turn: Mapping[str, Any]) -> Turn:
    """Fill in the columns of TURN that a turn leaves out; arguments of calls are decoded."""
    full: Any = {name: turn.get(name) for name in TURN}
    full["tool_calls"] = [_decoded(call) for call in turn.get("tool_calls") or ()] or None
    return full  # type: ignore[no-any-return]


def bare(turn: Mapping[str, Any]) -> Json:
    """Leave out what is null, as chat templates and other formats want it."""
    return {name: value for name, value in turn.items() if value is not None}


def call_of(name: str, args: Any, call_id: str) -> Json:
    """Return a native tool call."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": args}}


def as_json(value: Any) -> str:
    r"""Serialise the way targets are: one line, every letter as it is.

    >>> as_json({"type": "tool_call", "name": "grep", "args": {"pattern": "é"}})
    '{"type": "tool_call", "name": "grep", "args": {"pattern": "é"}}'
    """
    return json.dumps(value, ensure_ascii=False)


def window(
    prompt: Sequence[Turn], goal: int, last: int | None, tool_chars: int | None
) -> list[Turn]:
    """Keep the system's turn, the request at index `goal`, and what followed it.

    Of that only the last `last` turns of the assistant with their results, when it is given; a
    result is shortened to `tool_chars`.
    """
    kept = list(prompt)
    if last is not None:
        after = kept[goal + 1 :]
        starts = [at for at, turn in enumerate(after) if turn["role"] == "assistant"]
        start = 0 if len(starts) <= last else starts[-last] if last else len(after)
        kept = [turn for turn in kept[:goal] if turn["role"] == "system"]
        kept += [prompt[goal], *after[start:]]
    if tool_chars is None:
        return kept
    first = next((at for at, turn in enumerate(kept) if turn["role"] == "user"), 0)
    return [
        turn if at <= first or turn["role"] not in {"tool", "user"} else _short(turn, tool_chars)
        for at, turn in enumerate(kept)
    ]


def _short(turn: Turn, chars: int) -> Turn:
    return complete({**turn, "content": shorten(turn["content"] or "", chars)})


def _decoded(call: Json) -> Json:
    """Chat templates want arguments as an object; APIs hand them over as text."""
    function = call.get("function") or {}
    given = function.get("arguments")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            # What a model wrote and nobody can read stays text; such a call is no target.
            return call
    return {**call, "function": {**function, "arguments": given}}


As = Literal["as_recorded", "json"]
RESULT = "[tool_result]\n"
SYSTEM = """\
You are a coding agent. Answer with exactly one JSON object and nothing else:
{{"type": "tool_call", "name": NAME, "args": {{...}}}} to use a tool, or
{{"type": "final", "summary": TEXT}} when the work is done. These are the tools:
{tools}"""


def in_json(run: Run, tools: Sequence[Json]) -> Run:
    """Return the run in the json protocol; one that is in it stays as it is."""
    if run.protocol == "json":
        return run
    known = [
        {"name": tool["function"]["name"], "args": tool["function"].get("parameters")}
        for tool in tools
    ]
    system = turn_of("system", SYSTEM.format(tools="\n".join(map(as_json, known))))
    had = bool(run.turns) and run.turns[0]["role"] == "system"
    turns = [system, *(_text(turn) for turn in run.turns[had:])]
    shift = 0 if had else 1
    actions = [_moved(action, shift, turns) for action in run.actions]
    return replace(run, turns=turns, actions=actions, protocol="json")


def _moved(action: Action, shift: int, turns: list[Turn]) -> Action:
    at = action.n_context + shift
    step = action.step
    if step["kind"] == "final" and not isinstance(step["args"], dict):
        step = {**step, "args": {"summary": action.turn["content"] or ""}}
    return Action(step, turns[at], at)


def _text(turn: Turn) -> Turn:
    if turn["role"] == "tool":
        return turn_of("user", RESULT + (turn["content"] or ""))
    if turn["role"] != "assistant":
        return turn
    for call in turn.get("tool_calls") or ():
        about = call.get("function") or {}
        called = {"type": "tool_call", "name": about.get("name"), "args": about.get("arguments")}
        return turn_of("assistant", as_json(called))
    return turn_of("assistant", as_json({"type": "final", "summary": turn["content"] or ""}))


REPEATS = 3
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


def conversation(row: Row, test_fraction: float) -> list[Json]:
    """Return the run of one session."""
    trace = read_trace(row["trace"] or b"")
    session = redacted(row["session_id"] or trace.session_id or row["source"], trace.cwd)
    turns, steps, _ = turns_of(trace)
    where = {"cwd": trace.cwd, "source": row["source"]}
    return [
        {
            **dict.fromkeys(RUN),
            "run_id": session,
            "task_id": session,
            "protocol": "native",
            "messages": turns,
            "tools": tools_of(steps, trace.harness),
            "steps": steps,
            "files_touched": [],
            "n_steps": len(steps),
            "n_tool_calls": sum(step["kind"] != "final" for step in steps),
            "loop_detections": sum(step["kind"] == "loop" for step in steps),
            "error": trace.problem,
            **split(where, test_fraction),
        }
    ]


def turns_of(
    trace: Trace, events: Sequence[Event] | None = None
) -> tuple[list[Turn], list[Json], dict[int, int]]:
    """Return turns, steps, and by the index of an event the number of its turn.

    `events` are those to read in place of the active path.
    """
    matched = match_results(trace.events)
    turns: list[Turn] = []
    steps: list[Json] = []
    place: dict[int, int] = {}
    said = ""
    for event in _path(trace) if events is None else events:
        text = redacted(event.text, trace.cwd)
        if event.kind == "assistant":
            if event.stop_reason not in {"aborted", "error"} and text.strip():
                said = f"{said}\n\n{text}" if said else text
                place[event.index] = len(turns)
            continue
        if event.kind == "tool_call" and turns:
            result = trace.events[matched[event.index]] if event.index in matched else None
            if result is None:
                continue
            args = _clean(decoded(event.arguments), trace.cwd)
            place[event.index], place[result.index] = len(turns), len(turns) + 1
            steps.append(_step(event, result, args, len(turns), steps))
            call_id = event.call_id or f"call_{event.index}"
            turns.append(native_call(event.tool_name, args, call_id, said))
            answer = redacted(result.text, trace.cwd)
            more = {"tool_call_id": call_id, "name": event.tool_name}
            turns.append(turn_of("tool", answer, **more))
            said = ""
        elif event.kind in {"user", "bash", "custom_message", "compaction"} and text.strip():
            _say(turns, steps, said)
            said = ""
            heard = f"$ {redacted(event.arguments, trace.cwd)}\n{text}" if event.arguments else text
            place[event.index] = len(turns)
            if turns and turns[-1]["role"] == "user":
                place[event.index] -= 1
                heard = f"{turns.pop()['content']}\n\n{heard}"
            turns.append(turn_of("user", heard))
    _say(turns, steps, said)
    return turns, steps, place


def _path(trace: Trace) -> Iterable[Event]:
    return (event for event in trace.events if event.on_active_branch and not event.is_subagent)


def _say(turns: list[Turn], steps: list[Json], text: str) -> None:
    """Add what the assistant said without a call; before the first request it said nothing."""
    if text and turns:
        step = {"index": len(steps), "kind": "final", "name": None, "args": None, "ok": True}
        steps.append(
            {**step, "error": None, "n_context": len(turns), "tests_ok": None, "malformed": None}
        )
        turns.append(turn_of("assistant", text))


def _step(call: Event, result: Event, args: Any, at: int, before: Sequence[Json]) -> Json:
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


def tools_of(steps: Sequence[Json], harness: str) -> list[Json]:
    """Define the tools of a session by the arguments they were given.

    An argument is required when no call left it out; its type is given when it was always the same.
    """
    used: dict[str, list[Json]] = {}
    for step in steps:
        if step["kind"] in {"tool_call", "loop"} and step["ok"]:
            used.setdefault(step["name"], []).append(step["args"])
    return [_tool(name, calls, harness) for name, calls in sorted(used.items())]


def _tool(name: str, calls: list[Json], harness: str) -> Json:
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


def redacted(text: str, cwd: str) -> str:
    """Return a text without secrets and machine paths."""
    return redact_text(text, cwd)[0] if text else text


def _clean(value: Any, cwd: str) -> Any:
    """Redact every text of decoded JSON, keys included."""
    if isinstance(value, str):
        return redacted(value, cwd)
    if isinstance(value, list):
        return [_clean(one, cwd) for one in value]
    if isinstance(value, dict):
        return {redacted(key, cwd): _clean(one, cwd) for key, one in value.items()}
    return value


def stage(test_fraction: float = 0.0) -> FlatMap:
    """Build the stage; so large a share of repositories is for testing."""
    return FlatMap(
        partial(conversation, test_fraction=test_fraction),
        reads=("session_id", "source", "trace"),
        writes=RUN,
    )
