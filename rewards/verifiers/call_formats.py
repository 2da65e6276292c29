"""Read the tool calls out of the text of a completion, in the formats of each model family.

A format is a response template, as transformers reads the messages of a model: that of the model's
tokenizer where it has one, else one of the families in call_formats.toml. Reasoning is left out, a
closing tag within an argument is text, and nothing may follow the end of the turn. There is also
`json`, whose whole message is one object {"type": "tool_call", "name", "args"}. A new family is a
table in call_formats.toml.
"""

import json
import math
import re
import tomllib
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pimono_sdpo.errors import require_extra


class Family(msgspec.Struct, frozen=True):
    """The format of one family of models, as call_formats.toml describes it."""

    sign: str
    marker: str
    example: str
    template: dict[str, Any]
    to_end: bool = False


_TABLE = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
FAMILIES = msgspec.convert(tomllib.loads(_TABLE), dict[str, Family])
_ENDS = dict.fromkeys(end for one in FAMILIES.values() for end in one.template["fields"]["content"]["close"])
TURN_ENDS = (*_ENDS, "<|call|>")


class Decoded(NamedTuple):
    """The text without padding; `truncated` when it stops without a token that ends the turn."""

    text: str
    truncated: bool


def decode(completion_ids: Sequence[int], tokenizer: Any, end_ids: Collection[int] = ()) -> Decoded:
    """Decode token ids with a transformers tokenizer.

    A turn ends at the tokenizer's own end token, at those of the known model families, and at
    `end_ids`, where the `eos_token_id` of a generation config goes. What follows the first is not
    the model's.
    """
    ids = [int(token) for token in completion_ids]
    known = tokenizer.get_added_vocab()
    ends = {known[token] for token in TURN_ENDS if token in known} | set(end_ids)
    ends |= {tokenizer.eos_token_id} - {None}
    first = next((place for place, token in enumerate(ids) if token in ends), None)
    if first is None:
        while ids and ids[-1] == tokenizer.pad_token_id:
            ids.pop()
    else:
        ids = ids[: first + 1]
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return Decoded(text, truncated=first is None and bool(ids))


MAX_CHARS = 400_000  # a whole file in one call; more would cost seconds
MAX_CALLS = 64  # real sessions have up to 16 in one message
MAX_DEPTH = 64
MAX_STRINGS = 1_000  # transformers puts Gemma's strings back one by one
MAX_CLOSES = 16  # closing tags within one call

EXAMPLES = {name: family.example for name, family in FAMILIES.items()} | {
    "json": '{"type": "tool_call", "name": NAME, "args": {...}} and nothing else'
}
_THOUGHTS = ("</think>", "<channel|>", "<|end|>")
_TAIL = (*_ENDS, "<pad>", *" \t\r\n")
# Stand for closing tags within a call; of the private use area, which no text needs.
_SHIELDS = [chr(0xE0C1 + number) for number in range(MAX_CLOSES)]
_TEXT_END = re.compile(r"\Z")
_CLOSING_TAGS = re.compile(r"(?:\s|</\w{1,40}>)*")
_PADS = re.compile(r"(?:\s|<pad>|<\|endoftext\|>|<\|finetune_right_pad_id\|>)*")


class Call(NamedTuple):
    """A call as it was written; the arguments should be a dict, but are what the model wrote."""

    name: str
    arguments: Any


class Reading(NamedTuple):
    """The calls of a message, or the problem that makes it unreadable."""

    calls: tuple[Call, ...] = ()
    problem: str = ""


def read_calls(
    text: str, formats: Sequence[str], tools: list[dict[str, Any]], template: dict[str, Any] | None = None
) -> Reading:
    """Read the calls that `text` makes in one of the `formats`; never raises on the text.

    `tools` (name and parameters) tell the XML formats which values are numbers. With the response
    `template` of the model's own tokenizer nothing else counts.
    """
    if len(text) > MAX_CHARS:
        return Reading(problem=f"the message is longer than {MAX_CHARS} characters")
    if template is not None:
        reading = _read(text, template, tools)
    elif formats == ["json"]:
        reading = _read_json(_bare(text))
    else:
        marked = [FAMILIES[name] for name in formats if FAMILIES[name].marker in text]
        readings = [_read(text, one.template, tools, "" if one.to_end else one.marker) for one in marked]
        found = [one for one in readings if one.calls] or [one for one in readings[::-1] if one.problem]
        reading = found[0] if found else Reading()
    unsound = next(filter(None, (_unsound(call.arguments) for call in reading.calls)), "")
    return Reading(problem=unsound) if unsound else reading


