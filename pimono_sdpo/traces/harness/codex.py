"""Read Codex rollouts, files of items (the model's conversation) and events (the session), and `codex exec --json`.

Messages of the user and the agent are recorded as an item and again as an event. Files of the first
versions in 2025 contain only bare items. In code mode the model writes scripts; what they ran follows
as completed items, or can only be read from their source in files without these.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pimono_sdpo.traces.events import Event, decode_json
from pimono_sdpo.traces.harness import blocks
from pimono_sdpo.traces.harness.base import (
    TEXT,
    Entry,
    Harness,
    Tool,
    describe_arguments,
    describe_list,
    describe_object,
    find_home,
    keep_fields,
)
from pimono_sdpo.traces.harness.blocks import to_object, to_text
from pimono_sdpo.traces.harness.scripts import read_calls

_FIELDS = (
    "type id cwd timestamp message role content call_id name namespace arguments action input output source"
    " reason num_turns instructions metadata internal_chat_message_metadata_passthrough"
    " cli_version thread_id error status success exit_code process_id"
)
# Often large, and decoded only where no other line says the same.
_LATE = dict.fromkeys("item command aggregated_output stdout stderr changes invocation result".split(), msgspec.Raw)
_DECODER = msgspec.json.Decoder(keep_fields(_FIELDS, **_LATE, payload=keep_fields(_FIELDS, **_LATE) | None))
_ANY = msgspec.json.Decoder()
_ITEM = msgspec.json.Decoder(
    keep_fields(
        "type id content text source command aggregated_output stdout stderr exit_code process_id status changes"
        " server tool namespace arguments result error content_items success query"
    )
)
_WRAPPERS = frozenset({"session_meta", "turn_context", "response_item", "event_msg", "compacted"})
_CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
_RESULTS = frozenset(f"{call}_output" for call in _CALLS)
# The events of older versions that say the same as a completed item, and the items of `codex exec --json`.
_ENDED = {"exec_command_end": "CommandExecution", "patch_apply_end": "FileChange", "mcp_tool_call_end": "McpToolCall"}
_STREAMED = {
    "agent_message": "AgentMessage", "command_execution": "CommandExecution", "file_change": "FileChange",
    "mcp_tool_call": "McpToolCall", "web_search": "WebSearch",
}  # fmt: skip
_RAN = frozenset({*_ENDED.values(), "DynamicToolCall"})
_OPENED = frozenset({"item_completed", "item.completed"})
_COMPLETED = _OPENED | _ENDED.keys()
_SCANNED = frozenset({"message", "user_message", "turn_aborted"}) | _CALLS | _RESULTS | _COMPLETED
# Other types that are read; lines that wrap something without a type may be a compaction.
_READ = _SCANNED | {"", "agent_message", "error", "thread_rolled_back", "turn.failed", "web_search_call"}
_SCRIPT, _WAIT = "exec", "wait"
# The kinds of content that a version recorded for which it did not know better, and for typed text.
_UNKNOWN, _USER_TEXT = "unknown", "user.text"
_DECLINED = "exec command rejected by user"
# The exit code of a process that Codex killed.
_KILLED = -1
_RESULT_KEYS = frozenset("output exit_code session_id chunk_id wall_time_seconds original_token_count".split())
_NUMBER = re.compile(r"\b\d{2,9}\b")
_BACK = 100
_ITEM_BLOCKS = frozenset({"input_text", "output_text", "input_image"})
_IDE_REQUEST = "## My request for Codex:"
PART_CHARS = 20
_CWD = re.compile(r"(?:<cwd>|Current working directory: )([^<\n]{1,400})")
_IMAGE_TAG = re.compile(r"</?image\b[^<>\n]{0,400}>")
_REPLY = re.compile(r"\s*<send_user_message_question_reply>(.*)</send_user_message_question_reply>\s*\Z", re.DOTALL)
_HEAD = re.compile(r"(?:Chunk ID|Exit code|Wall time|Process exited with code)\b")
# Some versions repeat the command first.
_COMMAND_FIRST = re.compile(r"Command: .{1,20000}?\n(?=(?:Chunk ID|Wall time): )", re.DOTALL)
_EXIT = re.compile(r"^(?:Exit code:|Process exited with code) (-?\d{1,9})\s*$", re.MULTILINE)
_RUNNING = re.compile(r"^Process running with session ID (\S{1,80})\s*$", re.MULTILINE)
_SCRIPT_HEAD = re.compile(
    r"Script (completed|failed|terminated|running with cell ID (\S{1,80}))\nWall time [\d.]{1,20} seconds\nOutput:\n"
)
_SCRIPT_ERROR = "Script error:\n"
# Results without an exit code, by which the call itself failed.
_FAILED = re.compile(
    r"\s*(?:failed to |unable to |unsupported (?:custom tool )?call|execution error|sandbox error"
    r"|tool call error|(?:exec_command|write_stdin|apply_patch|shell)\b.{0,40}\bfailed"
    r"|command timed out|patch rejected: )"
)


class _Call(NamedTuple):
    """A call that a script made: the terminal that it writes to, and the item that says how it ended, if any."""

    id: str
    tool: str
    arguments: str
    terminal: str = ""
    item: Entry | None = None


@dataclass
class _Script:
    """A script of code mode: its source, the items and texts that followed, and the call whose output ends it."""

    source: str
    made: list[tuple[str, Any]] | None
    items: list[Entry] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    status: str = ""
    cell: str = ""
    end: str = ""
    calls: list[_Call] = field(default_factory=list)


@dataclass
class _State:
    """What was read so far, and the messages of the items and of the events."""

    # Of each line what it wraps, and the type of that.
    payloads: list[Entry] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
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
    commands: dict[str, _Call] = field(default_factory=dict)
    # The command of each terminal that is still open.
    running: dict[str, str] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    # The completed items by line, by the id of a call that is a line itself, and by terminal.
    items: dict[int, Entry] = field(default_factory=dict)
    recorded: dict[str, Entry] = field(default_factory=dict)
    terminals: dict[str, Entry] = field(default_factory=dict)
    # The script of each call that runs one or waits for one, and the calls of scripts by their items.
    scripts: dict[str, _Script] = field(default_factory=dict)
    planned: dict[str, _Call] = field(default_factory=dict)
    # Commands of scripts that had not ended with the script, and the terminals of those that then did.
    pending: Counter[str] = field(default_factory=Counter)
    ended: dict[str, Entry] = field(default_factory=dict)
    # The choices that each question offered.
    options: dict[str, list[str]] = field(default_factory=dict)


def recognises(entry: Entry) -> bool:
    """Recognise a message, a call or a result: in a wrapper, bare, or as a line of `codex exec --json`."""
    kind, payload = to_text(entry.get("type")), to_object(entry.get("payload"))
    inner = to_text(payload.get("type"))
    if kind == "event_msg":
        return inner in {"user_message", "agent_message", "item_completed"}
    if kind == "response_item":
        return inner == "message" or inner in _CALLS | _RESULTS
    if kind == "item.completed":
        return to_text(to_object(entry.get("item")).get("type")) in _STREAMED
    if kind in _CALLS | _RESULTS:
        return isinstance(entry.get("call_id"), str)
    types = {to_text(block.get("type")) for block in blocks.to_blocks(entry.get("content"))}
    return kind == "message" and isinstance(entry.get("role"), str) and not types.isdisjoint(_ITEM_BLOCKS)


def read_header(objects: list[Entry]) -> tuple[str, str]:
    """Return the session id and the working directory; old files name it in a message."""
    metas = [_unwrap_payload(entry) for entry in objects if entry.get("type") == "session_meta"]
    bare = [entry for entry in objects if "type" not in entry and "instructions" in entry]
    contexts = [_unwrap_payload(entry) for entry in objects if entry.get("type") == "turn_context"]
    threads = (entry.get("thread_id") for entry in objects if entry.get("type") == "thread.started")
    session_id = blocks.find_text(chain((meta.get("id") for meta in (*metas, *bare)), threads))
    if folder := blocks.find_text(entry.get("cwd") for entry in (*metas, *contexts)):
        return session_id, folder
    texts = (blocks.join_text(_unwrap_payload(entry).get("content")) for entry in objects)
    match = next(filter(None, map(_CWD.search, texts)), None)
    return session_id, match[1] if match else ""


def read(objects: list[Entry]) -> list[Event]:
    """Return the events in file order; turns that were rolled back are marked."""
    state = _scan(objects)
    events = state.steps.events
    for position, (entry, payload, kind) in enumerate(zip(objects, state.payloads, state.kinds, strict=True)):
        before, timestamp = len(events), to_text(entry.get("timestamp"))
        if kind in _READ:
            for event in _read_entry(position, entry, payload, kind, state):
                state.steps.add(event)
        else:
            events.append(Event(0, "other"))
        for at in range(before, len(events)):
            events[at].timestamp = timestamp
            state.active.append(at)
            if events[at].kind == "user":
                state.requests.append(at)
    return blocks.finish_events(events)


def _unwrap_payload(entry: Entry) -> Entry:
    """Return the content of a wrapper, or a bare item itself."""
    return to_object(entry.get("payload")) if to_text(entry.get("type")) in _WRAPPERS else entry


def _open(value: Any, decoder: msgspec.json.Decoder[Any] = _ANY) -> Any:
    """Decode a value that was left undecoded; None for what the decoder refuses."""
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return decoder.decode(value)
    except msgspec.ValidationError:
        # An item that is not an object.
        return None


def _scan(objects: list[Entry]) -> _State:
    """Collect messages, so that none is read twice, and for each script what it ran and returned."""
    state = _State()
    # The scripts that have not returned yet, and those that returned while they went on in a cell.
    open_scripts: dict[str, _Script] = {}
    cells: dict[str, _Script] = {}
    for position, entry in enumerate(objects):
        payload = _unwrap_payload(entry)
        kind = to_text(payload.get("type"))
        state.payloads.append(payload)
        state.kinds.append(kind)
        if kind not in _SCANNED:
            if entry.get("type") == "session_meta":
                state.is_subagent |= "subagent" in to_object(payload.get("source"))
            continue
        call_id = to_text(payload.get("call_id"))
        if kind == "message":
            text = _strip_image_tags(blocks.join_text(payload.get("content")))
            state.item_texts.setdefault(to_text(payload.get("role")), set()).add(text)
        elif kind in _CALLS:
            state.recorded.setdefault(call_id, {})
            if script := _find_script(payload, kind, cells):
                state.scripts[call_id] = open_scripts[call_id] = script
        elif kind in _RESULTS:
            if script := open_scripts.get(call_id):
                _add_output(script, payload)
                if script.status:
                    del open_scripts[call_id]
                    cells = {cell: one for cell, one in cells.items() if one is not script}
                    cells |= {script.cell: script} if script.cell else {}
        elif kind == "user_message" and entry.get("type") == "event_msg":
            state.typed_texts.add(_strip_image_tags(to_text(payload.get("message"))))
        elif kind in _COMPLETED:
            item = state.items[position] = _find_item(payload, kind)
            if item["type"] == "UserMessage":
                state.typed_texts.add(_strip_image_tags(blocks.join_text(item.get("content"))))
            elif item["type"] in _RAN:
                _assign(item, state, [*open_scripts.values()] or [*cells.values()])
        elif kind == "turn_aborted":
            open_scripts, cells = {}, {}
    state.typed_texts.discard("")
    requests = state.item_texts.setdefault("user", set())
    # An event repeats a whole item, or a part of one that is too long to match by chance.
    state.repeating, state.repeated = requests & state.typed_texts, set(requests)
    for typed in (typed for typed in state.typed_texts if len(typed) > PART_CHARS):
        if containing := {text for text in requests if typed in text}:
            state.repeating |= containing
            state.repeated.add(typed)
    return state


def _find_script(payload: Entry, kind: str, cells: dict[str, _Script]) -> _Script | None:
    """Return the script that a call runs, or that it waits for; None for any other call."""
    if kind == "custom_tool_call" and payload.get("name") == _SCRIPT:
        source = to_text(payload.get("input"))
        return _Script(source, read_calls(source))
    if cells and payload.get("name") == _WAIT:
        return cells.get(str(to_object(blocks.decode_text(payload.get("arguments"))).get("cell_id")))
    return None


def _add_output(script: _Script, payload: Entry) -> None:
    """Add what a script returned, perhaps not for the last time."""
    script.end = to_text(payload.get("call_id"))
    first, *parts = blocks.list_texts(payload.get("output")) or [""]
    # Without a head, a notice of a script that goes on.
    head = _SCRIPT_HEAD.match(first)
    script.status, script.cell = (head[1].partition(" ")[0], head[2] or "") if head else ("", "")
    script.parts += filter(None, (first[head.end() :] if head else first, *parts))


def _find_item(payload: Entry, kind: str) -> Entry:
    """Return the item that a line says is completed."""
    if kind in _ENDED:
        return {**payload, "type": _ENDED[kind], "id": payload.get("call_id")}
    item = to_object(_open(payload.get("item"), _ITEM))
    named = to_text(item.get("type"))
    return {**item, "type": _STREAMED.get(named, named), "is_streamed": kind == "item.completed"}


def _assign(item: Entry, state: _State, scripts: list[_Script]) -> None:
    """Assign what was run to the recorded call, or to the script that ran it."""
    item_id = to_text(item.get("id"))
    if terminal := to_text(item.get("process_id")):
        state.terminals[terminal] = item
    if item_id in state.recorded:
        state.recorded[item_id] = item
    elif scripts and item.get("source") != "user_shell":
        fitting = (script for script in scripts if any(_fits(name, given, item) for name, given in script.made or ()))
        next(fitting, scripts[-1]).items.append(item)


def _fits(name: str, given: Any, item: Entry) -> bool:
    """Check whether an item is that of a call in a script."""
    if item["type"] == "FileChange":
        return name == "apply_patch"
    if item["type"] != "CommandExecution":
        return name == _name_tool(item)
    if name == "write_stdin":
        return str(to_object(given).get("session_id")) == to_text(item.get("process_id"))
    return blocks.normalise_tool(name) == "bash" and _find_command({"command": given}) == _find_command(item)


def _find_command(item: Entry) -> str:
    """Return the command line of an item or of arguments, without an outer shell."""
    given = _open(item.get("command"))
    arguments = decode_json(
        blocks.normalise_arguments("bash", given if isinstance(given, dict) else {"command": given})
    )
    return to_text(to_object(arguments).get("command"))


def _name_tool(item: Entry) -> str:
    """Return the name by which a script calls the tool of an item."""
    named = to_object(_open(item.get("invocation"))) or item
    server, tool = to_text(named.get("server")), to_text(named.get("tool"))
    return re.sub(r"\W", "_", f"mcp__{server}__{tool}") if server else tool


def _strip_image_tags(text: str) -> str:
    """Remove the tags that stand for images."""
    return _IMAGE_TAG.sub("", text).strip()


def _read_entry(position: int, entry: Entry, payload: Entry, kind: str, state: _State) -> Iterator[Event]:
    if item := state.items.get(position):
        yield from _read_item(item, state)
    elif entry.get("type") == "event_msg":
        yield from _read_event(payload, kind, state)
    elif entry.get("type") == "compacted":
        yield Event(0, "compaction", to_text(payload.get("message")))
    elif kind == "message":
        yield from _read_message(payload, to_object(entry.get("metadata")), state)
    elif script := state.scripts.get(call_id := to_text(payload.get("call_id"))):
        if kind == "custom_tool_call":
            script.calls = _list_calls(script, call_id, state)
            for call in script.calls:
                yield Event(0, "tool_call", call_id=call.id, tool_name=call.tool, arguments=call.arguments)
        elif script.end == call_id and kind in _RESULTS:
            yield from _end_script(script, state)
        else:
            yield Event(0, "other")
    elif kind in _CALLS:
        yield _read_call(payload, kind, state)
    elif kind in _RESULTS:
        yield from _read_result(payload, state)
    elif kind == "web_search_call":
        yield Event(0, "tool_call", tool_name="web_search", arguments=blocks.dump_json(payload.get("action")))
    elif kind in {"turn.failed", "error"}:
        error = to_object(payload.get("error")) or payload
        yield Event(0, "assistant", to_text(error.get("message")), stop_reason="error")
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
        yield from _split_typed([message], state)
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


def _read_item(item: Entry, state: _State) -> Iterator[Event]:
    """Read a completed item: a result, a message that no other line repeats, or what the user ran."""
    kind, item_id = item["type"], to_text(item.get("id"))
    texts = [to_text(block.get("text")) for block in blocks.to_blocks(item.get("content") or item.get("text"))]
    text = _strip_image_tags("\n".join(texts))
    if kind in _RAN and item_id not in state.recorded:
        yield from _read_run(item, item_id, state)
    elif kind == "UserMessage" and text not in state.repeated:
        yield from _split_typed(texts, state)
    elif kind == "AgentMessage" and text not in state.item_texts.get("assistant", ()):
        yield Event(0, "assistant", text)
    elif kind == "WebSearch" and item["is_streamed"]:
        yield Event(0, "tool_call", tool_name="web_search", arguments=blocks.dump_json({"query": item.get("query")}))
    else:
        yield Event(0, "other")


def _read_run(item: Entry, item_id: str, state: _State) -> Iterator[Event]:
    """Read the end of something that no line but this one or a script has run."""
    call = state.planned.get(item_id)
    if call is None and item.get("source") == "user_shell":
        text, code, _ = _read_end(item)
        command = _find_command(item)
        yield Event(0, "bash", text, tool_name="bash", arguments=command, exit_code=code, is_error=bool(code))
        return
    if call is None:
        if _take_pending(item, state):
            # It ran on behind a script, and the agent may still ask for its end.
            state.ended[to_text(item.get("process_id"))] = item
            yield Event(0, "other")
            return
        call = _build_call(item)
        yield Event(0, "tool_call", call_id=call.id, tool_name=call.tool, arguments=call.arguments)
    yield from _build_result(call.id, *_read_end(item), call.tool == "bash", state)


def _read_end(item: Entry) -> tuple[str, int | None, bool]:
    """Return the text and the exit code of an item, and whether it failed."""
    status, code = to_text(item.get("status")), item.get("exit_code")
    code = code if type(code) is int else None
    output, out, err = (to_text(_open(item.get(key))) for key in ("aggregated_output", "stdout", "stderr"))
    failed = item.get("success") is False or (status == "failed" and code is None)
    text = output or (err or out if failed and item["type"] == "FileChange" else "\n".join(filter(None, (out, err))))
    if item["type"] in {"McpToolCall", "DynamicToolCall"}:
        result = to_object(_open(item.get("result")))
        error = item.get("error") or result.get("Err")
        result = to_object(result.get("Ok")) or result
        shown = blocks.to_blocks(result.get("content") or item.get("content_items"))
        texts = (to_text(block.get("text")) for block in shown)
        message = to_text(to_object(error).get("message")) or to_text(error)
        text = "\n".join(filter(None, texts)) or message
        failed = failed or bool(message) or result.get("isError") is True
    return (_DECLINED, None, False) if status == "declined" else (text, code, failed)


def _build_call(item: Entry) -> _Call:
    """Build the call of an item for which there is no other record of it."""
    item_id = to_text(item.get("id"))
    if item["type"] == "CommandExecution":
        return _Call(item_id, "bash", blocks.dump_json({"command": _find_command(item)}), item=item)
    if item["type"] == "FileChange":
        return _Call(item_id, "edit", blocks.dump_json({"input": _write_patch(_open(item.get("changes")))}), item=item)
    named = to_object(_open(item.get("invocation"))) or item
    tool = blocks.normalise_tool(_name_tool(item))
    return _Call(item_id, tool, blocks.normalise_arguments(tool, named.get("arguments") or {}), item=item)


def _write_patch(changes: object) -> str:
    """Write changes of files as the patch that makes them."""
    if isinstance(changes, list):
        # A stream only lists the files.
        changes = {to_text(one.get("path")): {**one, "type": one.get("kind")} for one in map(to_object, changes)}
    lines = ["*** Begin Patch"]
    for path, change in to_object(changes).items():
        change = to_object(change)
        kind = to_text(change.get("type")).capitalize()
        lines.append(f"*** {kind} File: {path}")
        if target := to_text(change.get("move_path")):
            lines.append(f"*** Move to: {target}")
        if kind == "Add":
            lines += (f"+{line}" for line in to_text(change.get("content")).splitlines())
        elif kind == "Update":
            diff = to_text(change.get("unified_diff")).splitlines()
            lines += ("@@" if line.startswith("@@") else line for line in diff if line[:4] not in {"--- ", "+++ "})
    return "\n".join([*lines, "*** End Patch"])


def _list_calls(script: _Script, call_id: str, state: _State) -> list[_Call]:
    """Return the calls of a script: those of its source with their items, and what else it ran; else the script."""
    made, left = script.made or [], list(script.items)
    calls = []
    for number, (name, given) in enumerate(made):
        item = next((one for one in left if _fits(name, given, one)), None)
        left = [one for one in left if one is not item]
        own = f"{call_id}/{number}" if len(made) > 1 else call_id
        calls.append(_name_call(to_text(item.get("id")) if item else own, name, given, state)._replace(item=item))
    left = [item for item in left if not _take_pending(item, state)]
    loose = [at for at, call in enumerate(calls) if call.tool == "bash" and call.item is None]
    if len(loose) == len(left) == 1 and left[0]["type"] == "CommandExecution":
        # The same command, written in another way.
        calls[loose[0]] = calls[loose[0]]._replace(id=to_text(left[0].get("id")), item=left.pop())
    calls += map(_build_call, left)
    has_no_items = all(call.item is None for call in calls)
    if len(calls) > 1 and has_no_items and len(script.parts) not in {len(calls), 0} and script.status != "failed":
        # Nobody can tell which of them printed what.
        lines = [_read_line(call) for call in calls]
        one = blocks.dump_json({"command": "\n".join(lines)})
        calls = [_Call(call_id, "bash", one)] if all(lines) else []
    if not calls or (script.status == "failed" and not any(call.item is None for call in calls)):
        calls.append(_Call(call_id, _SCRIPT, blocks.dump_json({"input": script.source})))
    for call in calls:
        if call.item:
            state.planned[call.id] = call
            if script.status != "completed" and call.item.get("exit_code") == _KILLED:
                state.stopped.add(call.id)
            if call.terminal:
                _take_pending(call.item, state)
        elif call.tool == "bash" and not call.terminal:
            state.pending[_read_line(call)] += 1
    return calls


def _take_pending(item: Entry, state: _State) -> bool:
    """Check whether an item is that of a command which had not ended with its script; then it has now."""
    command = _find_command(item)
    terminals = [terminal for terminal, line in state.running.items() if line == command]
    is_pending = state.pending[command] > 0 and (not terminals or to_text(item.get("process_id")) in terminals)
    state.pending[command] -= is_pending
    return is_pending


def _read_line(call: _Call) -> str:
    return to_text(to_object(decode_json(call.arguments)).get("command")) if call.tool == "bash" else ""


def _end_script(script: _Script, state: _State) -> Iterator[Event]:
    """Give the calls of a script that have no item of their own what the script returned."""
    loose = [call for call in script.calls if call.item is None]
    parts, error = script.parts, ""
    if script.status == "failed" and parts:
        parts, error = parts[:-1], parts[-1].removeprefix(_SCRIPT_ERROR)
    # Each call prints before the next one is made.
    broken = min(len(parts), len(loose) - 1) if error else len(loose)
    if len(script.calls) == 1:
        parts = ["\n".join(parts)]
    elif not error and len(parts) != len(script.calls):
        parts = []
    own = {call.id: part for call, part in zip(script.calls, parts, strict=False)}
    for call in loose[:broken]:
        yield from _build_loose(call, own.get(call.id, ""), script, state)
    for call in loose[broken : broken + 1]:
        yield from _build_result(call.id, error, None, True, call.tool == "bash", state)
    if not loose:
        yield Event(0, "other")


def _build_loose(call: _Call, text: str, script: _Script, state: _State) -> Iterator[Event]:
    """Build the result of a call from what its script printed: the output, or the result as JSON."""
    fields = decode_json(text) if text[:1] == "{" else None
    code = terminal = None
    if isinstance(fields, dict) and isinstance(fields.get("output"), str) and fields.keys() <= _RESULT_KEYS:
        text, code, terminal = to_text(fields["output"]), fields.get("exit_code"), fields.get("session_id")
    elif call.tool == "edit" and text == "{}":
        text = ""
    is_shell = call.tool == "bash"
    if is_shell and code is None and call.terminal in state.ended:
        code = state.ended[call.terminal].get("exit_code")
    code = code if type(code) is int else None
    if is_shell and code is None:
        named = [str(terminal)] if terminal is not None else []
        # Scripts print the number of the terminal if the command goes on.
        named += _NUMBER.findall(script.parts[-1][-_BACK:]) if "session_id" in script.source and script.parts else []
        state.running |= dict.fromkeys(named, _read_line(call))
    is_running = terminal is not None or script.status == "running"
    failed = code is None and bool(_FAILED.match(text))
    for event in _build_result(call.id, text, code, failed, is_shell, state):
        event.lacks_status = is_shell and code is None and not is_running
        yield event


def _read_message(payload: Entry, metadata: Entry, state: _State) -> Iterator[Event]:
    """Read a message; a record of who wrote it goes before its wording."""
    content = blocks.to_blocks(payload.get("content"))
    text = blocks.join_text(content)
    role = payload.get("role")
    if role == "assistant":
        yield Event(0, "assistant", text)
        return
    passed = to_object(payload.get("internal_chat_message_metadata_passthrough"))
    recorded = passed.get("content_item_kinds")
    kinds = [*map(to_text, recorded)] if isinstance(recorded, list) and len(recorded) == len(content) else []
    # If events repeat what was typed, the harness wrote every other message of the user.
    may_be_typed = not state.typed_texts or _strip_image_tags(text) in state.repeating
    may_be_typed &= metadata.get("client_authored") is not False
    # In a subagent, only the task counts as a request.
    is_user = role == "user" and not (state.is_subagent and state.requests)
    texts: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for block, kind in zip(content, kinds or [_UNKNOWN] * len(content), strict=True):
        said = kind == _USER_TEXT if kind != _UNKNOWN else None if may_be_typed else False
        texts[said if is_user else False] += [_IMAGE_TAG.sub("", one) for one in blocks.list_texts([block])]
    written = list(blocks.split_typed(texts[False], False)) if any(texts[False]) else []
    written += _split_typed(texts[True], state, True) + _split_typed(texts[None], state)
    yield from written or [Event(0, "other")]
    if blocks.is_interruption(text):
        state.steps.abort()


def _split_typed(texts: list[str], state: _State, is_recorded: bool = False) -> list[Event]:
    """Split off the text that the harness added, and the open files that an editor puts before the request."""
    requests = []
    for text in texts:
        reply = _REPLY.match(text)
        requests.append(_read_reply(reply[1], state) if reply else text.rpartition(_IDE_REQUEST)[2].lstrip())
    requests = [text for text in requests if text.strip()]
    if is_recorded and requests:
        return [Event(0, "user", "\n".join(requests))]
    return list(blocks.split_typed(requests))


def _read_reply(text: str, state: _State) -> str:
    """Return what the user wrote in reply to questions of the agent, without the options that were chosen."""
    answers = decode_json(text)
    said = []
    for one in map(to_object, answers if isinstance(answers, list) else []):
        asked = decode_json(to_text(one.get("questionItemId")))
        options = state.options.get(to_text(asked[1]), []) if isinstance(asked, list) and len(asked) > 1 else []
        said += [answer] if (answer := to_text(one.get("answer"))) not in options else []
    return "\n".join(said)


def _read_call(payload: Entry, kind: str, state: _State) -> Event:
    call_id = to_text(payload.get("call_id") or payload.get("id"))
    name = "__".join(filter(None, (to_text(payload.get("namespace")).rstrip("_"), to_text(payload.get("name")))))
    arguments: object = payload.get("arguments")
    if kind == "local_shell_call":
        name, arguments = "bash", payload.get("action")
    elif kind == "custom_tool_call":
        arguments = payload.get("input")
    call = _name_call(call_id, name, arguments, state, kind == "custom_tool_call")
    if call.tool == "bash":
        state.commands[call_id] = call
    return Event(0, "tool_call", call_id=call_id, tool_name=call.tool, arguments=call.arguments)


def _name_call(call_id: str, name: str, given: Any, state: _State, is_freeform: bool = False) -> _Call:
    """Return a call with our name of its tool; a text that goes to a terminal goes on with the command there."""
    tool, terminal = blocks.normalise_tool(name), ""
    if is_freeform or (tool == "edit" and isinstance(given, str)):
        given = {"input": given}
    if name == "write_stdin":
        stdin = to_object(blocks.decode_text(given))
        terminal = str(stdin.get("session_id"))
        command = state.running.get(terminal) or _find_command(state.terminals.get(terminal, {}))
        if "\x03" in to_text(stdin.get("chars")):
            state.stopped.add(call_id)
        elif command:
            # The command is still running: this call returns more of its output.
            tool, given = "bash", {"command": command, **stdin}
    elif name.startswith("request_user_input"):
        questions = blocks.to_blocks(to_object(blocks.decode_text(given)).get("questions"))
        options = [one for question in questions for one in blocks.to_blocks(question.get("options"))]
        state.options[call_id] = [to_text(one.get("label") or one.get("text")) for one in options]
    return _Call(call_id, tool, blocks.normalise_arguments(tool, given), terminal)


def _read_result(payload: Entry, state: _State) -> Iterator[Event]:
    call_id = to_text(payload.get("call_id") or payload.get("id"))
    # An output is text, JSON in a text, or an object.
    output = payload.get("output")
    inner = to_object(blocks.decode_text(output))
    code, failed = None, False
    if {"output", "content"} & inner.keys():
        recorded = to_object(inner.get("metadata")).get("exit_code")
        code = recorded if type(recorded) is int else None
        output, failed = inner.get("output") or inner.get("content"), inner.get("success") is False
        failed = failed or inner.get("isError") is True
    text = blocks.join_text(output)
    if repeated := _COMMAND_FIRST.match(text):
        text = text[repeated.end() :]
    has_head = _HEAD.match(text)
    is_shell = call_id in state.commands
    running = _RUNNING.search(text[:400]) if has_head and is_shell else None
    if running:
        state.running[running[1]] = _read_line(state.commands[call_id])
    head, separator, body = text.partition("Output:\n")
    if separator and has_head and "\n\n" not in head:
        exit_code = _EXIT.search(head)
        code = int(exit_code[1]) if exit_code else code
        text = body
    if item := state.recorded.get(call_id):
        _, ended, broke = _read_end(item)
        code, failed = ended if code is None and not running else code, failed or broke
    failed = failed or (code is None and bool(_FAILED.match(text)))
    yield from _build_result(call_id, text, code, failed, is_shell, state)
    if "answers" in inner:
        # The text that the user wrote in reply to questions for which the agent waited.
        answers = [to_object(one).get("answers") for one in to_object(inner["answers"]).values()]
        options = state.options.get(call_id, ())
        if said := [one for given in answers for one in blocks.list_texts(given) if one not in options]:
            yield Event(0, "user", "\n".join(said))


def _build_result(
    call_id: str, text: str, code: int | None, failed: bool, is_shell: bool, state: _State
) -> Iterator[Event]:
    """Build a result; a turn that ends with a refusal is aborted."""
    code = None if call_id in state.stopped else code
    if code and is_shell:
        text = f"{text.rstrip()}\n\nCommand exited with code {code}".lstrip()
    yield Event(0, "tool_result", text, call_id=call_id, is_error=failed or bool(code), exit_code=code)
    if blocks.is_refusal(text):
        state.steps.abort(call_id)


def read_version(objects: list[Entry]) -> str:
    """Return the version of the first header, which is that of a fork itself."""
    return blocks.find_text(_unwrap_payload(entry).get("cli_version") for entry in objects)


def list_kinds(objects: list[Entry]) -> Iterator[str]:
    """Yield the type of each line and of what it wraps, and those of its item or the blocks of its message."""
    for entry in objects:
        kind, payload = entry.get("type", ""), entry.get("payload")
        if isinstance(payload, dict) and (inner := payload.get("type")):
            yield f"{kind}/{inner}"
        else:
            payload, inner = entry, kind
            yield f"{kind}"
        if inner == "message":
            for block in blocks.to_blocks(payload.get("content")):
                yield f"message:{block.get('type')}"
        elif to_text(inner) in _OPENED:
            yield f"{inner}:{to_object(_open(payload.get('item'), _ITEM)).get('type')}"


_OPTIONS = describe_list(describe_arguments("label description", "label description"))
_QUESTION = describe_arguments("id header question options", "id header question", options=_OPTIONS)
_ESCALATION = {"prefix_rule": describe_list(TEXT)}
# From codex-rs/tools of openai/codex; a shell has the command line that its events have.
TOOLS = {
    "bash": Tool(
        "Run a shell command and return its output, or the session of a command that goes on.",
        (
            describe_arguments(
                "command",
                "command workdir sandbox_permissions justification",
                "timeout_ms",
                "login with_escalated_permissions",
                **_ESCALATION,
            ),
            describe_arguments(
                "command",
                "command workdir shell sandbox_permissions justification",
                "yield_time_ms max_output_tokens",
                "login tty",
                **_ESCALATION,
            ),
        ),
    ),
    "edit": Tool(
        "Apply a patch to files, between *** Begin Patch and *** End Patch.", (describe_arguments("input", "input"),)
    ),
    "write_stdin": Tool(
        "Write to a command that goes on, and return its new output.",
        (describe_arguments("session_id", "chars", "session_id yield_time_ms max_output_tokens"),),
    ),
    "update_plan": Tool(
        "Replace the plan of the task.",
        (
            describe_arguments(
                "plan", "explanation", plan=describe_list(describe_arguments("step status", "step status"))
            ),
        ),
    ),
    "view_image": Tool("Look at an image file.", (describe_arguments("path", "path detail"),)),
    "web_search": Tool(
        "Search the web or open a page.",
        (describe_object("", type=TEXT, query=TEXT, url=TEXT, queries=describe_list(TEXT)),),
    ),
    "request_user_input": Tool(
        "Ask the user to choose among options.", (describe_object("questions", questions=describe_list(_QUESTION)),)
    ),
    "list_mcp_resources": Tool("List the resources of MCP servers.", (describe_arguments("", "server cursor"),)),
    "list_mcp_resource_templates": Tool(
        "List the templates of resources of MCP servers.", (describe_arguments("", "server cursor"),)
    ),
    "read_mcp_resource": Tool("Read a resource of an MCP server.", (describe_arguments("server uri", "server uri"),)),
}


def list_homes(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Return the folders of sessions, and of those that were archived."""
    place = find_home(environ, "CODEX_HOME", home / ".codex")
    return [place / "sessions", place / "archived_sessions"]


HARNESS = Harness(
    name="codex",
    about="Codex rollouts, also of code mode and of the first versions in 2025, and the output of `codex exec --json`",
    recognises=recognises,
    read_header=read_header,
    read=read,
    decoder=_DECODER,
    tools=TOOLS,
    version_of=read_version,
    list_kinds=list_kinds,
    title="Codex",
    word="codex",
    homes=list_homes,
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
