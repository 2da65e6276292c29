"""Turn the text of a trace into ordered events, whatever harness recorded it.

The harness is told by the content of the lines, never by a file name or a column.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from pimono_sdpo.harness import pi
from pimono_sdpo.harness.event import Event
from pimono_sdpo.lines import read_lines
from pimono_sdpo.text import well_formed

Problem = Literal["no_messages", "unsupported_harness"]
Reader = Callable[[list[dict[str, Any]]], list[Event]]

READERS: dict[str, Reader] = {"pi": pi.read}
CONVERSATION = frozenset({"user", "assistant", "tool_call", "tool_result", "bash"})


@dataclass(frozen=True)
class Trace:
    """One session in memory: its events, where it ran, and what reading it cost.

    `problem` is set when there is nothing to work on: `no_messages`, or `unsupported_harness`
    when the lines belong to a harness this version does not read (`harness` then names it).
    """

    harness: str
    session_id: str
    cwd: str
    events: tuple[Event, ...]
    lines_parsed: int
    lines_repaired: int
    lines_skipped: int
    problem: Problem | None


def read_trace(text: str) -> Trace:
    """Parse a trace; never raises on its content."""
    lines = read_lines(text)
    harness = detect(lines.objects)
    header = next((o for o in lines.objects if o.get("type") == "session"), {})
    empty = Trace(
        harness=harness,
        session_id=_text(header.get("id")),
        cwd=_text(header.get("cwd")),
        events=(),
        lines_parsed=lines.parsed,
        lines_repaired=lines.repaired,
        lines_skipped=lines.skipped,
        problem="no_messages",
    )
    if harness == "unknown":
        return empty
    if harness not in READERS:
        return replace(empty, problem="unsupported_harness")
    events = tuple(READERS[harness](lines.objects))
    spoken = any(event.kind in CONVERSATION for event in events)
    return replace(empty, events=events, problem=None if spoken else "no_messages")


def detect(objects: list[dict[str, Any]]) -> str:
    """Name the harness by the shape of its lines; `unknown` when none is recognised.

    >>> detect([{"type": "message", "message": {"role": "user", "content": "hi"}}])
    'pi'
    """
    for entry in objects:
        kind = _text(entry.get("type"))
        message = entry.get("message")
        if kind == "session_start":
            return "droid"
        if kind in {"session_meta", "response_item", "event_msg"}:
            return "codex"
        if kind in {"user", "assistant"} and isinstance(message, dict):
            return "claude_code"
        if kind == "message" and isinstance(message, dict):
            return "pi"
    return "unknown"


def _text(value: object) -> str:
    return well_formed(value) if isinstance(value, str) else ""
