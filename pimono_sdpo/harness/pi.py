"""Pi sessions: linear v1 files, v2 and v3 files with an id/parentId tree, and files of its kin.

Format: the session files of the Pi coding agent, entry types and roles as counted over real
sessions; unknown entry types become `other` events, so that indexes stay stable. oh-my-pi and
OpenClaw write the same entries; GSD has no header, and its request is a custom message.
"""

import re
from typing import Any

from pimono_sdpo.harness.event import Event, Kind, clean
from pimono_sdpo.harness.pi_entries import (
    Block,
    Content,
    Details,
    Entry,
    Message,
    decode_content,
    entry_of,
)

_EXIT = re.compile(r"Command exited with code (-?\d+)\s*$")
_ENTRY_KINDS: dict[str | None, Kind] = {
    "compaction": "compaction",
    "branch_summary": "branch_summary",
}
_ROLES = frozenset({"user", "assistant", "toolResult", "bashExecution"})
# Version 2 and hooks: written by an extension in a message's place.
_CUSTOM_ROLES = frozenset({"custom", "hookMessage"})
_CALLS = frozenset({"toolCall", "tool_use"})


def recognises(entry: dict[str, Any]) -> bool:
    """Tell a Pi entry: a message in one of Pi's roles, or a custom message of an extension."""
    message = entry.get("message")
    if entry.get("type") == "custom_message":
        return isinstance(entry.get("customType"), str)
    role = message.get("role") if isinstance(message, dict) else None
    return entry.get("type") == "message" and isinstance(role, str) and role in _ROLES


def is_header(entry: dict[str, Any]) -> bool:
    """Tell the header of a Pi session; that of the Hub's own format names its harness."""
    return entry.get("type") == "session" and "cwd" in entry and "harness" not in entry


def header(entries: list[Entry]) -> tuple[str, str]:
    """Return the session id and the working directory; empty where there is no header."""
    entry = next((entry for entry in entries if entry.type == "session"), Entry())
    return clean(entry.id or ""), clean(entry.cwd or "")


def read_objects(objects: list[dict[str, Any]]) -> list[Event]:
    """Return the events of entries that were decoded as dicts."""
    return read([entry_of(value) for value in objects])


def read(entries: list[Entry]) -> list[Event]:
    """Return the events in file order; entries off the active path are marked, not dropped."""
    entries = _without_copies(entries)
    active = _active_entries(entries)
    first_event: list[int] = []
    entry_at: dict[str, int] = {}
    events: list[Event] = []
    for position, entry in enumerate(entries):
        begin = len(events)
        first_event.append(begin)
        identity = entry.id or ""
        if entry.id is not None:
            entry_at.setdefault(entry.id, position)
        parent = entry.parentId if isinstance(entry.parentId, str) else ""
        timestamp = entry.timestamp if isinstance(entry.timestamp, str) else ""
        is_active = position in active or entry.type == "session"
        message = entry.message if entry.type == "message" else None
        new = [_entry_event(entry)] if message is None else message_events(message)
        for index, event in enumerate(new, begin):
            event.index = index
            event.id, event.parent_id, event.timestamp = identity, parent, timestamp
            event.on_active_branch = is_active
        if entry.type == "compaction":
            new[0].kept_from = _kept_from(entry, entry_at, first_event)
        events += new
    return _with_a_request(events)


def _without_copies(entries: list[Entry]) -> list[Entry]:
    """Empty the entries that stand in the file a second time, as after a copied or synced write."""
    ids = [entry.id for entry in entries if entry.id is not None]
    if len(set(ids)) == len(ids):
        return entries
    first: dict[str, Entry] = {}
    return [
        Entry() if entry.id is not None and first.setdefault(entry.id, entry) is not entry
        and first[entry.id] == entry else entry
        for entry in entries
    ]  # fmt: skip


