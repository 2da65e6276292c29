"""SFT and DPO on recorded answers: check and clean the rows, train, and score held-out answers.

TRL truncates a row to its first `max_length` tokens, which silently cuts an answer short or drops
it. Here rows that are too long are left out before the first step, with a reason.

In rollouts a turn has every field that any turn may need, with null where it has none; some chat
templates render such a null as `None`, and several refuse arguments given as JSON text. Text that
spells a control token would open or end a turn.

reads prompt, tools, and completion or chosen and rejected / writes the same columns as Json, without
nulls and with arguments as mappings
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
# Default arguments of the chat template, as for SDPO; a row may override them.
TEMPLATE_KWARGS = {"enable_thinking": False}
MESSAGES = List(Json())
COUNTS = ("special_tokens_neutralised", "with_tool_output", "prompts_rendered_otherwise")


@contextmanager
def uncached() -> Iterator[None]:
    """Keep `datasets` from reusing results that an earlier version of this code cached."""
    was_enabled = datasets.is_caching_enabled()
    datasets.disable_caching()
    try:
        yield
    finally:
        if was_enabled:
            datasets.enable_caching()


def fit_answers(
    rows: Dataset, held_out: Dataset | None, targets: Sequence[str], tokenizer: Any, max_length: int | None
) -> Fitted:
    """Return the rows that can be trained on without truncation; `targets` are the answer columns."""
    columns = ("prompt", *targets)
    special, control = special_tokens(tokenizer), control_tokens(tokenizer)
    # In a struct, a call has null for every argument that only other calls have; in JSON, null is meant.
    padded = {name: "Json(" not in str(feature) for name, feature in rows.features.items()}

    def fit(row: Row, number: int) -> tuple[Row, Row]:
        fitted: Row = {TEMPLATE: {**TEMPLATE_KWARGS, **(row.get(TEMPLATE) or {})}}
        neutralised = 0
        for name in columns:
            fitted[name], count = clean_turns(row[name], special, control, padded[name])
            neutralised += count
        fitted["tools"] = clean_tools(row.get("tools"), padded.get("tools", False))
        try:
            note = _measure(fitted, targets, tokenizer)
        except (TemplateError, TypeError) as error:
            # Templates raise these for turns that they do not support.
            reason = " ".join(str(error).split())
            raise LeftOut("template", f"the chat template refuses it: {reason}") from error
        if max_length is not None and note["sequence"] > max_length:
            raise LeftOut("too_long", f"{note['sequence']} tokens, over the {max_length} of max_length")
        return fitted, note | {"special_tokens_neutralised": neutralised}

    written = dict.fromkeys((*columns, "tools"), MESSAGES) | {TEMPLATE: Json()}
    return fit_rows(rows, held_out, fit, written, COUNTS, {"prompt": None, "sequence": max_length})


def _measure(row: Row, targets: Sequence[str], tokenizer: Any) -> Row:
    """Return lengths as TRL will see them, and counts; raises LeftOut for rows that cannot be trained on."""
    if row["prompt"][-1]["role"] == "assistant":
        raise LeftOut("unreadable", "has a prompt that ends in a turn of the assistant")
    for name in targets:
        if row[name][0]["role"] != "assistant":
            raise LeftOut("unreadable", f"has a `{name}` that does not begin with a turn of the assistant")
    prompt = encode(row, row["prompt"], tokenizer, prompt=True)
    sequences = [encode(row, row["prompt"] + row[name], tokenizer) for name in targets]
    if len(sequences) > 1 and sequences[0] == sequences[1]:
        raise LeftOut("identical", "chosen and rejected are the same tokens")
    for name in targets:
        _check_rendering(row, name, tokenizer)
    return {
        "prompt": len(prompt),
        "sequence": max(map(len, sequences)),
        "prompts_rendered_otherwise": int(min(common_length(prompt, one) for one in sequences) < len(prompt)),
        "with_tool_output": int(any(turn["role"] != "assistant" for name in targets for turn in row[name])),
    }


def _check_rendering(row: Row, target: str, tokenizer: Any) -> None:
    """Raise LeftOut when the chat template drops text or tool calls of a row."""
    turns = row["prompt"] + row[target]
    text = tokenizer.apply_chat_template(turns, tokenize=False, **{"tools": row["tools"], **row[TEMPLATE]})
    # Templates drop the thoughts of earlier turns; the text after them must be kept.
    contents = [turn["content"].rpartition("</think>")[2].strip() for turn in row[target]]
    contents += [turn["content"].strip() for turn in row["prompt"] if turn["role"] != "assistant"]
    if not all(content in text for content in contents):
        raise LeftOut("unreadable", "is changed by the chat template")
    calls = Counter(call["function"]["name"] for turn in turns for call in turn.get("tool_calls", ()))
    if any(text.count(name) < count for name, count in calls.items()):
        raise LeftOut("unreadable", "calls tools, which the chat template leaves out")


def encode(row: Mapping[str, Any], turns: list[Row], tokenizer: Any, *, prompt: bool = False) -> list[int]:
    """Return the token ids of turns of a row, rendered with its tools and template arguments."""
    return templated_ids(tokenizer, turns, prompt=prompt, **{"tools": row["tools"], **row[TEMPLATE]})


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix of prompt and sequence, where TRL lets the answer begin."""
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
    """Return cleaned turns and how many control tokens were neutralised in them; raises LeftOut.

    special   tokens to neutralise in turns of users and tools: all that the chat template writes
    control   tokens to neutralise in the model's own turns, where `<think>` and the like must stay
    padded    whether the column consists of structs, which hold a null for every argument that only
              other calls have
    """
    cleaned, neutralised = [], 0
    try:
        for turn in msgspec.convert(turns, _Turns):
            # Templates read `content` from every turn, and write `None` for one that only calls tools.
            message: Row = {"content": ""} | {name: value for name, value in turn.items() if value}
            if "tool_calls" in message:
                message["tool_calls"] = [_clean_call(call, padded) for call in message["tool_calls"]]
            tokens = tuple(control if turn["role"] == "assistant" else special)
            message, count = _neutralise_strings(message, tokens)
            cleaned.append(message)
            neutralised += count
    except msgspec.DecodeError as error:
        raise LeftOut("unreadable", f"is not a list of turns ({error})") from error
    return cleaned, neutralised


