"""Parse a trace into events: detect its harness by its lines, then read it.

File names and columns are never used to detect the harness.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Literal

from pimono_sdpo.text import replace_surrogates
from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import HARNESSES
from pimono_sdpo.traces.harness.base import Harness
from pimono_sdpo.traces.lines import Lines, read_lines, read_objects

Problem = Literal["no_messages", "unknown_harness"]


CONVERSATION = frozenset({"user", "assistant", "tool_call", "tool_result", "bash"})


@dataclass(frozen=True)
class Trace:
    """One session in memory: its events, where it ran, and how many of its lines could be read.

    `lines` holds only counts. `problem` is set when there is nothing to work on: `no_messages`, or
    `unknown_harness` when no harness recognises any of the JSON objects.
    """

    harness: str
    session_id: str
    cwd: str
    events: tuple[Event, ...]
    lines: Lines[Any]
    problem: Problem | None


def read_trace(trace: str | bytes) -> Trace:
    """Parse a trace, as text or as UTF-8; never raises on its content."""
    content = replace_surrogates(trace).encode() if isinstance(trace, str) else trace
    harness = detect_harness(content)
    if harness is None:
        lines = read_objects(content)
        problem: Problem = "unknown_harness" if lines.objects else "no_messages"
        return Trace("unknown", "", "", (), replace(lines, objects=[]), problem)
    lines = read_lines(content, harness.decoder, harness.build)
    objects, lines = lines.objects, replace(lines, objects=[])
    session_id, cwd = harness.read_header(objects)
    events = tuple(harness.read(objects))
    name = harness.recorder_of(objects) if harness.recorder_of else harness.name
    has_messages = any(event.kind in CONVERSATION for event in events)
    return Trace(name, session_id, cwd, events, lines, None if has_messages else "no_messages")


def detect_harness(trace: bytes) -> Harness | None:
    """Return the harness that recognises the first line that any of them recognises.

    >>> detect_harness(b'{"type": "message", "message": {"role": "user", "content": "hi"}}').name
    'pi'
    """
    start, begun = 0, None
    while start < len(trace):
        stop = trace.find(b"\n", start) + 1 or len(trace)
        for entry in read_objects(trace[start:stop]).objects:
            for harness in HARNESSES:
                if harness.recognises(entry):
                    return harness
                if begun is None and harness.may_begin and harness.may_begin(entry):
                    begun = harness
        start = stop
    # Pi's header also begins the stream of a run, so it decides only where nothing else does.
    return begun


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
