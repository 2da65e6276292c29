"""Shared helpers of the readers: content blocks, tool names, injected text, interrupted turns."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pimono_sdpo.traces.events import Event, strip_colours

_TEXT_BLOCKS = ("text", "input_text", "output_text")
_WORDING = tomllib.loads(Path(__file__).with_name("wording.toml").read_text())
_INSERTED, _STOPPED = (
    {kind: "|".join(patterns) for kind, patterns in _WORDING[table].items()} for table in ("inserted", "stopped")
)
_TOOL_NAMES: dict[str, str] = {name: ours for ours, others in _WORDING["tools"].items() for name in (ours, *others)}
# The names that tools of every harness have in common here.
COMMON_TOOLS = frozenset(_WORDING["tools"])
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_WRAPPED = re.compile(r"\s*(?:/\S{0,80}/)?(?:bash|sh|zsh|dash)\s+-\w{0,3}c\s")
_OPENING_TAG = re.compile(rf"(?:^|(?<=>))[ \t]*<({_INSERTED['tags']})\b[^<>\n]{{0,400}}>", re.MULTILINE)
_OPENING = re.compile(rf"\s*(?:{_INSERTED['openings']})")
_INTERRUPTED = re.compile(rf"\s*(?:{_STOPPED['interrupted']})")
_REFUSED = re.compile(
    rf"\W{{0,8}}(?:(?:Error: )?(?:{_STOPPED['refused']})"
    r"|(?:Wall time: [\d.]+ seconds\n)?aborted by user\b)"
)
_BROKEN_OFF = re.compile(
    r"(?:\[Request interrupted by user(?: for tool use)?\]"
    r'|\bRejected\(\\?"rejected by user\\?"\)\W{0,6}'
    r"|<error>Command was aborted before completion</error>)\s*\Z"
)
_EXIT_AT_END = re.compile(r"(?:\[Process|Command) exited with code (-?\d{1,9})\]?\s*\Z")
_EXIT_AT_START = re.compile(r"Error: Command failed \(exit code: (-?\d{1,9})\)")
_MARKED_EXIT = re.compile(r"(?:Error: )?Exit code:? (-?\d{1,9})\b")


def to_text(value: object) -> str:
    """Return a text without colours, "" for anything else."""
    if not isinstance(value, str):
        return ""
    return strip_colours(value) if "\x1b" in value else value


def find_text(values: Iterable[object]) -> str:
    """Return the first value that is a text and not empty, "" if there is none."""
    return next(filter(None, map(to_text, values)), "")


def format_time(value: object) -> str:
    """Return a time as text; numbers are milliseconds.

    >>> format_time(1_767_225_600_000)
    '2026-01-01T00:00:00+00:00'
    """
    if not isinstance(value, int | float):
        return to_text(value)
    try:
        return datetime.fromtimestamp(value / 1000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        # Too large for a time, or NaN.
        return ""


def to_object(value: object) -> dict[str, Any]:
    """Return a JSON object, {} for anything else."""
    return value if isinstance(value, dict) else {}


def to_blocks(content: object) -> list[dict[str, Any]]:
    """Return the blocks of a message; a plain string is one block of text.

    >>> to_blocks("hi")
    [{'type': 'text', 'text': 'hi'}]
    """
    return [
        block if isinstance(block, dict) else {"type": "text", "text": block}
        for block in (content if isinstance(content, list) else [content])
        if isinstance(block, (dict, str))
    ]


def list_objects(value: object) -> list[dict[str, Any]]:
    """Return the JSON objects of a list, [] for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def list_texts(content: object) -> list[str]:
    """Return the text blocks of a message, without thinking, images and tools."""
    return [
        text
        for block in to_blocks(content)
        if block.get("type") in _TEXT_BLOCKS and (text := to_text(block.get("text")))
    ]


def join_text(content: object) -> str:
    """Join the text blocks of a message."""
    return "\n".join(list_texts(content))