def _clean_call(call: _Call, padded: bool) -> Row:
    """Return a call without nulls, its arguments decoded; raises msgspec.DecodeError."""
    arguments = call["function"].get("arguments") or {}
    if isinstance(arguments, str):
        arguments = msgspec.json.decode(arguments, type=dict[str, Any])
    function = {"name": call["function"]["name"], "arguments": drop_nulls(arguments) if padded else arguments}
    return {"type": "function"} | {key: value for key, value in call.items() if value} | {"function": function}


def clean_tools(tools: Any, padded: bool = False) -> list[Row] | None:
    """Return tool definitions as objects, None if there are none; raises LeftOut."""
    try:
        listed = msgspec.json.decode(tools) if isinstance(tools, str) else tools
        decoded = [msgspec.json.decode(tool) if isinstance(tool, str) else tool for tool in listed or ()]
        definitions = msgspec.convert(drop_nulls(decoded) if padded else decoded, list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise LeftOut("unreadable", f"has tools that are not JSON objects ({error})") from error
    return definitions or None


def _neutralise_strings(value: Any, tokens: tuple[str, ...]) -> tuple[Any, int]:
    """Neutralise control tokens in every string of a JSON value; return it and how many there were."""
    if isinstance(value, str):
        return neutralise(value, tokens)
    if isinstance(value, list):
        items = [_neutralise_strings(item, tokens) for item in value]
        return [item for item, _ in items], sum(count for _, count in items)
    if isinstance(value, dict):
        values, count = _neutralise_strings([*value.values()], tokens)
        return dict(zip(value, values, strict=True)), count
    return value, 0


class Supervised(Method):
    """The common base of SFT and DPO."""

    # The columns that hold answers.
    TARGETS: ClassVar[tuple[str, ...]]
    TRAINER: ClassVar[Any]

    # The folder of the adapter to start from.
    adapter: Path | None = None

    def teaching(self) -> Row:
        """Return the settings besides TRL's arguments that decide the result."""
        adapter = None
        if self.adapter is not None:
            weights = sha256((self.adapter / WEIGHTS[0]).read_bytes()).hexdigest()
            adapter = f"{models.public_name(self.job.adapter)} ({weights[:12]})"
        return {"adapter": adapter, "eval_split": self.job.eval_split}

    def fit(self, dataset: Dataset, held_out: Dataset | None = None) -> None:
        """Leave out the rows that are longer than --max_length."""
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
            weights = {
                name: one.detach().float().clone() for name, one in model.named_parameters() if one.requires_grad
            }
        # The trainers would take some of the other columns for inputs of their own.
        columns = list(self.COLUMNS)
        evaluated = self.fitted.held_out if args.eval_strategy != "no" else None
        with uncached():
            trainer = self.TRAINER(
                model=model,
                args=args,
                train_dataset=self.fitted.rows.select_columns(columns),
                eval_dataset=None if evaluated is None else evaluated.select_columns(columns),
                processing_class=self.tokenizer,
                peft_config=models.lora_config(self.model_args) if adapter is None else None,
            )
        if not args.bf16:
            # On a quantised base SFTTrainer and DPOTrainer cast the LoRA weights to bfloat16, which
            # loses three of four steps of Adam to rounding at a learning rate of 1e-5.
            for name, parameter in trainer.model.named_parameters():
                if parameter.requires_grad:
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
        """Return how many rows the chat template renders in full, with warnings about them."""
        counts = self.fitted.counts
        result: Row = {"templates_checked": len(self.fitted.rows)}
        if counts["prompts_rendered_otherwise"]:
            result["but"] = (
                f"the chat template renders {counts['prompts_rendered_otherwise']} prompts "
                "differently without an answer, so the model is trained on other prompts than it gets later"
            )
        if counts["with_tool_output"]:
            result["answers"] = (
                f"{counts['with_tool_output']} contain turns of tools or users, which are "
                "trained on, too; rows of a single action have none"
            )
        return result

    def score(self, held_out: Dataset) -> Scores:
        """Return each measure by task; a row without one is a task of its own."""
        accelerator, scored = self.trainer.accelerator, []
        model = accelerator.unwrap_model(self.trainer.model)
        was_training = model.training
        model.eval()
        with torch.no_grad(), accelerator.autocast():
            for number in range(accelerator.process_index, len(held_out), accelerator.num_processes):
                row = held_out[number]
                origin = next((str(row[name]) for name in ORIGINS if row.get(name)), f"row {number}")
                scored.append((origin, self.measure([self._score_answer(model, row, name) for name in self.TARGETS])))
        model.train(was_training)
        by_task = group(scored)
        names = next(iter(by_task.values()))[0]
        return {
            name: {task: [measures[name] for measures in rows] for task, rows in by_task.items()} for name in names
        }

    def _score_answer(self, model: Any, row: Mapping[str, Any], target: str) -> tuple[float, float, int]:
        """Return an answer's log-probability, its number of greedy tokens, and its number of tokens."""
        prompt = encode(row, row["prompt"], self.tokenizer, prompt=True)
        sequence = encode(row, row["prompt"] + row[target], self.tokenizer)
        tokens = torch.tensor([sequence], device=self.trainer.accelerator.device)
        labels = tokens.clone()
        labels[:, : common_length(prompt, sequence)] = -100
        # The trainer's fused head never holds the logits of the whole vocabulary.
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
        """Return the measures of a row from what `_score_answer` returns for each answer."""


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
        ((log_probability, correct, tokens),) = answers
        return {"loss": -log_probability / tokens, "token_accuracy": correct / tokens}


class DPO(Supervised):
    """Direct preference optimisation on pairs of answers, from the base model or an adapter."""

    OPTIONS, CONFIG, RECIPE = DPOArguments, GuardedDPOConfig, "qwen3_4b_dpo"
    TARGETS, TRAINER = ("chosen", "rejected"), DPOTrainer
    COLUMNS = ("prompt", *TARGETS, "tools", TEMPLATE)

    def load_model(self) -> None:
        """Open the adapter, whose LoRA arguments override those given, and load the tokenizer."""
        if self.job.adapter is not None:
            self.adapter = models.open_adapter(self.job.adapter, self.model_args)
        super().load_model()

    def measure(self, answers: list[tuple[float, float, int]]) -> dict[str, float]:
        """Return the log-ratio of chosen to rejected answer (natural logarithm), and whether it is positive."""
        ratio = answers[0][0] - answers[1][0]
        return {"log_ratio": ratio, "preferred": float(ratio > 0)}