def format_of(chat_template: str) -> str | None:
    """Tell by its chat template in which format a model calls, for spec["format"]; None: unknown.

    >>> format_of("... '<tool_call>' ... '<function=' ...")
    'qwen3_5'
    """
    return next((name for name, one in FAMILIES.items() if one.sign in chat_template), None)


@lru_cache(maxsize=64)
def _load(template: str) -> Any:
    """Return a compiled `ResponseTemplate`; needs transformers, half a second to import."""
    require_extra("train", "transformers", "Reading the tool calls of a model")
    from transformers.utils.chat_parsing.response_templates import load_response_template

    return load_response_template(json.loads(template))


def _read(text: str, template: dict[str, Any], tools: list[dict[str, Any]], marker: str = "") -> Reading:
    """Read the calls by a response template; `marker` stands nowhere but in a call."""
    try:
        compiled = _load(json.dumps(template))
    except ValueError as bad:
        return Reading(problem=_why(bad))
    regions = [field for field in compiled.fields.values() if field.open_re]
    of_calls = compiled.fields.get("tool_calls")
    turn_end = _turn_end(compiled)
    text = text[_after_thought(text, [one for one in regions if one is not of_calls], of_calls) :]
    at, outside, calls = 0, "", list[Call]()
    for _ in range(MAX_CALLS):
        found = [(match.start(), n, match) for n, one in enumerate(regions) if (match := one.open_re.search(text, at))]
        end = turn_end.search(text, at) if turn_end else None
        if not found or (end and end.start() < min(found)[0]):
            break
        _, number, opening = min(found)
        outside += text[at : opening.start()]
        if regions[number] is of_calls:
            reading, at = _read_call(text, opening, compiled, tools)
            if reading.problem:
                return reading
            calls += reading.calls
        else:
            closing = (regions[number].close_re or _TEXT_END).search(text, opening.end())
            text, at = text[closing.end() if closing else len(text) :], 0
    else:
        return Reading(problem=f"the message makes more than {MAX_CALLS} calls")
    outside += text[at : end.start() if end else len(text)]
    if turn_end and end and not _PADS.fullmatch(turn_end.sub("", text[end.end() :])):
        return Reading(problem="the message goes on after the end of its turn")
    if marker and marker in outside:
        return Reading(problem=f"{marker} does not begin a call that can be read")
    return Reading(tuple(calls))


def _turn_end(compiled: Any) -> Any:
    return compiled.fields[compiled.implicit].close_re if compiled.implicit else None


def _read_call(text: str, opening: Any, compiled: Any, tools: list[dict[str, Any]]) -> tuple[Reading, int]:
    """Return a call and where it ends: at the first closing tag with which it can be read."""
    import regex  # type: ignore[import-untyped]
    from transformers.utils.chat_parsing import parse_response

    field, turn_end = compiled.fields["tool_calls"], _turn_end(compiled)
    is_xml = field.content == "xml-inline"
    body, at = "", opening.end()
    read: list[tuple[Reading, int]] = []
    closings: list[tuple[str, str]] = []
    # What has no width may also stand where the call opens.
    ends = (one for one in (field.close_re or _TEXT_END).finditer(text, at) if one.end() > opening.end())
    for shield, closing in zip(_SHIELDS, ends, strict=False):
        body += text[at : closing.start()]
        if body.count('<|"|>') > MAX_STRINGS * 2:
            return Reading(problem=f"the call has more than {MAX_STRINGS} texts"), at
        try:
            call = f"{opening.group()}{body}{closing.group()}"
            message = parse_response(call, compiled, prefix="", tools=tools if is_xml else None)
            reading = _calls(_restored(message.get("tool_calls", []), closings))
        except (ValueError, RecursionError) as found:
            reading = Reading(problem=_why(found))
        read.append((reading, closing.end()))
        rest = regex.sub(field.content_args["tag_pattern"], "", body, flags=regex.DOTALL) if is_xml else ""
        if not reading.problem and _CLOSING_TAGS.fullmatch(rest):
            return read[-1]
        # Together with the end of the turn, at which the call of a family may close.
        end = turn_end.match(text, closing.end()) if turn_end else None
        body, at = body + shield, (end or closing).end()
        closings.append((shield, text[closing.start() : at]))
    return read[0] if read else (Reading(problem="the call is not closed"), at)


