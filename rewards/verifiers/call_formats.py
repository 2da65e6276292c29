"""Read the tool calls out of the text of a completion, in the formats of each model family.

The formats are those that the families' chat templates render and their tokenizers decode with the
special tokens kept, read by the response parser of transformers. Reasoning and the end of the turn
are cut off first. For a model of none of these families, the response template of its tokenizer is
used, where it has one. There are also `json`, whose whole message is one object
{"type": "tool_call", "name", "args"}, and `bash_block`, a THOUGHT followed by one ```bash block.
"""

import json
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Family:
    """The format of one family of models.

    `marker` and `closes` frame a call, `begins` tells families with the same marker apart, `ends`
    are the tokens that end the turn, `thought` frames reasoning. `to_end`: a call is all there is.
    `texts` are a call's texts, in which a closing tag is text; without it the call is JSON.
    """

    marker: str
    closes: str
    begins: str
    ends: tuple[str, ...]
    thought: tuple[str, str]
    example: str
    template: dict[str, Any]
    to_end: bool = False
    texts: str = ""


NAMED = {"function": {"name": "{name}", "arguments": "{content}"}}
WHOLE = {"function": "{content}"}


def _template(anchor: str, **calls: Any) -> dict[str, Any]:
    """Return a response template with the fields tool_calls and, for all else, content."""
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": anchor,
        "fields": {"tool_calls": {"repeats": True, **calls}, "content": {"content": "text"}},
    }


def _tags(opens: str, closes: str) -> dict[str, Any]:
    # Without a closing tag the search goes on at the end, or many of them would cost hours.
    value = rf"(?:(?P<value>.*?){closes}|.*(*SKIP)(*FAIL))"
    text = {"name": "text", "args": {"strip": False}}
    return {"tag_pattern": opens + value, "value_parser": text}


FAMILIES = {
    "gemma4": Family(
        marker="<|tool_call>",
        closes="<tool_call|>",
        begins=r"<\|tool_call>",
        ends=("<turn|>", "<|tool_response>", "<eos>"),
        thought=("<|channel>", "<channel|>"),
        example='<|tool_call>call:NAME{KEY:<|"|>TEXT<|"|>}<tool_call|>',
        texts=r'<\|"\|>.*?<\|"\|>',
        template=_template(
            "<|turn>model\n",
            open_pattern=r"<\|tool_call>call:(?P<name>[^\s{<]+)\s*(?=\{)",
            close="<tool_call|>",
            content="json",
            content_args={"string_delims": [['<|"|>', '<|"|>']], "unquoted_keys": True},
            transform=NAMED,
        ),
    ),
    "qwen3": Family(
        marker="<tool_call>",
        closes="</tool_call>",
        begins=r"<tool_call>\s*\{",
        ends=("<|im_end|>", "<|endoftext|>"),
        thought=("<think>", "</think>"),
        example='<tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>',
        template=_template(
            "<|im_start|>assistant\n",
            open="<tool_call>",
            close="</tool_call>",
            content="json",
            transform=WHOLE,
        ),
    ),
    "qwen3_5": Family(
        marker="<tool_call>",
        closes="</tool_call>",
        begins=r"<tool_call>\s*<function=",
        ends=("<|im_end|>", "<|endoftext|>"),
        thought=("<think>", "</think>"),
        example="<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n"
        "</tool_call>",
        texts=r"<parameter=[^>\n]{1,200}>.*?</parameter>",
        template=_template(
            "<|im_start|>assistant\n",
            open_pattern=r"<tool_call>\s*<function=(?P<name>[^\n>]+)>",
            close_pattern=r"</function>\s*</tool_call>",
            content="xml-inline",
            content_args=_tags(r"<parameter=(?P<key>[^>\n]{1,200})>\n?", r"\n?</parameter>"),
            transform=NAMED,
        ),
    ),
    "glm4": Family(
        marker="<tool_call>",
        closes="</tool_call>",
        begins=r"<tool_call>(?!\s*(?:\{|<function=))",
        ends=("<|user|>", "<|observation|>", "<|endoftext|>"),
        thought=("<think>", "</think>"),
        example="<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n"
        "</tool_call>",
        texts=r"<arg_value>.*?</arg_value>",
        template=_template(
            "<|assistant|>",
            open_pattern=r"<tool_call>\s*(?P<name>[^\s<{]+)",
            close="</tool_call>",
            content="xml-inline",
            content_args=_tags(
                r"<arg_key>(?P<key>[^<]{1,200})</arg_key>\s*<arg_value>", "</arg_value>"
            ),
            transform=NAMED,
        ),
    ),
    "gpt_oss": Family(
        marker="to=functions.",
        closes="<|call|>",
        begins=r"to=functions\.",
        ends=("<|return|>",),
        thought=("<|channel|>analysis<|message|>", "<|end|>"),
        example="<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>",
        template=_template(
            "<|start|>assistant",
            open_pattern=r"to=functions\.(?P<name>[^\s<]{1,200})(?:\s*<\|channel\|>commentary)?"
            r"(?:\s*<\|constrain\|>)?(?:\s*json)?\s*<\|message\|>",
            close="<|call|>",
            content="json",
            transform=NAMED,
        ),
    ),
    "llama3": Family(
        marker='"name"',
        closes="}",
        begins=r'\A\s*(?:<\|python_tag\|>\s*)?\{\s*"(?:type|name)"\s*:',
        ends=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
        thought=("<think>", "</think>"),
        example='{"name": NAME, "parameters": {...}}',
        template=_template(
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            open_pattern=r'\A\s*(?:<\|python_tag\|>\s*)?(?=\{\s*"(?:type|name)"\s*:)',
            close_pattern=r"\Z",
            content="json",
            transform=WHOLE,
        ),
        to_end=True,
    ),
}


