"""Load the rows to train on and hold some out; fit them to token budgets, and leave out those that do not fit.

TRL truncates token ids: a student's prompt and a teacher's from the left, which loses <bos> and the
start of the task, and recorded answers from the right. Here the oldest turns of a prompt are dropped
first, then texts are shortened in the middle, a context block by block; recorded answers are never cut.

reads the columns of READS in options.py / writes the same columns
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired, Required, TypedDict

import msgspec
from datasets import Dataset, Features, List, Value, get_dataset_split_names, load_dataset
from datasets import Json as JsonFeature
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from jinja2 import TemplateError

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.filtering import FilterOptions, run_filter
from pimono_sdpo.runs.folders import read_json
from pimono_sdpo.schema import MESSAGE
from pimono_sdpo.text import TRIMMED
from pimono_sdpo.traces.trajectories.base import drop_nulls
from pimono_sdpo.training.console import is_main_process, say
from pimono_sdpo.training.models import translate_errors
from pimono_sdpo.training.options import check_columns, check_folder, is_local
from pimono_sdpo.training.output import DATA, REPORT_FILE, last_checkpoint, read_written
from pimono_sdpo.training.token_budget import (
    neutralise,
    shorten_blocks,
    shorten_to_budget,
    special_tokens,
    templated_ids,
)

Json = dict[str, Any]
# Columns that say where a row comes from; held-out scores are grouped by the first one of these.
ORIGINS = ("task_id", "run_id", "session_id")
# A temporary column: counts and lengths of a row, or why it is left out.
NOTES = "_notes"
# Options of the filter that are also options of the job.
FILTERED = ("unit", "min_score", "max_samples", "test_fraction", "split_by")
# Default arguments of the chat template; a row may override them.
TEMPLATE_KWARGS = {"enable_thinking": False}
PROMPT_COUNTS = ("prompts_shortened", "contexts_shortened", "special_tokens_neutralised")


def load_rows(dataset: str, split: str = "train", config: str | None = None) -> Dataset:
    """Return the rows of one split of a folder or a Hub dataset, from a config of it if one is given."""
    check_folder(dataset)
    advice, files = "check the name, the network and HF_TOKEN", list[str]()
    if is_local(dataset):
        advice = "give the output of `filter`, `steps` or `pairs`"
        files = sorted(map(str, Path(dataset).glob(f"data/{split}-*.parquet")))
    if split != "train":
        advice = "filter with --test-fraction, and --split-by session for traces of one repository"
    with translate_errors(f"The split `{split}` of `{dataset}` cannot be loaded", advice):
        if files and config is None:
            # `datasets` notices when these files change; for a folder with a card it may reuse cached rows.
            return load_dataset("parquet", data_files={split: files}, split=split)
        return load_dataset(dataset, config, split=split)


def load_checked(dataset: str, method: str, config: str | None) -> Dataset:
    """Return the rows to train on; raises TrainingInputError for rows of another method, and for test rows."""
    rows = load_rows(dataset, config=config)
    check_columns(method, rows.column_names, dataset)
    test_rows = list(rows["split"]).count("test") if "split" in rows.column_names else 0
    if test_rows:
        raise TrainingInputError(
            f"{test_rows} of the {len(rows)} rows to train on in `{dataset}` have the split `test`; "
            "remove them, or give the rows of the split `train`."
        )
    return rows


def hold_out(rows: Dataset, dataset: str, job: Any) -> tuple[Dataset, Dataset | None, str]:
    """Return rows to train on, rows to evaluate on (None without any), and where those are from.

    They are those of --eval_split, else of the split test, else whole sessions of the rows, chosen by
    a hash of their names.
    """
    split = job.eval_split
    if split is None and job.held_out and has_test_split(dataset, job.dataset_config):
        split = "test"
    if split is not None:
        return rows, load_rows(dataset, split, job.dataset_config), split
    origin = next((name for name in ORIGINS if name in rows.column_names), None)
    names = [str(name) for name in rows[origin]] if origin else []
    sessions = sorted({*names}, key=lambda name: sha256(name.encode()).hexdigest())
    held = {*sessions[: round(job.held_out * len(sessions))]}
    if not held:
        return rows, None, ""
    parts = [[n for n, name in enumerate(names) if (name in held) == is_held] for is_held in (False, True)]
    training, evaluated = (rows.select(part) for part in parts)
    return training, evaluated, f"{len(held)} of {len(sessions)} sessions"


def has_test_split(dataset: str, config: str | None) -> bool:
    """Return whether a folder or a Hub dataset has the split `test`."""
    if is_local(dataset):
        return any(Path(dataset).glob("data/test-*.parquet"))
    with translate_errors(f"The splits of `{dataset}` cannot be listed", "check the name and the network"):
        return "test" in get_dataset_split_names(dataset, config)


def load_report(dataset: str) -> Json | None:
    """Return the report of the filter that made the rows, None if there is none or it is that of another command."""
    path = Path(dataset) / REPORT_FILE
    if not is_local(dataset):
        try:
            path = Path(hf_hub_download(dataset, REPORT_FILE, repo_type="dataset"))
        except EntryNotFoundError:
            return None
    if not path.is_file() or read_json(path).get("stage") is not None:
        return None
    return read_written(path)


def filter_source(job: Any, output: Path, seed: int) -> str:
    """Filter --source and return the folder of the rows; a resumed training uses the rows of its first start."""
    folder = output / DATA
    resumes = last_checkpoint(output) is not None and not job.overwrite
    exists = (folder / REPORT_FILE).is_file()
    if not is_main_process() or (exists and (resumes or job.source is None)):
        return str(folder)
    if job.source is None:
        raise TrainingInputError("There is nothing to train on; give --dataset (rows) or --source (traces).")
    options = FilterOptions(seed=seed, **{name: getattr(job, name) for name in FILTERED})
    report = run_filter(job.source, folder, options)
    say(f"{report['kept']} rows of {report['sessions']} sessions are in {folder}")
    return str(folder)


class LeftOut(ValueError):
    """A row cannot be trained on; its arguments are a reason of one word and a detailed one."""


class Fitted(NamedTuple):
    """Rows within their token budgets.

    counts     numbers of rows or tokens, for the run log
    lengths    tokens of each row, such as those of its prompt
    left_out   rows that cannot be trained on, with the reasons
    """

    rows: Dataset
    counts: Json
    lengths: dict[str, list[int]]
    left_out: list[Json]


def fit_rows(
    rows: Dataset, fit: Callable[[Json, int], tuple[Json, Json]], written: Mapping[str, Any], counted: Sequence[str]
) -> Fitted:
    """Apply `fit` to every row, and leave out the rows for which it raises LeftOut.

    fit       takes a row and its number, from 1; returns the columns `written`, and a note with a number
              for each of `counted` and of the lengths
    written   the columns that `fit` writes, with their features

    Raises TrainingInputError when no row is left.
    """

    def fit_or_leave_out(row: Json, index: int) -> Json:
        try:
            fitted, note = fit(row, index + 1)
        except LeftOut as error:
            return dict.fromkeys(written) | {NOTES: dict(zip(("reason", "detail"), error.args, strict=True))}
        return fitted | {NOTES: note}

    measured = rows.map(
        fit_or_leave_out,
        with_indices=True,
        features=Features({**rows.features, **written, NOTES: JsonFeature()}),
        # The cache key would not see a change of this module's code.
        load_from_cache_file=False,
        desc="fit to the token budget",
    )
    origins = [name for name in ORIGINS if name in rows.column_names]
    kept, notes, left_out = list[int](), list[Json](), list[Json]()
    for index, row in enumerate(measured.select_columns([*origins, NOTES])):
        note = row.pop(NOTES)
        if "reason" in note:
            left_out.append({"row": index + 1, **row, **note})
        else:
            kept.append(index)
            notes.append(note)
    reasons = dict(sorted(Counter(row["reason"] for row in left_out).items()))
    if not kept:
        summary = ", ".join(f"{reason} {count}" for reason, count in reasons.items())
        raise TrainingInputError(
            f"None of the {len(rows)} rows can be trained on ({summary}; the first: "
            f"{left_out[0]['detail']}); give other rows, or a larger budget for those that are too_long."
        )
    counts = {name: sum(note[name] for note in notes) for name in counted} | {"left_out": reasons}
    lengths = {name: [note[name] for note in notes] for name in notes[0] if name not in counted}
    return Fitted(measured.select(kept).remove_columns(NOTES), counts, lengths, left_out)


class Wording(NamedTuple):
    """The wording of a teacher's last user turn, by task and context, and the tokens to reserve for more text."""

    format: Callable[[str, str], str]
    reserved: int = 0