def normalise_tool(name: object) -> str:
    """Return the common name of a shell or file tool; other tools keep theirs.

    >>> normalise_tool("exec_command"), normalise_tool("Create"), normalise_tool("WebFetch")
    ('bash', 'write', 'WebFetch')
    """
    recorded = to_text(name)
    return _TOOL_NAMES.get(recorded.lower(), recorded)


_encode = json.JSONEncoder(ensure_ascii=False).encode


def dump_json(value: object) -> str:
    """Return JSON text, `null` for a value that is nested too deeply."""
    try:
        return strip_colours(_encode(value))
    except RecursionError:
        # No real call is nested so deeply.
        return "null"


def normalise_arguments(name: str, value: object) -> str:
    """Return a call's arguments as JSON text; the command line of a shell becomes its `command`.

    >>> normalise_arguments("bash", {"cmd": "ls"}), normalise_arguments("read", '{"path": "a.py"}')
    ('{"command": "ls"}', '{"path": "a.py"}')
    """
    arguments = decode_text(value)
    if name != "bash" and isinstance(value, str) and arguments is not value:
        # Text that is already JSON stays as recorded.
        return strip_colours(value)
    if name == "bash" and isinstance(arguments, str):
        arguments = {"command": arguments}
    if name != "bash" or not isinstance(arguments, dict):
        return dump_json(arguments)
    command = next((arguments[key] for key in ("command", "cmd", "script") if arguments.get(key)), None)
    line = _find_command_line(command)
    rest = {key: item for key, item in arguments.items() if key not in {"command", "cmd"}}
    return dump_json({"command": line, **rest} if line else arguments)


def build_call(call_id: object, name: object, arguments: object) -> Event:
    """Build the event of a call from its id, its tool's name and its arguments as recorded."""
    tool = normalise_tool(name)
    text = normalise_arguments(tool, arguments)
    return Event(0, "tool_call", call_id=to_text(call_id), tool_name=tool, arguments=text)


def decode_text(value: object) -> object:
    """Decode JSON text; anything else is returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        # Models write broken arguments and tools print plain text; both stay text.
        return value


def _find_command_line(command: object) -> str:
    """Return a command as one line, without an outer `bash -lc`."""
    if isinstance(command, str):
        if not _WRAPPED.match(command):
            return command
        try:
            words = shlex.split(command)
        except ValueError:
            # A shell refuses unbalanced quotes as well.
            return command
        return words[2] if len(words) == 3 else command
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        return ""
    shell = command[0].rsplit("/", 1)[-1] if command else ""
    if len(command) == 3 and shell in _SHELLS and command[1].endswith("c"):
        return str(command[2])
    if shell.lower().startswith(("powershell", "pwsh")) and "-Command" in command:
        return " ".join(command[command.index("-Command") + 1 :])
    return shlex.join(command)


def split_typed(texts: Iterable[str], typed: bool = True) -> Iterator[Event]:
    """Separate, block by block, the text that a person typed from the text that the harness added."""
    user, injected = [], []
    for text in texts:
        is_injected = not typed or bool(_OPENING.match(text) or is_interruption(text))
        user_part, injected_part = ("", text) if is_injected else _cut_sections(text)
        user.append(user_part)
        injected.append(injected_part)
    if any(injected):
        yield Event(0, "custom_message", "\n".join(filter(None, injected)))
    if any(user):
        yield Event(0, "user", "\n".join(filter(None, user)))


def _cut_sections(text: str) -> tuple[str, str]:
    """Separate a message from the tagged sections that harnesses insert into it."""
    user, injected, end = [], [], 0
    unclosed: set[str] = set()
    for tag in _OPENING_TAG.finditer(text) if "<" in text else ():
        closing = f"</{tag.group(1)}>"
        if tag.start() < end or closing in unclosed:
            continue
        start = text.find(closing, tag.end())
        if start < 0:
            unclosed.add(closing)
            continue
        user.append(text[end : tag.start()])
        end = start + len(closing)
        injected.append(text[tag.start() : end])
    if not injected:
        return text if text.strip() else "", ""
    return "".join([*user, text[end:]]).strip(), "\n".join(injected)


def is_interruption(text: str) -> bool:
    """Return whether a text is the line that a harness adds when the user interrupts a turn."""
    return bool(_INTERRUPTED.match(text))


def is_refusal(text: str) -> bool:
    """Return whether a result says that the user refused or interrupted the call, which is not a tool's error."""
    end = text[-120:]
    may_match = " by user" in end or "aborted before" in end
    return bool(_REFUSED.match(text) or (may_match and _BROKEN_OFF.search(end)))


