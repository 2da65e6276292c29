"""The fields of Pi's entries that are read, typed: all others are skipped while decoding.

An entry whose fields have other types than Pi's is built field by field from a dict instead, to
the same result: what is mistyped counts as missing.
"""

import json
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

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
    # A root says null; what does not say continues the entry before it.
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


def entry_of(value: dict[str, Any]) -> Entry:
    """Build an entry from a dict of any shape."""
    entry = Entry(
        type=_string(value.get("type")),
        id=_string(value.get("id")),
        timestamp=_string(value.get("timestamp")),
        content=content_of(value.get("content")),
        summary=_string(value.get("summary")),
        cwd=_string(value.get("cwd")),
        firstKeptEntryIndex=_integer(value.get("firstKeptEntryIndex")),
        firstKeptEntryId=_string(value.get("firstKeptEntryId")),
    )
    if isinstance(value.get("message"), dict):
        entry.message = message_of(value["message"])
    if isinstance(value.get("parentId", 0), str | None):
        entry.parentId = value["parentId"]
    return entry


def message_of(value: dict[str, Any]) -> Message:
    """Build a message from a dict of any shape."""
    details = value.get("details")
    code = _integer(details.get("exitCode")) if isinstance(details, dict) else None
    return Message(
        role=_string(value.get("role")),
        content=content_of(value.get("content")),
        stopReason=_string(value.get("stopReason")),
        errorMessage=_string(value.get("errorMessage")),
        toolCallId=_string(value.get("toolCallId")),
        toolName=_string(value.get("toolName")),
        isError=_truth(value.get("isError")),
        details=Details(code),
        command=_string(value.get("command")),
        output=_string(value.get("output")),
        exitCode=_integer(value.get("exitCode")),
        cancelled=_truth(value.get("cancelled")),
    )


def content_of(value: object) -> Content:
    """Build the content of a message: one text, or blocks."""
    if not isinstance(value, list):
        return _string(value)
    return [
        Block(
            type=_string(block.get("type")),
            text=_string(block.get("text")),
            id=_string(block.get("id")),
            name=_string(block.get("name")),
            arguments=_raw(block, "arguments"),
            input=_raw(block, "input"),
            tool_use_id=_string(block.get("tool_use_id")),
            content=_raw(block, "content"),
            is_error=_truth(block.get("is_error")),
        )
        for block in value
        if isinstance(block, dict)
    ]


def decode_content(raw: Raw) -> Content:
    """Decode the content within a block."""
    if not raw:
        return None
    try:
        content: Content = _CONTENT.decode(raw)
    except msgspec.ValidationError:
        return content_of(json.loads(bytes(raw)))
    return content


def _raw(block: dict[str, Any], name: str) -> Raw:
    if name not in block:
        return NO_JSON
    try:
        text = json.dumps(block[name], ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        # Nested so deep that it could just be read; nobody calls a tool like that in earnest.
        text = "null"
    return Raw(text.encode("utf-8", "replace"))


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