def fit_prompts(
    rows: Dataset, tokenizer: Any, prompt_tokens: int, reprompt_tokens: int, wording: Wording, template: Json
) -> Fitted:
    """Shorten prompts and contexts to both budgets; leave out the rows for which that is impossible.

    Lengths are those before shortening; the teacher's include the reserved tokens.
    """
    special = special_tokens(tokenizer)

    def shorten(text: str, budget: int, count: Callable[[str], int], what: str, option: str) -> str:
        shortened = shorten_to_budget(text, budget, count)
        if shortened is None:
            raise LeftOut("too_long", f"{count(TRIMMED)} tokens {what}, over the {budget} of {option}")
        return shortened

    def fit(row: Json, number: int) -> tuple[Json, Json]:
        _check_prompt(row, number)
        texts, neutralised = zip(*(neutralise(turn["content"], special) for turn in row["prompt"]), strict=True)
        full_context, in_context = neutralise(row["privileged_context"] or "", special)
        *history, last = [
            {"role": turn["role"], "content": text} for turn, text in zip(row["prompt"], texts, strict=True)
        ]
        task = full_task = last["content"]
        context = full_context

        def count(user_text: str) -> int:
            return len(templated_ids(tokenizer, [*history, {"role": "user", "content": user_text}], **template))

        def count_reprompt(context: str) -> int:
            return count(wording.format(task, context)) + wording.reserved

        lengths = {"prompt": count(task), "teacher_prompt": count_reprompt(context)}
        # Behind a system prompt stands the request, which is kept; in other rows it is the last turn.
        fixed = 2 if history and history[0]["role"] == "system" else 0
        while len(history) > fixed and count(task) > prompt_tokens:
            # The request matters more than earlier turns; the oldest exchange is dropped first.
            dropped = 1 if history[fixed]["role"] == "assistant" and not fixed else 2
            history = history[:fixed] + history[fixed + dropped :]
        task = shorten(task, prompt_tokens, count, "without its last user text", "max_prompt_length")
        if count_reprompt(context) > reprompt_tokens:
            what = "for the teacher's prompt without any feedback"
            context = shorten_blocks(context, lambda text: count_reprompt(text) <= reprompt_tokens) or shorten(
                context, reprompt_tokens, count_reprompt, what, "max_reprompt_len"
            )
        prompt = [*history, {"role": "user", "content": task}]
        shortened = (task != full_task or len(prompt) < len(texts), context != full_context)
        counts = (*shortened, in_context + sum(neutralised))
        fitted = {"prompt": prompt, "privileged_context": context}
        return fitted, lengths | dict(zip(PROMPT_COUNTS, map(int, counts), strict=True))

    written = {"prompt": List(MESSAGE), "privileged_context": Value("string")}
    try:
        return fit_rows(rows, fit, written, PROMPT_COUNTS)
    except TemplateError as error:
        raise TrainingInputError(
            f"The chat template refuses a prompt ({' '.join(str(error).split())}); give rows with "
            "turns that it accepts, or another model."
        ) from error


