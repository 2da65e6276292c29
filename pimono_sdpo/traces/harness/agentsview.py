"""Read the database of agentsview, which keeps the sessions of many agents in one form.

It is used for agents without a reader of their own; rows keep the agent's name.
"""

import re
from collections.abc import Iterator

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import blocks
from pimono_sdpo.traces.harness.base import Entry, Harness, Store, Table, find_home
from pimono_sdpo.traces.harness.blocks import to_object, to_text

# The marks that agentsview writes into a message for thinking and for calls.
_SHOWN = re.compile(r"\[Thinking\]\n.*?\n\[/Thinking\]\n?|^\[[A-Z][\w ]*(?::[^\n]*)?\]$\n?", re.DOTALL | re.MULTILINE)
_FAILED = ("errored", "error", "failed")


def recognises(entry: Entry) -> bool:
    """Recognise the row of a message."""
    return entry.get("table") == "messages" and "ordinal" in entry and "role" in entry


def _select(objects: list[Entry], table: str) -> list[Entry]:
    return [entry for entry in objects if entry.get("table") == table]


def _find_session(objects: list[Entry]) -> Entry:
    return next(iter(_select(objects, "sessions")), {})


def read_header(objects: list[Entry]) -> tuple[str, str]:
    """Return the session's id and working directory."""
    session = _find_session(objects)
    return to_text(session.get("id")), to_text(session.get("cwd"))


def read(objects: list[Entry]) -> list[Event]:
    """Return the events in the order of the messages, each call followed by its result."""
    calls: dict[str, list[Entry]] = {}
    for call in _select(objects, "tool_calls"):
        calls.setdefault(str(call.get("message_id")), []).append(call)
    ends: dict[tuple[str, str], list[Entry]] = {}
    for end in _select(objects, "tool_result_events"):
        key = str(end.get("tool_call_message_ordinal")), str(end.get("call_index") or 0)
        ends.setdefault(key, []).append(end)
    is_subagent = to_text(_find_session(objects).get("relationship_type")) == "subagent"
    steps, has_request = blocks.Steps(), False
    for message in _select(objects, "messages"):
        own = calls.get(str(message.get("id")), [])
        results = [ends.get((str(message.get("ordinal")), str(at)), []) for at in range(len(own))]
        typed = not message.get("is_system") and not (is_subagent and has_request)
        for event in list(_read_message(message, own, results, typed)) or [Event(0, "other")]:
            event.timestamp = to_text(message.get("timestamp"))
            event.is_subagent = bool(message.get("is_sidechain"))
            event.on_active_branch = not event.is_subagent
            has_request |= event.kind == "user"
            steps.follow(event)
    return blocks.finish_events(steps.events)


def _read_message(message: Entry, calls: list[Entry], results: list[list[Entry]], typed: bool) -> Iterator[Event]:
    text = to_text(message.get("content"))
    if message.get("is_compact_boundary"):
        yield Event(0, "compaction", text)
    elif message.get("role") == "assistant":
        for call in calls:
            if command := to_text(to_object(blocks.decode_text(call.get("input_json"))).get("command")):
                text = text.replace(f"\n$ {command}", "")
        yield Event(0, "assistant", _SHOWN.sub("", text).strip() if calls or "[Thinking]" in text else text)
    elif message.get("role") == "user" and message.get("source_subtype") != "tool_result":
        yield from blocks.split_typed([text], typed)
    ids = [to_text(call.get("tool_use_id")) or f"{message.get('id')}/{at}" for at, call in enumerate(calls)]
    for call_id, call in zip(ids, calls, strict=True):
        yield blocks.build_call(call_id, call.get("tool_name"), call.get("input_json"))
    for call_id, call, ends in zip(ids, calls, results, strict=True):
        output = to_text(call.get("result_content")) or "\n".join(to_text(end.get("content")) for end in ends)
        status = to_text(ends[-1].get("status")) if ends else ""
        if output or status:
            is_error, lacks_status = status in _FAILED, not status
            yield Event(0, "tool_result", output, call_id=call_id, is_error=is_error, lacks_status=lacks_status)


def list_kinds(objects: list[Entry]) -> Iterator[str]:
    """Yield the tables of the rows, with the roles of messages."""
    for entry in objects:
        role = f":{entry.get('role')}" if entry.get("table") == "messages" else ""
        yield f"{to_text(entry.get('table'))}{role}"


HARNESS = Harness(
    name="agentsview",
    title="agentsview",
    word="agentsview",
    homes=lambda environ, home: [find_home(environ, "AGENTSVIEW_DATA_DIR", home / ".agentsview") / "sessions.db"],
    about="the database of agentsview, for agents without a reader here; rows keep their names",
    recognises=recognises,
    read_header=read_header,
    read=read,
    recorder_of=lambda objects: to_text(_find_session(objects).get("agent")) or "agentsview",
    version_of=lambda objects: to_text(_find_session(objects).get("source_version")),
    list_kinds=list_kinds,
    store=Store(
        tables=(
            Table("sessions", "id", "rowid"),
            Table("messages", "session_id", "ordinal", "timestamp"),
            Table("tool_calls", "session_id", "id"),
            Table("tool_result_events", "session_id", "id", "timestamp"),
        ),
        project="cwd",
        agent="agent",
        lacks="agentsview records no exit codes, no system prompts and no abandoned branches, and for most agents not "
        "whether a call failed: failures are found by the text of results",
    ),
    sample="""\
{"table": "sessions", "id": "amp:1", "agent": "amp", "cwd": "/w/app"}
{"table": "messages", "id": 1, "ordinal": 0, "role": "user", "content": "Fix the failing test of the parser."}
{"table": "messages", "id": 2, "ordinal": 1, "role": "assistant", "content": "[Bash]\\n$ npm test"}
{"table": "tool_calls", "id": 1, "message_id": 2, "tool_use_id": "c", "tool_name": "Bash",\
 "input_json": "{\\"command\\": \\"npm test\\"}", "result_content": "AssertionError: expected 1"}
{"table": "tool_result_events", "tool_call_message_ordinal": 1, "call_index": 0, "status": "errored",\
 "content": "AssertionError: expected 1"}
""",
)
