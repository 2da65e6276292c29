"""Read Codex rollouts, files of items (the model's conversation) and events (the session).

Messages of the user and the agent are recorded as an item and again as an event. Files of the first
versions in 2025 contain only bare items.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import blocks
from pimono_sdpo.traces.harness.base import Entry, Harness, keep_fields
from pimono_sdpo.traces.harness.blocks import to_object, to_text

_FIELDS = (
    "type id cwd timestamp message role content call_id name arguments action input output source"
    " reason num_turns instructions"
)
_DECODER = msgspec.json.Decoder(keep_fields(_FIELDS, payload=keep_fields(_FIELDS) | None))
_WRAPPERS = frozenset({"session_meta", "turn_context", "response_item", "event_msg", "compacted"})
_CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
_RESULTS = frozenset(f"{call}_output" for call in _CALLS)
_ITEM_BLOCKS = frozenset({"input_text", "output_text", "input_image"})
_IDE_REQUEST = "## My request for Codex:"
PART_CHARS = 20
_CWD = re.compile(r"(?:<cwd>|Current working directory: )([^<\n]{1,400})")
_IMAGE_TAG = re.compile(r"</?image\b[^<>\n]{0,400}>")
_HEAD = re.compile(r"(?:Chunk ID|Exit code|Wall time|Process exited with code)\b")
# Some versions repeat the command first.
_COMMAND_FIRST = re.compile(r"Command: .{1,20000}?\n(?=(?:Chunk ID|Wall time): )", re.DOTALL)
_EXIT = re.compile(r"^(?:Exit code:|Process exited with code) (-?\d{1,9})\s*$", re.MULTILINE)
_RUNNING = re.compile(r"^Process running with session ID (\S{1,80})\s*$", re.MULTILINE)
# Results without an exit code, by which the call itself failed.
_FAILED = re.compile(
    r"\s*(?:failed to |unable to |unsupported (?:custom tool )?call|execution error|sandbox error"
    r"|tool call error|(?:exec_command|write_stdin|apply_patch|shell)\b.{0,40}\bfailed"
    r"|command timed out|patch rejected: )"
)


@dataclass
class _State:
    """What was read so far, and the messages of the items and of the events."""

    item_texts: dict[str, set[str]] = field(default_factory=dict)
    typed_texts: set[str] = field(default_factory=set)
    # The texts that repeat a typed one, and the typed ones that they repeat.
    repeating: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)
    is_subagent: bool = False
    steps: blocks.Steps = field(default_factory=blocks.Steps)
    # Positions on the active branch, that is without the turns that were rolled back.
    active: list[int] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    commands: dict[str, str] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)


def recognises(entry: Entry) -> bool:
    """Recognise a wrapper line by its name and payload, a bare item by its shape."""
    kind = to_text(entry.get("type"))
    if kind in _WRAPPERS:
        return isinstance(entry.get("payload"), dict)
    if kind in _CALLS | _RESULTS:
        return isinstance(entry.get("call_id"), str)
    if kind == "message":
        types = {to_text(block.get("type")) for block in blocks.to_blocks(entry.get("content"))}
        return isinstance(entry.get("role"), str) and not types.isdisjoint(_ITEM_BLOCKS)
    return entry.get("record_type") == "state" or (kind == "reasoning" and isinstance(entry.get("summary"), list))


def read_header(objects: list[Entry]) -> tuple[str, str]:
    """Return the session id and the working directory; old files name it in a message."""
    metas = [_unwrap_payload(entry) for entry in objects if entry.get("type") == "session_meta"]
    bare = [entry for entry in objects if "type" not in entry and "instructions" in entry]
    contexts = [_unwrap_payload(entry) for entry in objects if entry.get("type") == "turn_context"]
    session_id = blocks.find_text(meta.get("id") for meta in (*metas, *bare))
    if folder := blocks.find_text(entry.get("cwd") for entry in (*metas, *contexts)):
        return session_id, folder
    texts = (blocks.join_text(_unwrap_payload(entry).get("content")) for entry in objects)
    match = next(filter(None, map(_CWD.search, texts)), None)
    return session_id, match[1] if match else ""


def read(objects: list[Entry]) -> list[Event]:
    """Return the events in file order; turns that were rolled back are marked."""
    state = _scan_messages(objects)
    events = state.steps.events
    for entry in objects:
        before = len(events)
        for event in _read_entry(entry, state):
            state.steps.add(event)
        for at in range(before, len(events)):
            events[at].timestamp = to_text(entry.get("timestamp"))
            state.active.append(at)
            state.requests += [at] if events[at].kind == "user" else []
    return blocks.finish_events(events)


def _unwrap_payload(entry: Entry) -> Entry:
    """Return the content of a wrapper, or a bare item itself."""
    return to_object(entry.get("payload")) if to_text(entry.get("type")) in _WRAPPERS else entry


def _scan_messages(objects: list[Entry]) -> _State:
    """Collect the messages of items and events, so that no message is read twice."""
    state = _State()
    for entry in objects:
        payload = _unwrap_payload(entry)
        if entry.get("type") == "event_msg":
            if payload.get("type") == "user_message":
                state.typed_texts.add(_strip_image_tags(to_text(payload.get("message"))))
        elif payload.get("type") == "message":
            text = _strip_image_tags(blocks.join_text(payload.get("content")))
            state.item_texts.setdefault(to_text(payload.get("role")), set()).add(text)
        elif entry.get("type") == "session_meta":
            state.is_subagent |= "subagent" in to_object(payload.get("source"))
    state.typed_texts.discard("")
    requests = state.item_texts.setdefault("user", set())
    # An event repeats a whole item, or a part of one that is too long to match by chance.
    state.repeating, state.repeated = requests & state.typed_texts, set(requests)
    for typed in (typed for typed in state.typed_texts if len(typed) > PART_CHARS):
        if containing := {text for text in requests if typed in text}:
            state.repeating |= containing
            state.repeated.add(typed)
    return state


def _strip_image_tags(text: str) -> str:
    """Remove the tags that stand for images."""
    return _IMAGE_TAG.sub("", text).strip()


def _read_entry(entry: Entry, state: _State) -> Iterator[Event]:
    payload = _unwrap_payload(entry)
    kind = to_text(payload.get("type"))
    if entry.get("type") == "event_msg":
        yield from _read_event(payload, kind, state)
    elif entry.get("type") == "compacted":
        yield Event(0, "compaction", to_text(payload.get("message")))
    elif kind == "message":
        yield from _read_message(payload, state)
    elif kind in _CALLS:
        yield _read_call(payload, kind, state)
    elif kind in _RESULTS:
        result = _read_result(payload, state)
        yield result
        if blocks.is_refusal(result.text):
            state.steps.abort(result.call_id)
    elif kind == "web_search_call":
        yield Event(0, "tool_call", tool_name="web_search", arguments=blocks.dump_json(payload.get("action")))
    else:
        yield Event(0, "other")


def _read_event(payload: Entry, kind: str, state: _State) -> Iterator[Event]:
    """Read what only events contain: interruptions, errors, and messages that no item repeats."""
    message = to_text(payload.get("message"))
    text = _strip_image_tags(message)
    if kind == "error":
        yield Event(0, "assistant", message, stop_reason="error")
    elif kind == "agent_message" and text not in state.item_texts.get("assistant", ()):
        yield Event(0, "assistant", message)
    elif kind == "user_message" and text not in state.repeated:
        yield from _split_typed([message], True)
    else:
        yield Event(0, "other")
    if kind == "turn_aborted" and payload.get("reason") != "review_ended":
        state.steps.abort()
    elif kind == "thread_rolled_back" and state.requests:
        turns = payload.get("num_turns")
        if isinstance(turns, int) and turns >= 1:
            # The last turns leave the active branch.
            first = max(len(state.requests) - turns, 0)
            begin = state.requests[first]
            del state.requests[first:]
            while state.active and state.active[-1] >= begin:
                state.steps.events[state.active.pop()].on_active_branch = False


def _read_message(payload: Entry, state: _State) -> Iterator[Event]:
    content = payload.get("content")
    text = blocks.join_text(content)
    role = payload.get("role")
    if role == "assistant":
        yield Event(0, "assistant", text)
        return
    # If events repeat what was typed, the harness wrote every other message of the user.
    may_be_typed = not state.typed_texts or _strip_image_tags(text) in state.repeating
    # In a subagent, only the task counts as a request.
    typed = role == "user" and may_be_typed and not (state.is_subagent and state.requests)
    texts = [_IMAGE_TAG.sub("", text) for text in blocks.list_texts(content)]
    yield from _split_typed(texts, typed) or [Event(0, "other")]
    if blocks.is_interruption(text):
        state.steps.abort()


def _split_typed(texts: list[str], typed: bool) -> list[Event]:
    """Split off the text that the harness added, and the open files that an editor puts before the request."""
    requests = [text.rpartition(_IDE_REQUEST)[2].lstrip() for text in texts]
    return list(blocks.split_typed(filter(str.strip, requests), typed))


def _read_call(payload: Entry, kind: str, state: _State) -> Event:
    call_id = to_text(payload.get("call_id") or payload.get("id"))
    name = to_text(payload.get("name"))
    arguments: object = payload.get("arguments")
    if kind == "local_shell_call":
        name, arguments = "bash", payload.get("action")
    elif kind == "custom_tool_call":
        arguments = {"input": payload.get("input")}
    tool = blocks.normalise_tool(name)
    if name == "write_stdin":
        # The command is still running: this call returns more of its output.
        stdin = to_object(blocks.decode_text(arguments))
        session = stdin.get("session_id")
        command = state.running.get(str(session), "") if isinstance(session, int | str) else ""
        if "\x03" in to_text(stdin.get("chars")):
            state.stopped.add(call_id)
        elif command:
            tool, arguments = "bash", {"command": command, **stdin}
    text = blocks.normalise_arguments(tool, arguments)
    if tool == "bash":
        state.commands[call_id] = to_text(to_object(blocks.decode_text(text)).get("command"))
    return Event(0, "tool_call", call_id=call_id, tool_name=tool, arguments=text)


def _read_result(payload: Entry, state: _State) -> Event:
    call_id = to_text(payload.get("call_id") or payload.get("id"))
    # An output is text, JSON in a text, or an object.
    output = payload.get("output")
    inner = to_object(blocks.decode_text(output))
    code, failed = None, False
    if {"output", "content"} & inner.keys():
        recorded = to_object(inner.get("metadata")).get("exit_code")
        code = recorded if type(recorded) is int else None
        output, failed = inner.get("output") or inner.get("content"), inner.get("success") is False
    text = blocks.join_text(output)
    if repeated := _COMMAND_FIRST.match(text):
        text = text[repeated.end() :]
    has_head = _HEAD.match(text)
    is_shell = call_id in state.commands
    if has_head and is_shell and (running := _RUNNING.search(text[:400])):
        state.running[running[1]] = state.commands[call_id]
    head, separator, body = text.partition("Output:\n")
    if separator and has_head and "\n\n" not in head:
        exit_code = _EXIT.search(head)
        code = int(exit_code[1]) if exit_code else code
        text = body
    failed = failed or (code is None and bool(_FAILED.match(text)))
    if code and is_shell:
        text = f"{text.rstrip()}\n\nCommand exited with code {code}".lstrip()
    is_error = failed or (bool(code) and call_id not in state.stopped)
    return Event(0, "tool_result", text, call_id=call_id, is_error=is_error, exit_code=code)


HARNESS = Harness(
    name="codex",
    about="Codex rollouts, including those of the first versions in 2025",
    recognises=recognises,
    read_header=read_header,
    read=read,
    decoder=_DECODER,
    no_tools="their names and arguments differ from version to version",
    sample="""\
{"type": "session_meta", "payload": {"id": "s", "cwd": "/w/app"}}
{"type": "response_item", "payload": {"type": "message", "role": "user",\
 "content": [{"type": "input_text", "text": "Fix the failing test of the parser."}]}}
{"type": "response_item", "payload": {"type": "function_call", "call_id": "c", "name": "shell",\
 "arguments": {"command": ["bash", "-lc", "npm test"]}}}
{"type": "response_item", "payload": {"type": "function_call_output", "call_id": "c",\
 "output": {"output": "AssertionError: expected 1", "metadata": {"exit_code": 1}}}}
""",
)
