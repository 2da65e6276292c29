"""Rows with answers for SFT and DPO, each whole within the maximum length.

TRL keeps the first `max_length` tokens of a row: an answer is cut in the middle, or lost behind a
long prompt, without a word. Here such rows are left out before the first step, with a reason.

Columns of rollouts have a field for whatever a turn may need and null where it does not; some
templates write `None` for such a field, and several refuse arguments that are JSON text. Text that
spells a control token would open or end a turn.

reads prompt, tools, and completion or chosen and rejected / writes the same without nulls, with
arguments as mappings, as Json
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import datasets
from datasets import Dataset, Features, Json, List, Value
from jinja2 import TemplateError

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.method import Fitted
from pimono_sdpo.training.token_budget import (
    control_tokens,
    neutralise,
    quote_names,
    special_tokens,
)

Row = dict[str, Any]
# Where a row comes from; held-out scores are grouped by the first of these that it has.
ORIGINS = ("task_id", "run_id", "session_id")
TEMPLATE = "chat_template_kwargs"
# What a chat template gets unless a row says otherwise; as for SDPO.
TEMPLATE_KWARGS = {"enable_thinking": False}
MESSAGES = List(Json())
NOTES = {
    "_reason": Value("string"),
    "_detail": Value("string"),
    "_prompt": Value("int64"),
    "_sequence": Value("int64"),
    "_neutralised": Value("int64"),
    "_tool_output": Value("int64"),
    "_other_prompt": Value("int64"),
}
TEXT_FIELDS = ("content", "reasoning_content", "thinking", "name", "tool_call_id")


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
    rows: Dataset,
    held_out: Dataset | None,
    targets: Sequence[str],
    tokenizer: Any,
    max_length: int | None,
) -> Fitted:
    """Return the rows that can be trained on whole, and the others with their reasons.

    `targets` are the columns of answers. Raises TrainingInputError for columns that are missing and
    when no row is left.
    """
    fitted, left_out = _fit(rows, targets, tokenizer, max_length)
    if not len(fitted):
        reasons = Counter(row["reason"] for row in left_out)
        summary = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        raise TrainingInputError(
            f"None of the {len(rows)} rows can be trained on ({summary}; the first: "
            f"{left_out[0]['detail']}); give other rows, or a larger --max_length for those that "
            "are too_long."
        )
    evaluated = None
    if held_out is not None:
        evaluated = _fit(held_out, targets, tokenizer, max_length)[0].remove_columns([*NOTES])
        if not len(evaluated):
            raise TrainingInputError(
                "No row of --eval_split fits into --max_length; raise it, or leave it out."
            )
    counts = {
        "left_out": dict(sorted(Counter(row["reason"] for row in left_out).items())),
        "special_tokens_neutralised": sum(fitted["_neutralised"]),
        "with_tool_output": sum(fitted["_tool_output"]),
        "prompts_rendered_otherwise": sum(fitted["_other_prompt"]),
    }
    lengths = {"prompt": list(fitted["_prompt"]), "sequence": list(fitted["_sequence"])}
    bare = fitted.remove_columns([*NOTES])
    return Fitted(bare, evaluated, len(rows), None, counts, lengths, left_out)


def _fit(
    rows: Dataset, targets: Sequence[str], tokenizer: Any, max_length: int | None
) -> tuple[Dataset, list[Row]]:
    missing = [name for name in ("prompt", *targets) if name not in rows.column_names]
    if missing:
        raise TrainingInputError(
            f"The rows lack the column(s) {quote_names(missing)} and have "
            f"{quote_names(rows.column_names)}; this job takes `prompt`, "
            f"{quote_names(targets)} and, optionally, `tools`."
        )
    columns = ["prompt", *targets, *(n for n in ("tools", TEMPLATE) if n in rows.column_names)]
    origins = [name for name in ORIGINS if name in rows.column_names]
    special, control = special_tokens(tokenizer), control_tokens(tokenizer)
    padded = {name: not _holds_json(rows.features[name]) for name in columns}

    def fit(row: Row) -> Row:
        found: Row = {
            **{name: [] for name in ("prompt", *targets)},
            "tools": None,
            TEMPLATE: {**TEMPLATE_KWARGS, **(row.get(TEMPLATE) or {})},
            **dict.fromkeys(NOTES),
        }
        neutralised = 0
        try:
            for name in ("prompt", *targets):
                found[name], spelled = clean_turns(row[name], special, control, padded[name])
                neutralised += spelled
            found["tools"] = clean_tools(row.get("tools"), padded.get("tools", False))
            _check_roles(found, targets)
            return found | {"_neutralised": neutralised} | _measure(found, targets, tokenizer)
        except BadTurn as problem:
            return found | {"_reason": "unreadable", "_detail": str(problem)}
        except (TemplateError, TypeError) as problem:
            # What templates raise for turns that they do not know.
            detail = " ".join(str(problem).split())
            return found | {
                "_reason": "template",
                "_detail": f"the chat template refuses it: {detail}",
            }

    with uncached():
        measured = rows.map(
            fit,
            remove_columns=[name for name in rows.column_names if name not in origins],
            features=Features(
                {
                    **{name: rows.features[name] for name in origins},
                    **dict.fromkeys(("prompt", *targets), MESSAGES),
                    "tools": MESSAGES,
                    TEMPLATE: Json(),
                    **NOTES,
                }
            ),
            desc="fit to max_length",
        )
        notes = measured.select_columns([*origins, *NOTES])
        kept, left_out = [], []
        for number, row in enumerate(notes):
            reason, detail = row["_reason"], row["_detail"]
            if reason is None and max_length is not None and row["_sequence"] > max_length:
                reason = "too_long"
                detail = f"{row['_sequence']} tokens, over the {max_length} of max_length"
            if reason is None:
                kept.append(number)
                continue
            origin = {name: row[name] for name in origins}
            left_out.append({"row": number + 1, **origin, "reason": reason, "detail": detail})
        return measured.select(kept), left_out


def _check_roles(row: Row, targets: Sequence[str]) -> None:
    if row["prompt"][-1]["role"] == "assistant":
        raise BadTurn("has a prompt that ends in a turn of the assistant")
    for name in targets:
        if row[name][0]["role"] != "assistant":
            raise BadTurn(f"has a `{name}` that does not begin with a turn of the assistant")


def _measure(row: Row, targets: Sequence[str], tokenizer: Any) -> Row:
    """Return the lengths as TRL will see them; raises BadTurn for a row that cannot teach."""
    prompt = encode(row, row["prompt"], tokenizer, add_generation_prompt=True)
    whole = [encode(row, row["prompt"] + row[name], tokenizer) for name in targets]
    if len(whole) > 1 and whole[0] == whole[1]:
        return {"_reason": "identical", "_detail": "chosen and rejected are the same tokens"}
    shared = min(common_length(prompt, one) for one in whole)
    for name in targets:
        _check_written(row, name, tokenizer)
    tool_output = any(turn["role"] != "assistant" for name in targets for turn in row[name])
    return {
        "_prompt": len(prompt),
        "_sequence": max(len(one) for one in whole),
        "_tool_output": int(tool_output),
        "_other_prompt": int(shared < len(prompt)),
    }


def _check_written(row: Row, name: str, tokenizer: Any) -> None:
    """Raise BadTurn when the chat template drops something that the row should teach."""
    text = tokenizer.apply_chat_template(
        row["prompt"] + row[name], tokenize=False, **{"tools": row["tools"], **row[TEMPLATE]}
    )
    # Templates drop the thoughts of earlier turns; what stands behind them must be there.
    contents = [turn["content"].rpartition("</think>")[2].strip() for turn in row[name]]
    contents += [turn["content"].strip() for turn in row["prompt"] if turn["role"] != "assistant"]
    if not all(content in text for content in contents):
        raise BadTurn("is changed by the chat template")
    calls = Counter(called_names(row["prompt"] + row[name]))
    if any(text.count(called) < count for called, count in calls.items()):
        raise BadTurn("calls tools, which the chat template leaves out")


def encode(row: Mapping[str, Any], turns: list[Row], tokenizer: Any, **more: Any) -> list[int]:
    """Return the token ids of some turns of a row."""
    encoded = tokenizer.apply_chat_template(
        turns, tokenize=True, return_dict=True, **{"tools": row["tools"], **row[TEMPLATE]}, **more
    )
    return list(encoded["input_ids"])


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix, after which TRL takes the answer to begin."""
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _holds_json(feature: Any) -> bool:
    """Tell a column of JSON values, which are kept as written, from one of structs."""
    if isinstance(feature, Json):
        return True
    if isinstance(feature, List):
        return _holds_json(feature.feature)
    return isinstance(feature, dict) and any(_holds_json(part) for part in feature.values())