class _Message(TypedDict):
    role: str
    content: str


class _Row(TypedDict):
    prompt: list[_Message]
    privileged_context: str | None
    reward_terms: NotRequired[list[str] | None]


def _check_prompt(row: Json, number: int) -> None:
    """Raise TrainingInputError unless the prompt is a list of messages that ends in a turn of the user."""
    try:
        turns = msgspec.convert(dict(row), _Row)["prompt"]
        if turns and turns[-1]["role"] == "user":
            return
        problem = f"its prompt ends in a turn of `{turns[-1]['role']}`" if turns else "its prompt is empty"
    except msgspec.ValidationError as error:
        is_text = isinstance(row["prompt"], str)
        problem = "its prompt is text; write a list of messages with `role` and `content`" if is_text else str(error)
    raise TrainingInputError(
        f"Row {number} cannot be trained on ({problem}); give rows written by "
        "`pimono-sdpo filter`, whose prompts end in a turn of the user."
    )


def check_template(rows: Dataset, tokenizer: Any, template: Mapping[str, Any]) -> int:
    """Check that the chat template keeps the text of every prompt; return the number of prompts.

    Raises TrainingInputError.
    """
    special = special_tokens(tokenizer)
    for number, prompt in enumerate(rows["prompt"], 1):
        empty = [{**turn, "content": "x"} for turn in prompt]
        text, frame = (tokenizer.decode(templated_ids(tokenizer, turns, **template)) for turns in (prompt, empty))
        # Compare decoded text, since some tokenizers normalise it.
        ids = tokenizer([turn["content"] for turn in prompt], add_special_tokens=False)["input_ids"]
        if any(tokenizer.decode(one).strip() not in text for one in ids):
            raise TrainingInputError(
                f"The chat template changes the prompt of row {number}; give a model whose "
                "template keeps the text of its turns."
            )
        if any(text.count(token) > frame.count(token) for token in special):
            raise TrainingInputError(
                f"Text of row {number} becomes control tokens in the chat template; give a "
                "tokenizer that declares its special tokens."
            )
    return len(rows)


class _Function(TypedDict, total=False):
    name: Required[str]
    arguments: dict[str, Any] | str | None


class _Call(TypedDict, total=False):
    id: str | None
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


