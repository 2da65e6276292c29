"""Pi sessions: linear v1 files, v2 and v3 files with an id/parentId tree, and files of its kin.

Format: the session files of the Pi coding agent, entry types and roles as counted over real
sessions; unknown entry types become `other` events, so that indexes stay stable. oh-my-pi and
OpenClaw write the same entries; GSD has no header, and its request is a custom message.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from pimono_sdpo.harness.event import Event, Kind, clean

_EXIT = re.compile(r"Command exited with code (-?\d+)\s*$")
_ENTRY_KINDS: dict[str, Kind] = {
    "compaction": "compaction",
    "branch_summary": "branch_summary",
}
_ROLES = frozenset({"user", "assistant", "toolResult", "bashExecution"})


def recognises(entry: dict[str, Any]) -> bool:
    """Tell a Pi entry: a message in one of Pi's roles, or a custom message of an extension."""
    message = entry.get("message")
    if entry.get("type") == "custom_message":
        return isinstance(entry.get("customType"), str)
    return (
        entry.get("type") == "message"
        and isinstance(message, dict)
        and _string(message.get("role")) in _ROLES
    )


def is_header(entry: dict[str, Any]) -> bool:
    """Tell the header of a Pi session; that of the Hub's own format names its harness."""
    return entry.get("type") == "session" and "cwd" in entry and "harness" not in entry


