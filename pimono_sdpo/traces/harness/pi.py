"""Read Pi sessions: linear v1 files, v2 and v3 files with an id/parentId tree, and Pi's forks.

An entry whose fields have unexpected types is built from a dict, field by field: a mistyped value
counts as missing. Unknown entry types become `other` events, so that indexes stay stable. oh-my-pi
and OpenClaw write the same entries; GSD has no header, and its request is a custom message.
"""

import json
import re
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from pimono_sdpo.traces.events import Event, Kind, strip_colours
from pimono_sdpo.traces.harness.base import FileTools, Harness, Schema, Tool, describe_object

NO_JSON = Raw()


class Block(msgspec.Struct, gc=False):
    """A block of content: text, a call of Pi's, or a call or result as Anthropic writes them."""

    type: str | None = None
    text: str | None = None
    id: str | None = None
    name: str | None = None
    arguments: Raw = NO_JSON
    input: Raw = NO_JSON
    tool_use_id: str | None = None
    content: Raw = NO_JSON
    is_error: bool | None = None


Content = str | list[Block] | None


class Details(msgspec.Struct, gc=False):
    """What a tool adds to its result."""

    exitCode: int | None = None


class Message(msgspec.Struct, gc=False):
    """A message in any of Pi's roles."""

    role: str | None = None
    content: Content = None
    stopReason: str | None = None
    errorMessage: str | None = None
    toolCallId: str | None = None
    toolName: str | None = None
    isError: bool | None = None
    details: Details | None = None
    command: str | None = None
    output: str | None = None
    exitCode: int | None = None
    cancelled: bool | None = None


class Entry(msgspec.Struct, gc=False):
    """A line of a session file."""

    type: str | None = None
    id: str | None = None
    # null for a root; an entry without the field continues the entry before it.
    parentId: str | UnsetType | None = UNSET
    timestamp: str | float | None = None
    message: Message | None = None
    content: Content = None
    summary: str | None = None
    cwd: str | None = None
    firstKeptEntryIndex: int | None = None
    firstKeptEntryId: str | None = None


DECODER = msgspec.json.Decoder(Entry)
_CONTENT = msgspec.json.Decoder(Content)


S = TypeVar("S", Block, Details, Message, Entry)
# The fields of each struct that hold a plain value, content, or JSON that is kept as it is.
_FIELDS: dict[type[msgspec.Struct], dict[str, Any]] = {
    kind: {
        field.name: held
        for field in msgspec.structs.fields(kind)
        for held in (str, int, bool, Content, Raw)
        if field.type in (held, held | None)
    }
    for kind in (Block, Details, Message, Entry)
}


def _build(kind: type[S], value: dict[str, Any]) -> S:
    """Build a struct from a dict of any shape; a value of another type counts as missing."""
    built = kind()
    for name, held in _FIELDS[kind].items():
        if name not in value:
            continue
        if held is Raw:
            setattr(built, name, _dump_raw(value[name]))
        elif held is Content:
            setattr(built, name, build_content(value[name]))
        elif type(value[name]) is held:
            # Not isinstance, for which True is an integer.
            setattr(built, name, value[name])
    return built


def build_entry(value: dict[str, Any]) -> Entry:
    """Build an entry from a dict of any shape."""
    entry = _build(Entry, value)
    if isinstance(value.get("timestamp"), str):
        entry.timestamp = value["timestamp"]
    if isinstance(value.get("message"), dict):
        entry.message = build_message(value["message"])
    if isinstance(value.get("parentId", 0), str | None):
        entry.parentId = value["parentId"]
    return entry


def build_message(value: dict[str, Any]) -> Message:
    """Build a message from a dict of any shape."""
    message = _build(Message, value)
    details = value.get("details")
    message.details = _build(Details, details if isinstance(details, dict) else {})
    return message


def build_content(value: object) -> Content:
    """Build the content of a message: one text, or blocks."""
    if isinstance(value, list):
        return [_build(Block, block) for block in value if isinstance(block, dict)]
    return value if isinstance(value, str) else None


def decode_content(raw: Raw) -> Content:
    """Decode the content within a block."""
    if not raw:
        return None
    try:
        content: Content = _CONTENT.decode(raw)
    except msgspec.ValidationError:
        return build_content(json.loads(bytes(raw)))
    return content


def _dump_raw(value: object) -> Raw:
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        # It is nested almost too deeply to be read, which no real call is.
        text = "null"
    return Raw(text.encode("utf-8", "replace"))


_EXIT = re.compile(r"Command exited with code (-?\d+)\s*$")
_ENTRY_KINDS: dict[str | None, Kind] = {
    "compaction": "compaction",
    "branch_summary": "branch_summary",
}
_ROLES = frozenset({"user", "assistant", "toolResult", "bashExecution"})
# Version 2 and hooks: an extension wrote these in place of a message.
_CUSTOM_ROLES = frozenset({"custom", "hookMessage"})
_CALLS = frozenset({"toolCall", "tool_use"})