def fit_answers(rows: Dataset, targets: Sequence[str], tokenizer: Any, max_length: int | None) -> Fitted:
    """Return the rows with recorded answers, in the columns `targets`, that are not too long to be trained on.

    Text that spells a control token is neutralised; null fields, which some templates write as `None`,
    are dropped; arguments that are JSON text are decoded, since several templates refuse them.
    """
    columns = ("prompt", *targets)
    special = special_tokens(tokenizer)
    # The model's own turns keep `<think>` and the like.
    control = tuple(token for token in special if token in tokenizer.all_special_tokens)

    def fit(row: Json, number: int) -> tuple[Json, Json]:
        try:
            fitted: Json = {
                name: [_clean_turn(turn) for turn in msgspec.convert(row[name], _Turns)] for name in columns
            }
            listed = msgspec.json.decode(row["tools"]) if isinstance(row.get("tools"), str) else row.get("tools")
            tools = msgspec.convert(drop_nulls(listed or []), list[dict[str, Any]])
        except msgspec.DecodeError as error:
            raise LeftOut(
                "unreadable", f"is not a list of turns, or has tools that are not objects ({error})"
            ) from error
        neutralised = 0
        for turn in (turn for name in columns for turn in fitted[name]):
            tokens = control if turn["role"] == "assistant" else special
            for key, value in turn.items():
                turn[key], count = neutralise_all(value, tokens)
                neutralised += count
        fitted |= {
            "tools": tools or None,
            "chat_template_kwargs": {**TEMPLATE_KWARGS, **(row.get("chat_template_kwargs") or {})},
        }
        if (
            any(fitted[name][0]["role"] != "assistant" for name in targets)
            or fitted["prompt"][-1]["role"] == "assistant"
        ):
            raise LeftOut("unreadable", "does not have a prompt that is followed by a turn of the assistant")
        template = {"tools": fitted["tools"], **fitted["chat_template_kwargs"]}
        try:
            sequences = [
                templated_ids(tokenizer, fitted["prompt"] + fitted[name], prompt=False, **template) for name in targets
            ]
        except (TemplateError, TypeError) as error:
            # Templates raise these for turns that they do not support.
            raise LeftOut("template", f"the chat template refuses it: {' '.join(str(error).split())}") from error
        if len(sequences) > 1 and sequences[0] == sequences[1]:
            raise LeftOut("identical", "chosen and rejected are the same tokens")
        _check_rendering(fitted, targets, [tokenizer.decode(ids) for ids in sequences])
        length = max(map(len, sequences))
        if max_length is not None and length > max_length:
            raise LeftOut("too_long", f"{length} tokens, over the {max_length} of max_length")
        return fitted, {"sequence": length, "special_tokens_neutralised": neutralised}

    written = dict.fromkeys((*columns, "tools"), List(JsonFeature())) | {"chat_template_kwargs": JsonFeature()}
    return fit_rows(rows, fit, written, ("special_tokens_neutralised",))


def _check_rendering(row: Json, targets: Sequence[str], texts: list[str]) -> None:
    """Raise LeftOut when the chat template leaves out tool calls of a row."""
    for name, text in zip(targets, texts, strict=True):
        turns = row["prompt"] + row[name]
        calls = Counter(call["function"]["name"] for turn in turns for call in turn.get("tool_calls", ()))
        if any(text.count(called) < count for called, count in calls.items()):
            raise LeftOut("unreadable", "calls tools, which the chat template leaves out")


def _clean_turn(turn: _Turn) -> Json:
    """Return a turn without nulls, with `content` and with decoded arguments; raises msgspec.DecodeError."""
    message: Json = {"content": ""} | {name: value for name, value in turn.items() if value}
    if calls := turn.get("tool_calls"):
        message["tool_calls"] = []
        for call in calls:
            arguments = call["function"].get("arguments") or {}
            if isinstance(arguments, str):
                arguments = msgspec.json.decode(arguments, type=dict[str, Any])
            function = {"name": call["function"]["name"], "arguments": drop_nulls(arguments)}
            named = {"id": call["id"]} if call.get("id") else {}
            message["tool_calls"].append({"type": "function", **named, "function": function})
    return message


def neutralise_all(value: Any, tokens: tuple[str, ...]) -> tuple[Any, int]:
    """Neutralise control tokens in every string of a JSON value; return it and how many there were."""
    if isinstance(value, str):
        return neutralise(value, tokens)
    if isinstance(value, list):
        items = [neutralise_all(item, tokens) for item in value]
        return [item for item, _ in items], sum(count for _, count in items)
    if isinstance(value, dict):
        values, count = neutralise_all([*value.values()], tokens)
        return dict(zip(value, values, strict=True)), count
    return value, 0


def hash_rows(rows: Dataset, columns: Sequence[str]) -> str:
    """Hash the columns that are trained on, wherever the rows came from."""
    digest = sha256()
    for row in rows.select_columns([name for name in columns if name in rows.column_names]):
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:12]
