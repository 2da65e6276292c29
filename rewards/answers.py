"""Parse an answer into prose, fenced blocks, shell commands and tool calls."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MAX_CHARS = 400_000
MAX_OBJECTS = 400
MAX_EXTRA_INDENT = 3  # of a closing fence relative to its opening one, as in CommonMark

Conversation = Sequence[Mapping[str, Any]]

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})([^`]*)$")
_DECODER = json.JSONDecoder(strict=False)
_TAG = re.compile(r"</?tool_calls?>")
_SHELL_LINE = re.compile(r"^[ \t]*\$ (\S[^\n]*)$", re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
_DIFF = re.compile(r"^(?:@@ |\+\+\+ |diff --git )", re.MULTILINE)
_NAMES = ("name", "tool", "tool_name", "function")
_ARGUMENTS = ("arguments", "args", "input", "parameters", "params")
_SHELLS = ("bash", "sh", "shell", "console", "zsh", "terminal")


class Call(NamedTuple):
    """A tool call: its name, its arguments, and its position in the text."""

    name: str
    arguments: Mapping[str, Any]
    at: int = 0


class Fenced(NamedTuple):
    """A fenced block, without the indent of its opening fence; `open` if the closing fence is missing.

    `before` is the last line above it that is not blank.
    """

    info: str
    before: str
    lines: tuple[str, ...]
    open: bool

    @property
    def text(self) -> str:
        """The lines, each with a newline."""
        return "".join(f"{line}\n" for line in self.lines)


@dataclass
class Answer:
    """The parts of an answer."""

    prose: str = ""
    code: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


def text_of(turns: str | Conversation, role: str | None = None) -> str:
    """Join the text of a completion or a prompt, plain or conversational, of one role or of all.

    The tool calls of messages are written into the text.
    """
    if isinstance(turns, str):
        return turns
    parts: list[str] = []
    for message in turns:
        if role is None or message.get("role", role) == role:
            parts += (_format_content(message.get("content")), _format_calls(message.get("tool_calls")))
    return "\n".join(filter(None, parts))


def fenced(lines: Sequence[str], indented: bool = True) -> Iterator[Fenced | str]:
    """Yield the fenced blocks of a text and the lines outside of them, in linear time."""
    at, before = 0, ""
    while at < len(lines):
        opener = _FENCE.match(lines[at])
        at += 1
        if opener is None or (opener[1] and not indented):
            yield lines[at - 1]
            before = lines[at - 1] if lines[at - 1].strip() else before
            continue
        deepest = len(opener[1].expandtabs(4)) + MAX_EXTRA_INDENT if indented else 0
        closer = next((n for n in range(at, len(lines)) if _closes(lines[n], opener[2], deepest)), None)
        inside = [_dedent(line, opener[1]) for line in lines[at:closer]]
        yield Fenced(opener[3].strip(), before, tuple(inside), closer is None)
        at, before = len(lines) if closer is None else closer + 1, ""


def _closes(line: str, marks: str, deepest: int) -> bool:
    fence = _FENCE.match(line)
    if fence is None or not fence[2].startswith(marks) or fence[3].strip():
        return False
    return len(fence[1].expandtabs(4)) <= deepest


def _dedent(line: str, indent: str) -> str:
    if line[: len(indent)].strip():
        return line
    return line.removeprefix(indent) if line.startswith(indent) else line.lstrip(" \t")


def find_calls(completion: str) -> Iterator[Call]:
    """Yield every complete call in the JSON of a completion, as `text_of` writes those of messages."""
    for at, _, value in _find_objects(completion[:MAX_CHARS]):
        if call := _read_call(value):
            yield call._replace(at=at)


def _find_objects(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield start, end and value of the outermost JSON objects, in at most MAX_OBJECTS attempts."""
    end = 0
    for _ in range(MAX_OBJECTS):
        if (at := text.find("{", end)) < 0:
            return
        end = at + 1
        with suppress(ValueError, RecursionError):  # not JSON, or nested too deeply
            value, end = _DECODER.raw_decode(text, at)
            yield at, end, value


def parse_answer(text: str) -> Answer:
    """Parse an answer.

    >>> parse_answer('I look first.\\n{"name": "read", "arguments": {"path": "a.py"}}').calls
    [Call(name='read', arguments={'path': 'a.py'}, at=0)]
    """
    answer = Answer()
    prose_lines: list[str] = []
    for part in fenced(_extract_calls(text, answer).split("\n")):
        if isinstance(part, str):
            prose_lines.append(part)
            continue
        language = part.info.lower()
        if language in (*_SHELLS, ""):
            answer.commands += [line.strip().removeprefix("$ ") for line in part.lines]
        if language not in _SHELLS:
            answer.code.append("\n".join(part.lines))
    prose = "\n".join(prose_lines)
    if _DIFF.search(prose):
        answer.code.append(prose)
        prose = "\n".join(line for line in prose_lines if line[:1] not in ("+", "-", "@"))
    answer.commands += _SHELL_LINE.findall(prose)
    answer.commands += [code for code in _INLINE.findall(prose) if " " in code]
    answer.prose = _SHELL_LINE.sub("", prose)
    return answer


def _extract_calls(text: str, answer: Answer) -> str:
    """Move the tool calls of a text to the answer; other JSON stays in the text."""
    calls = [(start, end, call) for start, end, value in _find_objects(text) if (call := _read_call(value))]
    answer.calls += [call for _, _, call in calls]
    for start, end, _ in reversed(calls):
        text = text[:start] + text[end:]
    return _TAG.sub("", text)


def _read_call(value: Any) -> Call | None:
    """Read a call in any of the common JSON shapes.

    >>> _read_call({"type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}})
    Call(name='ls', arguments={'path': '.'}, at=0)
    """
    if not isinstance(value, dict):
        return None
    inner = value.get("function")
    value = inner if isinstance(inner, dict) else value
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), None)
    arguments = next((value[key] for key in _ARGUMENTS if key in value), None)
    with suppress(ValueError, RecursionError):
        arguments = _DECODER.decode(arguments) if isinstance(arguments, str) else arguments
    return Call(name, arguments) if name and isinstance(arguments, dict) else None


def list_calls(turns: Conversation) -> list[dict[str, Any]]:
    """Return name and arguments of each tool call of the assistant; arguments that are JSON text are decoded.

    >>> list_calls([{"role": "assistant", "tool_calls": [{"function": {"name": "ls", "arguments": "{}"}}]}])
    [{'name': 'ls', 'arguments': {}}]
    """
    calls = []
    for message in turns:
        items = message.get("tool_calls") if message.get("role") == "assistant" else None
        for item in filter(lambda item: isinstance(item, dict), items or ()):
            function = item["function"] if isinstance(item.get("function"), dict) else item
            arguments = function.get("arguments")
            with suppress(ValueError, RecursionError):
                arguments = _DECODER.decode(arguments) if isinstance(arguments, str) else arguments
            calls.append({"name": function.get("name"), "arguments": arguments})
    return calls


def _format_content(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "\n".join(str(part["text"]) if part.get("text") else _format_calls([part]) for part in parts)


def _format_calls(messages: object) -> str:
    """Write calls as text, so that messages and plain completions are parsed in the same way."""
    calls = filter(None, map(_read_call, messages if isinstance(messages, list) else ()))
    return "\n".join(json.dumps({"name": call.name, "arguments": dict(call.arguments)}, default=str) for call in calls)