def _restored(value: Any, closings: list[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        for shield, closing in closings:
            value = value.replace(shield, closing)
        return value
    if isinstance(value, dict):
        return {_restored(key, closings): _restored(item, closings) for key, item in value.items()}
    return [_restored(item, closings) for item in value] if isinstance(value, list) else value


def _after_thought(text: str, thoughts: Sequence[Any], of_calls: Any) -> int:
    """Return where the message begins, behind reasoning that the prompt has opened."""
    for field in thoughts:
        opening, closing = field.open_re.search(text), (field.close_re or _TEXT_END).search(text)
        if closing and closing.group() and not (opening and opening.start() < closing.start()):
            call = of_calls and of_calls.open_re.search(text)
            if not call or call.start() > closing.start() or of_calls.open_re.search(text, closing.end()):
                return int(closing.end())
    return 0


def _calls(items: list[Any]) -> Reading:
    calls = []
    for item in items:
        item = item.get("function", item) if isinstance(item, dict) else item
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str) or not name.strip():
            return Reading(problem="the call does not name a tool")
        key = next((key for key in ("arguments", "parameters") if key in item), None)
        if key is None:
            return Reading(problem=f"the call of {name[:80]} has no arguments")
        arguments = item[key]
        if isinstance(arguments, str):
            # An object may come as its JSON text.
            with suppress(ValueError, RecursionError):
                found = json.loads(arguments)
                arguments = found if isinstance(found, dict) else arguments
        calls.append(Call(name, arguments))
    return Reading(tuple(calls))


def _read_json(text: str) -> Reading:
    """Read the JSON protocol: prose or a fence around the object is what it must not have."""
    if not text.startswith("{"):
        return Reading()
    try:
        action = json.loads(text)
    except (ValueError, RecursionError) as found:
        return Reading(problem=_why(found))
    if action.get("type") == "final":
        return Reading()
    if action.get("type") != "tool_call" or not {"args"} <= set(action) <= {"type", "name", "args", "thought"}:
        return Reading(problem="the keys of the object are not `type`, which is tool_call or final, `name` and `args`")
    return _calls([{"name": action.get("name"), "arguments": action["args"]}])


def _bare(text: str) -> str:
    """Return the text without reasoning, and without the tokens that end a turn."""
    for closes in _THOUGHTS:
        if not text.lstrip().startswith("{"):
            text = text.partition(closes)[2] if closes in text else text
    text = text.strip().removeprefix("<|channel|>final<|message|>")
    end = len(text)
    while token := next((token for token in _TAIL if text.endswith(token, 0, end)), ""):
        end -= len(token)
    return text[:end].strip()


def _why(problem: BaseException) -> str:
    if isinstance(problem, RecursionError):
        return "the arguments are nested too deeply"
    cause = problem.__cause__ or problem
    if not isinstance(cause, json.JSONDecodeError):
        return f"it cannot be read: {str(cause)[:200]}"
    near = cause.doc[max(cause.pos - 20, 0) : cause.pos + 20]
    return f"it is not valid JSON: {cause.msg} at character {cause.pos}, near {near!r}"


def _unsound(arguments: Any) -> str:
    """Say what no harness takes: NaN, infinity, numbers and nesting without end."""
    pending = [(arguments, 0)]
    while pending:
        value, depth = pending.pop()
        if depth > MAX_DEPTH:
            return f"the arguments are nested deeper than {MAX_DEPTH}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"{value} is no JSON number"
        if isinstance(value, int) and value.bit_length() > 1023:
            return "a number is too large"
        if isinstance(value, dict):
            pending += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, list):
            pending += [(item, depth + 1) for item in value]
    return ""
