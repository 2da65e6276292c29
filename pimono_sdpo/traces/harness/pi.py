"""Read Pi sessions: linear v1 files, v2 and v3 files with an id/parentId tree, JSON mode, Pi's forks.

Unknown entries, and those whose fields have unexpected types, become `other` events, so that indexes
stay stable. oh-my-pi and OpenClaw write the same entries; GSD has no header, and its request is a
custom message. In JSON mode Pi prints each message several times, complete and in pieces; only the
`message_end` line is read.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from pimono_sdpo.traces.events import Event, Kind, strip_colours
from pimono_sdpo.traces.harness.base import (
    TEXT,
    Harness,
    Schema,
    Tool,
    describe_arguments,
    describe_list,
    describe_object,
    find_home,
    read_setting,
)
from pimono_sdpo.traces.harness.blocks import find_path

NO_JSON = Raw()


class Block(msgspec.Struct, gc=False):
    """A block of content: text, a call in Pi's form, or a call or result in Anthropic's."""

    type: str | None = None
    text: str | None = None
    id: str | None = None
    name: str | None = None
    arguments: Raw = NO_JSON
    input: Raw = NO_JSON
    tool_use_id: str | None = None
    content: "Content" = None
    is_error: bool | None = None
    externalResult: "External | None" = None


Content = str | list[Block] | None


class External(msgspec.Struct, gc=False):
    """The result that a provider which runs the tools itself adds to a call."""

    content: Content = None
    isError: bool | None = None


class Details(msgspec.Struct, gc=False):
    """What a tool adds to its result; only the exit code is read."""

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
    # Extensions store anything here.
    details: Raw = NO_JSON
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
    version: int | str | None = None
    firstKeptEntryIndex: int | None = None
    firstKeptEntryId: str | None = None


DECODER = msgspec.json.Decoder(Entry)
_DETAILS = msgspec.json.Decoder(Details)
_ENCODER = msgspec.json.Encoder()


def build_entry(value: dict[str, Any]) -> Entry:
    """Build an entry from a dict; it is empty if a field has an unexpected type."""
    try:
        return DECODER.decode(_ENCODER.encode(value))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        # OverflowError: JSON may contain integers of any size.
        return Entry()


_EXIT = re.compile(r"Command exited with code (-?\d+)\s*$")
_ENTRY_KINDS: dict[str | None, Kind] = {"compaction": "compaction", "branch_summary": "branch_summary"}
_ROLES = frozenset({"user", "assistant", "toolResult", "bashExecution"})
# Messages that an extension wrote in version 2, or a hook.
_CUSTOM_ROLES = frozenset({"custom", "hookMessage"})
_CALLS = frozenset({"toolCall", "tool_use"})
_PRINTED = "message_end"


def recognises(entry: dict[str, Any]) -> bool:
    """Recognise a header, a message in one of Pi's roles, or a custom message of an extension."""
    message = entry.get("message")
    match entry.get("type"):
        case "session":  # the header of the Hub's format has a `harness`
            return "cwd" in entry and "harness" not in entry
        case "custom_message":
            return isinstance(entry.get("customType"), str)
        case "message" | "message_end":
            role = message.get("role") if isinstance(message, dict) else None
            return isinstance(role, str) and role in _ROLES
    return False


def read_header(entries: list[Entry]) -> tuple[str, str]:
    """Return the session id and the working directory, empty without a header."""
    entry = next((entry for entry in entries if entry.type == "session"), Entry())
    return strip_colours(entry.id or ""), strip_colours(entry.cwd or "")


def read(entries: list[Entry]) -> list[Event]:
    """Return the events in file order; entries off the active path are marked, not dropped."""
    entries = [entry for entry in entries if entry.type == _PRINTED] or _empty_copies(entries)
    active = _find_active(entries)
    first_event: list[int] = []
    entry_at: dict[str, int] = {}
    events: list[Event] = []
    for position, entry in enumerate(entries):
        begin = len(events)
        first_event.append(begin)
        entry_id = entry.id or ""
        entry_at.setdefault(entry_id, position)
        parent = entry.parentId if isinstance(entry.parentId, str) else ""
        timestamp = entry.timestamp if isinstance(entry.timestamp, str) else ""
        is_active = position in active or entry.type == "session"
        new = _read_entry(entry)
        for index, event in enumerate(new, begin):
            event.index = index
            event.id, event.parent_id, event.timestamp = entry_id, parent, timestamp
            event.on_active_branch = is_active
        if entry.type == "compaction":
            # Version 1 counts the lines of the file, its header included.
            kept = entry.firstKeptEntryIndex
            kept = entry_at.get(entry.firstKeptEntryId or "-", -1) if kept is None else kept
            new[0].kept_from = first_event[kept] if 0 <= kept <= position else begin
        events += new
    return _ensure_request(_name_shells(events))