@cache
def compiled(family: str) -> Any:
    """Return the compiled `ResponseTemplate` of a family; needs transformers."""
    # Half a second that a filter without tool calls need not wait for.
    from transformers.utils.chat_parsing.response_templates import load_response_template

    return load_response_template(FAMILIES[family].template)


TURN_ENDS = tuple(dict.fromkeys(end for f in FAMILIES.values() for end in (*f.ends, "<|call|>")))


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

EXAMPLES = {name: family.example for name, family in FAMILIES.items()} | {
    "json": '{"type": "tool_call", "name": NAME, "args": {...}} and nothing else',
    "bash_block": "THOUGHT: ...\n\n```bash\nCOMMAND\n```",
}
_THOUGHTS = sorted({family.thought for family in FAMILIES.values()})
_TAIL = (*sorted({e for family in FAMILIES.values() for e in family.ends}), "<pad>", *" \t\r\n")
_PADS = re.compile(r"(?:\s|<pad>|<\|endoftext\|>|<\|finetune_right_pad_id\|>)*")
_FOREIGN = re.compile(r"<\|?tool_calls?(?:_section_begin\||\||)>|to=functions\.")
_BLOCK = re.compile(r"^```bash[ \t\r]*\n(.*?)^```[ \t\r]*$", re.MULTILINE | re.DOTALL)
_OPENS = re.compile(r"^```bash[ \t\r]*$", re.MULTILINE)
_THOUGHT = re.compile(r"\A\s*THOUGHT\b:?\s*(?!```)\S", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Call:
    """A call as it was written; the arguments should be a dict, but are what the model wrote."""

    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Reading:
    """The calls of a message, or the problem that makes it unreadable; `cut`: it just stops."""

    calls: tuple[Call, ...] = ()
    problem: str = ""
    cut: bool = False


def read_calls(text: str, formats: Sequence[str], tools: list[dict[str, Any]]) -> Reading:
    """Read the calls that `text` makes in one of the `formats`; never raises on the text.

    `tools` (name and parameters) tell the XML formats which values are numbers.
    """
    if len(text) > MAX_CHARS:
        return Reading(problem=f"the message is longer than {MAX_CHARS} characters")
    if formats == ["json"]:
        reading = _read_json(_bare(text))
    elif formats == ["bash_block"]:
        reading = _read_bash_block(_bare(text))
    else:
        name = _family_of(text, formats)
        reading = _read_family(text, name, tools) if name else Reading()
    unsound = next(filter(None, (_unsound(call.arguments) for call in reading.calls)), "")
    return Reading(problem=unsound) if unsound else reading


def format_of(chat_template: str) -> str | None:
    """Tell by its chat template in which format a model calls, for spec["format"]; None: unknown.

    >>> format_of("... '<tool_call>' ... '<function=' ...")
    'qwen3_5'
    """
    signs = {
        "<|tool_call>call:": "gemma4",
        "<function=": "qwen3_5",
        "<arg_key>": "glm4",
        "<tool_call>": "qwen3",
        "<|channel|>": "gpt_oss",
        "<|eot_id|>": "llama3",
    }
    return next((name for sign, name in signs.items() if sign in chat_template), None)


def _family_of(text: str, formats: Sequence[str]) -> str | None:
    marked = [name for name in formats if FAMILIES[name].marker in text]
    for name in marked:
        family = FAMILIES[name]
        if len(marked) == 1 or re.search(family.begins, _after_thought(text, family)):
            return name
    return None


def _read_family(text: str, name: str, tools: list[dict[str, Any]]) -> Reading:
    from transformers.utils.chat_parsing import ResponseParser

    family = FAMILIES[name]
    if text.count(family.marker) > MAX_CALLS and not family.to_end:
        return Reading(problem=f"the message makes more than {MAX_CALLS} calls")
    text = _shielded(text, family)
    body, ended, rest = _turn(text, family)
    for end in family.ends:
        rest = rest.replace(end, "")
    if not _PADS.fullmatch(rest):
        return Reading(problem="the message goes on after the end of its turn")
    body = _after_thought(body, family)
    if body.count('<|"|>') > MAX_STRINGS * 2:
        return Reading(problem=f"the message has more than {MAX_STRINGS} texts")
    typed = tools if compiled(name).fields["tool_calls"].content == "xml-inline" else None
    parser = ResponseParser(compiled(name), prefix="", tools=typed)
    try:
        parser.feed(body + "\n")  # at the very end the parser would wait for more
    except (ValueError, RecursionError) as found:
        return Reading(problem=_why(found))
    try:
        message, late = parser.finalize()
    except (ValueError, RecursionError) as found:
        return Reading(problem=_why(found), cut=not ended and (not family.to_end or _stops(found)))
    closed = [event["field"] for event in late if event["type"] == "region_close"]
    if not family.to_end and "tool_calls" in closed:
        return Reading(problem="the call is not closed", cut=not ended)
    _, begun, name_only = str(message.get("content", "")).rpartition(family.marker)
    if begun and not family.to_end:
        cut = not ended and len(name_only.split()) <= 1
        return Reading(problem=f"{family.marker} does not begin a call that can be read", cut=cut)
    items = [item["function"] for item in message.get("tool_calls", [])]
    return _calls(_restored(items, family.closes))


# Stands for a closing tag in a text of a call; of the private use area, which no text needs.
_SHIELD = "\ue0c1"


def _shielded(text: str, family: Family) -> str:
    """Return a message whose closing tags all end calls, not those within texts of a call."""
    first = text.find(family.marker)
    if first < 0 or family.to_end or text.count(family.closes, first) < 2:
        return text
    if family.texts:
        return text[:first] + re.sub(
            family.texts,
            lambda match: match.group().replace(family.closes, _SHIELD),
            text[first:],
            flags=re.DOTALL,
        )
    decoder, parts, done = json.JSONDecoder(), [], 0
    for match in re.finditer(re.escape(family.marker) + r"[^{]{0,200}", text):
        if match.start() < done:
            continue
        try:
            end = decoder.raw_decode(text, match.end())[1]
        except (ValueError, RecursionError):
            continue
        parts += [text[done : match.end()], text[match.end() : end].replace(family.closes, _SHIELD)]
        done = end
    return "".join([*parts, text[done:]])


def _restored(value: Any, closes: str) -> Any:
    if isinstance(value, str):
        return value.replace(_SHIELD, closes)
    if isinstance(value, dict):
        return {_restored(key, closes): _restored(item, closes) for key, item in value.items()}
    return [_restored(item, closes) for item in value] if isinstance(value, list) else value


def read_own(text: str, template: dict[str, Any], tools: list[dict[str, Any]]) -> Reading:
    """Read the calls of a message by the response template of the model's own tokenizer."""
    from transformers.utils.chat_parsing import ResponseParser
    from transformers.utils.chat_parsing.response_templates import load_response_template

    if len(text) > MAX_CHARS:
        return Reading(problem=f"the message is longer than {MAX_CHARS} characters")
    try:
        parser = ResponseParser(load_response_template(template), prefix="", tools=tools)
        parser.feed(text + "\n")  # at the very end the parser would wait for more
        message, late = parser.finalize()
    except (ValueError, RecursionError) as found:
        return Reading(problem=_why(found), cut=_stops(found))
    if "tool_calls" in [event["field"] for event in late if event["type"] == "region_close"]:
        return Reading(problem="the call is not closed", cut=True)
    reading = _calls([item.get("function", item) for item in message.get("tool_calls") or []])
    unsound = next(filter(None, (_unsound(call.arguments) for call in reading.calls)), "")
    return Reading(problem=unsound) if unsound else reading


def _calls(items: list[Any]) -> Reading:
    calls = []
    for item in items:
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str) or not name.strip():
            return Reading(problem="the call does not name a tool")
        key = next((key for key in ("arguments", "parameters") if key in item), None)
        if key is None:
            return Reading(problem=f"the call of {name[:80]} has no arguments")
        calls.append(Call(name.strip(), _opened(item[key])))
    return Reading(tuple(calls))