def _kept_from(entry: Entry, entry_at: dict[str, int], first_event: list[int]) -> int:
    """First event that a compaction left in the model's context; what is lost keeps nothing."""
    # Version 1 counts the lines of the file, its header included.
    position = entry.firstKeptEntryIndex
    if position is None:
        position = entry_at.get(entry.firstKeptEntryId or "", -1)
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


def _active_entries(entries: list[Entry]) -> set[int]:
    """Positions on the path from the last entry to the root.

    An entry whose parent is missing continues the entry before it in the file: recorders lose
    lines, and a lost line must not hide the session's beginning.
    """
    position_of = {
        entry.id: position
        for position, entry in enumerate(entries)
        if entry.id is not None and entry.type != "session"
    }
    if not position_of:
        return set(range(len(entries)))
    active: set[int] = set()
    position = max(position_of.values())
    while position >= 0 and position not in active:
        active.add(position)
        parent = entries[position].parentId
        if parent is None:
            break
        known = position_of.get(parent, position - 1) if isinstance(parent, str) else position - 1
        position = known if known != position else position - 1
    return active


def _entry_event(entry: Entry) -> Event:
    if entry.type == "custom_message":
        return Event(0, "custom_message", content_text(entry.content))
    return Event(0, _ENTRY_KINDS.get(entry.type, "other"), clean(entry.summary or ""))


def message_events(message: Message) -> list[Event]:
    """Return the events of one message in Pi's form."""
    role = message.role
    if role == "assistant":
        return _assistant_events(message)
    if role == "toolResult":
        text = content_text(message.content)
        result = Event(
            0,
            "tool_result",
            text,
            call_id=message.toolCallId or "",
            tool_name=message.toolName or "",
            is_error=message.isError is True,
            exit_code=_exit_code(message.details, text),
        )
        return [result]
    if role == "user":
        return _user_events(message.content)
    if role == "bashExecution":
        code = message.exitCode
        run = Event(
            0,
            "bash",
            clean(message.output or ""),
            tool_name="bash",
            arguments=clean(message.command or ""),
            is_error=bool(code) and message.cancelled is not True,
            exit_code=code,
        )
        return [run]
    kind: Kind = "custom_message" if role in _CUSTOM_ROLES else "other"
    return [Event(0, kind, content_text(message.content))]


def _user_events(content: Content) -> list[Event]:
    """What the user typed; some forks put the tools' results there, as Anthropic's API does."""
    text = content_text(content)
    results = [block for block in _blocks(content) if block.type == "tool_result"]
    events = [Event(0, "user", text)] if text or not results else []
    for block in results:
        output = content_text(decode_content(block.content))
        result = Event(
            0,
            "tool_result",
            output,
            call_id=block.tool_use_id or "",
            is_error=block.is_error is True,
            exit_code=_exit_code(None, output),
        )
        events.append(result)
    return events


def _assistant_events(message: Message) -> list[Event]:
    stop = message.stopReason or ""
    content = message.content
    text = content_text(content) or clean(message.errorMessage or "")
    events = [Event(0, "assistant", text, stop_reason=stop)]
    # A call of a turn that was aborted or failed was never made.
    if isinstance(content, list):
        events += [_call(block, stop) for block in content if block.type in _CALLS]
    return events


def _call(block: Block, stop: str) -> Event:
    return Event(
        0,
        "tool_call",
        call_id=block.id or "",
        tool_name=block.name or "",
        arguments=str(block.arguments or block.input, "utf-8") or "null",
        stop_reason=stop,
    )


def content_text(content: Content) -> str:
    """Join the text blocks of a message; content may also be one plain string."""
    if not isinstance(content, list):
        return clean(content or "")
    texts = [b.text for b in content if b.type == "text" and b.text is not None]
    return clean(texts[0] if len(texts) == 1 else "\n".join(texts))


def _blocks(content: Content) -> list[Block]:
    return content if isinstance(content, list) else []


def _exit_code(details: Details | None, text: str) -> int | None:
    if details is not None and details.exitCode is not None:
        return details.exitCode
    end = text[-200:]
    match = _EXIT.search(end) if "exited with" in end else None
    return int(match.group(1)) if match else None
