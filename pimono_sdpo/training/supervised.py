"""SFT and DPO on recorded answers, each whole within the maximum length: the loss is that of the answers.

TRL keeps the first `max_length` tokens of a row: an answer is cut in the middle, or lost behind a
long prompt, without a word. Here such rows are left out before the first step, with a reason.

Columns of rollouts have a field for whatever a turn may need and null where it does not; some
templates write `None` for such a field, and several refuse arguments that are JSON text. Text that
spells a control token would open or end a turn.

reads prompt, tools, and completion or chosen and rejected / writes the same without nulls, with
arguments as mappings, as Json
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar, Required, TypedDict

import datasets
import msgspec
import torch
from datasets import Dataset, Json, List
from jinja2 import TemplateError
from peft import PeftModel
from trl import DPOTrainer, ModelConfig, SFTTrainer
from trl.trainer.utils import create_model_from_path

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.traces.trajectories.base import drop_nulls
from pimono_sdpo.training import models
from pimono_sdpo.training.arguments import CommonArguments, DPOArguments, GuardedDPOConfig, GuardedSFTConfig
from pimono_sdpo.training.held_out import Scores, group
from pimono_sdpo.training.memory import estimate_supervised
from pimono_sdpo.training.method import Method
from pimono_sdpo.training.output import WEIGHTS
from pimono_sdpo.training.rows import ORIGINS, Fitted, LeftOut, fit_rows
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
    """Return the rows that can be trained on whole; `targets` are the columns of answers."""
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
        raise LeftOut("unreadable", "has a prompt that ends in a turn of the assistant")
    for name in targets:
        if row[name][0]["role"] != "assistant":
            raise LeftOut("unreadable", f"has a `{name}` that does not begin with a turn of the assistant")
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
        raise LeftOut("unreadable", "is changed by the chat template")
    calls = (call["function"]["name"] for turn in turns for call in turn.get("tool_calls", ()))
    if any(text.count(called) < count for called, count in Counter(calls).items()):
        raise LeftOut("unreadable", "calls tools, which the chat template leaves out")


def encode(row: Mapping[str, Any], turns: list[Row], tokenizer: Any, *, prompt: bool = False) -> list[int]:
    """Return the token ids of some turns of a row."""
    return templated_ids(tokenizer, turns, prompt=prompt, **{"tools": row["tools"], **row[TEMPLATE]})


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix, after which TRL takes the answer to begin."""
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


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
        raise LeftOut("unreadable", f"is not a list of turns ({error})") from error
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
        raise LeftOut("unreadable", f"has tools that are not JSON objects ({error})") from error
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


