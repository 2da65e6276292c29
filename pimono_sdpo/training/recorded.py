"""Build TRL's SFTTrainer or DPOTrainer of a run: rows that hold the answers to learn from.

The arguments are TRL's own SFTConfig or DPOConfig and ModelConfig; what this project decides is
settled here.
"""

from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from trl import DPOTrainer, ModelConfig, SFTTrainer

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.adapters import Adapter
from pimono_sdpo.training.clock import Clock
from pimono_sdpo.training.guards import Guards
from pimono_sdpo.training.models import load_base, lora_config, model_init_kwargs
from pimono_sdpo.training.recorded_rows import uncached
from pimono_sdpo.training.trainer import Fitted, Prepared, build, settle_run

# What a chat template is told unless a row says otherwise; as the SDPO job does.
TEMPLATE = {"enable_thinking": False}


def settle_arguments(args: Any, smoke: bool) -> None:
    """Set in place what holds for every run of SFT and DPO, see settle_run.

    Raises TrainingInputError for arguments that would train on something else than the rows.
    """
    settle_run(args, smoke)
    if args.METHOD == "sft" and args.chat_template_path is not None:
        raise TrainingInputError(
            "--chat_template_path is not taken: the adapter is for the base model with its own "
            "chat template; leave it out."
        )
    if args.METHOD == "sft" and args.completion_only_loss is False:
        raise TrainingInputError(
            "--completion_only_loss false would train the model to write tool results and "
            "requests; leave it out."
        )


def prepare(
    args: Any,
    model_args: ModelConfig,
    fitted: Fitted,
    tokenizer: Any,
    revision: str | None,
    adapter: Adapter | None = None,
) -> Prepared:
    """Build the trainer of the model at this revision, on top of an adapter if there is one.

    Raises TrainingInputError when none can be built.
    """
    args.model_init_kwargs = {**model_init_kwargs(model_args, revision), **args.model_init_kwargs}
    # The trainer reads messages, and takes every other column for data of its own.
    rows, held_out = (_bare(one) for one in (fitted.rows, fitted.held_out))
    make = SFTTrainer if args.METHOD == "sft" else DPOTrainer

    def trainer() -> Any:
        model: Any = model_args.model_name_or_path
        if adapter is not None:
            base = load_base(model_args, args.model_init_kwargs)
            args.model_init_kwargs = None
            model = PeftModel.from_pretrained(base, str(adapter.folder), is_trainable=True)
        weights = None if adapter is None else _trained(model)
        with uncached():
            made = make(
                model=model,
                args=args,
                train_dataset=rows,
                eval_dataset=held_out if args.eval_strategy != "no" else None,
                processing_class=tokenizer,
                peft_config=lora_config(model_args) if adapter is None else None,
            )
        if not args.bf16:
            keep_precision(made.model, weights)
        return made

    clock, guards = Clock(), Guards(args)
    built = build(trainer, model_args)
    built.add_callback(clock)
    built.add_callback(guards)
    return Prepared(built, revision, clock, guards, fitted)


def keep_precision(model: Any, weights: dict[str, torch.Tensor] | None) -> None:
    """Train LoRA in float32, from `weights` if there are some.

    On a quantised base SFTTrainer and DPOTrainer turn the LoRA weights into bfloat16, which cannot
    hold three of four steps of Adam at a learning rate of 1e-5; SDPOTrainer does not.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
            if weights is not None:
                parameter.data.copy_(weights[name])


def _trained(model: Any) -> dict[str, torch.Tensor]:
    named = model.named_parameters()
    return {name: one.detach().float().clone() for name, one in named if one.requires_grad}


def _bare(rows: Dataset | None) -> Dataset | None:
    if rows is None:
        return None
    known = ("prompt", "completion", "chosen", "rejected", "tools", "chat_template_kwargs")
    return rows.select_columns([name for name in known if name in rows.column_names])
