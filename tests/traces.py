"""Short hands for writing Pi sessions in tests."""

import json
from typing import Any

Entry = dict[str, Any]

HEADER: Entry = {"type": "session", "version": 3, "id": "s-1", "cwd": "/home/ann/app"}


def user(text: str, **entry: Any) -> Entry:
    return {"type": "message", "message": {"role": "user", "content": text}, **entry}


def assistant(text: str = "", stop: str = "stop", **entry: Any) -> Entry:
    content = [{"type": "text", "text": text}] if text else []
    message = {"role": "assistant", "content": content, "stopReason": stop}
    return {"type": "message", "message": message, **entry}


def call(name: str, call_id: str = "c1", **arguments: Any) -> Entry:
    block = {"type": "toolCall", "id": call_id, "name": name, "arguments": arguments}
    message = {"role": "assistant", "content": [block], "stopReason": "toolUse"}
    return {"type": "message", "message": message}


def result(name: str, text: str, error: bool = False, call_id: str = "c1", **extra: Any) -> Entry:
    message = {
        "role": "toolResult",
        "toolCallId": call_id,
        "toolName": name,
        "content": [{"type": "text", "text": text}],
        "isError": error,
        **extra,
    }
    return {"type": "message", "message": message}


def bash(command: str, output: str, error: bool = False, call_id: str = "c1") -> list[Entry]:
    return [call("bash", call_id, command=command), result("bash", output, error, call_id)]


def trace(*entries: Entry) -> str:
    return "\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