class BadTurn(ValueError):
    """A row holds something that is not a conversation; the message says what."""


def clean_turns(
    turns: Any, special: Sequence[str], control: Sequence[str], padded: bool = False
) -> tuple[list[Row], int]:
    """Return the turns, and how many control tokens their text spelled; raises BadTurn.

    `special` are all that a template writes; in the model's own turns only `control` is broken, so
    that `<think>` and the like stay as they are. `padded` says that the column consists of structs,
    which hold a null for every argument that another call has.

    >>> clean_turns([{"role": "user", "content": "a <eos>", "name": None}], ["<eos>"], ["<eos>"])[1]
    1
    """
    if not isinstance(turns, list) or not turns:
        raise BadTurn("is not a list of turns")
    cleaned, found = [], 0
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
            raise BadTurn("has a turn without `role`")
        broken = control if turn["role"] == "assistant" else special
        one, spelled = _clean_turn(turn, tuple(broken), padded)
        cleaned.append(one)
        found += spelled
    return cleaned, found


def clean_tools(tools: Any, padded: bool = False) -> list[Row] | None:
    """Return tool definitions as objects, None without any; raises BadTurn."""
    if isinstance(tools, str):
        tools = _decoded(tools)
    if not tools:
        return None
    decoded = [_decoded(tool) if isinstance(tool, str) else tool for tool in tools]
    if not all(isinstance(tool, dict) for tool in decoded):
        raise BadTurn("has tools that are not JSON objects")
    return [_without_nulls(tool) for tool in decoded] if padded else decoded


