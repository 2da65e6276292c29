"""Codex rollouts: items of the model's conversation and events of the session, in one file.

What the user and the agent say comes as an item and, again, as an event. Files of 2025's first
versions hold the bare items.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Any

from pimono_sdpo.harness import blocks
from pimono_sdpo.harness.blocks import mapping, string
from pimono_sdpo.harness.event import Event

Entry = dict[str, Any]

_WRAPPERS = frozenset({"session_meta", "turn_context", "response_item", "event_msg", "compacted"})
_CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call"})
_RESULTS = frozenset(f"{call}_output" for call in _CALLS)
_ITEM_BLOCKS = frozenset({"input_text", "output_text", "input_image"})
_IDE_REQUEST = "## My request for Codex:"
_CWD = re.compile(r"(?:<cwd>|Current working directory: )([^<\n]{1,400})")
_IMAGE_TAG = re.compile(r"</?image\b[^<>\n]{0,400}>")
_HEAD = re.compile(r"(?:Chunk ID|Exit code|Wall time|Process exited with code)\b")
_EXIT = re.compile(r"^(?:Exit code:|Process exited with code) (-?\d{1,9})\s*$", re.MULTILINE)
_RUNNING = re.compile(r"^Process running with session ID (\S{1,80})\s*$", re.MULTILINE)
# Results that carry no exit code and say in words that the call itself failed.
_FAILED = re.compile(
    r"\s*(?:failed to |unable to |unsupported (?:custom tool )?call|execution error|sandbox error"
    r"|tool call error|(?:exec_command|write_stdin|apply_patch|shell)\b.{0,40}\bfailed"
    r"|command timed out|patch rejected: )"
)


@dataclass
class _State:
    """What was read so far, and who said what anywhere in the file."""

    item_texts: dict[str, set[str]]
    typed_texts: list[str]
    is_subagent: bool
    events: list[Event] = field(default_factory=list)
    commands: dict[str, str] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)


def recognises(entry: Entry) -> bool:
    """Tell a wrapper line by its name and payload, a bare item by its shape."""
    kind = string(entry.get("type"))
    if kind in _WRAPPERS:
        return isinstance(entry.get("payload"), dict)
    if kind in _CALLS | _RESULTS:
        return isinstance(entry.get("call_id"), str)
    if kind == "message":
        found = {string(block.get("type")) for block in blocks.blocks(entry.get("content"))}
        return isinstance(entry.get("role"), str) and not found.isdisjoint(_ITEM_BLOCKS)
    return entry.get("record_type") == "state" or (
        kind == "reasoning" and isinstance(entry.get("summary"), list)
    )


def header(objects: list[Entry]) -> tuple[str, str]:
    """Return the session id and the working directory; old files tell it in a message."""
    metas = [_payload(entry) for entry in objects if entry.get("type") == "session_meta"]
    bare = [entry for entry in objects if "type" not in entry and "instructions" in entry]
    ids = [string(meta.get("id")) for meta in (*metas, *bare)]
    contexts = [_payload(entry) for entry in objects if entry.get("type") == "turn_context"]
    folders = [string(entry.get("cwd")) for entry in (*metas, *contexts)]
    told = (_CWD.search(blocks.text_of(_payload(entry).get("content"))) for entry in objects)
    folders += [match.group(1) for match in told if match and not any(folders)]
    return next(filter(None, ids), ""), next(filter(None, folders), "")


def read(objects: list[Entry]) -> list[Event]:
    """Return the events in file order; turns that were rolled back are marked."""
    state = _first_look(objects)
    for entry in objects:
        before = len(state.events)
        _read_entry(entry, state)
        for at in range(before, len(state.events)):
            state.events[at] = replace(
                state.events[at],
                timestamp=string(entry.get("timestamp")),
                on_active_branch=not state.is_subagent,
                is_subagent=state.is_subagent,
            )
    return blocks.finished(state.events)


def _payload(entry: Entry) -> Entry:
    """Return what a wrapper holds; a bare item is its own."""
    return mapping(entry.get("payload")) if string(entry.get("type")) in _WRAPPERS else entry


def _first_look(objects: list[Entry]) -> _State:
    """Gather what is said in items and events, so that nothing is told twice."""
    item_texts: dict[str, set[str]] = {}
    typed_texts = []
    is_subagent = False
    for entry in objects:
        payload = _payload(entry)
        if entry.get("type") == "event_msg":
            if payload.get("type") == "user_message":
                typed_texts.append(_plain(string(payload.get("message"))))
        elif payload.get("type") == "message":
            said = _plain(blocks.text_of(payload.get("content")))
            item_texts.setdefault(string(payload.get("role")), set()).add(said)
        elif entry.get("type") == "session_meta":
            is_subagent |= "subagent" in mapping(payload.get("source"))
    return _State(item_texts, list(filter(None, typed_texts)), is_subagent)


def _plain(text: str) -> str:
    """Leave out the marks that stand for pictures."""
    return _IMAGE_TAG.sub("", text).strip()


def _tells(text: str, words: str) -> bool:
    """Tell whether an item repeats an event's words; a long message may stand among others."""
    return text == words or (len(words) > 20 and words in text)


