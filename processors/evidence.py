"""Read a trace and gather what can teach: the request, the failures, the corrections.

reads   harness, session_id, source, trace
writes  one row per session, or one per episode (a request and what followed it)
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from pimono_sdpo.harness.event import Event
from pimono_sdpo.schema import EVIDENCE, Unit
from pimono_sdpo.stage import FlatMap, Row
from pimono_sdpo.trace import Trace, read_trace
from processors.corrections import find_corrections
from processors.diagnostics import find_diagnostics
from processors.prompts import is_substantive


def evidence(row: Row, unit: Unit) -> list[dict[str, Any]]:
    """Return the evidence rows of one session; at least one, so that nothing is lost uncounted."""
    trace = read_trace(row["trace"] or "")
    diagnostics = find_diagnostics(trace.events)
    corrections = find_corrections(trace.events)
    requests = _requests(trace.events, {item["event_index"] for item in corrections})
    rows = []
    for episode, (start, stop) in enumerate(_spans(requests, len(trace.events), unit)):
        request = next((event for event in requests if start <= event.index < stop), None)
        # What went wrong before the request is no feedback on it.
        begin = request.index if request else stop
        failed = [item for item in diagnostics if begin < item["event_index"] < stop]
        corrected = [item for item in corrections if begin < item["event_index"] < stop]
        last = max((item["event_index"] for item in (*failed, *corrected)), default=stop)
        rows.append(
            {
                "harness": trace.harness,
                "session_id": row["session_id"] or trace.session_id,
                "source": row["source"],
                "episode": episode,
                "cwd": trace.cwd,
                "prompt": request.text.strip() if request else "",
                "diagnostics": failed,
                "corrections": corrected,
                "continued": any(map(_is_work, trace.events[last + 1 : stop])),
                "problem": trace.problem,
                "counts": _counts(trace, trace.events[start:stop], count_lines=episode == 0),
            }
        )
    return rows


def _requests(events: Sequence[Event], corrected_at: set[int]) -> list[Event]:
    """User messages that ask for work of their own; a correction belongs to what it corrects."""
    return [
        event
        for event in events
        if event.kind == "user"
        and event.on_active_branch
        and event.index not in corrected_at
        and is_substantive(event.text)
    ]


def _spans(requests: Sequence[Event], stop: int, unit: Unit) -> Iterator[tuple[int, int]]:
    """The whole session, or one span per request; what precedes the first belongs to it."""
    starts = [event.index for event in requests[1:]] if unit == "episode" else []
    cuts = [0, *starts, stop]
    return pairwise(cuts)


def _is_work(event: Event) -> bool:
    """The agent acted or answered; an aborted or failed turn is neither."""
    return (
        event.on_active_branch
        and event.stop_reason not in {"aborted", "error"}
        and (event.kind == "tool_call" or (event.kind == "assistant" and bool(event.text)))
    )


def _counts(trace: Trace, events: Sequence[Event], count_lines: bool) -> dict[str, int]:
    return {
        "events": len(events),
        "user_messages": sum(event.kind == "user" for event in events),
        "tool_calls": sum(event.kind == "tool_call" for event in events),
        "tool_errors": sum(event.is_error for event in events),
        "lines_parsed": trace.lines_parsed * count_lines,
        "lines_repaired": trace.lines_repaired * count_lines,
        "lines_skipped": trace.lines_skipped * count_lines,
    }


def stage(unit: Unit) -> FlatMap:
    """Build the stage for one unit of training."""
    return FlatMap(
        partial(evidence, unit=unit),
        reads=("harness", "session_id", "source", "trace"),
        writes=EVIDENCE,
        tallies=("counts",),
    )
