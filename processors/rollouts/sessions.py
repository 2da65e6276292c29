"""Recorded sessions as runs, and pairs of their actions with those that replaced them.

reads   session_id, source, trace
writes  RUN, one row per session; or PAIR (target `edit` or `branch`), with `problem` and `detail`
        for those not to be kept

Only the active path is read. Calls without a result are left out, and so is everything before the
first request. Secrets and machine paths are redacted as in the filter. No recorder stores the tool
definitions, so they are inferred from how the session used the tools.

edit    a failed call that changes a file, against the next call for the same file that worked,
        without a message of the user between them; what is known of the file must not contradict it
branch  the first action of an abandoned branch, against the first one of the branch that was kept
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from datasets import Features

from pimono_sdpo.replay.calls import apply_in_turn, decode_arguments, find_path, read_edits
from pimono_sdpo.replay.workspace import Workspace
from pimono_sdpo.schema import PAIR, Turn
from pimono_sdpo.stage import Filter, FlatMap, Row
from pimono_sdpo.traces.events import Event, decode_json
from pimono_sdpo.traces.harness import find_harness
from pimono_sdpo.traces.parse import Trace, find_branches, match_results, read_trace
from processors.redact import redact_text
from processors.rollouts.conversation import dump_json, make_call_turn, make_turn, select_context
from processors.rollouts.steps import PLACEHOLDER, PROBLEM, RUN
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


EDITS = frozenset({"edit", "write", "multi_edit"})
MOST_BETWEEN = 40
LAST = 8
Two = tuple[Event, Event]


def pair_session(row: Row, last: int, test_fraction: float) -> list[Json]:
    """Return the pairs of one session."""
    trace = read_trace(row["trace"] or b"")
    matched = match_results(trace.events)
    turns, steps, place = read_turns(trace)
    session = redact_string(row["session_id"] or trace.session_id or row["source"], trace.cwd)
    where = split({"cwd": trace.cwd, "source": row["source"]}, test_fraction)
    common = {
        **dict.fromkeys(PAIR),
        "tools": infer_tools(steps, trace.harness),
        "task_id": session,
        "score_chosen": [1.0],
        "score_rejected": [0.0],
        "run_chosen": session,
        "run_rejected": session,
        **where,
    }
    made = []
    for failed, fixed, problem in _fixed_edits(trace, matched):
        at, other = place.get(failed.index), place.get(fixed.index)
        if at is None or other is None:
            continue
        prompt = select_context(turns[:at], _goal(turns, at), last, None)
        pair = {**common, "target": "edit", "prompt": prompt}
        # The text before the call is not part of what went wrong.
        pair |= {"chosen": [_silent(turns[other])], "rejected": [_silent(turns[at])]}
        made.append({**pair, **_problem(problem or _same(pair))})
    return made + [{**common, **pair} for pair in _branches(trace, turns, place, last)]


def _goal(turns: Sequence[Mapping[str, Any]], at: int) -> int:
    return max((n for n in range(at) if turns[n]["role"] == "user"), default=0)


def _silent(turn: Mapping[str, Any]) -> Json:
    return {**turn, "content": ""}


def _same(pair: Mapping[str, Any]) -> str | None:
    if PLACEHOLDER in dump_json([pair["chosen"], pair["rejected"]]):
        return "redacted"
    sides = [_calls(pair[name]) for name in ("chosen", "rejected")]
    return "identical_outcome" if sides[0] == sides[1] else None


def _calls(turns: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [
        [turn["content"], *(call["function"] for call in turn.get("tool_calls") or ())]
        for turn in turns
    ]


def _problem(problem: str | None) -> Json:
    return {"problem": problem, "detail": None}


def _fixed_edits(trace: Trace, matched: Mapping[int, int]) -> list[tuple[Event, Event, str | None]]:
    """Return failed edits, the edits that fixed them, and why replay rules the latter out."""
    found = []
    known = Workspace(trace.cwd, tools=find_harness(trace.harness).files)
    for event in trace.events:
        if event.kind != "tool_call" or not event.on_active_branch or event.is_subagent:
            if event.kind != "tool_call":
                known.hear(event)
            continue
        if event.index not in matched:
            known.lose(event.tool_name, decode_arguments(event))
            continue
        result = trace.events[matched[event.index]]
        if event.tool_name in EDITS and result.is_error:
            fixed = _next_edit(trace, matched, event)
            if fixed is not None:
                found.append((event, fixed, _contradiction(known, fixed)))
        known.observe(event, result)
    return found


def _next_edit(trace: Trace, matched: Mapping[int, int], failed: Event) -> Event | None:
    """Return the next call that changed the same file, unless the user spoke in between."""
    path = find_path(decode_arguments(failed))
    for event in trace.events[failed.index + 1 : failed.index + 1 + MOST_BETWEEN]:
        if event.kind == "user" and event.on_active_branch:
            return None
        if event.kind != "tool_call" or event.tool_name not in EDITS or event.index not in matched:
            continue
        worked = event.on_active_branch and not trace.events[matched[event.index]].is_error
        if worked and path and find_path(decode_arguments(event)) == path:
            return event
    return None


def _contradiction(known: Workspace, fixed: Event) -> str | None:
    """Find an edit that could not have worked at the place of the failed one."""
    given = decode_arguments(fixed)
    file = known.files.get(known.absolute(find_path(given)))
    edits = read_edits(given)
    if file is None or not edits or not file.is_known:
        return None
    outcome = file.predict(edits, apply_in_turn(given))
    return "ineligible" if outcome not in {None, "ok"} else None


def _branches(
    trace: Trace, turns: Sequence[Any], place: Mapping[int, int], last: int
) -> list[Json]:
    pairs = []
    for branch in find_branches(trace.events):
        if branch.kept is None:
            continue
        before = [e for e in trace.events[: branch.fork + 1] if e.on_active_branch]
        left = [trace.events[index] for index in branch.abandoned]
        other, _, _ = read_turns(trace, [*before, *left])
        kept = next(
            (at for at in range(_first(place, branch.kept), len(turns))
             if turns[at]["role"] == "assistant"),
            None,
        )  # fmt: skip
        away = next((at for at in range(_shared(turns, other), len(other))
                     if other[at]["role"] == "assistant"), None)  # fmt: skip
        if kept is None or away is None:
            continue
        prompt = select_context(turns[:kept], _goal(turns, kept), last, None)
        pair = {"target": "branch", "prompt": prompt}
        pair |= {"chosen": [turns[kept]], "rejected": [other[away]]}
        differs = other[:away] != turns[:kept]
        pairs.append({**pair, **_problem("prompt_changed" if differs else _same(pair))})
    return pairs


def _first(place: Mapping[int, int], event: int) -> int:
    return min((at for index, at in place.items() if index >= event), default=10**9)


def _shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Count the equal turns at the start of two conversations."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))


def drop_problems(row: Row) -> str | None:
    """Drop pairs that should not be learned from."""
    problem: str | None = row["problem"]
    return problem


def build_stages(test_fraction: float = 0.0, last: int = LAST) -> tuple[FlatMap, Filter]:
    """Return the stages from sessions to pairs; prompts keep the last `last` turns."""
    return (
        FlatMap(
            partial(pair_session, last=last, test_fraction=test_fraction),
            reads=("session_id", "source", "trace"),
            writes=Features({**PAIR, **PROBLEM}),
        ),
        Filter(drop_problems, reads=("problem",)),
    )
