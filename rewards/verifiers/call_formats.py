"""Parse the tool calls in the text of a completion, in the formats of each model family.

A format is a response template, with which transformers parses the messages of a model: that of the
model's tokenizer if it has one, otherwise that of a family in call_formats.toml. Reasoning is skipped,
a closing tag within an argument is text, and nothing may follow the end of the turn. In the format
`json`, the whole message is one object {"type": "tool_call", "name", "args"}. To add a family, add a
table to call_formats.toml.
"""

import json
import math
import re
import tomllib
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pimono_sdpo.errors import require_extra
from pimono_sdpo.traces.events import MAX_DEPTH


class Family(msgspec.Struct, frozen=True):
    """The format of one family of models, as call_formats.toml describes it."""

    sign: str
    marker: str
    example: str
    template: dict[str, Any]
    to_end: bool = False


_TABLE = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
FAMILIES = msgspec.convert(tomllib.loads(_TABLE), dict[str, Family])
_ENDS = dict.fromkeys(end for family in FAMILIES.values() for end in family.template["fields"]["content"]["close"])
TURN_ENDS = (*_ENDS, "<|call|>")


class Decoded(NamedTuple):
    """The text without padding; `truncated` if it has no token that ends the turn."""

    text: str
    truncated: bool


def decode(completion_ids: Sequence[int], tokenizer: Any, end_ids: Collection[int] = ()) -> Decoded:
    """Decode token ids with a transformers tokenizer.

    A turn ends at the end token of the tokenizer, at those of the known model families, and at
    `end_ids`, such as the `eos_token_id` of a generation config. Tokens after the first of these are
    dropped.
    """
    ids = [int(token) for token in completion_ids]
    vocabulary = tokenizer.get_added_vocab()
    ends = {vocabulary[token] for token in TURN_ENDS if token in vocabulary} | set(end_ids)
    ends |= {tokenizer.eos_token_id} - {None}
    first = next((index for index, token in enumerate(ids) if token in ends), None)
    if first is None:
        while ids and ids[-1] == tokenizer.pad_token_id:
            ids.pop()
    else:
        ids = ids[: first + 1]
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return Decoded(text, truncated=first is None and bool(ids))


MAX_CHARS = 400_000  # enough for a whole file in one call; more would take seconds
MAX_CALLS = 64  # real sessions have up to 16 in one message
MAX_STRINGS = 1_000  # transformers restores Gemma's strings one by one
MAX_CLOSING_TAGS = 16  # closing tags within one call

EXAMPLES = {name: family.example for name, family in FAMILIES.items()} | {
    "json": '{"type": "tool_call", "name": NAME, "args": {...}} and nothing else'
}
_THOUGHTS = ("</think>", "<channel|>", "<|end|>")
_TAIL = (*_ENDS, "<pad>", *" \t\r\n")
# Replace closing tags within a call; from the private use area, which does not occur in normal text.
_PLACEHOLDERS = [chr(0xE0C1 + number) for number in range(MAX_CLOSING_TAGS)]
_TEXT_END = re.compile(r"\Z")
_CLOSING_TAGS = re.compile(r"(?:\s|</\w{1,40}>)*")
_PADS = re.compile(r"(?:\s|<pad>|<\|endoftext\|>|<\|finetune_right_pad_id\|>)*")


class Call(NamedTuple):
    """A call as the model wrote it; the arguments should be a dict, but may be anything."""

    name: str
    arguments: Any


class Reading(NamedTuple):
    """The calls of a message, or the reason why they cannot be parsed."""

    calls: tuple[Call, ...] = ()
    problem: str = ""


