"""Pair actions of a recorded session with those that replaced them.

reads   session_id, source, trace
writes  PAIR (target `edit` or `branch`), with `problem` and `detail` for those not to be kept

edit    a failed call that changes a file, against the next call for the same file that worked,
        without a message of the user between them; what is known of the file must not contradict it
branch  the first action of an abandoned branch, against the first one of the branch that was kept
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from datasets import Features

from pimono_sdpo.replay.calls import apply_in_turn, decode_arguments, find_path, read_edits
from pimono_sdpo.replay.workspace import Workspace
from pimono_sdpo.schema import PAIR
from pimono_sdpo.stage import Filter, FlatMap, Row
from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import find_harness
from pimono_sdpo.traces.parse import Trace, find_branches, match_results, read_trace
from processors.rollouts.conversation import dump_json, select_context
from processors.rollouts.sessions import infer_tools, read_turns, redact_string
from processors.rollouts.steps import PLACEHOLDER, PROBLEM
from processors.split import split

EDITS = frozenset({"edit", "write", "multi_edit"})
MOST_BETWEEN = 40
LAST = 8
Json = dict[str, Any]
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