class Supervised(Method):
    """What SFT and DPO have in common."""

    # The columns of answers.
    TARGETS: ClassVar[tuple[str, ...]]
    TRAINER: ClassVar[Any]

    # The folder of the adapter to start from.
    adapter: Path | None = None

    def teaching(self) -> Row:
        """Return what decides the result beside TRL's arguments."""
        adapter = None
        if self.adapter is not None:
            weights = sha256((self.adapter / WEIGHTS[0]).read_bytes()).hexdigest()
            adapter = f"{models.public_name(self.job.adapter)} ({weights[:12]})"
        return {"adapter": adapter, "eval_split": self.job.eval_split}

    def fit(self, dataset: Dataset, held_out: Dataset | None = None) -> None:
        """Leave out rows that do not fit into --max_length as a whole."""
        self.fitted = fit_answers(dataset, held_out, self.TARGETS, self.tokenizer, self.args.max_length)

    def make_trainer(self) -> Any:
        """Load the model, on top of the adapter if there is one, and return the trainer."""
        args, adapter = self.args, self.adapter
        model: Any = self.model_args.model_name_or_path
        weights: dict[str, torch.Tensor] = {}
        if adapter is not None:
            base = create_model_from_path(model, **args.model_init_kwargs)
            args.model_init_kwargs = None
            model = PeftModel.from_pretrained(base, str(adapter), is_trainable=True)
            named = model.named_parameters()
            weights = {name: one.detach().float().clone() for name, one in named if one.requires_grad}
        # The trainer reads messages, and takes every other column for data of its own.
        known = ["prompt", *self.TARGETS, "tools", TEMPLATE]
        evaluated = self.fitted.held_out if args.eval_strategy != "no" else None
        with uncached():
            trainer = self.TRAINER(
                model=model,
                args=args,
                train_dataset=self.fitted.rows.select_columns(known),
                eval_dataset=None if evaluated is None else evaluated.select_columns(known),
                processing_class=self.tokenizer,
                peft_config=models.lora_config(self.model_args) if adapter is None else None,
            )
        trained = ((n, one) for n, one in trainer.model.named_parameters() if one.requires_grad)
        for name, parameter in () if args.bf16 else trained:
            # On a quantised base SFTTrainer and DPOTrainer turn the LoRA weights into bfloat16,
            # which cannot hold three of four steps of Adam at a learning rate of 1e-5.
            parameter.data = parameter.data.float()
            if name in weights:
                parameter.data.copy_(weights[name])
        return trainer

    def estimate(self, config: Any) -> dict[str, int]:
        """Estimate the peak for the longest row."""
        return estimate_supervised(
            self.args,
            self.model_args,
            config,
            max(self.fitted.lengths["sequence"]),
            pairs=len(self.TARGETS) > 1,
            adapter=self.adapter is not None,
        )

    def check(self) -> Row:
        """Return how many rows the template keeps whole, and what is odd about them."""
        counts = self.fitted.counts
        found: Row = {"templates_checked": len(self.fitted.rows)}
        if counts["prompts_rendered_otherwise"]:
            found["but"] = (
                f"the chat template renders {counts['prompts_rendered_otherwise']} prompts "
                "differently without an answer: what is trained there is not what is sampled later"
            )
        if counts["with_tool_output"]:
            found["answers"] = (
                f"{counts['with_tool_output']} hold turns of tools or users, which are "
                "trained on, too; rows of one action each have none"
            )
        return found

    def score(self, held_out: Dataset) -> Scores:
        """Return each measure by task; a row without one is a task of its own."""
        accelerator, found = self.trainer.accelerator, []
        model = accelerator.unwrap_model(self.trainer.model)
        was_training = model.training
        model.eval()
        with torch.no_grad(), accelerator.autocast():
            for number in range(accelerator.process_index, len(held_out), accelerator.num_processes):
                row = held_out[number]
                origin = next((str(row[name]) for name in ORIGINS if row.get(name)), f"row {number}")
                found.append((origin, self.measure([self._score_answer(model, row, name) for name in self.TARGETS])))
        model.train(was_training)
        by_task = group(found)
        names = next(iter(by_task.values()))[0]
        return {
            name: {task: [measured[name] for measured in rows] for task, rows in by_task.items()} for name in names
        }

    def _score_answer(self, model: Any, row: Mapping[str, Any], name: str) -> tuple[float, float, int]:
        """Return log-probability, tokens that are the likeliest ones, and tokens of one answer."""
        prompt = encode(row, row["prompt"], self.tokenizer, prompt=True)
        whole = encode(row, row["prompt"] + row[name], self.tokenizer)
        tokens = torch.tensor([whole], device=self.trainer.accelerator.device)
        labels = tokens.clone()
        labels[:, : common_length(prompt, whole)] = -100
        # The head that the trainer has added computes no logits of the whole vocabulary.
        out = model(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            labels=labels,
            fused_lm_head=True,
            use_cache=False,
        )
        return float(out.log_probs.sum()), float(out.is_top1.sum()), int(out.label_mask.sum())

    @abstractmethod
    def measure(self, answers: list[tuple[float, float, int]]) -> dict[str, float]:
        """Return the measures of a row from what `_score_answer` found of each answer."""


class SFT(Supervised):
    """Supervised fine-tuning on completions."""

    OPTIONS, CONFIG, RECIPE = CommonArguments, GuardedSFTConfig, "qwen3_4b_sft"
    TARGETS, TRAINER = ("completion",), SFTTrainer
    COLUMNS = ("prompt", *TARGETS, "tools", TEMPLATE)

    def __init__(self, job: CommonArguments, args: GuardedSFTConfig, model_args: ModelConfig) -> None:
        super().__init__(job, args, model_args)
        if args.chat_template_path is not None:
            raise TrainingInputError(
                "--chat_template_path is not supported: the adapter is for the base model with its "
                "own chat template; leave it out."
            )
        if args.completion_only_loss is False:
            raise TrainingInputError(
                "--completion_only_loss false would train the model to write tool results and requests; leave it out."
            )

    def measure(self, answers: list[tuple[float, float, int]]) -> dict[str, float]:
        """Return loss and accuracy per token."""
        ((log_probability, right, tokens),) = answers
        return {"loss": -log_probability / tokens, "token_accuracy": right / tokens}


class DPO(Supervised):
    """Direct preference optimisation on pairs of answers, optionally starting from an adapter."""

    OPTIONS, CONFIG, RECIPE = DPOArguments, GuardedDPOConfig, "qwen3_4b_dpo"
    TARGETS, TRAINER = ("chosen", "rejected"), DPOTrainer
    COLUMNS = ("prompt", *TARGETS, "tools", TEMPLATE)

    def load_model(self) -> None:
        """Open the adapter, whose LoRA arguments replace those given, and load the tokenizer."""
        if self.job.adapter is not None:
            self.adapter = models.open_adapter(self.job.adapter, self.model_args)
        super().load_model()

    def measure(self, answers: list[tuple[float, float, int]]) -> dict[str, float]:
        """Return by how much the chosen answer is likelier (natural logarithm), and whether it is."""
        ratio = answers[0][0] - answers[1][0]
        return {"log_ratio": ratio, "preferred": float(ratio > 0)}
