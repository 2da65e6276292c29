"""Show the events around each piece of a row's evidence, read again from its trace.

Not a stage: `view` uses it for rows that were chosen or rejected earlier.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from pimono_sdpo.filter_options import Unit
from pimono_sdpo.stage import Row
from pimono_sdpo.text import shorten, shorten_at_paragraphs
from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.parse import match_results, read_trace
from processors import grade, names, redact
from processors.context import select_corrections, select_failures, write_context
from processors.evidence import gather_evidence
from processors.redact import redact_text
from processors.rows import PROMPT_CHARS

Json = dict[str, Any]
NEIGHBOURS = 2
EVENT_CHARS = 700
# Of a whole request, the first and the last events.
MOST_EVENTS = 300
SHOWN = frozenset("user assistant tool_call tool_result bash custom_message compaction branch_summary".split())


def show_event_windows(
    session: Row, unit: Unit, history_chars: int, whole: bool = False, recorder: Sequence[str] | None = ()
) -> list[Json]:
    """Read a session (SESSION columns) again; return one record per row that the filter made.

    source, session_id, episode   identify the row
    prompt, context, words, spans, score_terms, categories   as the filter makes them
    places   for each block of the context its title and events ({who, text, here})
    events   with `whole`, what happened from the request to the next one

    Texts are redacted like the rows, and shortened; `recorder` is as in `gather_evidence`.
    """
    found: list[Row] = list(gather_evidence(session, unit, history_chars, recorder=recorder))
    events = read_trace(session["trace"] or b"").events
    calls = {result: call for call, result in match_results(events).items()}
    for stage in (names.STAGE, redact.STAGE, grade.stage(reference_terms=False)):
        found = [{**row, **stage(row)} for row in found]
    # The rows of a session divide its events among them.
    stops = list(accumulate(row["counts"]["events"] for row in found))
    return [
        {
            "source": row["source"],
            "session_id": row["session_id"],
            "episode": row["episode"],
            "prompt": shorten_at_paragraphs(row["prompt"], PROMPT_CHARS),
            "context": write_context(row)["privileged_context"],
            "words": row["reward_terms"],
            "spans": [item["span"] for item in row["findings"] if item["span"]],
            "score_terms": row["score_terms"],
            "categories": row["categories"],
            "places": _list_places(row, events, calls),
            "events": _list_span(events[start:stop], row) if whole else [],
        }
        for row, start, stop in zip(found, [0, *stops], stops, strict=False)
    ]


def _list_span(events: Sequence[Event], row: Row) -> list[Json]:
    shown = [event for event in events if _is_shown(event)]
    if len(shown) > MOST_EVENTS:
        shown = [*shown[: MOST_EVENTS // 2], *shown[-MOST_EVENTS // 2 :]]
    return [_show(event, row) for event in shown]


def _list_places(row: Row, events: Sequence[Event], calls: dict[int, int]) -> list[Json]:
    """Return the pieces of evidence under the titles that the context gives them."""
    named = (("Tool/environment diagnostic", select_failures(row)), ("Later user correction", select_corrections(row)))
    return [
        {"title": f"{name} {number}", "events": _list_events(item["event_index"], events, calls, row)}
        for name, items in named
        for number, item in enumerate(items, start=1)
    ]


def _list_events(here: int, events: Sequence[Event], calls: dict[int, int], row: Row) -> list[Json]:
    """Return the nearest events of the same branch, and the call of a result."""
    branch = events[here].on_active_branch
    near = [e.index for e in events if _is_shown(e) and e.on_active_branch == branch]
    before = [index for index in near if index < here][-NEIGHBOURS:]
    after = [index for index in near if index > here][:NEIGHBOURS]
    chosen = sorted({*before, *after, here, calls.get(here, here)})
    return [_show(events[index], row, index == here) for index in chosen]


def _is_shown(event: Event) -> bool:
    return event.kind in SHOWN and bool(event.text or event.arguments)


def _show(event: Event, row: Row, is_here: bool = False) -> Json:
    """Describe an event: its index, its kind, its tool and how it ended; and give its text."""
    marks = [f"event {event.index}", event.kind.replace("_", " "), event.tool_name[:60]]
    marks += ["marked as an error"] if event.is_error else []
    marks += [f"exit code {event.exit_code}"] if event.exit_code else []
    where = row["cwd"], row["identity"], row["secrets"]
    who, _ = redact_text(" · ".join(filter(None, marks)), *where)
    text = event.arguments if event.kind == "tool_call" else event.text or event.arguments
    # Redact before shortening: half of a secret is not recognised.
    shown = "" if is_here else shorten(redact_text(text, *where)[0].strip(), EVENT_CHARS)
    return {"who": who, "text": shown, "here": is_here}