def _opened(arguments: Any) -> Any:
    """Return the object that arguments are, also when they come as its JSON text."""
    if isinstance(arguments, str):
        try:
            found = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        return found if isinstance(found, dict) else arguments
    return arguments


def _read_json(text: str) -> Reading:
    """Read the JSON protocol: prose or a fence around the object is what it must not have."""
    if not text.startswith("{"):
        return Reading()
    try:
        action = json.loads(text)
    except (ValueError, RecursionError) as found:
        return Reading(problem=_why(found), cut=_stops(found))
    if action.get("type") == "final":
        return Reading()
    unknown = sorted(set(action) - {"type", "name", "args", "thought"})
    if action.get("type") != "tool_call" or unknown:
        what = f"the unknown key {unknown[0][:80]!r}" if unknown else "no type tool_call or final"
        return Reading(problem=f"the object has {what}")
    if "args" not in action:
        return Reading(problem="the object has no args")
    return _calls([{"name": action.get("name"), "arguments": action["args"]}])


def _read_bash_block(text: str) -> Reading:
    opened = len(_OPENS.findall(text))
    if opened == 0:
        return Reading()
    if opened > 1:
        return Reading(problem=f"the message has {opened} bash blocks; write exactly one")
    block = _BLOCK.search(text)
    if block is None:
        return Reading(problem="the bash block is not closed", cut=True)
    if foreign := _FOREIGN.search(text):
        return Reading(problem=f"{foreign.group()} belongs to another format")
    if not _THOUGHT.match(text):
        return Reading(problem="the message does not begin with its THOUGHT")
    return Reading((Call("bash", {"command": block.group(1).strip()}),))


