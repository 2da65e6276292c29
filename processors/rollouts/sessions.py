"""Recorded sessions as runs, and pairs of their actions with those that replaced them.

reads   session_id, source, trace
writes  RUN, one row per session; or PAIR, with `problem` and `detail` for those not to be kept

Only the active path is read. Calls without a result are left out, and so is everything before the
first request. Secrets, machine paths and names are redacted as in the filter. No recorder stores
the tool definitions, so they are inferred from how the session used the tools.

The target `edit` pairs a failed edit with the next one of the same file that worked, `branch` the
first actions of an abandoned branch and of the one that was kept.
"""

from collections.abc import Iterator, Mapping, Sequence
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
from processors.redact import Private, identify, redact_json, redact_text
from processors.rollouts.conversation import Json, add_answer, add_call, dump_json, make_turn, select_context
from processors.rollouts.steps import PLACEHOLDER, PROBLEM, RUN, drop_problems
from processors.split import split

EDITS = frozenset({"edit", "write", "multi_edit"})
MOST_BETWEEN = 40
LAST = 8  # turns of a prompt
READ = ("session_id", "source", "trace")
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


def read_session(row: Row, test_fraction: float, recorder: Sequence[str] | None) -> list[Json]:
    """Return the run of one session."""
    trace, _, turns, steps, _, about = _read(row, test_fraction, recorder)
    run = {"run_id": about["task_id"], "protocol": "native", "messages": turns, "steps": steps, "error": trace.problem}
    return [{**dict.fromkeys(RUN), **about, **run}]


def _read(
    row: Row, test_fraction: float, recorder: Sequence[str] | None
) -> tuple[Trace, Private, list[Turn], list[Json], dict[int, int], Json]:
    """Return the trace, what to redact, what `_read_turns` gives, and the columns that runs and pairs share."""
    trace = read_trace(row["trace"] or b"")
    private = (trace.cwd, *identify(row["trace"], trace, recorder))
    active = [one for one in trace.events if one.on_active_branch and not one.is_subagent]
    turns, steps, place = _read_turns(trace, private, active)
    session, _ = redact_text(row["session_id"] or trace.session_id or row["source"], trace.cwd)
    where = split({"cwd": trace.cwd, "source": row["source"]}, test_fraction)
    about = {"task_id": session, "tools": infer_tools(steps, trace.harness), **where}
    return trace, private, turns, steps, place, about


def _read_turns(
    trace: Trace, private: Private, events: Sequence[Event]
) -> tuple[list[Turn], list[Json], dict[int, int]]:
    """Return the turns and steps of these events, and the number of the turn of each event by its index."""
    matched = match_results(trace.events)
    turns: list[Turn] = []
    steps: list[Json] = []
    place: dict[int, int] = {}
    pending = ""
    for event in events:
        text = redact_json(event.text, private)
        if event.kind == "assistant":
            if event.stop_reason not in {"aborted", "error"} and text.strip():
                pending = f"{pending}\n\n{text}" if pending else text
                place[event.index] = len(turns)
            continue
        if event.kind == "tool_call" and turns and event.index in matched:
            result = trace.events[matched[event.index]]
            answer = redact_json(result.text, private)
            args = redact_json(decode_json(event.arguments), private)
            place[event.index], place[result.index] = len(turns), len(turns) + 1
            call_id = event.call_id or f"call_{event.index}"
            add_call(turns, steps, pending, call_id, event.tool_name, args, answer, bool(result.is_error))
            pending = ""
        elif event.kind in {"user", "bash", "custom_message", "compaction"} and text.strip():
            if pending and turns:
                add_answer(turns, steps, pending)
            pending = ""
            command = redact_json(event.arguments, private)
            shown = f"$ {command}\n{text}" if command else text
            place[event.index] = len(turns)
            if turns and turns[-1]["role"] == "user":
                place[event.index] -= 1
                shown = f"{turns.pop()['content']}\n\n{shown}"
            turns.append(make_turn("user", shown))
    if pending and turns:
        add_answer(turns, steps, pending)
    return turns, steps, place


def infer_tools(steps: Sequence[Json], harness: str) -> list[Json]:
    """Infer tools from their calls: an argument is required if each has it, and typed if its type never changes."""
    used: dict[str, list[Json]] = {}
    for step in steps:
        if step["kind"] in {"tool_call", "loop"} and step["ok"]:
            used.setdefault(step["name"], []).append(step["args"])
    tools = []
    for name, calls in sorted(used.items()):
        properties = {}
        for key in sorted({key for args in calls for key in args}):
            kinds = {TYPES.get(type(args[key]), "object") for args in calls if key in args}
            properties[key] = {"type": kinds.pop()} if len(kinds) == 1 else {}
        required = [key for key in properties if all(key in args for args in calls)]
        schema = {"type": "object", "properties": properties, "required": required}
        about = {"name": name, "description": f"The tool `{name}` of {harness}."}
        tools.append({"type": "function", "function": {**about, "parameters": schema}})
    return tools


def build_stage(test_fraction: float = 0.0, recorder: Sequence[str] | None = ()) -> FlatMap:
    """Return the stage from sessions to runs; `recorder` is as in `processors.redact.identify`."""
    return FlatMap(partial(read_session, test_fraction=test_fraction, recorder=recorder), reads=READ, writes=RUN)


