"""Parse an answer: its prose, the code it shows, the commands and tools it calls."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_CALLS = 32

Conversation = Sequence[Mapping[str, Any]]

_FENCE = re.compile(r"[ \t]*(?:```|~~~)([^`\n]*)$")
_GEMMA = re.compile(r"call:(\w{1,40})\{([^\n]*)")
_FIELD = re.compile(r"(\w{1,40}):(?!//)")
_OBJECT = re.compile(r'\{\s{0,40}"')
_TAG = re.compile(r"</?tool_calls?>")
_SHELL_LINE = re.compile(r"^[ \t]*\$ (\S[^\n]*)$", re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
_DIFF = re.compile(r"^(?:@@ |\+\+\+ |diff --git )", re.MULTILINE)
_NAMES = ("name", "tool", "tool_name", "function")
_ARGUMENTS = ("arguments", "args", "input", "parameters", "params")
_SHELLS = ("bash", "sh", "shell", "console", "zsh", "terminal", "")


@dataclass(frozen=True)
class Call:
    """A call of a tool: its name and its arguments."""

    name: str
    arguments: Mapping[str, Any]


@dataclass
class Answer:
    """The parts of an answer."""

    prose: str = ""
    code: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


def text_of(turns: str | Conversation, role: str | None = None) -> str:
    """Join the text of a completion or a prompt, plain or conversational, of one role or of all.

    Tool calls that a message keeps beside its content are written into the text.
    """
    if isinstance(turns, str):
        return turns
    return "\n".join(
        part
        for message in turns
        if role is None or message.get("role", role) == role
        for part in (_content(message.get("content")), _calls(message.get("tool_calls")))
        if part
    )


def parsed(text: str) -> Answer:
    """Parse an answer.

    >>> parsed('I look first.\\n{"name": "read", "arguments": {"path": "a.py"}}').calls
    [Call(name='read', arguments={'path': 'a.py'})]
    """
    answer = Answer()
    rest = _without_calls(text, answer)
    spoken: list[str] = []
    block: list[str] | None = None
    language = ""
    for line in rest.split("\n"):
        fence = _FENCE.match(line)
        if fence and block is None:
            block, language = [], fence.group(1).strip().lower()
        elif fence and block is not None:
            _put(answer, language, "\n".join(block))
            block = None
        elif block is not None:
            block.append(line)
        else:
            spoken.append(line)
    if block is not None:
        _put(answer, language, "\n".join(block))
    prose = "\n".join(spoken)
    if _DIFF.search(prose):
        answer.code.append(prose)
        prose = "\n".join(line for line in spoken if line[:1] not in ("+", "-", "@"))
    answer.commands += _SHELL_LINE.findall(prose)
    answer.commands += [found for found in _INLINE.findall(prose) if " " in found]
    answer.prose = _SHELL_LINE.sub("", prose)
    return answer


def _put(answer: Answer, language: str, body: str) -> None:
    if language in _SHELLS:
        answer.commands += [line.strip().removeprefix("$ ") for line in body.split("\n")]
    if language not in _SHELLS[:-1]:
        answer.code.append(body)


def _without_calls(text: str, answer: Answer) -> str:
    """Move the calls of tools out of a text; other JSON stays where it is."""
    for match in _GEMMA.finditer(text):
        # Such as `path:a.py,limit:3`, what is left of a Gemma call without its special tokens.
        given = match.group(2).rstrip("} \t")
        first = _FIELD.match(given)
        fields = {first.group(1): given[first.end() :]} if first else {"": given}
        answer.calls.append(Call(match.group(1), fields))
    text = _GEMMA.sub("", text)
    decoder = json.JSONDecoder()
    kept: list[str] = []
    position = 0
    for match, _ in zip(_OBJECT.finditer(text), range(MAX_CALLS), strict=False):
        if match.start() < position:
            continue
        try:
            value, end = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        call = _call(value)
        if call:
            answer.calls.append(call)
            kept.append(text[position : match.start()])
            position = end
    return _TAG.sub("", "".join([*kept, text[position:]]))


def _call(value: object) -> Call | None:
    """Read a call in any of the shapes in use.

    >>> _call({"type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}})
    Call(name='ls', arguments={'path': '.'})
    """
    if not isinstance(value, dict):
        return None
    inner = value.get("function")
    if isinstance(inner, dict):
        return _call(inner)
    name = next((value[key] for key in _NAMES if isinstance(value.get(key), str)), None)
    arguments = next((value[key] for key in _ARGUMENTS if key in value), None)
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return Call(name, arguments) if name and isinstance(arguments, dict) else None


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(
        str(part["text"]) if part.get("text") else _calls([part])
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, dict)
    )


def _calls(calls: object) -> str:
    """Write calls as text, so that a message and a plain completion are read alike."""
    found: Iterator[Call | None] = map(_call, calls) if isinstance(calls, list) else iter(())
    return "\n".join(
        json.dumps({"name": call.name, "arguments": dict(call.arguments)}, default=str)
        for call in found
        if call
    )
