"""Read Factory droid sessions: a header, then messages with Anthropic's blocks in a parentId tree."""

from collections.abc import Iterator

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import blocks
from pimono_sdpo.traces.harness.base import Entry, Harness
from pimono_sdpo.traces.harness.blocks import find_text, to_object, to_text

_HEADER_KEYS = frozenset({"owner", "sessionTitle", "title", "cwd", "hostId", "session", "version"})


def recognises(entry: Entry) -> bool:
    """Recognise a droid's header or compaction; forks of Pi write the same messages."""
    match to_text(entry.get("type")):
        case "session_start":
            return not _HEADER_KEYS.isdisjoint(entry)
        case "compaction_state":
            return "summaryText" in entry or "anchorMessage" in entry
    return False


def read_header(objects: list[Entry]) -> tuple[str, str]:
    """Return the session id and the working directory of the header, if there is one."""
    entry = _find_header(objects)
    places = (entry, to_object(entry.get("session")))
    return find_text(at.get("id") for at in places), find_text(at.get("cwd") for at in places)


def _find_header(objects: list[Entry]) -> Entry:
    return next((entry for entry in objects if entry.get("type") == "session_start"), {})


def read(objects: list[Entry]) -> list[Event]:
    """Return the events in file order; in a subagent's session only the task counts as typed."""
    active = _find_active(objects)
    is_subagent = isinstance(_find_header(objects).get("callingSessionId"), str)
    first_event: dict[str, int] = {}
    steps = blocks.Steps()
    for position, entry in enumerate(objects):
        has_task = is_subagent and any(event.kind == "user" for event in steps.events)
        kept = None
        if entry.get("type") == "compaction_state":
            anchor = to_text(to_object(entry.get("anchorMessage")).get("id"))
            kept = first_event.get(anchor or "-")
        for event in list(_read_entry(entry, not has_task)) or [Event(0, "other")]:
            event.id, event.parent_id = to_text(entry.get("id")), to_text(entry.get("parentId"))
            event.timestamp = to_text(entry.get("timestamp"))
            event.on_active_branch = position in active
            event.kept_from = kept
            steps.follow(event)
        # The part that a compaction keeps begins at the entry after its anchor.
        first_event[to_text(entry.get("id"))] = len(steps.events)
    return blocks.finish_events(steps.events)


def _find_active(objects: list[Entry]) -> set[int]:
    """Return the positions of the path from the last message to its root, and of all lines that are not messages."""
    messages = [at for at, entry in enumerate(objects) if entry.get("type") == "message"]
    if not messages:
        return set(range(len(objects)))
    ids = [to_text(entry.get("id")) for entry in objects]
    parents = [to_text(entry.get("parentId")) for entry in objects]
    path = blocks.find_path(ids, parents, messages[-1])
    return path | (set(range(len(objects))) - set(messages))


def _read_entry(entry: Entry, typed: bool) -> Iterator[Event]:
    if entry.get("type") == "compaction_state":
        summary = to_object(entry.get("summary")).get("body") or entry.get("summary")
        yield Event(0, "compaction", to_text(entry.get("summaryText")) or to_text(summary))
    if entry.get("type") != "message":
        return
    # A message may have no envelope.
    inner = entry.get("message")
    message = inner if isinstance(inner, dict) else entry
    role = message.get("role")
    content = blocks.to_blocks(message.get("content"))
    if role == "assistant":
        yield Event(0, "assistant", blocks.join_text(content))
    for block in content:
        call_id = to_text(block.get("tool_use_id") or block.get("id"))
        if block.get("type") == "tool_use":
            yield blocks.build_call(call_id, block.get("name"), block.get("input"))
        elif block.get("type") == "tool_result":
            text = blocks.join_text(block.get("content"))
            is_error = block.get("is_error") is True
            yield Event(0, "tool_result", text, call_id=call_id, is_error=is_error)
    if role != "assistant":
        by_person = typed and role == "user" and message.get("visibility") != "llm_only"
        yield from blocks.split_typed(blocks.list_texts(content), by_person)


def read_version(objects: list[Entry]) -> str:
    """Return the version of the format in the header."""
    return str(_find_header(objects).get("version") or "")


def list_kinds(objects: list[Entry]) -> Iterator[str]:
    """Yield the type of each line, and those of the blocks of its message."""
    for entry in objects:
        kind = to_text(entry.get("type"))
        yield kind
        if kind == "message":
            content = (to_object(entry.get("message")) or entry).get("content")
            yield from (f"message:{block.get('type')}" for block in blocks.to_blocks(content))


HARNESS = Harness(
    name="droid",
    about="Factory droid sessions",
    recognises=recognises,
    read_header=read_header,
    read=read,
    version_of=read_version,
    list_kinds=list_kinds,
    edit=("old_str", "new_str"),
    title="droid",
    word="droid",
    homes=lambda environ, home: [home / ".factory" / "sessions"],
    sample="""\
{"type": "session_start", "id": "s", "title": "parser", "cwd": "/w/app"}
{"type": "message", "id": "1", "message": {"role": "user",\
 "content": [{"type": "text", "text": "Fix the failing test of the parser."}]}}
{"type": "message", "id": "2", "parentId": "1", "message": {"role": "assistant",\
 "content": [{"type": "tool_use", "id": "c", "name": "Execute", "input": {"command": "npm test"}}]}}
{"type": "message", "id": "3", "parentId": "2", "message": {"role": "user",\
 "content": [{"type": "tool_result", "tool_use_id": "c", "is_error": true,\
 "content": "AssertionError: expected 1"}]}}
""",
)