def recognises(entry: dict[str, Any]) -> bool:
    """Recognise a message in one of Pi's roles, or a custom message of an extension."""
    message = entry.get("message")
    if entry.get("type") == "custom_message":
        return isinstance(entry.get("customType"), str)
    role = message.get("role") if isinstance(message, dict) else None
    return entry.get("type") == "message" and isinstance(role, str) and role in _ROLES


def is_header(entry: dict[str, Any]) -> bool:
    """Check for the header of a Pi session; the one of the Hub's format names a harness."""
    return entry.get("type") == "session" and "cwd" in entry and "harness" not in entry


def read_header(entries: list[Entry]) -> tuple[str, str]:
    """Return the session id and the working directory, empty without a header."""
    entry = next((entry for entry in entries if entry.type == "session"), Entry())
    return strip_colours(entry.id or ""), strip_colours(entry.cwd or "")


def read_objects(objects: list[dict[str, Any]]) -> list[Event]:
    """Return the events of entries that were decoded as dicts."""
    return read([build_entry(value) for value in objects])


def read(entries: list[Entry]) -> list[Event]:
    """Return the events in file order; entries off the active path are marked, not dropped."""
    entries = _empty_copies(entries)
    active = _find_active(entries)
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
        new = [_read_entry(entry)] if message is None else read_message(message)
        for index, event in enumerate(new, begin):
            event.index = index
            event.id, event.parent_id, event.timestamp = identity, parent, timestamp
            event.on_active_branch = is_active
        if entry.type == "compaction":
            new[0].kept_from = _find_kept(entry, entry_at, first_event)
        events += new
    return _ensure_request(events)


def _empty_copies(entries: list[Entry]) -> list[Entry]:
    """Empty the entries that the file repeats, as after a copied or synced write."""
    ids = [entry.id for entry in entries if entry.id is not None]
    if len(set(ids)) == len(ids):
        return entries
    first: dict[str, Entry] = {}
    return [
        Entry() if entry.id is not None and first.setdefault(entry.id, entry) is not entry
        and first[entry.id] == entry else entry
        for entry in entries
    ]  # fmt: skip


def _find_kept(entry: Entry, entry_at: dict[str, int], first_event: list[int]) -> int:
    """Return the first event that a compaction kept; its own when that cannot be found."""
    # Version 1 counts the lines of the file, its header included.
    position = entry.firstKeptEntryIndex
    if position is None:
        position = entry_at.get(entry.firstKeptEntryId or "", -1)
    return first_event[position] if 0 <= position < len(first_event) else first_event[-1]


def _ensure_request(events: list[Event]) -> list[Event]:
    """Take the first message of an extension as the request if work began with it.

    What a person says while that work goes on is a nudge.
    """
    active = [event for event in events if event.on_active_branch]
    custom = (at for at, e in enumerate(active) if e.kind == "custom_message" and e.text)
    begin = next(custom, len(active))
    kinds = [event.kind for event in active]
    asked = kinds.index("user") if "user" in kinds else len(kinds)
    if begin >= asked or ("tool_call" not in kinds[begin:asked] and asked < len(kinds)):
        return events
    active[begin].kind = "user"
    before = ""
    for event in active[begin + 1 :]:
        if event.kind == "user":
            event.is_nudge = before in {"tool_call", "tool_result"}
        elif event.kind not in {"other", "custom_message"}:
            before = event.kind
    return events


def _find_active(entries: list[Entry]) -> set[int]:
    """Return the positions on the path from the last entry to the root.

    An entry whose parent is missing continues the entry before it: recorders lose lines, and a lost
    line must not hide the beginning of the session.
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


def _read_entry(entry: Entry) -> Event:
    if entry.type == "custom_message":
        return Event(0, "custom_message", join_text(entry.content))
    return Event(0, _ENTRY_KINDS.get(entry.type, "other"), strip_colours(entry.summary or ""))


def read_message(message: Message) -> list[Event]:
    """Return the events of one message in Pi's form."""
    role = message.role
    if role == "assistant":
        return _read_assistant(message)
    if role == "toolResult":
        text = join_text(message.content)
        result = Event(
            0,
            "tool_result",
            text,
            call_id=message.toolCallId or "",
            tool_name=message.toolName or "",
            is_error=message.isError is True,
            exit_code=_find_exit_code(message.details, text),
        )
        return [result]
    if role == "user":
        return _read_user(message.content)
    if role == "bashExecution":
        code = message.exitCode
        run = Event(
            0,
            "bash",
            strip_colours(message.output or ""),
            tool_name="bash",
            arguments=strip_colours(message.command or ""),
            is_error=bool(code) and message.cancelled is not True,
            exit_code=code,
        )
        return [run]
    kind: Kind = "custom_message" if role in _CUSTOM_ROLES else "other"
    return [Event(0, kind, join_text(message.content))]


