"""Pi sessions: linear v1 files and v3 files with an id/parentId tree.

Format: the session files of the Pi coding agent, entry types and roles as counted over real
sessions; unknown entry types become `other` events, so that indexes stay stable.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pimono_sdpo.harness.event import Event, Kind, clean

_EXIT = re.compile(r"Command exited with code (-?\d+)\s*$")
_ENTRY_KINDS: dict[str, Kind] = {
    "compaction": "compaction",
    "branch_summary": "branch_summary",
}


def read(objects: list[dict[str, Any]]) -> list[Event]:
    """Return the events in file order; entries off the active path are marked, not dropped."""
    active = _active_entries(objects)
    events: list[Event] = []
    for position, entry in enumerate(objects):
        for event in _entry_events(entry):
            events.append(
                replace(
                    event,
                    index=len(events),
                    id=_string(entry.get("id")),
                    parent_id=_string(entry.get("parentId")),
                    timestamp=_string(entry.get("timestamp")),
                    on_active_branch=position in active,
                )
            )
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
        yield Event(0, "custom_message", _content_text(entry.get("content")))
    elif kind != "message" or not isinstance(message, dict):
        yield Event(0, _ENTRY_KINDS.get(kind, "other"), clean(_string(entry.get("summary"))))
    else:
        yield from _message_events(message)


def _message_events(message: dict[str, Any]) -> Iterator[Event]:
    role = message.get("role")
    if role == "user":
        yield Event(0, "user", _content_text(message.get("content")))
    elif role == "assistant":
        yield from _assistant_events(message)
    elif role == "toolResult":
        text = _content_text(message.get("content"))
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
    else:
        yield Event(0, "other", _content_text(message.get("content")))


def _assistant_events(message: dict[str, Any]) -> Iterator[Event]:
    blocks = message.get("content")
    error = clean(_string(message.get("errorMessage")))
    yield Event(
        0,
        "assistant",
        _content_text(blocks) or error,
        stop_reason=_string(message.get("stopReason")),
    )
    for block in blocks if isinstance(blocks, list) else []:
        if isinstance(block, dict) and block.get("type") == "toolCall":
            yield Event(
                0,
                "tool_call",
                call_id=_string(block.get("id")),
                tool_name=_string(block.get("name")),
                arguments=_json_text(block.get("arguments")),
            )


def _content_text(content: object) -> str:
    """Join the text blocks of a message; content may also be one plain string."""
    if isinstance(content, str):
        return clean(content)
    if not isinstance(content, list):
        return ""
    texts = (
        block["text"]
        for block in content
        if isinstance(block, dict)
        and block.get("type") == "text"
        and isinstance(block.get("text"), str)
    )
    return clean("\n".join(texts))


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
