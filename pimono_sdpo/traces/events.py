"""What happened in a session, one record per step, the same for every harness."""

import re
from typing import Any, Literal

import msgspec

Kind = Literal[
    "user",
    "assistant",
    "tool_call",
    "tool_result",
    "bash",
    "custom_message",
    "compaction",
    "branch_summary",
    "other",
]

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class Event(msgspec.Struct, gc=False):
    """One step of a session.

    `arguments` is JSON text (tool_call) or the command line (bash); `exit_code` is None when the
    recorder gave none; `on_active_branch` is False for steps the user went back from and for those
    of a subagent; `kept_from` is the index of the first event a compaction kept, None elsewhere;
    `is_veto` marks what the user said in refusing a call.
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


def decode_json(text: str) -> Any:
    """Decode JSON that a model wrote; what cannot be read, or is nested too deep, is None."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        # Whatever the model wrote; a call that cannot be read tells nothing.
        return None


def strip_colours(text: str) -> str:
    """Drop terminal colours."""
    return _ANSI.sub("", text) if "\x1b" in text else text