def read_calls(
    text: str, formats: Sequence[str], tools: list[dict[str, Any]], template: dict[str, Any] | None = None
) -> Reading:
    """Parse the calls in `text`, written in one of the `formats`; never raises because of the text.

    The XML formats need `tools` (name and parameters) to decide which values are numbers. With the
    response `template` of the model's own tokenizer, `formats` are ignored.
    """
    if len(text) > MAX_CHARS:
        return Reading(problem=f"the message is longer than {MAX_CHARS} characters")
    if template is not None:
        reading = _read_by_template(text, template, tools)
    elif formats == ["json"]:
        reading = _read_json(_strip_message(text))
    else:
        families = [FAMILIES[name] for name in formats if FAMILIES[name].marker in text]
        readings = [
            _read_by_template(text, family.template, tools, "" if family.to_end else family.marker)
            for family in families
        ]
        with_calls = (reading for reading in readings if reading.calls)
        with_problem = (reading for reading in readings[::-1] if reading.problem)
        reading = next(chain(with_calls, with_problem), Reading())
    problem = next(filter(None, (_find_unsupported(call.arguments) for call in reading.calls)), "")
    return Reading(problem=problem) if problem else reading


def find_format(chat_template: str) -> str | None:
    """Return the format of a model's calls, judging by its chat template, for spec["format"]; None if unknown.

    >>> find_format("... '<tool_call>' ... '<function=' ...")
    'qwen3_5'
    """
    return next((name for name, family in FAMILIES.items() if family.sign in chat_template), None)


@lru_cache(maxsize=64)
def _load(template: str) -> Any:
    """Return a compiled `ResponseTemplate`; needs transformers, which takes half a second to import."""
    require_extra("train", "transformers", "Reading the tool calls of a model")
    from transformers.utils.chat_parsing.response_templates import load_response_template

    return load_response_template(json.loads(template))


def _read_by_template(text: str, template: dict[str, Any], tools: list[dict[str, Any]], marker: str = "") -> Reading:
    """Parse the calls with a response template; `marker` occurs only in calls."""
    try:
        compiled = _load(json.dumps(template))
    except ValueError as error:
        return Reading(problem=_describe_error(error))
    fields = [field for field in compiled.fields.values() if field.open_re]
    call_field = compiled.fields.get("tool_calls")
    turn_end = _find_turn_end(compiled)
    text = text[_find_message_start(text, [field for field in fields if field is not call_field], call_field) :]
    at, outside, calls = 0, "", list[Call]()
    for _ in range(MAX_CALLS):
        openings = [
            (match.start(), index, match)
            for index, field in enumerate(fields)
            if (match := field.open_re.search(text, at))
        ]
        end = turn_end.search(text, at) if turn_end else None
        if not openings or (end and end.start() < min(openings)[0]):
            break
        _, index, opening = min(openings)
        outside += text[at : opening.start()]
        if fields[index] is call_field:
            reading, at = _read_call(text, opening, compiled, tools)
            if reading.problem:
                return reading
            calls += reading.calls
        else:
            closing = (fields[index].close_re or _TEXT_END).search(text, opening.end())
            text, at = text[closing.end() if closing else len(text) :], 0
    else:
        return Reading(problem=f"the message makes more than {MAX_CALLS} calls")
    outside += text[at : end.start() if end else len(text)]
    if turn_end and end and not _PADS.fullmatch(turn_end.sub("", text[end.end() :])):
        return Reading(problem="the message continues after the end of its turn")
    if marker and marker in outside:
        return Reading(problem=f"{marker} is not followed by a valid call")
    return Reading(tuple(calls))


def _find_turn_end(compiled: Any) -> Any:
    return compiled.fields[compiled.implicit].close_re if compiled.implicit else None


def _read_call(text: str, opening: Any, compiled: Any, tools: list[dict[str, Any]]) -> tuple[Reading, int]:
    """Return a call and its end: the first closing tag with which it can be parsed."""
    import regex  # type: ignore[import-untyped]
    from transformers.utils.chat_parsing import parse_response

    field, turn_end = compiled.fields["tool_calls"], _find_turn_end(compiled)
    is_xml = field.content == "xml-inline"
    body, at = "", opening.end()
    readings: list[tuple[Reading, int]] = []
    closings: list[tuple[str, str]] = []
    # A closing pattern of zero width may also match where the call opens.
    ends = (match for match in (field.close_re or _TEXT_END).finditer(text, at) if match.end() > opening.end())
    for placeholder, closing in zip(_PLACEHOLDERS, ends, strict=False):
        body += text[at : closing.start()]
        if body.count('<|"|>') > MAX_STRINGS * 2:
            return Reading(problem=f"the call has more than {MAX_STRINGS} strings"), at
        try:
            call = f"{opening.group()}{body}{closing.group()}"
            message = parse_response(call, compiled, prefix="", tools=tools if is_xml else None)
            reading = _to_calls(_restore_closings(message.get("tool_calls", []), closings))
        except (ValueError, RecursionError) as error:
            reading = Reading(problem=_describe_error(error))
        readings.append((reading, closing.end()))
        rest = regex.sub(field.content_args["tag_pattern"], "", body, flags=regex.DOTALL) if is_xml else ""
        if not reading.problem and _CLOSING_TAGS.fullmatch(rest):
            return readings[-1]
        # Including the end of the turn, which closes the calls of some families.
        end = turn_end.match(text, closing.end()) if turn_end else None
        body, at = body + placeholder, (end or closing).end()
        closings.append((placeholder, text[closing.start() : at]))
    return readings[0] if readings else (Reading(problem="the call is not closed"), at)


