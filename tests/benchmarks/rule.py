"""The simple rule every rival can express, over entries that are plain dicts, or typed structs.

A session is kept when it has a user message of at least 16 characters, and a tool result that is
marked as an error or a result of `bash` that says "exited with code".
"""

import json
from typing import Any

import msgspec

MIN_PROMPT = 16
EXITED = "exited with code"


class Block(msgspec.Struct):
    """One part of a message."""

    type: str = ""
    text: str = ""
    name: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"null")


class Message(msgspec.Struct):
    """What a model, a tool or a user said."""

    role: str = ""
    content: str | list[Block] | None = None
    toolName: str = ""
    toolCallId: str = ""
    isError: bool = False


class Entry(msgspec.Struct):
    """One line of a Pi session."""

    type: str = ""
    id: str = ""
    parentId: str | None = None
    timestamp: str | None = None
    message: Message | None = None


def keeps_typed(entries: list[Entry]) -> bool:
    """Apply the rule to typed entries."""
    asks, fails = False, False
    for entry in entries:
        message = entry.message
        if message is None or message.content is None:
            continue
        if message.role == "user" and not asks:
            asks = len(_typed_text(message.content)) >= MIN_PROMPT
        elif message.role == "toolResult" and not fails:
            fails = message.isError or (
                message.toolName == "bash" and EXITED in _typed_text(message.content)
            )
    return asks and fails


def keeps_text(trace: str) -> bool:
    """Apply the rule to the text of a trace, as one would who writes it down in a minute."""
    asks, fails = False, False
    for line in trace.split("\n"):
        if not line.strip():
            continue
        message = json.loads(line).get("message") or {}
        if message.get("role") == "user":
            asks = asks or len(_plain_text(message)) >= MIN_PROMPT
        elif message.get("role") == "toolResult":
            marked = message.get("isError") is True
            failed = message.get("toolName") == "bash" and EXITED in _plain_text(message)
            fails = fails or marked or failed
    return asks and fails


def _typed_text(content: str | list[Block]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _plain_text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text") or "" for block in content)
