"""Pair what a recorded session did with what took its place.

reads   session_id, source, trace
writes  PAIR (target `edit` or `branch`), with `problem` and `detail` for those not to be kept

edit    a call that changes a file and failed, against the next one of the same file that worked
        while the user said nothing; what is known of the file must not speak against the latter
branch  the first action after a place to which the user went back, against the one kept there
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from datasets import Features

from pimono_sdpo.replay.calls import apply_in_turn, decode_arguments, find_path, read_edits
from pimono_sdpo.replay.workspace import Workspace
from pimono_sdpo.schema import PAIR
from pimono_sdpo.stage import Filter, FlatMap, Row
from pimono_sdpo.traces.branches import find_branches
from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import find_harness
from pimono_sdpo.traces.parse import Trace, match_results, read_trace
from processors.rollouts.conversation import as_json, window
from processors.rollouts.sessions import redacted, tools_of, turns_of
from processors.rollouts.steps import PLACEHOLDER, PROBLEM
from processors.split import split

EDITS = frozenset({"edit", "write", "multi_edit"})
MOST_BETWEEN = 40
LAST = 8
Json = dict[str, Any]
Two = tuple[Event, Event]


def session_pairs(row: Row, last: int, test_fraction: float) -> list[Json]:
    """Return the pairs of one session."""
    trace = read_trace(row["trace"] or b"")
    matched = match_results(trace.events)
    turns, steps, place = turns_of(trace)
    session = redacted(row["session_id"] or trace.session_id or row["source"], trace.cwd)
    where = split({"cwd": trace.cwd, "source": row["source"]}, test_fraction)
    common = {
        **dict.fromkeys(PAIR),
        "tools": tools_of(steps, trace.harness),
        "task_id": session,
        "score_chosen": [1.0],
        "score_rejected": [0.0],
        "run_chosen": session,
        "run_rejected": session,
        **where,
    }
    made = []
    for failed, mended, problem in _mended(trace, matched):
        at, other = place.get(failed.index), place.get(mended.index)
        if at is None or other is None:
            continue
        prompt = window(turns[:at], _goal(turns, at), last, None)
        pair = {**common, "target": "edit", "prompt": prompt}
        # What was said before the call is no part of what went wrong with it.
        pair |= {"chosen": [_silent(turns[other])], "rejected": [_silent(turns[at])]}
        made.append({**pair, **_told(problem or _same(pair))})
    return made + [{**common, **pair} for pair in _branches(trace, turns, place, last)]


def _goal(turns: Sequence[Mapping[str, Any]], at: int) -> int:
    return max((n for n in range(at) if turns[n]["role"] == "user"), default=0)


def _silent(turn: Mapping[str, Any]) -> Json:
    return {**turn, "content": ""}


def _same(pair: Mapping[str, Any]) -> str | None:
    if PLACEHOLDER in as_json([pair["chosen"], pair["rejected"]]):
        return "redacted"
    sides = [_calls(pair[name]) for name in ("chosen", "rejected")]
    return "identical_outcome" if sides[0] == sides[1] else None


def _calls(turns: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [
        [turn["content"], *(call["function"] for call in turn.get("tool_calls") or ())]
        for turn in turns
    ]


def _told(problem: str | None) -> Json:
    return {"problem": problem, "detail": None}


def _mended(trace: Trace, matched: Mapping[int, int]) -> list[tuple[Event, Event, str | None]]:
    """Failed edits with the edits that put them right, and what replay has against the latter."""
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
            mended = _next_edit(trace, matched, event)
            if mended is not None:
                found.append((event, mended, _contradiction(known, mended)))
        known.observe(event, result)
    return found


def _next_edit(trace: Trace, matched: Mapping[int, int], failed: Event) -> Event | None:
    """The next call that changed the same file, unless the user spoke or much came in between."""
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


def _contradiction(known: Workspace, mended: Event) -> str | None:
    """Tell an edit that could not have worked yet where the failed one stood."""
    given = decode_arguments(mended)
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
        other, _, _ = turns_of(trace, [*before, *left])
        kept = next(
            (at for at in range(_first(place, branch.kept), len(turns))
             if turns[at]["role"] == "assistant"),
            None,
        )  # fmt: skip
        away = next((at for at in range(_shared(turns, other), len(other))
                     if other[at]["role"] == "assistant"), None)  # fmt: skip
        if kept is None or away is None:
            continue
        prompt = window(turns[:kept], _goal(turns, kept), last, None)
        pair = {"target": "branch", "prompt": prompt}
        pair |= {"chosen": [turns[kept]], "rejected": [other[away]]}
        asked = other[:away] != turns[:kept]
        pairs.append({**pair, **_told("prompt_changed" if asked else _same(pair))})
    return pairs


def _first(place: Mapping[int, int], event: int) -> int:
    return min((at for index, at in place.items() if index >= event), default=10**9)


def _shared(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many turns two conversations begin with alike."""
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))


def sound(row: Row) -> str | None:
    """Drop pairs that should not be learned from."""
    problem: str | None = row["problem"]
    return problem


def stages(test_fraction: float = 0.0, last: int = LAST) -> tuple[FlatMap, Filter]:
    """Return the stages from sessions to pairs; prompts show so many of the last results."""
    return (
        FlatMap(
            partial(session_pairs, last=last, test_fraction=test_fraction),
            reads=("session_id", "source", "trace"),
            writes=Features({**PAIR, **PROBLEM}),
        ),
        Filter(sound, reads=("problem",)),
    )
