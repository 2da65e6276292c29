"""The harnesses whose sessions are read; to add one, add its `HARNESS` to the list here.

A trace belongs to the first harness that recognises one of its lines.
"""

from pimono_sdpo.traces.harness import (
    agentsview,
    claude_code,
    codex,
    copilot,
    droid,
    gemini,
    hermes,
    openclaw,
    opencode,
    pi,
    simple,
)
from pimono_sdpo.traces.harness.base import Entry, Harness
from pimono_sdpo.traces.harness.blocks import to_object, to_text

HARNESSES: tuple[Harness, ...] = (
    claude_code.HARNESS,
    codex.HARNESS,
    droid.HARNESS,
    opencode.HARNESS,
    hermes.HARNESS,
    agentsview.HARNESS,
    simple.HARNESS,
    pi.HARNESS,
    copilot.HARNESS,
    gemini.QWEN,
    gemini.GEMINI,
    openclaw.HARNESS,
)  # fmt: skip
# The words that stand for the user's own sessions, and their agents.
OWN = {harness.word: harness for harness in HARNESSES if harness.word}
_BY_NAME = {harness.name: harness for harness in HARNESSES}


def find_harness(name: str) -> Harness:
    """Return a harness by its name; any other name was given by a trace in the simple format."""
    return _BY_NAME.get(name, simple.HARNESS)


def name_agent(entry: Entry) -> str:
    """Return the agent that a line without an understood message is like, "" if it may be anyone's.

    >>> name_agent({"type": "user", "parentUuid": None, "message": {"role": "user", "parts": []}})
    'qwen_code'
    """
    kind, message = to_text(entry.get("type")), to_object(entry.get("message"))
    if "parts" in message and "parentUuid" in entry:
        return "qwen_code"
    if kind == "gemini" or {"$rewindTo", "$set", "projectHash"} & entry.keys():
        return "gemini_cli"
    if isinstance(entry.get("data"), dict) and "." in kind:
        return "copilot_cli"
    if to_text(message.get("type")) in {"TurnBegin", "StepBegin", "ContentPart", "ToolCall"}:
        return "kimi_cli"
    if kind in {"user", "assistant", "tool_result", "reasoning"} and {"content", "summary"} & entry.keys():
        return "grok"
    if kind in {"session_meta", "turn_context", "thread.started"} or "record_type" in entry:
        return codex.HARNESS.name
    is_claude = kind in {"summary", "file-history-snapshot"} or {"sessionId", "session_id"} & entry.keys()
    return claude_code.HARNESS.name if is_claude else ""
