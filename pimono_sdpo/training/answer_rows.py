"""Rows with answers for SFT and DPO, each whole within the maximum length.

TRL keeps the first `max_length` tokens of a row: an answer is cut in the middle, or lost behind a
long prompt, without a word. Here such rows are left out before the first step, with a reason.

Columns of rollouts have a field for whatever a turn may need and null where it does not; some
templates write `None` for such a field, and several refuse arguments that are JSON text. Text that
spells a control token would open or end a turn.

reads prompt, tools, and completion or chosen and rejected / writes the same without nulls, with
arguments as mappings, as Json
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Required, TypedDict

import datasets
import msgspec
from datasets import Dataset, Json, List
from jinja2 import TemplateError

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.traces.trajectories.base import drop_nulls
from pimono_sdpo.training.rows import Fitted, LeftOut, fit_rows
from pimono_sdpo.training.token_budget import control_tokens, neutralise, special_tokens, templated_ids

Row = dict[str, Any]
TEMPLATE = "chat_template_kwargs"
# What a chat template gets unless a row says otherwise; as for SDPO.
TEMPLATE_KWARGS = {"enable_thinking": False}
MESSAGES = List(Json())
COUNTS = ("special_tokens_neutralised", "with_tool_output", "prompts_rendered_otherwise")


@contextmanager
def uncached() -> Iterator[None]:
    """Keep `datasets` from reusing a result of an earlier version of this code."""
    before = datasets.is_caching_enabled()
    datasets.disable_caching()
    try:
        yield
    finally:
        if before:
            datasets.enable_caching()


def fit_answers(
    rows: Dataset, held_out: Dataset | None, targets: Sequence[str], tokenizer: Any, max_length: int | None
) -> Fitted:
    """Return the rows that can be trained on whole, and the others with their reasons.

    `targets` are the columns of answers. Raises TrainingInputError for columns that are missing and
    when no row is left.
    """
    columns = ("prompt", *targets)
    missing = ", ".join(f"`{name}`" for name in columns if name not in rows.column_names)
    if missing:
        raise TrainingInputError(
            f"The rows lack the column(s) {missing} and have {', '.join(rows.column_names)}; this "
            f"job takes prompt, {', '.join(targets)} and, optionally, tools."
        )
    special, control = special_tokens(tokenizer), control_tokens(tokenizer)
    # Structs hold a null for every argument that another call has; JSON is kept as written.
    padded = {name: "Json(" not in str(feature) for name, feature in rows.features.items()}

    def fit(row: Row, number: int) -> tuple[Row, Row]:
        fitted: Row = {TEMPLATE: {**TEMPLATE_KWARGS, **(row.get(TEMPLATE) or {})}}
        neutralised = 0
        for name in columns:
            fitted[name], spelled = clean_turns(row[name], special, control, padded[name])
            neutralised += spelled
        fitted["tools"] = clean_tools(row.get("tools"), padded.get("tools", False))
        try:
            notes = _measure(fitted, targets, tokenizer)
        except (TemplateError, TypeError) as problem:
            # What templates raise for turns that they do not know.
            refused = " ".join(str(problem).split())
            raise LeftOut("template", f"the chat template refuses it: {refused}") from problem
        if max_length is not None and notes["sequence"] > max_length:
            raise LeftOut("too_long", f"{notes['sequence']} tokens, over the {max_length} of max_length")
        return fitted, notes | {"special_tokens_neutralised": neutralised}

    written = dict.fromkeys((*columns, "tools"), MESSAGES) | {TEMPLATE: Json()}
    return fit_rows(rows, held_out, fit, written, COUNTS, {"prompt": None, "sequence": max_length})


def _measure(row: Row, targets: Sequence[str], tokenizer: Any) -> Row:
    """Return lengths as TRL will see them, and counts; raises LeftOut for what cannot teach."""
    if row["prompt"][-1]["role"] == "assistant":
        raise unreadable("has a prompt that ends in a turn of the assistant")
    for name in targets:
        if row[name][0]["role"] != "assistant":
            raise unreadable(f"has a `{name}` that does not begin with a turn of the assistant")
    prompt = encode(row, row["prompt"], tokenizer, prompt=True)
    whole = [encode(row, row["prompt"] + row[name], tokenizer) for name in targets]
    if len(whole) > 1 and whole[0] == whole[1]:
        raise LeftOut("identical", "chosen and rejected are the same tokens")
    for name in targets:
        _check_written(row, name, tokenizer)
    return {
        "prompt": len(prompt),
        "sequence": max(map(len, whole)),
        "prompts_rendered_otherwise": int(min(common_length(prompt, one) for one in whole) < len(prompt)),
        "with_tool_output": int(any(turn["role"] != "assistant" for name in targets for turn in row[name])),
    }


def _check_written(row: Row, name: str, tokenizer: Any) -> None:
    """Raise LeftOut when the chat template drops something that the row should teach."""
    turns = row["prompt"] + row[name]
    text = tokenizer.apply_chat_template(turns, tokenize=False, **{"tools": row["tools"], **row[TEMPLATE]})
    # Templates drop the thoughts of earlier turns; what stands behind them must be there.
    contents = [turn["content"].rpartition("</think>")[2].strip() for turn in row[name]]
    contents += [turn["content"].strip() for turn in row["prompt"] if turn["role"] != "assistant"]
    if not all(content in text for content in contents):
        raise unreadable("is changed by the chat template")
    calls = (call["function"]["name"] for turn in turns for call in turn.get("tool_calls", ()))
    if any(text.count(called) < count for called, count in Counter(calls).items()):
        raise unreadable("calls tools, which the chat template leaves out")


def encode(row: Mapping[str, Any], turns: list[Row], tokenizer: Any, *, prompt: bool = False) -> list[int]:
    """Return the token ids of some turns of a row."""
    return templated_ids(tokenizer, turns, prompt=prompt, **{"tools": row["tools"], **row[TEMPLATE]})


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix, after which TRL takes the answer to begin."""
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def unreadable(detail: str) -> LeftOut:
    """Return the error for something that is not a conversation."""
    return LeftOut("unreadable", detail)


