"""Convert recorded sessions to runs, and build preference pairs from failed edits and abandoned branches.

reads   session_id, source, trace
writes  RUN, one row per session; or PAIR, with `problem` and `detail` for pairs to drop

Only the active branch is read, from the first request on, without calls that have no result. Secrets,
machine paths and names are redacted as in the filter. `pimono_sdpo.traces.tools` describes the tools.

The target `edit` pairs a failed edit with the next successful edit of the same file; `branch` pairs
the first actions of an abandoned branch and of the branch that was kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from datasets import Features

from pimono_sdpo.edits import decode_arguments, find_path
from pimono_sdpo.schema import PAIR, Turn
from pimono_sdpo.stage import Filter, FlatMap, Row
from pimono_sdpo.traces.events import Event, decode_json
from pimono_sdpo.traces.harness import find_harness
from pimono_sdpo.traces.parse import Trace, find_branches, match_results, read_trace
from pimono_sdpo.traces.tools import describe_tools
from processors.redact import Private, identify, redact_json, redact_text
from processors.rollouts.conversation import Json, add_answer, add_call, dump_json, make_turn, select_context
from processors.rollouts.steps import PLACEHOLDER, PROBLEM, RUN, SESSION_CONTEXT, drop_problems
from processors.split import split

EDITS = frozenset({"edit", "write", "multi_edit"})
MOST_BETWEEN = 40  # events between a failed edit and its fix
READ = ("session_id", "source", "trace")


def read_session(row: Row, test_fraction: float, recorder: Sequence[str] | None) -> list[Json]:
    """Return the run of one session."""
    trace, _, turns, steps, _, columns = _read(row, test_fraction, recorder)
    run = {"run_id": columns["task_id"], "protocol": "native", "messages": turns, "steps": steps}
    return [{**dict.fromkeys(RUN), **columns, **run, "error": trace.problem}]


def _read(
    row: Row, test_fraction: float, recorder: Sequence[str] | None
) -> tuple[Trace, Private, list[Turn], list[Json], dict[int, int], Json]:
    """Return the trace, what to redact, the result of `_read_turns`, and the columns that runs and pairs share."""
    trace = read_trace(row["trace"] or b"")
    private = (trace.cwd, *identify(row["trace"], trace, recorder))
    active = [event for event in trace.events if event.on_active_branch and not event.is_subagent]
    turns, steps, turn_of = _read_turns(trace, private, active)
    # A session that is left out is found again by its file.
    named = row["source"] if trace.problem else row["session_id"] or trace.session_id
    session, _ = redact_text(named or row["source"] or row["session_id"], trace.cwd)
    split_column = split({"cwd": trace.cwd, "source": row["source"]}, test_fraction)
    tools = describe_tools(list_worked(steps), trace.harness, find_harness(trace.harness).tools)
    columns = {"task_id": session, "tools": tools, **split_column}
    return trace, private, turns, steps, turn_of, columns


def _read_turns(
    trace: Trace, private: Private, events: Sequence[Event]
) -> tuple[list[Turn], list[Json], dict[int, int]]:
    """Return the turns and steps of these events, and the turn number of each event by the event's index."""
    matched = match_results(trace.events)
    turns: list[Turn] = []
    steps: list[Json] = []
    turn_of: dict[int, int] = {}
    pending = ""
    for event in events:
        text = redact_json(event.text, private)
        if event.kind == "assistant":
            if event.stop_reason not in {"aborted", "error"} and text.strip():
                pending = f"{pending}\n\n{text}" if pending else text
                turn_of[event.index] = len(turns)
            continue
        if event.kind == "tool_call" and turns and event.index in matched:
            result = trace.events[matched[event.index]]
            answer = redact_json(result.text, private)
            args = redact_json(decode_json(event.arguments), private)
            turn_of[event.index], turn_of[result.index] = len(turns), len(turns) + 1
            call_id = event.call_id or f"call_{event.index}"
            add_call(turns, steps, pending, call_id, event.tool_name, args, answer, bool(result.is_error))
            pending = ""
        elif event.kind in {"user", "bash", "custom_message", "compaction"} and text.strip():
            if pending and turns:
                add_answer(turns, steps, pending)
            pending = ""
            command = redact_json(event.arguments, private)
            content = f"$ {command}\n{text}" if command else text
            if turns and turns[-1]["role"] == "user":
                content = f"{turns.pop()['content']}\n\n{content}"
            turn_of[event.index] = len(turns)
            turns.append(make_turn("user", content))
    if pending and turns:
        add_answer(turns, steps, pending)
    return turns, steps, turn_of


def list_worked(steps: Sequence[Json]) -> list[tuple[str, Json]]:
    """Return name and arguments of the calls that worked."""
    return [(step["name"], step["args"]) for step in steps if step["kind"] in {"tool_call", "loop"} and step["ok"]]


def build_stage(test_fraction: float = 0.0, recorder: Sequence[str] | None = ()) -> FlatMap:
    """Return the stage from sessions to runs; `recorder` is as in `processors.redact.identify`."""
    read = partial(read_session, test_fraction=test_fraction, recorder=recorder)
    return FlatMap(read, reads=READ, writes=RUN, on_crash=name_run)