def _turn(text: str, family: Family) -> tuple[str, bool, str]:
    """Split at the token that ends the turn: the message, whether it ended, the rest.

    Inside a call such a token is text, of an agent that works on chat templates.
    """
    ends = "|".join(map(re.escape, family.ends))
    if family.to_end:
        found = re.compile(ends).search(text, text.rfind(family.closes) + 1)
    else:
        call = f"{re.escape(family.marker)}.*?{re.escape(family.closes)}"
        matches = re.finditer(f"{call}|({ends})", text, re.DOTALL)
        found = next((match for match in matches if match.group(1)), None)
    return (text[: found.start()], True, text[found.end() :]) if found else (text, False, "")


def _after_thought(text: str, family: Family) -> str:
    """Leave out the reasoning before the calls, also where the prompt opened it."""
    (opens, closes), marker = family.thought, family.marker
    end = text.find(closes)
    if end >= 0 and opens not in text[:end] and (marker not in text[:end] or marker in text[end:]):
        text = text[end + len(closes) :]
    kept = []
    while (begin := text.find(opens)) >= 0 and marker not in text[:begin]:
        kept.append(text[:begin])
        text = text[begin + len(opens) :].partition(closes)[2]
    return "".join([*kept, text])


def _bare(text: str) -> str:
    """Return the text without reasoning, and without the tokens that end a turn."""
    for opens, closes in _THOUGHTS:
        if text.lstrip().startswith(opens) or not text.lstrip().startswith(("{", "THOUGHT")):
            text = text.partition(closes)[2] if closes in text else text
    text = text.strip().removeprefix("<|channel|>final<|message|>")
    end = len(text)
    while token := next((token for token in _TAIL if text.endswith(token, 0, end)), ""):
        end -= len(token)
    return text[:end].strip()


def _stops(problem: BaseException) -> bool:
    """Whether JSON was fine until it stopped."""
    if not isinstance(problem, json.JSONDecodeError):
        cause = problem.__cause__
        return cause is not None and _stops(cause)
    rest = problem.doc[problem.pos :].strip()
    return not rest or problem.msg.startswith("Unterminated string")


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