class _Function(TypedDict, total=False):
    name: Required[str]
    arguments: dict[str, Any] | str | None


class _Call(TypedDict, total=False):
    id: str | None
    type: str | None
    function: Required[_Function]


class _Turn(TypedDict, total=False):
    role: Required[str]
    content: str | None
    reasoning_content: str | None
    thinking: str | None
    name: str | None
    tool_call_id: str | None
    tool_calls: list[_Call] | None


_Turns = Annotated[list[_Turn], msgspec.Meta(min_length=1)]


def clean_turns(
    turns: Any, special: Sequence[str], control: Sequence[str], padded: bool = False
) -> tuple[list[Row], int]:
    """Return the turns, and how many control tokens their text spelled; raises LeftOut.

    `special` are all that a template writes; in the model's own turns only `control` is broken, so
    that `<think>` and the like stay as they are. `padded` says that the column consists of structs,
    which hold a null for every argument that another call has.

    >>> clean_turns([{"role": "user", "content": "a <eos>", "name": None}], ["<eos>"], ["<eos>"])[1]
    1
    """
    cleaned, found = [], 0
    try:
        for turn in msgspec.convert(turns, _Turns):
            # Templates read `content` from every turn, and write `None` for one that only calls tools.
            said: Row = {"content": ""} | {name: value for name, value in turn.items() if value}
            if "tool_calls" in said:
                said["tool_calls"] = [_clean_call(call, padded) for call in said["tool_calls"]]
            neutral, spelled = _neutralise_all(said, tuple(control if turn["role"] == "assistant" else special))
            cleaned.append(neutral)
            found += spelled
    except msgspec.DecodeError as error:
        raise unreadable(f"is not a list of turns ({error})") from error
    return cleaned, found


def _clean_call(call: _Call, padded: bool) -> Row:
    arguments = call["function"].get("arguments") or {}
    if isinstance(arguments, str):
        arguments = msgspec.json.decode(arguments, type=dict[str, Any])
    function = {"name": call["function"]["name"], "arguments": drop_nulls(arguments) if padded else arguments}
    return {"type": "function"} | {key: value for key, value in call.items() if value} | {"function": function}


def clean_tools(tools: Any, padded: bool = False) -> list[Row] | None:
    """Return tool definitions as objects, None without any; raises LeftOut."""
    try:
        given = msgspec.json.decode(tools) if isinstance(tools, str) else tools
        read = [msgspec.json.decode(tool) if isinstance(tool, str) else tool for tool in given or ()]
        found: list[Row] = msgspec.convert(drop_nulls(read) if padded else read, list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise unreadable(f"has tools that are not JSON objects ({error})") from error
    return found or None


def _neutralise_all(value: Any, special: tuple[str, ...]) -> tuple[Any, int]:
    """Break control tokens in every string of a JSON value."""
    if isinstance(value, str):
        return neutralise(value, special)
    if isinstance(value, list):
        parts = [_neutralise_all(item, special) for item in value]
        return [part for part, _ in parts], sum(found for _, found in parts)
    if isinstance(value, dict):
        whole, found = _neutralise_all([*value.values()], special)
        return dict(zip(value, whole, strict=True)), found
    return value, 0
