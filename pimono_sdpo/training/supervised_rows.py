"""Rows with answers, each whole within the length of a training: TRL would cut or drop the others.

TRL keeps the first `max_length` tokens of a row: a target is cut in the middle, one behind a long
prompt is gone, without a word. Here such rows are left out before the first step, with a reason.

reads prompt, tools, and completion or chosen and rejected / writes the same, as Json
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import datasets
from datasets import Dataset, Features, Json, List, Value
from jinja2 import TemplateError

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.chat_messages import BadTurn, called_names, clean_tools, clean_turns
from pimono_sdpo.training.token_budget import control_tokens, special_tokens
from pimono_sdpo.training.trainer import Fitted

Row = dict[str, Any]
TARGETS = {"sft": ("completion",), "dpo": ("chosen", "rejected")}
# What a row may say of where it is from; held-out scores of one task come in clusters.
ORIGINS = ("task_id", "run_id", "session_id")
TEMPLATE = "chat_template_kwargs"
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


@contextmanager
def uncached() -> Iterator[None]:
    """Keep `datasets` from taking an earlier result of another code version for this one."""
    before = datasets.is_caching_enabled()
    datasets.disable_caching()
    try:
        yield
    finally:
        if before:
            datasets.enable_caching()


def fit_recorded(
    method: str,
    rows: Dataset,
    tokenizer: Any,
    max_length: int | None,
    template: Mapping[str, Any],
    held_out: Dataset | None = None,
) -> tuple[Fitted, list[Row]]:
    """Return the rows that can be trained on whole, and the others with their reasons.

    Raises TrainingInputError for columns that are missing and when no row is left.
    """
    fitted, left_out = _fit(method, rows, tokenizer, max_length, template)
    if not len(fitted):
        reasons = Counter(row["reason"] for row in left_out)
        first = left_out[0]["detail"]
        told = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        raise TrainingInputError(
            f"None of the {len(rows)} rows can be trained on ({told}; the first: {first}); give "
            "other rows, or a larger --max_length for those that are too_long."
        )
    kept_back = None
    if held_out is not None:
        kept_back, _ = _fit(method, held_out, tokenizer, max_length, template)
        kept_back = kept_back.remove_columns([*NOTES])
        if not len(kept_back):
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
    return Fitted(bare, kept_back, len(rows), None, counts, lengths), left_out


def _fit(
    method: str, rows: Dataset, tokenizer: Any, max_length: int | None, template: Mapping[str, Any]
) -> tuple[Dataset, list[Row]]:
    targets = TARGETS[method]
    missing = [name for name in ("prompt", *targets) if name not in rows.column_names]
    if missing:
        raise TrainingInputError(
            f"The rows lack the column(s) {_names(missing)} and have {_names(rows.column_names)}; "
            f"train_{method} takes `prompt`, {_names(targets)} and, if need be, `tools`."
        )
    columns = ["prompt", *targets, *(n for n in ("tools", TEMPLATE) if n in rows.column_names)]
    origins = [name for name in ORIGINS if name in rows.column_names]
    special, control = special_tokens(tokenizer), control_tokens(tokenizer)
    padded = {name: not _holds_json(rows.features[name]) for name in columns}

    def fit(row: Row) -> Row:
        found: Row = {
            **{name: [] for name in ("prompt", *targets)},
            "tools": None,
            TEMPLATE: {**template, **(row.get(TEMPLATE) or {})},
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
            return found | {"_reason": "template", "_detail": f"its chat template says: {detail}"}

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
            raise BadTurn(f"has a `{name}` that is no turn of the assistant")


def _measure(row: Row, targets: Sequence[str], tokenizer: Any) -> Row:
    """Return the lengths as TRL will see them; raises BadTurn for what nothing is learned from."""
    template: Row = {"tools": row["tools"], **row[TEMPLATE]}

    def ids(turns: list[Row], **more: Any) -> list[int]:
        encoded = tokenizer.apply_chat_template(
            turns, tokenize=True, return_dict=True, **template, **more
        )
        return list(encoded["input_ids"])

    prompt = ids(row["prompt"], add_generation_prompt=True)
    whole = [ids(row["prompt"] + row[name]) for name in targets]
    if len(whole) > 1 and whole[0] == whole[1]:
        return {"_reason": "identical", "_detail": "chosen and rejected are the same tokens"}
    shared = min(common_length(prompt, one) for one in whole)
    for name in targets:
        _check_written(row, name, tokenizer, template)
    tool_output = any(turn["role"] != "assistant" for name in targets for turn in row[name])
    return {
        "_prompt": len(prompt),
        "_sequence": max(len(one) for one in whole),
        "_tool_output": int(tool_output),
        "_other_prompt": int(shared < len(prompt)),
    }


def _check_written(row: Row, name: str, tokenizer: Any, template: Row) -> None:
    """Raise BadTurn when the chat template leaves out what the row wants to teach."""
    text = tokenizer.apply_chat_template(row["prompt"] + row[name], tokenize=False, **template)
    # Templates drop the thoughts of earlier turns; what stands behind them must be there.
    contents = [turn["content"].rpartition("</think>")[2].strip() for turn in row[name]]
    contents += [turn["content"].strip() for turn in row["prompt"] if turn["role"] != "assistant"]
    if not all(content in text for content in contents):
        raise BadTurn("is changed by the chat template")
    calls = Counter(called_names(row["prompt"] + row[name]))
    if any(text.count(called) < count for called, count in calls.items()):
        raise BadTurn("calls tools, which the chat template leaves out")


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two texts begin with alike, which is how TRL finds an answer."""
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _holds_json(feature: Any) -> bool:
    """Tell a column of JSON values, which are as they were written, from one of structs."""
    if isinstance(feature, Json):
        return True
    if isinstance(feature, List):
        return _holds_json(feature.feature)
    return isinstance(feature, dict) and any(_holds_json(part) for part in feature.values())


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
