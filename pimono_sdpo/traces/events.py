"""Define the `Event`, one step of a session in the same form for every harness."""

import re
from typing import Any, Literal

import msgspec

Kind = Literal[
    "user", "assistant", "tool_call", "tool_result", "bash", "custom_message", "compaction", "branch_summary", "other"
]

# No tool has arguments that are nested so deeply; the schemas of OpenAI's API have at most ten levels.
MAX_DEPTH = 64
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_]|[()][0-9A-Z])")


class Event(msgspec.Struct, gc=False):
    """One step of a session.

    `arguments` is JSON text (tool_call) or the command line (bash); `exit_code` is None if it was
    not recorded; `on_active_branch` is False on abandoned branches and in subagents; `kept_from` is
    the index of the first event that a compaction kept, None for other events; `is_veto` marks a
    message with which the user refused a call; `is_nudge` marks a message during a run that an
    extension started, which never begins a request; `cwd` is the working folder, if each step records it;
    `lacks_status` marks a result that does not say how its call ended.
    """

    index: int
    kind: Kind
    text: str = ""
    id: str = ""
    parent_id: str = ""
    call_id: str = ""
    tool_name: str = ""
    arguments: str = ""
    is_error: bool = False
    exit_code: int | None = None
    stop_reason: str = ""
    timestamp: str = ""
    on_active_branch: bool = True
    is_subagent: bool = False
    kept_from: int | None = None
    is_veto: bool = False
    is_nudge: bool = False
    cwd: str = ""
    lacks_status: bool = False


def decode_json(text: str) -> Any:
    """Decode JSON that a model wrote; None if it is invalid or nested deeper than MAX_DEPTH."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        # Models write broken arguments, even half a character; such a call counts as one without arguments.
        return None
    return None if text.count("[") + text.count("{") > MAX_DEPTH and _is_too_deep(value) else value


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [item for items in inner for item in items]
    return bool(level)


def strip_colours(text: str) -> str:
    """Remove the escape sequences of a terminal."""
    return _ANSI.sub("", text) if "\x1b" in text else text
