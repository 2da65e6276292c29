"""SFT and DPO on recorded answers: the loss is that of the answers alone.

SFT is measured by the loss per token of the answer and by how often the likeliest token is the
right one; DPO by whether the chosen answer is likelier than the rejected one, and by how much
(natural logarithm, whole answers).

The arguments are TRL's own SFTConfig or DPOConfig and ModelConfig; what this project decides is set
here.
"""

from abc import abstractmethod
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import torch
from datasets import Dataset
from peft import PeftModel
from trl import DPOTrainer, ModelConfig, SFTTrainer
from trl.trainer.utils import create_model_from_path

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training import models, rows
from pimono_sdpo.training.answer_rows import TEMPLATE, common_length, encode, fit_answers, uncached
from pimono_sdpo.training.arguments import DPOArguments, GuardedDPOConfig, GuardedSFTConfig, SFTArguments
from pimono_sdpo.training.held_out import Scores, group
from pimono_sdpo.training.memory import estimate_supervised, read_config
from pimono_sdpo.training.method import Method
from pimono_sdpo.training.publish import WEIGHTS

Json = dict[str, Any]


class Supervised(Method):
    """What SFT and DPO have in common."""

    # The columns of answers.
    TARGETS: ClassVar[tuple[str, ...]]
    TRAINER: ClassVar[Any]

    # The folder of the adapter to start from.
    adapter: Path | None = None
    test_tasks: int | None = None

    def load_rows(self, dataset: str) -> tuple[Dataset, Dataset | None]:
        """Return the rows, none of which may be of a task of --test_suite."""
        loaded, held_out = super().load_rows(dataset)
        if self.job.test_suite is not None:
            self.test_tasks = rows.refuse_leaks(loaded, Path(self.job.test_suite))
        return loaded, held_out

    def teaching(self) -> Json:
        """Return what decides the result beside TRL's arguments."""
        adapter = None
        if self.adapter is not None:
            weights = sha256((self.adapter / WEIGHTS[0]).read_bytes()).hexdigest()
            adapter = f"{models.public_name(self.job.adapter)} ({weights[:12]})"
        return {"adapter": adapter, "eval_split": self.job.eval_split, "test_tasks": self.test_tasks}

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

    def estimate(self) -> dict[str, int]:
        """Estimate the peak for the longest row."""
        return estimate_supervised(
            self.args,
            self.model_args,
            read_config(self.model_args, self.revision, self.args.trust_remote_code),
            max(self.fitted.lengths["sequence"]),
            pairs=len(self.TARGETS) > 1,
            adapter=self.adapter is not None,
        )

    def check(self) -> Json:
        """Return how many rows there are (those that the template changes were left out), and what
        is odd about them."""
        counts = self.fitted.counts
        found: Json = {"templates_checked": len(self.fitted.rows)}
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
                origin = next((str(row[name]) for name in rows.ORIGINS if row.get(name)), f"row {number}")
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

    OPTIONS, CONFIG, RECIPE = SFTArguments, GuardedSFTConfig, "qwen3_4b_sft"
    TARGETS, TRAINER = ("completion",), SFTTrainer
    COLUMNS = ("prompt", *TARGETS, "tools", TEMPLATE)

    def __init__(self, job: SFTArguments, args: GuardedSFTConfig, model_args: ModelConfig) -> None:
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
        """Return by how much the chosen answer is likelier, and whether it is."""
        ratio = answers[0][0] - answers[1][0]
        return {"log_ratio": ratio, "preferred": float(ratio > 0)}
