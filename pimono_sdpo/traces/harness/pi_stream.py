"""Read what Pi prints in JSON mode: a stream with one object per step of a run.

A message is printed several times: started, in pieces, done, at the end of the turn and of the run.
The last complete one counts, in the place of the first. Messages are the same if they have the same
content and time.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import pi
from pimono_sdpo.traces.harness.pi import build_entry, build_message
from pimono_sdpo.traces.lines import OBJECT, return_unchanged

_STEPS = frozenset(
    """agent_start agent_end turn_start turn_end message_start message_update message_end
    tool_execution_start tool_execution_update tool_execution_end""".split()
)


def recognises(entry: dict[str, Any]) -> bool:
    """Recognise a step of the stream by its name."""
    kind = entry.get("type")
    return isinstance(kind, str) and kind in _STEPS


def read_header(objects: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the session id and the working directory of the header, if there is one."""
    return pi.read_header(
        [build_entry(value) for value in objects if value.get("type") == "session"]
    )


def read(objects: list[dict[str, Any]]) -> list[Event]:
    """Return the events of the messages in the order in which they were first seen."""
    messages: dict[str, dict[str, Any]] = {}
    for entry in objects:
        for message in _find_messages(entry):
            # A dict keeps the place of the first while the value becomes the last.
            messages[_identify(message)] = message
    whole = map(build_message, messages.values())
    events = [event for message in whole for event in pi.read_message(message)]
    for index, event in enumerate(events):
        event.index = index
    return events


def _find_messages(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind = entry.get("type") if recognises(entry) else ""
    step = entry.get("assistantMessageEvent")
    found: list[object] = []
    if kind in {"message_end", "turn_end"}:
        found = [entry.get("message"), *_list(entry.get("toolResults"))]
    elif kind == "message_start":
        found = [entry.get("message")]
    elif kind == "message_update" and isinstance(step, dict):
        found = [step.get("message"), step.get("error")]
    elif kind == "tool_execution_end":
        found = [_build_result(entry)]
    elif kind == "agent_end":
        found = _list(entry.get("messages"))
    for message in found:
        # The first message of an assistant's stream is still empty.
        is_begun = kind == "message_start" and _find_role(message) == "assistant"
        if isinstance(message, dict) and _find_role(message) and not is_begun:
            yield message


def _build_result(entry: dict[str, Any]) -> dict[str, Any]:
    result = entry.get("result")
    if _find_role(result):
        return dict(result) if isinstance(result, dict) else {}
    return {
        "role": "toolResult",
        "toolCallId": entry.get("toolCallId"),
        "toolName": entry.get("toolName"),
        "content": result.get("content") if isinstance(result, dict) else result,
        "details": result.get("details") if isinstance(result, dict) else None,
        "isError": entry.get("isError"),
    }


def _identify(message: dict[str, Any]) -> str:
    """Return what identifies a repeated message: the call it answers, or its content and time."""
    call_id = message.get("toolCallId")
    if _find_role(message) == "toolResult" and call_id and isinstance(call_id, str):
        return f"result {call_id}"
    said = [message.get(name) for name in ("role", "content", "timestamp", "stopReason")]
    try:
        return json.dumps(said)
    except RecursionError:
        # It is nested too deeply to be compared with others.
        return f"deep {id(message)}"


def _find_role(message: object) -> str:
    role = message.get("role") if isinstance(message, dict) else None
    return role if isinstance(role, str) else ""


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


HARNESS = replace(
    pi.HARNESS,
    name="pi_stream",
    about="what Pi prints in JSON mode",
    recognises=recognises,
    may_begin=None,
    read_header=read_header,
    read=read,
    decoder=OBJECT,
    build=return_unchanged,
    sample="""\
{"type": "session", "id": "s", "cwd": "/w/app"}
{"type": "message_end", "message": {"role": "user",\
 "content": "Fix the failing test of the parser."}}
{"type": "message_end", "message": {"role": "assistant", "content": [{"type": "toolCall",\
 "id": "c", "name": "bash", "arguments": {"command": "npm test"}}]}}
{"type": "message_end", "message": {"role": "toolResult", "toolCallId": "c", "toolName": "bash",\
 "isError": true, "content": "AssertionError: expected 1"}}
""",
)