@dataclass
class Steps:
    """The events read so far; turns that the user interrupted are marked as aborted."""

    events: list[Event] = field(default_factory=list)
    _calls: dict[str, int] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Append an event whose `is_subagent` is known."""
        if event.kind == "tool_call":
            self._calls[event.call_id] = len(self.events)
        self.events.append(event)

    def follow(self, event: Event) -> None:
        """Append an event like `add`, and mark its turn as aborted if the event interrupts it."""
        self.add(event)
        if event.is_subagent:
            return
        if event.kind == "custom_message" and is_interruption(event.text):
            self.abort()
        elif event.kind == "tool_result" and is_refusal(event.text):
            self.abort(event.call_id)

    def abort(self, call_id: str = "") -> None:
        """Mark the turn that the user interrupted; if it has no answer yet, add an empty one."""
        call = self._calls.get(call_id) if call_id else None
        for at in range(len(self.events) - 1 if call is None else call, -1, -1):
            event = self.events[at]
            if event.kind == "assistant" and not event.is_subagent:
                event.stop_reason = "aborted"
                return
            if event.kind == "user" and not event.is_subagent and call is None:
                break
        self.add(Event(0, "assistant", stop_reason="aborted"))


def finish_events(events: list[Event]) -> list[Event]:
    """Number the events, and set the tool's name and the exit code of each result.

    A result without a call has no name; a call that the user refused is not an error.
    """
    tools = {event.call_id: event.tool_name for event in events if event.kind == "tool_call"}
    for index, event in enumerate(events):
        event.index = index
        if event.kind == "tool_call":
            # A proxy may use an id again; then the last call before a result counts.
            tools[event.call_id] = event.tool_name
        elif event.kind == "tool_result":
            event.tool_name = tools.get(event.call_id, "")
            event.call_id = event.call_id if event.call_id in tools else ""
            lacks_code = event.exit_code is None and event.tool_name == "bash"
            if (lacks_code or event.is_error) and is_refusal(event.text):
                event.is_error = False
            elif lacks_code:
                match = _EXIT_AT_END.search(event.text[-200:]) or _EXIT_AT_START.match(event.text)
                if not match and event.is_error:
                    # Without an error flag, the same words may be output of the command.
                    match = _MARKED_EXIT.match(event.text)
                event.exit_code = int(match[1]) if match else None
                event.is_error = event.is_error or bool(event.exit_code)
        elif event.kind == "compaction" and event.kept_from is None:
            event.kept_from = index
    return events


def find_path(ids: Sequence[str], parents: Sequence[str | None], last: int) -> set[int]:
    """Return the positions of the entries from `last` back to its root, whose parent is None.

    A repeated id refers to the nearest earlier entry; an entry whose parent is missing continues
    the entry before it.
    """
    seen: dict[str, int] = {}
    anywhere = {entry_id: at for at, entry_id in enumerate(ids) if entry_id}
    above = []
    for at, parent in enumerate(parents):
        known = seen.get(parent or "", anywhere.get(parent or "", at - 1))
        above.append(-1 if parent is None else known if known != at else at - 1)
        if ids[at]:
            seen[ids[at]] = at
    path: set[int] = set()
    while last >= 0 and last not in path:
        path.add(last)
        last = above[last]
    return path
