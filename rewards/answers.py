"""Parse an answer: its prose, its fenced blocks, the commands and tools it calls."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MAX_CHARS = 400_000
MAX_OBJECTS = 400
MAX_INSIDE = 3  # how much deeper than its opener a fence that closes may stand, as in CommonMark

Conversation = Sequence[Mapping[str, Any]]

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})([^`]*)$")
_BARE_GEMMA = re.compile(r"call:(\w{1,40})\{([^\n]*)")
_FIELD = re.compile(r"(\w{1,40}):(?!//)")
_DECODER = json.JSONDecoder(strict=False)
_TAG = re.compile(r"</?tool_calls?>")
_SHELL_LINE = re.compile(r"^[ \t]*\$ (\S[^\n]*)$", re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")
_DIFF = re.compile(r"^(?:@@ |\+\+\+ |diff --git )", re.MULTILINE)
_NAMES = ("name", "tool", "tool_name", "function")
_ARGUMENTS = ("arguments", "args", "input", "parameters", "params")
_SHELLS = ("bash", "sh", "shell", "console", "zsh", "terminal")
# Each opening is looked up with its end by `_between`: a pattern of both is quadratic in openings.
_GEMMA = re.compile(r"call:(\w+)\{"), "<tool_call|>"
_GEMMA_TEXT = re.compile(r'(?<!\w)(\w+):<\|"\|>'), '<|"|>'
_XML = re.compile(r"<function=(\w+)>"), "</function>"
_XML_TEXT = re.compile(r"<parameter=(\w+)>\n?"), "</parameter>"


class Call(NamedTuple):
    """A call of a tool: its name, its arguments, and where it stands."""

    name: str
    arguments: Mapping[str, Any]
    at: int = 0


class Fenced(NamedTuple):
    """What stands between two fences, less the indent of the first; `open` without a last.

    `before` is the last line above that is not blank.
    """

    info: str
    before: str
    lines: tuple[str, ...]
    open: bool

    @property
    def text(self) -> str:
        """The lines, each with its end."""
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

    Tool calls that a message keeps beside its content are written into the text.
    """
    if isinstance(turns, str):
        return turns
    said = [message for message in turns if role is None or message.get("role", role) == role]
    parts = [part for one in said for part in (_content(one.get("content")), _calls(one.get("tool_calls")))]
    return "\n".join(filter(None, parts))


def fenced(lines: Sequence[str], indented: bool = True) -> Iterator[Fenced | str]:
    """Yield the blocks of a text, and the lines outside of them, in linear time."""
    at, before = 0, ""
    while at < len(lines):
        opener = _FENCE.match(lines[at])
        at += 1
        if opener is None or (opener[1] and not indented):
            yield lines[at - 1]
            before = lines[at - 1] if lines[at - 1].strip() else before
            continue
        deepest = len(opener[1].expandtabs(4)) + MAX_INSIDE if indented else 0
        closer = next((n for n in range(at, len(lines)) if _closes(lines[n], opener[2], deepest)), None)
        inside = [_dedented(line, opener[1]) for line in lines[at:closer]]
        yield Fenced(opener[3].strip(), before, tuple(inside), closer is None)
        at, before = len(lines) if closer is None else closer + 1, ""


def _closes(line: str, marks: str, deepest: int) -> bool:
    fence = _FENCE.match(line)
    if fence is None or not fence[2].startswith(marks) or fence[3].strip():
        return False
    return len(fence[1].expandtabs(4)) <= deepest


def _dedented(line: str, indent: str) -> str:
    if line[: len(indent)].strip():
        return line
    return line.removeprefix(indent) if line.startswith(indent) else line.lstrip(" \t")


def find_calls(completion: str) -> Iterator[Call]:
    """Yield every complete call of a completion, format by format: Gemma's, XML, JSON."""
    text = completion[:MAX_CHARS]
    for at, name, body in _between(text, *_GEMMA):
        if body.endswith("}"):
            yield Call(name, {key: value for _, key, value in _between(body, *_GEMMA_TEXT)}, at)
    for at, name, body in _between(text, *_XML):
        texts = _between(body, *_XML_TEXT)
        yield Call(name, {key: value.removesuffix("\n") for _, key, value in texts}, at)
    for at, _, value in _objects(text):
        if call := _call(value):
            yield call._replace(at=at)


def _between(text: str, opening: re.Pattern[str], end: str) -> Iterator[tuple[int, str, str]]:
    """Yield place, name and body from each opening to the next end, in linear time."""
    stop = at = 0
    while stop >= 0 and (found := opening.search(text, at)):
        at = found.end()
        if stop < at:
            stop = text.find(end, at)
        if stop >= 0:
            yield found.start(), found[1], text[at:stop]
            at = stop + len(end)


def _objects(text: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield start, end and value of the outermost JSON objects, after at most MAX_OBJECTS tries."""
    end = 0
    for _ in range(MAX_OBJECTS):
        if (at := text.find("{", end)) < 0:
            return
        end = at + 1
        with suppress(ValueError, RecursionError):  # not JSON, or nested to no purpose
            value, end = _DECODER.raw_decode(text, at)
            yield at, end, value


def parsed(text: str) -> Answer:
    """Parse an answer.

    >>> parsed('I look first.\\n{"name": "read", "arguments": {"path": "a.py"}}').calls
    [Call(name='read', arguments={'path': 'a.py'}, at=0)]
    """
    answer = Answer()
    spoken: list[str] = []
    for part in fenced(_without_calls(text, answer).split("\n")):
        if isinstance(part, str):
            spoken.append(part)
            continue
        language = part.info.lower()
        if language in (*_SHELLS, ""):
            answer.commands += [line.strip().removeprefix("$ ") for line in part.lines]
        if language not in _SHELLS:
            answer.code.append("\n".join(part.lines))
    prose = "\n".join(spoken)
    if _DIFF.search(prose):
        answer.code.append(prose)
        prose = "\n".join(line for line in spoken if line[:1] not in ("+", "-", "@"))
    answer.commands += _SHELL_LINE.findall(prose)
    answer.commands += [found for found in _INLINE.findall(prose) if " " in found]
    answer.prose = _SHELL_LINE.sub("", prose)
    return answer


def _without_calls(text: str, answer: Answer) -> str:
    """Move the calls of tools out of a text; other JSON stays where it is."""
    for name, given in _BARE_GEMMA.findall(text):
        # Such as `path:a.py,limit:3`, what is left of a Gemma call without its special tokens.
        first = _FIELD.match(given)
        field, value = (first[1], given[first.end() :]) if first else ("", given)
        answer.calls.append(Call(name, {field: value.rstrip("} \t")}))
    text = _BARE_GEMMA.sub("", text)
    found = [(start, end, call) for start, end, value in _objects(text) if (call := _call(value))]
    answer.calls += [call for _, _, call in found]
    for start, end, _ in reversed(found):
        text = text[:start] + text[end:]
    return _TAG.sub("", text)


def _call(value: Any) -> Call | None:
    """Read a call in any of the shapes in use.

    >>> _call({"type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}})
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


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "\n".join(str(part["text"]) if part.get("text") else _calls([part]) for part in parts)


def _calls(calls: object) -> str:
    """Write calls as text, so that a message and a plain completion are read alike."""
    found = filter(None, map(_call, calls if isinstance(calls, list) else ()))
    return "\n".join(json.dumps({"name": call.name, "arguments": dict(call.arguments)}, default=str) for call in found)