def called_names(turns: Sequence[Row]) -> list[str]:
    """Return the tools that a conversation calls, in order."""
    calls = [call for turn in turns for call in turn.get("tool_calls", ())]
    return [str(call["function"]["name"]) for call in calls]


def _clean_turn(turn: Row, special: tuple[str, ...], padded: bool) -> tuple[Row, int]:
    cleaned: Row = {"role": turn["role"]}
    found = 0
    for field in TEXT_FIELDS:
        value = turn.get(field)
        if value is None:
            continue
        if not isinstance(value, str):
            raise BadTurn(f"has a turn whose `{field}` is not text")
        cleaned[field], spelled = neutralise(value, special)
        found += spelled
    calls = turn.get("tool_calls")
    if calls:
        cleaned["tool_calls"], spelled = _broken([_call(call, padded) for call in calls], special)
        found += spelled
    # Templates read it from every turn, and write `None` for one that only calls tools.
    cleaned.setdefault("content", "")
    return cleaned, found


def _call(call: Any, padded: bool) -> Row:
    call = _decoded(call) if isinstance(call, str) else call
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadTurn("has a tool call without a name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _decoded(arguments or "{}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise BadTurn("has a tool call whose arguments are not a JSON object")
    if padded:
        arguments = _without_nulls(arguments)
    known = {key: call[key] for key in ("id", "type") if call.get(key) is not None}
    return {
        "type": "function",
        **known,
        "function": {"name": function["name"], "arguments": arguments},
    }


def _broken(value: Any, special: tuple[str, ...]) -> tuple[Any, int]:
    """Break control tokens in every string of a JSON value."""
    if isinstance(value, str):
        return neutralise(value, special)
    if isinstance(value, list):
        parts = [_broken(item, special) for item in value]
        return [part for part, _ in parts], sum(found for _, found in parts)
    if isinstance(value, dict):
        items = {key: _broken(item, special) for key, item in value.items()}
        whole = {key: part for key, (part, _) in items.items()}
        return whole, sum(found for _, found in items.values())
    return value, 0


def _without_nulls(value: Any) -> Any:
    """Drop the nulls that a column of structs has added."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadTurn("has a tool or a call that is not JSON") from error