def _restore_closings(value: Any, closings: list[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        for placeholder, closing in closings:
            value = value.replace(placeholder, closing)
        return value
    if isinstance(value, dict):
        return {_restore_closings(key, closings): _restore_closings(item, closings) for key, item in value.items()}
    return [_restore_closings(item, closings) for item in value] if isinstance(value, list) else value


def _find_message_start(text: str, reasoning_fields: Sequence[Any], call_field: Any) -> int:
    """Return where the message begins, after reasoning whose opening tag is in the prompt."""
    for field in reasoning_fields:
        opening, closing = field.open_re.search(text), (field.close_re or _TEXT_END).search(text)
        if closing and closing.group() and not (opening and opening.start() < closing.start()):
            call = call_field and call_field.open_re.search(text)
            if not call or call.start() > closing.start() or call_field.open_re.search(text, closing.end()):
                return int(closing.end())
    return 0


def _to_calls(items: list[Any]) -> Reading:
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
            # The arguments may be a string of JSON.
            with suppress(ValueError, RecursionError):
                decoded = json.loads(arguments)
                arguments = decoded if isinstance(decoded, dict) else arguments
        calls.append(Call(name, arguments))
    return Reading(tuple(calls))


def _read_json(text: str) -> Reading:
    """Parse a message in the format `json`, without prose or a fence around the object."""
    if not text.startswith("{"):
        return Reading()
    try:
        action = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Reading(problem=_describe_error(error))
    if action.get("type") == "final":
        return Reading()
    if action.get("type") != "tool_call" or not {"args"} <= set(action) <= {"type", "name", "args", "thought"}:
        return Reading(problem="the object must have the keys `type` (tool_call or final), `name` and `args`")
    return _to_calls([{"name": action.get("name"), "arguments": action["args"]}])


def _strip_message(text: str) -> str:
    """Return the text without reasoning and without the tokens that end a turn."""
    for closing in _THOUGHTS:
        if not text.lstrip().startswith("{") and closing in text:
            text = text.partition(closing)[2]
    text = text.strip().removeprefix("<|channel|>final<|message|>")
    end = len(text)
    while token := next((token for token in _TAIL if text.endswith(token, 0, end)), ""):
        end -= len(token)
    return text[:end].strip()


def _describe_error(problem: BaseException) -> str:
    if isinstance(problem, RecursionError):
        return "the arguments are nested too deeply"
    cause = problem.__cause__ or problem
    if not isinstance(cause, json.JSONDecodeError):
        return f"it is not valid: {str(cause)[:200]}"
    near = cause.doc[max(cause.pos - 20, 0) : cause.pos + 20]
    return f"it is not valid JSON: {cause.msg} at character {cause.pos}, near {near!r}"


def _find_unsupported(arguments: Any) -> str:
    """Return what no harness accepts: NaN, infinity, huge numbers or deep nesting; "" if there is nothing."""
    pending = [(arguments, 0)]
    while pending:
        value, depth = pending.pop()
        if depth > MAX_DEPTH:
            return f"the arguments are nested deeper than {MAX_DEPTH}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"{value} is not a JSON number"
        if isinstance(value, int) and value.bit_length() > 1023:
            return "a number is too large"
        if isinstance(value, dict):
            pending += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, list):
            pending += [(item, depth + 1) for item in value]
    return ""
