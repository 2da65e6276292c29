"""Two rules for the rivals: a simple one that SQL can express, and our own written down plainly.

Simple: a session is kept when it has a user message of at least 16 characters, and a tool result
that is marked as an error or a result of `bash` that says "exited with code".

Plain: a row with the prompt, the texts of those results, their categories by our table of failure
patterns, later messages with a word of correction, and the sum of the weights. No tree, no command
lines, no redaction, no language but English.
"""

import json
import re
from typing import Any

import msgspec

from pimono_sdpo.failures import RULES
from processors.grade import WEIGHTS

MIN_PROMPT = 16
EXITED = "exited with code"
_CORRECTION = re.compile(r"\b(?:no|not|don't|wrong|broken|still|stop|undo|revert|instead|should)\b", re.IGNORECASE)


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
            fails = message.isError or (message.toolName == "bash" and EXITED in _typed_text(message.content))
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


def plain_row(trace: str) -> dict[str, Any]:
    """Write a session's row as one would who has no library but `json` and `re`."""
    asked: list[str] = []
    failed: list[str] = []
    for line in filter(str.strip, trace.split("\n")):
        message = json.loads(line).get("message") or {}
        if message.get("role") == "user":
            asked.append(_plain_text(message))
        elif message.get("role") == "toolResult":
            text = _plain_text(message)
            if message.get("isError") or (message.get("toolName") == "bash" and EXITED in text):
                failed.append(text)
    prompt = next((text for text in asked if len(text) >= MIN_PROMPT), "")
    corrections = [text for text in asked[1:] if _CORRECTION.search(text)]
    found = {rule.category for text in failed for rule in RULES if rule.pattern.search(text)}
    found |= {"user_feedback"} if corrections else set()
    return {
        "prompt": prompt,
        "diagnostics": failed,
        "corrections": corrections,
        "categories": sorted(found),
        "score": float(sum(WEIGHTS[name] for name in found)),
    }


def _typed_text(content: str | list[Block]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _plain_text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text") or "" for block in content)