def name_run(row: Row) -> Json:
    """Return the reject of a session on which a stage crashed."""
    return {"task_id": redact_text(row["source"] or row["session_id"], "")[0]}


# The target of a pair, the number of the rejected turn, the chosen and the rejected turn, and the
# problem for which the pair is dropped.
PairOfTurns = tuple[str, int, Turn, Turn, str | None]


def pair_session(row: Row, test_fraction: float, recorder: Sequence[str] | None) -> list[Json]:
    """Return the pairs of one session, or its problem."""
    trace, private, turns, _, turn_of, columns = _read(row, test_fraction, recorder)
    pairs: list[Json] = []
    if trace.problem:
        pairs.append({**dict.fromkeys(PAIR), **columns, "problem": trace.problem, "detail": None})
    for target, at, chosen, rejected, problem in (
        *_find_fixed_edits(trace, turns, turn_of),
        *_find_branches(trace, private, turns, turn_of),
    ):
        goal = max((n for n in range(at) if turns[n]["role"] == "user"), default=0)
        if problem is None and PLACEHOLDER in dump_json([chosen, rejected]):
            problem = "redacted"
        if problem is None and _without_ids(chosen) == _without_ids(rejected):
            problem = "identical_outcome"
        pair: Json = {"target": target, "prompt": select_context(turns[:at], goal, SESSION_CONTEXT, None)}
        for side, turn, score in (("chosen", chosen, 1.0), ("rejected", rejected, 0.0)):
            pair |= {side: [turn], f"score_{side}": [score], f"run_{side}": columns["task_id"]}
        pairs.append({**dict.fromkeys(PAIR), **columns, **pair, "problem": problem, "detail": None})
    return pairs


def _without_ids(turn: Turn) -> list[Any]:
    return [turn["content"], *(call["function"] for call in turn.get("tool_calls") or ())]


def _find_fixed_edits(trace: Trace, turns: Sequence[Turn], turn_of: Mapping[int, int]) -> Iterator[PairOfTurns]:
    """Yield failed edits with their fixes."""
    matched = match_results(trace.events)
    for event in trace.events:
        is_call = event.kind == "tool_call" and event.on_active_branch and not event.is_subagent
        if not is_call or event.tool_name not in EDITS or event.index not in matched:
            continue
        has_failed = trace.events[matched[event.index]].is_error
        fixed = _find_next_edit(trace, matched, event) if has_failed else None
        at = turn_of.get(event.index)
        if fixed is not None and at is not None and fixed.index in turn_of:
            # The text before a call did not make it fail, so it is left out.
            chosen, rejected = turns[turn_of[fixed.index]], turns[at]
            yield "edit", at, {**chosen, "content": ""}, {**rejected, "content": ""}, None


def _find_next_edit(trace: Trace, matched: Mapping[int, int], failed: Event) -> Event | None:
    """Return the next edit that changed the same file, unless the user wrote in between."""
    path = find_path(decode_arguments(failed))
    for event in trace.events[failed.index + 1 : failed.index + 1 + MOST_BETWEEN]:
        if not event.on_active_branch:
            continue
        if event.kind == "user":
            return None
        if event.kind == "tool_call" and event.tool_name in EDITS and event.index in matched:
            has_worked = not trace.events[matched[event.index]].is_error
            if has_worked and path and find_path(decode_arguments(event)) == path:
                return event
    return None


def _find_branches(
    trace: Trace, private: Private, turns: Sequence[Turn], turn_of: Mapping[int, int]
) -> Iterator[PairOfTurns]:
    """Yield the first action of each branch that was kept, with that of the abandoned branch."""
    for branch in find_branches(trace.events):
        if branch.kept is None:
            continue
        before = [event for event in trace.events[: branch.fork + 1] if event.on_active_branch]
        abandoned = [trace.events[index] for index in branch.abandoned]
        other, _, _ = _read_turns(trace, private, [*before, *abandoned])
        start = min((at for index, at in turn_of.items() if index >= branch.kept), default=len(turns))
        differs = (at for at, (one, two) in enumerate(zip(turns, other, strict=False)) if one != two)
        n_shared = next(differs, min(len(turns), len(other)))
        kept, left = _find_answer(turns, start), _find_answer(other, n_shared)
        if kept is not None and left is not None:
            problem = "prompt_changed" if other[:left] != turns[:kept] else None
            yield "branch", kept, turns[kept], other[left], problem


def _find_answer(turns: Sequence[Turn], start: int) -> int | None:
    return next((at for at in range(start, len(turns)) if turns[at]["role"] == "assistant"), None)


def build_stages(test_fraction: float = 0.0, recorder: Sequence[str] | None = ()) -> tuple[FlatMap, Filter]:
    """Return the stages from sessions to pairs."""
    pair = partial(pair_session, test_fraction=test_fraction, recorder=recorder)
    writes = Features({**PAIR, **PROBLEM})
    return (FlatMap(pair, reads=READ, writes=writes, on_crash=name_run), Filter(drop_problems, reads=("problem",)))