def header(objects: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the session id and the working directory; empty where there is no header."""
    entry = next((o for o in objects if o.get("type") == "session"), {})
    return _string(entry.get("id")), _string(entry.get("cwd"))


def read(objects: list[dict[str, Any]]) -> list[Event]:
    """Return the events in file order; entries off the active path are marked, not dropped."""
    objects = _without_copies(objects)
    active = _active_entries(objects)
    first_event: list[int] = []
    entry_at: dict[str, int] = {}
    events: list[Event] = []
    for position, entry in enumerate(objects):
        first_event.append(len(events))
        if isinstance(entry.get("id"), str):
            entry_at.setdefault(entry["id"], position)
        identity, parent = _string(entry.get("id")), _string(entry.get("parentId"))
        timestamp = _string(entry.get("timestamp"))
        is_active = position in active or entry.get("type") == "session"
        kept_from = _kept_from(entry, entry_at, first_event)
        for event in _entry_events(entry):
            event.index = len(events)
            event.id, event.parent_id, event.timestamp = identity, parent, timestamp
            event.on_active_branch = is_active
            event.kept_from = kept_from
            events.append(event)
    return _with_a_request(events)


def _without_copies(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Empty the entries that stand in the file a second time, as after a copied or synced write."""
    first: dict[str, dict[str, Any]] = {}
    return [
        {} if isinstance(entry.get("id"), str) and first.setdefault(entry["id"], entry) is not entry
        and first[entry["id"]] == entry else entry
        for entry in objects
    ]  # fmt: skip


def _kept_from(
    entry: dict[str, Any], entry_at: dict[str, int], first_event: list[int]
) -> int | None:
    """First event that a compaction left in the model's context; what is lost keeps nothing."""
    if entry.get("type") != "compaction":
        return None
    # Version 1 counts the lines of the file, its header included.
    position = entry.get("firstKeptEntryIndex")
    if not isinstance(position, int):
        kept = entry.get("firstKeptEntryId")
        position = entry_at.get(kept, -1) if kept and isinstance(kept, str) else -1
    return first_event[position] if 0 <= position < len(first_event) else first_event[-1]


def _with_a_request(events: list[Event]) -> list[Event]:
    """Where nobody spoke, the first message an extension wrote in their place is the request."""
    if any(event.kind == "user" for event in events):
        return events
    said = (e for e in events if e.kind == "custom_message" and e.on_active_branch and e.text)
    request = next(said, None)
    if request:
        request.kind = "user"
    return events


def _active_entries(objects: list[dict[str, Any]]) -> set[int]:
    """Positions on the path from the last entry to the root.

    An entry whose parent is missing continues the entry before it in the file: recorders lose
    lines, and a lost line must not hide the session's beginning.
    """
    position_of = {
        entry["id"]: position
        for position, entry in enumerate(objects)
        if isinstance(entry.get("id"), str) and entry.get("type") != "session"
    }
    if not position_of:
        return set(range(len(objects)))
    active: set[int] = set()
    position = max(position_of.values())
    while position >= 0 and position not in active:
        active.add(position)
        parent = objects[position].get("parentId")
        is_root = parent is None and "parentId" in objects[position]
        if is_root:
            break
        known = position_of.get(parent, position - 1) if isinstance(parent, str) else position - 1
        position = known if known != position else position - 1
    return active


def _entry_events(entry: dict[str, Any]) -> Iterator[Event]:
    message = entry.get("message")
    kind = _string(entry.get("type"))
    if kind == "custom_message":
        yield Event(0, "custom_message", content_text(entry.get("content")))
    elif kind != "message" or not isinstance(message, dict):
        yield Event(0, _ENTRY_KINDS.get(kind, "other"), clean(_string(entry.get("summary"))))
    else:
        yield from message_events(message)


def message_events(message: dict[str, Any]) -> Iterator[Event]:
    """Return the events of one message in Pi's form."""
    role = _string(message.get("role"))
    if role == "user":
        yield from _user_events(message.get("content"))
    elif role == "assistant":
        yield from _assistant_events(message)
    elif role == "toolResult":
        text = content_text(message.get("content"))
        yield Event(
            0,
            "tool_result",
            text,
            call_id=_string(message.get("toolCallId")),
            tool_name=_string(message.get("toolName")),
            is_error=message.get("isError") is True,
            exit_code=_exit_code(message.get("details"), text),
        )
    elif role == "bashExecution":
        exit_code = message.get("exitCode")
        code = exit_code if isinstance(exit_code, int) else None
        yield Event(
            0,
            "bash",
            clean(_string(message.get("output"))),
            tool_name="bash",
            arguments=_string(message.get("command")),
            is_error=bool(code) and message.get("cancelled") is not True,
            exit_code=code,
        )
    elif role in {"custom", "hookMessage"}:
        # Version 2 and hooks: written by an extension in a message's place.
        yield Event(0, "custom_message", content_text(message.get("content")))
    else:
        yield Event(0, "other", content_text(message.get("content")))


def _user_events(content: object) -> Iterator[Event]:
    """What the user typed; some forks put the tools' results there, as Anthropic's API does."""
    text = content_text(content)
    results = [block for block in _blocks(content) if block.get("type") == "tool_result"]
    if text or not results:
        yield Event(0, "user", text)
    for block in results:
        output = content_text(block.get("content"))
        yield Event(
            0,
            "tool_result",
            output,
            call_id=_string(block.get("tool_use_id")),
            is_error=block.get("is_error") is True,
            exit_code=_exit_code(None, output),
        )


def _assistant_events(message: dict[str, Any]) -> Iterator[Event]:
    blocks = message.get("content")
    error = clean(_string(message.get("errorMessage")))
    yield Event(
        0,
        "assistant",
        content_text(blocks) or error,
        stop_reason=_string(message.get("stopReason")),
    )
    # A call of a turn that was aborted or failed was never made.
    for block in _blocks(blocks):
        if _string(block.get("type")) in {"toolCall", "tool_use"}:
            arguments = block.get("arguments", block.get("input"))
            yield Event(
                0,
                "tool_call",
                call_id=_string(block.get("id")),
                tool_name=_string(block.get("name")),
                arguments=_json_text(arguments),
                stop_reason=_string(message.get("stopReason")),
            )


def content_text(content: object) -> str:
    """Join the text blocks of a message; content may also be one plain string."""
    if isinstance(content, str):
        return clean(content)
    texts = (
        block["text"]
        for block in _blocks(content)
        if block.get("type") == "text" and isinstance(block.get("text"), str)
    )
    return clean("\n".join(texts))


def _blocks(content: object) -> list[dict[str, Any]]:
    return [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []


def _json_text(value: object) -> str:
    try:
        return clean(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        # Nested so deep that it could just be read; nobody calls a tool like that in earnest.
        return "null"


def _exit_code(details: object, text: str) -> int | None:
    if isinstance(details, dict) and isinstance(details.get("exitCode"), int):
        return int(details["exitCode"])
    match = _EXIT.search(text[-200:])
    return int(match.group(1)) if match else None


def _string(value: object) -> str:
    return clean(value) if isinstance(value, str) else ""