def _name_shells(events: list[Event]) -> list[Event]:
    """Give OpenClaw's `exec`, which runs a command in a shell, the name that it has in Pi."""
    renamed = set[str]()
    for event in events:
        if event.tool_name != "exec":
            continue
        if event.kind == "tool_call" and '"command"' in event.arguments:
            renamed.add(event.call_id)
        if event.call_id in renamed:
            event.tool_name = "bash"
    return events


def _empty_copies(entries: list[Entry]) -> list[Entry]:
    """Empty repeated entries, which copied or synchronised files contain."""
    first: dict[str, Entry] = {}
    cleaned = []
    for entry in entries:
        known = entry if entry.id is None else first.setdefault(entry.id, entry)
        cleaned.append(Entry() if known is not entry and known == entry else entry)
    return cleaned


def _find_active(entries: list[Entry]) -> set[int]:
    """Return the positions on the path from the last entry to the root."""
    ids = ["" if entry.type == "session" else entry.id or "" for entry in entries]
    last = max((position for position, entry_id in enumerate(ids) if entry_id), default=-1)
    if last < 0:
        return set(range(len(entries)))
    parents = [entry.parentId if isinstance(entry.parentId, str | None) else "" for entry in entries]
    return find_path(ids, parents, last)


def _ensure_request(events: list[Event]) -> list[Event]:
    """Turn the first message of an extension into the request if the work began with it.

    What a person says during that work is a nudge.
    """
    active = [event for event in events if event.on_active_branch]
    custom = (at for at, e in enumerate(active) if e.kind == "custom_message" and e.text)
    start = next(custom, len(active))
    kinds = [event.kind for event in active]
    first_user = kinds.index("user") if "user" in kinds else len(kinds)
    if start >= first_user or ("tool_call" not in kinds[start:first_user] and first_user < len(kinds)):
        return events
    active[start].kind = "user"
    previous = ""
    for event in active[start + 1 :]:
        if event.kind == "user":
            event.is_nudge = previous in {"tool_call", "tool_result"}
        elif event.kind not in {"other", "custom_message"}:
            previous = event.kind
    return events


def _read_entry(entry: Entry) -> list[Event]:
    if entry.type in ("message", _PRINTED) and entry.message is not None:
        return read_message(entry.message)
    if entry.type == "custom_message":
        return [Event(0, "custom_message", join_text(entry.content))]
    return [Event(0, _ENTRY_KINDS.get(entry.type, "other"), strip_colours(entry.summary or ""))]


def read_message(message: Message) -> list[Event]:
    """Return the events of one message in Pi's form."""
    role, text = message.role, join_text(message.content)
    blocks = message.content if isinstance(message.content, list) else []
    if role == "assistant":
        stop = message.stopReason or ""
        # Calls carry the stop reason: those of an aborted or failed turn never ran.
        calls = [block for block in blocks if block.type in _CALLS]
        results = [
            _build_result(join_text(call.externalResult.content), call.id, call.externalResult.isError)
            for call in calls
            if call.externalResult
        ]
        answer = Event(0, "assistant", text or strip_colours(message.errorMessage or ""), stop_reason=stop)
        return [answer, *(_read_call(call, stop) for call in calls), *results]
    if role == "toolResult":
        result = _build_result(text, message.toolCallId, message.isError, _read_code(message.details))
        result.tool_name = message.toolName or ""
        return [result]
    if role == "user":
        # Some forks put results of tools into user messages, as Anthropic's API does.
        results = [
            _build_result(join_text(block.content), block.tool_use_id, block.is_error)
            for block in blocks
            if block.type == "tool_result"
        ]
        return [Event(0, "user", text), *results] if text or not results else results
    if role == "bashExecution":
        command = Event(0, "bash", strip_colours(message.output or ""), tool_name="bash")
        command.arguments, command.exit_code = strip_colours(message.command or ""), message.exitCode
        command.is_error = bool(message.exitCode) and message.cancelled is not True
        return [command]
    return [Event(0, "custom_message" if role in _CUSTOM_ROLES else "other", text)]