def _read_user(content: Content) -> list[Event]:
    """Read a user message; some forks put results of tools there, as Anthropic's API does."""
    text = join_text(content)
    results = [block for block in _list_blocks(content) if block.type == "tool_result"]
    events = [Event(0, "user", text)] if text or not results else []
    for block in results:
        output = join_text(decode_content(block.content))
        result = Event(
            0,
            "tool_result",
            output,
            call_id=block.tool_use_id or "",
            is_error=block.is_error is True,
            exit_code=_find_exit_code(None, output),
        )
        events.append(result)
    return events


def _read_assistant(message: Message) -> list[Event]:
    stop = message.stopReason or ""
    content = message.content
    text = join_text(content) or strip_colours(message.errorMessage or "")
    events = [Event(0, "assistant", text, stop_reason=stop)]
    # Calls carry the stop reason: those of an aborted or failed turn were never made.
    if isinstance(content, list):
        events += [_read_call(block, stop) for block in content if block.type in _CALLS]
    return events


def _read_call(block: Block, stop: str) -> Event:
    return Event(
        0,
        "tool_call",
        call_id=block.id or "",
        tool_name=block.name or "",
        arguments=str(block.arguments or block.input, "utf-8") or "null",
        stop_reason=stop,
    )


def join_text(content: Content) -> str:
    """Join the text blocks of a message; content may also be one plain string."""
    if not isinstance(content, list):
        return strip_colours(content or "")
    texts = [b.text for b in content if b.type == "text" and b.text is not None]
    return strip_colours(texts[0] if len(texts) == 1 else "\n".join(texts))


def _list_blocks(content: Content) -> list[Block]:
    return content if isinstance(content, list) else []


def _find_exit_code(details: Details | None, text: str) -> int | None:
    if details is not None and details.exitCode is not None:
        return details.exitCode
    end = text[-200:]
    match = _EXIT.search(end) if "exited with" in end else None
    return int(match.group(1)) if match else None


_TEXT, _NUMBER, _FLAG = {"type": "string"}, {"type": "number"}, {"type": "boolean"}


def _describe_edits(closed: bool) -> Schema:
    edit = describe_object("oldText newText", closed, oldText=_TEXT, newText=_TEXT)
    edits = {"type": "array", "items": edit}
    return describe_object("path edits", closed, path=_TEXT, edits=edits)


# `edit` in its three generations: one text, a closed list of edits, an open list of edits.
TOOLS = {
    "read": Tool(
        "Read a file, or `limit` lines of it from line `offset`.",
        (describe_object("path", path=_TEXT, offset=_NUMBER, limit=_NUMBER),),
    ),
    "bash": Tool(
        "Run a command in the working directory and return its output.",
        (describe_object("command", command=_TEXT, timeout=_NUMBER),),
    ),
    "edit": Tool(
        "Replace texts of a file: each oldText must stand in it exactly once.",
        (
            describe_object("path oldText newText", path=_TEXT, oldText=_TEXT, newText=_TEXT),
            _describe_edits(closed=True),
            _describe_edits(closed=False),
        ),
    ),
    "write": Tool(
        "Write a file, replacing what it held.",
        (describe_object("path content", path=_TEXT, content=_TEXT),),
    ),
    "grep": Tool(
        "Search files for a pattern.",
        (
            describe_object(
                "pattern",
                pattern=_TEXT,
                path=_TEXT,
                glob=_TEXT,
                ignoreCase=_FLAG,
                literal=_FLAG,
                context=_NUMBER,
                limit=_NUMBER,
            ),
        ),
    ),
    "find": Tool(
        "Find files whose names match a pattern.",
        (describe_object("pattern", pattern=_TEXT, path=_TEXT, limit=_NUMBER),),
    ),
    "ls": Tool("List a directory.", (describe_object("", path=_TEXT, limit=_NUMBER),)),
}
HARNESS = Harness(
    name="pi",
    about="Pi sessions of versions 1, 2 and 3, without a header too; oh-my-pi, OpenClaw and GSD",
    recognises=recognises,
    may_begin=is_header,
    read_header=read_header,
    read=read,
    decoder=DECODER,
    build=build_entry,
    tools=TOOLS,
    coerces=True,
    files=FileTools(
        edit=("oldText", "newText"),
        read_only="read|grep|find|glob|ls|multi_grep|think",
        numbers_lines=False,
        max_lines=None,
        reads_first=False,
        trims_output=False,
    ),
    sample="""\
{"type": "session", "id": "s", "cwd": "/w/app"}
{"type": "message", "message": {"role": "user", "content": "Fix the failing test of the parser."}}
{"type": "message", "message": {"role": "assistant", "content": [{"type": "toolCall", "id": "c",\
 "name": "bash", "arguments": {"command": "npm test"}}]}}
{"type": "message", "message": {"role": "toolResult", "toolCallId": "c", "toolName": "bash",\
 "isError": true, "content": "AssertionError: expected 1"}}
""",
)