# The target of a pair, the place of the rejected action, the turns chosen and rejected, and why
# they must not be learned from.
Found = tuple[str, int, Turn, Turn, str | None]


def pair_session(row: Row, test_fraction: float, recorder: Sequence[str] | None) -> list[Json]:
    """Return the pairs of one session."""
    trace, private, turns, _, place, about = _read(row, test_fraction, recorder)
    made = []
    found = [*_find_fixed_edits(trace, turns, place), *_find_branches(trace, private, turns, place)]
    for target, at, chosen, rejected, problem in found:
        goal = max((n for n in range(at) if turns[n]["role"] == "user"), default=0)
        if problem is None and PLACEHOLDER in dump_json([chosen, rejected]):
            problem = "redacted"
        if problem is None and _without_ids(chosen) == _without_ids(rejected):
            problem = "identical_outcome"
        pair: Json = {"target": target, "prompt": select_context(turns[:at], goal, LAST, None)}
        for side, turn, score in (("chosen", chosen, 1.0), ("rejected", rejected, 0.0)):
            pair |= {side: [turn], f"score_{side}": [score], f"run_{side}": about["task_id"]}
        made.append({**dict.fromkeys(PAIR), **about, **pair, "problem": problem, "detail": None})
    return made


def _without_ids(turn: Turn) -> list[Any]:
    return [turn["content"], *(call["function"] for call in turn.get("tool_calls") or ())]


def _find_fixed_edits(trace: Trace, turns: Sequence[Turn], place: Mapping[int, int]) -> Iterator[Found]:
    """Yield failed edits with those that fixed them, unless replay rules the latter out."""
    matched = match_results(trace.events)
    known = Workspace(trace.cwd, tools=find_harness(trace.harness).files)
    for event in trace.events:
        if event.kind != "tool_call":
            known.observe_event(event)
        elif event.on_active_branch and not event.is_subagent and event.index not in matched:
            known.observe_unanswered(event.tool_name, decode_arguments(event))
        elif event.on_active_branch and not event.is_subagent:
            result = trace.events[matched[event.index]]
            is_failed = event.tool_name in EDITS and result.is_error
            fixed = _find_next_edit(trace, matched, event) if is_failed else None
            at = place.get(event.index)
            if fixed is not None and at is not None and fixed.index in place:
                # The text before the call is not part of what went wrong.
                chosen, rejected = turns[place[fixed.index]], turns[at]
                problem = "ineligible" if _contradicts(known, fixed) else None
                yield "edit", at, {**chosen, "content": ""}, {**rejected, "content": ""}, problem
            known.observe(event, result)


def _find_next_edit(trace: Trace, matched: Mapping[int, int], failed: Event) -> Event | None:
    """Return the next call that changed the same file, unless the user spoke in between."""
    path = find_path(decode_arguments(failed))
    for event in trace.events[failed.index + 1 : failed.index + 1 + MOST_BETWEEN]:
        if event.kind == "user" and event.on_active_branch:
            return None
        if (
            event.kind == "tool_call"
            and event.tool_name in EDITS
            and event.index in matched
            and event.on_active_branch
        ):
            worked = not trace.events[matched[event.index]].is_error
            if worked and path and find_path(decode_arguments(event)) == path:
                return event
    return None


def _contradicts(known: Workspace, fixed: Event) -> bool:
    """Whether an edit could not have worked at the place of the failed one."""
    given = decode_arguments(fixed)
    file = known.files.get(known.absolute(find_path(given)))
    edits = read_edits(given)
    if file is None or not edits or not file.is_known:
        return False
    return file.predict(edits, apply_in_turn(given)) not in {None, "ok"}


def _find_branches(trace: Trace, private: Private, turns: Sequence[Turn], place: Mapping[int, int]) -> Iterator[Found]:
    """Yield the first actions of branches that were kept, with those of the abandoned ones."""
    for branch in find_branches(trace.events):
        if branch.kept is None:
            continue
        before = [e for e in trace.events[: branch.fork + 1] if e.on_active_branch]
        left = [trace.events[index] for index in branch.abandoned]
        other, _, _ = _read_turns(trace, private, [*before, *left])
        begun = min((at for index, at in place.items() if index >= branch.kept), default=len(turns))
        differs = (at for at, (one, two) in enumerate(zip(turns, other, strict=False)) if one != two)
        shared = next(differs, min(len(turns), len(other)))
        kept, away = _find_answer(turns, begun), _find_answer(other, shared)
        if kept is not None and away is not None:
            problem = "prompt_changed" if other[:away] != turns[:kept] else None
            yield "branch", kept, turns[kept], other[away], problem


def _find_answer(turns: Sequence[Turn], start: int) -> int | None:
    numbers = range(start, len(turns))
    return next((at for at in numbers if turns[at]["role"] == "assistant"), None)


def build_stages(test_fraction: float = 0.0, recorder: Sequence[str] | None = ()) -> tuple[FlatMap, Filter]:
    """Return the stages from sessions to pairs."""
    pair = partial(pair_session, test_fraction=test_fraction, recorder=recorder)
    return (FlatMap(pair, reads=READ, writes=Features({**PAIR, **PROBLEM})), Filter(drop_problems, reads=("problem",)))
