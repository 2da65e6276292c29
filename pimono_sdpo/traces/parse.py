"""Turn the text of a trace into ordered events, whatever harness recorded it.

The harness is told by the content of the lines, never by a file name or a column.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import msgspec

from pimono_sdpo.text import well_formed
from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import claude_code, codex, droid, pi, pi_stream, simple
from pimono_sdpo.traces.lines import OBJECT, Lines, itself, read_lines, read_objects

Problem = Literal["no_messages", "unknown_harness"]
Entry = dict[str, Any]


class Reader(NamedTuple):
    """How one harness is told by a line, and how its lines are read.

    `header` and `read` take what `decoder` reads, or what `build` makes of a dict.
    """

    recognises: Callable[[Entry], bool]
    header: Callable[[list[Any]], tuple[str, str]]
    read: Callable[[list[Any]], list[Event]]
    decoder: msgspec.json.Decoder[Any] = OBJECT
    build: Callable[[Entry], Any] = itself


READERS: dict[str, Reader] = {
    "claude_code": Reader(claude_code.recognises, claude_code.header, claude_code.read),
    "codex": Reader(codex.recognises, codex.header, codex.read),
    "droid": Reader(droid.recognises, droid.header, droid.read),
    "simple": Reader(simple.recognises, simple.header, simple.read),
    "pi_stream": Reader(pi_stream.recognises, pi_stream.header, pi_stream.read),
    "pi": Reader(pi.recognises, pi.header, pi.read, pi.DECODER, pi.entry_of),
}
CONVERSATION = frozenset({"user", "assistant", "tool_call", "tool_result", "bash"})


@dataclass(frozen=True)
class Trace:
    """One session in memory: its events, where it ran, and what became of its lines.

    `lines` holds the counts alone; the objects have become events.
    `problem` is set when there is nothing to work on: `no_messages`, or `unknown_harness` when
    there are JSON objects in which no reader knows its own.
    """

    harness: str
    session_id: str
    cwd: str
    events: tuple[Event, ...]
    lines: Lines[Any]
    problem: Problem | None


def read_trace(trace: str | bytes) -> Trace:
    """Parse a trace, as text or as UTF-8; never raises on its content."""
    content = well_formed(trace).encode() if isinstance(trace, str) else trace
    harness = detect(content)
    reader = READERS.get(harness)
    lines = read_lines(content, *(reader[3:] if reader else (OBJECT, itself)))
    objects, lines = lines.objects, replace(lines, objects=[])
    if reader is None:
        return Trace(harness, "", "", (), lines, "unknown_harness" if objects else "no_messages")
    session_id, cwd = reader.header(objects)
    events = tuple(reader.read(objects))
    if harness == "simple":
        harness = simple.harness_of(objects)
    spoken = any(event.kind in CONVERSATION for event in events)
    return Trace(harness, session_id, cwd, events, lines, None if spoken else "no_messages")


def detect(trace: bytes) -> str:
    """Name the harness of the first line that is unmistakable; `unknown` when there is none.

    >>> detect(b'{"type": "message", "message": {"role": "user", "content": "hi"}}')
    'pi'
    """
    start, is_headed = 0, False
    while start < len(trace):
        stop = trace.find(b"\n", start) + 1 or len(trace)
        for entry in read_objects(trace[start:stop]).objects:
            for name, reader in READERS.items():
                if reader.recognises(entry):
                    return name
            is_headed = is_headed or pi.is_header(entry)
        start = stop
    # The header alone does not tell a session from the stream of a run, but neither says more.
    return "pi" if is_headed else "unknown"


def match_results(events: tuple[Event, ...]) -> dict[int, int]:
    """Map the index of each answered tool call to that of its result.

    A call that is not in it was never answered. Where a recorder repeats an id, calls and results
    are matched in order.
    """
    open_calls: dict[str, deque[int]] = {}
    matched: dict[int, int] = {}
    for event in events:
        if event.kind == "tool_call":
            open_calls.setdefault(event.call_id, deque()).append(event.index)
        elif event.kind == "tool_result" and open_calls.get(event.call_id):
            matched[open_calls[event.call_id].popleft()] = event.index
    return matched
