"""Read and write the Hub's Session Trace Simple Format: a header naming a harness, then messages.

Format: https://huggingface.co/docs/hub/session-traces-format. It also allows Pi's entries below
such a header, which are read like a Pi session.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import blocks, pi
from pimono_sdpo.traces.harness.base import Entry, Harness
from pimono_sdpo.traces.harness.blocks import to_object, to_text

# The columns of a rollout that `encode_session` reads.
ROLLOUT_COLUMNS = ("run_id", "suite", "model", "protocol", "test_policy", "messages", "tools", "steps")
# The fields of a result that say whether its call failed.
FLAGS = ("is_error", "isError", "error")
_ENCODER = msgspec.json.Encoder()
_STOPS = {**dict.fromkeys(("cancelled", "canceled", "interrupted"), "aborted"), "failed": "error"}


def recognises(entry: Entry) -> bool:
    """Recognise the header: a session that names its harness."""
    return entry.get("type") == "session" and bool(to_text(entry.get("harness")))


def read_header(objects: list[Entry]) -> tuple[str, str]:
    """Return the session id of the header, and the working directory if it has one."""
    entry = _find_header(objects)
    return to_text(entry.get("id")), to_text(entry.get("cwd"))


def _find_header(objects: list[Entry]) -> Entry:
    return next(filter(recognises, objects), {})


def read(objects: list[Entry]) -> list[Event]:
    """Return the events in file order."""
    if any(map(_is_pi, objects)):
        return pi.read(list(map(pi.build_entry, objects)))
    steps = blocks.Steps()
    for entry in objects:
        message = to_object(entry.get("message")) or entry
        timestamp = blocks.format_time(message.get("timestamp") or entry.get("timestamp"))
        for event in list(_read_message(message)) or [Event(0, "other")]:
            event.timestamp = timestamp
            steps.follow(event)
    return blocks.finish_events(steps.events)


def _is_pi(entry: Entry) -> bool:
    message = to_object(entry.get("message"))
    content = blocks.to_blocks(message.get("content"))
    has_role = entry.get("type") == "message" and message.get("role") in ("toolResult", "bashExecution")
    return has_role or any(block.get("type") == "toolCall" for block in content)


def _read_message(message: Entry) -> Iterator[Event]:
    role = to_text(message.get("role"))
    text = blocks.join_text(message.get("content"))
    if role == "assistant":
        stop = blocks.find_text(map(message.get, ("stopReason", "stop_reason", "finish_reason")))
        yield Event(0, "assistant", text, stop_reason=_STOPS.get(stop, stop))
        for call in blocks.to_blocks(message.get("toolCalls") or message.get("tool_calls") or []):
            function = to_object(call.get("function")) or call
            yield blocks.build_call(call.get("id"), function.get("name"), function.get("arguments"))
    elif role == "tool":
        flags = [message.get(key) for key in FLAGS]
        code = message.get("exitCode", message.get("exit_code"))
        code = code if type(code) is int else None
        yield Event(
            0,
            "tool_result",
            text or to_text(message.get("error")),
            call_id=blocks.find_text(map(message.get, ("toolCallId", "tool_call_id"))),
            is_error=bool(code) or any(flag is True or bool(to_text(flag)) for flag in flags),
            exit_code=code,
            lacks_status=code is None and not any(key in message for key in FLAGS),
        )
    elif role:
        yield from blocks.split_typed(blocks.list_texts(message.get("content")), role == "user")


def name_harness(row: Mapping[str, Any]) -> str:
    """Return the agent of a rollout, or the format that it was imported from."""
    if not row["test_policy"]:
        return str(row["suite"])
    # mini-swe-agent has one tool, our own agent several.
    return "mini-swe-agent" if len(row["tools"]) == 1 else "repo_agent"


def encode_session(row: Mapping[str, Any]) -> bytes:
    """Return a rollout as JSON lines; the arguments of its steps may be JSON text.

    In the json protocol, calls come from the steps, and the heading of their results is removed.
    """
    steps = {step["n_context"]: step for step in row["steps"] if step["name"]}
    header = {"type": "session", "harness": name_harness(row), "id": row["run_id"]}
    lines: list[Entry] = [{**header, "model": row["model"]}]
    is_json, failed = row["protocol"] == "json", None
    for at, turn in enumerate(row["messages"]):
        message = {"role": turn["role"], "content": turn["content"] or ""}
        if failed is not None:
            message |= {"role": "tool", "toolCallId": f"call_{at - 1}", "isError": failed}
            if is_json:
                message["content"] = message["content"].removeprefix("[tool_result]\n")
        failed = None
        if step := steps.get(at):
            failed = not step["ok"] or step["tests_ok"] is False
            args = step["args"]
            text = args if isinstance(args, str) else _ENCODER.encode(args).decode()
            message["toolCalls"] = [{"id": f"call_{at}", "function": {"name": step["name"], "arguments": text}}]
            if is_json:
                message["content"] = ""
        lines.append({"type": "message", "message": message})
    return _ENCODER.encode_lines(lines)


HARNESS = Harness(
    name="simple",
    about="the Hub's Session Trace Simple Format; rows name the harness in its header",
    recognises=recognises,
    read_header=read_header,
    read=read,
    recorder_of=lambda objects: to_text(_find_header(objects).get("harness")),
    sample="""\
{"type": "session", "harness": "simple", "id": "s", "cwd": "/w/app"}
{"message": {"role": "user", "content": "Fix the failing test of the parser."}}
{"message": {"role": "assistant", "toolCalls": [{"id": "c",\
 "function": {"name": "bash", "arguments": {"command": "npm test"}}}]}}
{"message": {"role": "tool", "toolCallId": "c", "isError": true,\
 "content": "AssertionError: expected 1"}}
""",
)