def _read_code(details: Raw) -> int | None:
    try:
        return _DETAILS.decode(details).exitCode if details else None
    except msgspec.MsgspecError:
        return None


def _read_call(block: Block, stop: str) -> Event:
    arguments = str(block.arguments or block.input, "utf-8") or "null"
    call_id, name = block.id or "", block.name or ""
    return Event(0, "tool_call", call_id=call_id, tool_name=name, arguments=arguments, stop_reason=stop)


def _build_result(text: str, call_id: str | None, is_error: bool | None, code: int | None = None) -> Event:
    if code is None and "exited with" in (end := text[-200:]):
        match = _EXIT.search(end)
        code = int(match[1]) if match else None
    return Event(0, "tool_result", text, call_id=call_id or "", is_error=is_error is True, exit_code=code)


def join_text(content: Content) -> str:
    """Join the text blocks of a message; content may also be one plain string."""
    if not isinstance(content, list):
        return strip_colours(content or "")
    texts = [b.text for b in content if b.type == "text" and b.text is not None]
    return strip_colours(texts[0] if len(texts) == 1 else "\n".join(texts))


def _describe_edits(closed: bool) -> Schema:
    edit = describe_object("oldText newText", closed, oldText=TEXT, newText=TEXT)
    return describe_object("path edits", closed, path=TEXT, edits=describe_list(edit))


# The three versions of `edit`: one text, a closed list of edits, an open list of edits.
_EDITS = (
    describe_arguments("path oldText newText", "path oldText newText"),
    _describe_edits(True),
    _describe_edits(False),
)
_SEARCH = describe_arguments("pattern", "pattern path glob", "context limit", "ignoreCase literal")
TOOLS = {
    "read": Tool(
        "Read a file, or `limit` lines of it from line `offset`.",
        (describe_arguments("path", "path", "offset limit"),),
    ),
    "bash": Tool(
        "Run a command in the working directory and return its output.",
        (describe_arguments("command", "command", "timeout"),),
    ),
    "edit": Tool("Replace texts of a file: each oldText must stand in it exactly once.", _EDITS),
    "write": Tool("Write a file, replacing what it held.", (describe_arguments("path content", "path content"),)),
    "grep": Tool("Search files for a pattern.", (_SEARCH,)),
    "find": Tool("Find files whose names match a pattern.", (describe_arguments("pattern", "pattern path", "limit"),)),
    "ls": Tool("List a directory.", (describe_arguments("", "path", "limit"),)),
}


def read_version(entries: list[Entry]) -> str:
    """Return the version of the format in the header; the first one had none."""
    return next((str(entry.version or 1) for entry in entries if entry.type == "session"), "")


def list_kinds(entries: list[Entry]) -> Iterator[str]:
    """Yield the type of each line, the role of its message and the types of the blocks in it."""
    for entry in entries:
        yield entry.type or ""
        if message := entry.message:
            yield f"message/{message.role}"
            if isinstance(message.content, list):
                yield from (f"message:{block.type}" for block in message.content)


def list_homes(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Return the folders of sessions: that of a variable or of the settings, and the default one."""
    place = find_home(environ, "PI_CODING_AGENT_DIR", home / ".pi" / "agent")
    chosen = environ.get("PI_CODING_AGENT_SESSION_DIR") or read_setting(place / "settings.json", "sessionDir")
    return [*([place / Path(chosen).expanduser()] if chosen else []), place / "sessions"]


HARNESS = Harness(
    name="pi",
    about="Pi sessions of versions 1 to 3, also without a header, and its JSON mode; oh-my-pi, OpenClaw and GSD",
    recognises=recognises,
    read_header=read_header,
    read=read,
    decoder=DECODER,
    build=build_entry,
    tools=TOOLS,
    coerces=True,
    version_of=read_version,
    list_kinds=list_kinds,
    edit=("oldText", "newText"),
    title="Pi",
    word="pi",
    homes=list_homes,
    sample="""\
{"type": "session", "id": "s", "cwd": "/w/app"}
{"type": "message", "message": {"role": "user", "content": "Fix the failing test of the parser."}}
{"type": "message", "message": {"role": "assistant", "content": [{"type": "toolCall", "id": "c",\
 "name": "bash", "arguments": {"command": "npm test"}}]}}
{"type": "message", "message": {"role": "toolResult", "toolCallId": "c", "toolName": "bash",\
 "isError": true, "content": "AssertionError: expected 1"}}
""",
)
