"""Detect which harness recorded a trace and parse the trace into events.

The harness is detected by the lines of the trace, never by file names or columns.
"""

import gc
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from pimono_sdpo.text import replace_surrogates
from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import HARNESSES, find_harness, name_agent
from pimono_sdpo.traces.harness.base import Harness
from pimono_sdpo.traces.lines import Lines, is_document, read_lines, read_objects

Problem = Literal["no_messages", "unknown_harness"]
NOT_READ: tuple[Problem, ...] = get_args(Problem)

# Where Copilot, Cursor, Gemini, Goose, Hermes, Kimi, OpenCode and Qwen put messages, and the agents that are read.
SAYS = frozenset("content message messages parts role text user_input".split())
CONVERSATION = frozenset({"user", "assistant", "tool_call", "tool_result", "bash"})


@dataclass(frozen=True)
class Trace:
    """One session in memory: its events, where it ran, and how many of its lines could be read.

    `lines` holds only counts. `problem` is set for a trace that cannot be used: `no_messages`, or
    `unknown_harness` when no harness has understood a message in it, but some lines look like messages
    of another agent. Then `harness` names the agent that its lines are like. `kinds` counts the types of
    its entries and blocks.
    """

    harness: str
    session_id: str
    cwd: str
    events: tuple[Event, ...]
    lines: Lines[Any]
    problem: Problem | None
    version: str = ""
    kinds: Mapping[str, int] = field(default_factory=dict)


def read_trace(trace: str | bytes) -> Trace:
    """Parse a trace, as text or as UTF-8; never raises on its content."""
    # The many new objects contain no cycles; searching for them takes a fifth of the time.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _read_trace(trace)
    finally:
        if was_enabled:
            gc.enable()


def _read_trace(trace: str | bytes) -> Trace:
    content = replace_surrogates(trace).encode() if isinstance(trace, str) else trace
    harness = detect_harness(content)
    if harness is None:
        return _name_agent(read_objects(content))
    lines = read_lines(content, harness.decoder, harness.build)
    objects, lines = lines.objects, replace(lines, objects=[])
    session_id, cwd = harness.read_header(objects)
    events = tuple(harness.read(objects))
    name = harness.recorder_of(objects) if harness.recorder_of else harness.name
    has_messages = any(event.kind in CONVERSATION for event in events)
    problem: Problem | None = None if has_messages else "no_messages"
    version, kinds = harness.version_of(objects), Counter(harness.list_kinds(objects))
    return Trace(name, session_id, cwd, events, lines, problem, version, kinds)


def _name_agent(lines: Lines[Any]) -> Trace:
    """Return the trace of a session in which no harness understands a message, with the agent it is like."""
    objects, lines = lines.objects, replace(lines, objects=[])
    named = dict.fromkeys(filter(None, map(name_agent, objects)))
    # Other agents write lines as ours do, too.
    agent = min(named, key=lambda name: find_harness(name).name == name, default="unknown")
    harness = find_harness(agent)
    if harness.name != agent:
        may_be_read = any(map(_may_be_message, objects))
        return Trace(agent, "", "", (), lines, "unknown_harness" if may_be_read else "no_messages")
    objects = [*map(harness.build, objects)]
    version, kinds = harness.version_of(objects), Counter(harness.list_kinds(objects))
    return Trace(agent, "", "", (), lines, "no_messages", version, kinds)


def _may_be_message(entry: dict[str, Any]) -> bool:
    """Check for a field in which agents store what somebody said; lines of metadata have none."""
    inner = (value for value in entry.values() if isinstance(value, dict))
    return any(not SAYS.isdisjoint(fields) for fields in (entry, *inner))


def detect_harness(trace: bytes) -> Harness | None:
    """Return the harness of the first line that any harness recognises, None if there is no such line.

    >>> detect_harness(b'{"type": "message", "message": {"role": "user", "content": "hi"}}').name
    'pi'
    """
    start = 0
    while start < len(trace):
        stop = trace.find(b"\n", start) + 1 if start or not is_document(trace) else 0
        stop = stop or len(trace)
        for entry in read_objects(trace[start:stop]).objects:
            if harness := next((one for one in HARNESSES if one.recognises(entry)), None):
                return harness
        start = stop
    return None


def match_results(events: tuple[Event, ...]) -> dict[int, int]:
    """Map the index of each answered tool call to that of its result.

    Unanswered calls are left out. Calls and results that share an id are matched in order.
    """
    open_calls: dict[str, deque[int]] = {}
    matched: dict[int, int] = {}
    for event in events:
        if event.kind == "tool_call":
            open_calls.setdefault(event.call_id, deque()).append(event.index)
        elif event.kind == "tool_result" and open_calls.get(event.call_id):
            matched[open_calls[event.call_id].popleft()] = event.index
    return matched


@dataclass(frozen=True)
class Branch:
    """An abandoned branch and the continuation that replaced it, as indexes of events.

    `fork` is the last event that both share, or -1; `kept` is the first event of the active path
    after it, or None when the session ends at the fork.
    """

    fork: int
    abandoned: tuple[int, ...]
    kept: int | None


def find_branches(events: Sequence[Event]) -> list[Branch]:
    """Return the abandoned branches in order, without the work of subagents.

    A branch and the continuation that replaced it make a preference pair.
    """
    parent_of = {event.id: event.parent_id for event in events if event.id}
    last_active = {event.id: event.index for event in events if event.on_active_branch}
    active = [event.index for event in events if event.on_active_branch]
    first_of: dict[str, str] = {}
    abandoned: dict[str, list[int]] = {}
    for event in events:
        if not event.id or event.on_active_branch or event.is_subagent:
            continue
        # Go up to the first event of the branch; a cycle of parents begins where it is entered.
        first, climbed = event.id, set[str]()
        while first not in first_of and first not in climbed:
            climbed.add(first)
            parent = parent_of.get(first, "")
            if parent in parent_of and parent not in last_active:
                first = parent
        first = first_of.get(first, first)
        first_of.update(dict.fromkeys(climbed, first))
        abandoned.setdefault(first, []).append(event.index)
    branches = []
    for first, indexes in abandoned.items():
        parent = parent_of.get(first, "")
        # If the beginning of the branch is missing, its fork is unknown.
        if not parent or parent in last_active:
            fork = last_active.get(parent, -1)
            after = bisect_right(active, fork)
            kept = active[after] if after < len(active) else None
            branches.append(Branch(fork, tuple(indexes), kept))
    return branches