def _read_entry(entry: Entry, state: _State) -> None:
    payload = _payload(entry)
    kind = string(payload.get("type"))
    add = state.events.append
    if entry.get("type") == "event_msg":
        _read_event(payload, kind, state)
    elif entry.get("type") == "compacted":
        add(Event(0, "compaction", string(payload.get("message"))))
    elif kind == "message":
        _read_message(payload, state)
    elif kind in _CALLS:
        add(_call(payload, kind, state))
    elif kind in _RESULTS:
        add(_result(payload, state))
        if blocks.is_refusal(state.events[-1].text):
            blocks.abort(state.events, state.events[-1].call_id)
    elif kind == "web_search_call":
        given = blocks.json_text(payload.get("action"))
        add(Event(0, "tool_call", tool_name="web_search", arguments=given))
    else:
        add(Event(0, "other"))


def _read_event(payload: Entry, kind: str, state: _State) -> None:
    """Read what only events tell: interruptions, errors, and words that no item repeats."""
    message = string(payload.get("message"))
    new = Event(0, "other")
    if kind == "error":
        new = Event(0, "assistant", message, stop_reason="error")
    elif kind == "agent_message" and _plain(message) not in state.item_texts.get("assistant", ()):
        new = Event(0, "assistant", message)
    elif kind == "user_message" and not any(
        _tells(text, _plain(message)) for text in state.item_texts.get("user", ())
    ):
        state.events.extend(_said([message], True))
        return
    state.events.append(new)
    if kind == "turn_aborted" and payload.get("reason") != "review_ended":
        blocks.abort(state.events)
    elif kind == "thread_rolled_back":
        _roll_back(payload.get("num_turns"), state.events)


def _roll_back(turns: object, events: list[Event]) -> None:
    """Take the last turns off the active branch."""
    asked = [at for at, e in enumerate(events) if e.kind == "user" and e.on_active_branch]
    if not isinstance(turns, int) or turns < 1 or not asked:
        return
    for at in range(asked[max(len(asked) - turns, 0)], len(events)):
        events[at] = replace(events[at], on_active_branch=False)


def _read_message(payload: Entry, state: _State) -> None:
    content = payload.get("content")
    text = blocks.text_of(content)
    role = payload.get("role")
    if role == "assistant":
        state.events.append(Event(0, "assistant", text))
        return
    # Where events tell what was typed, every other message in the user's name is the harness'.
    shown = _plain(text)
    known = not state.typed_texts or any(_tells(shown, words) for words in state.typed_texts)
    typed = role == "user" and known and not state.is_subagent
    texts = (_IMAGE_TAG.sub("", blocks.block_text(block)) for block in blocks.blocks(content))
    state.events.extend(_said(list(texts), typed) or [Event(0, "other")])
    if blocks.is_interruption(text):
        blocks.abort(state.events)


def _said(texts: list[str], typed: bool) -> list[Event]:
    """Tell what was typed; an editor puts the open files in front of it."""
    asked = [text.rpartition(_IDE_REQUEST)[2].lstrip() for text in texts]
    return list(blocks.said(filter(str.strip, asked), typed))


def _call(payload: Entry, kind: str, state: _State) -> Event:
    call_id = string(payload.get("call_id") or payload.get("id"))
    name = string(payload.get("name"))
    given: object = payload.get("arguments")
    if kind == "local_shell_call":
        name, given = "bash", payload.get("action")
    elif kind == "custom_tool_call":
        given = {"input": payload.get("input")}
    tool = blocks.tool_name(name)
    if name == "write_stdin":
        # The command goes on: what this call returns is the command's output.
        more = mapping(blocks.decoded(given))
        command = state.running.get(str(more.get("session_id")), "")
        if "\x03" in string(more.get("chars")):
            state.stopped.add(call_id)
        elif command:
            tool, given = "bash", {"command": command, **more}
    text = blocks.arguments(tool, given)
    if tool == "bash":
        state.commands[call_id] = string(mapping(blocks.decoded(text)).get("command"))
    return Event(0, "tool_call", call_id=call_id, tool_name=tool, arguments=text)


def _result(payload: Entry, state: _State) -> Event:
    call_id = string(payload.get("call_id") or payload.get("id"))
    text, code, failed = _output(payload.get("output"))
    running = _RUNNING.search(text[:400]) if _HEAD.match(text) else None
    is_shell = call_id in state.commands
    if running and is_shell:
        state.running[running.group(1)] = state.commands[call_id]
    head, cut, body = text.partition("Output:\n")
    if cut and _HEAD.match(text) and "\n\n" not in head:
        found = _EXIT.search(head)
        code = int(found.group(1)) if found else code
        text = body
    failed = failed or (code is None and bool(_FAILED.match(text)))
    if code and is_shell:
        text = f"{text.rstrip()}\n\nCommand exited with code {code}".lstrip()
    return Event(
        0,
        "tool_result",
        text,
        call_id=call_id,
        is_error=failed or (bool(code) and call_id not in state.stopped),
        exit_code=code,
    )


def _output(output: object) -> tuple[str, int | None, bool]:
    """Return text, exit code and failure flag of an output in any of its shapes."""
    inner = blocks.decoded(output)
    if not isinstance(inner, dict) or not {"output", "content"} & inner.keys():
        return blocks.text_of(output), None, False
    code = mapping(inner.get("metadata")).get("exit_code")
    text = blocks.text_of(inner.get("output") or inner.get("content"))
    known = code if isinstance(code, int) and not isinstance(code, bool) else None
    return text, known, inner.get("success") is False
