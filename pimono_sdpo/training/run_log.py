"""Write down what a run was and did, as the one JSON object its card is made from."""

import math
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from trl import ModelConfig

from pimono_sdpo import __version__
from pimono_sdpo.training.callbacks import now
from pimono_sdpo.training.models import published_base
from pimono_sdpo.training.output import CUT_SHORT
from pimono_sdpo.training.time_limit import stopped_at
from pimono_sdpo.training.trackio_run import space_url
from pimono_sdpo.training.trainer import Prepared

TRAINING_ARGUMENTS = (
    "max_steps num_train_epochs learning_rate lr_scheduler_type warmup_steps weight_decay "
    "max_grad_norm optim per_device_train_batch_size gradient_accumulation_steps "
    "gradient_checkpointing bf16 seed stop_on"
).split()
SECTIONS_OF_METHOD = {
    "sdpo": (
        "num_generations max_completion_length max_reprompt_len temperature top_p top_k beta "
        "loss_type success_reward_threshold use_successful_as_teacher "
        "include_environment_feedback environment_feedback_only_without_solution "
        "distillation_weight distillation_mode distillation_alpha distillation_topk "
        "teacher_model_kind teacher_update_rate teacher_sync_steps teacher_start"
    ).split(),
    "sft": "max_length packing completion_only_loss assistant_only_loss loss_type".split(),
    "dpo": "max_length beta loss_type loss_weights label_smoothing".split(),
}
MODEL_ARGUMENTS = (
    "dtype load_in_4bit load_in_8bit bnb_4bit_quant_type use_bnb_nested_quant lora_r lora_alpha "
    "lora_dropout use_rslora use_dora"
).split()
PACKAGES = (
    "trl transformers peft bitsandbytes torch accelerate datasets huggingface_hub trackio".split()
)
Json = dict[str, Any]


def build_run_log(
    prepared: Prepared,
    model_args: ModelConfig,
    *,
    mode: str,
    recipe: str,
    command: list[str],
    licence: str | None,
    dataset: str,
    teaching: Json,
    before: Json,
    evaluation: Json | None,
    metrics: dict[str, float],
    adapter_files: dict[str, int],
) -> Json:
    """Return the run as JSON: arguments, hardware, versions, metrics and the log of each step.

    `teaching` says what was taught beyond TRL's arguments, `before` what was found before the first
    step, `evaluation` how rows that were held out fared.
    """
    trainer, args = prepared.trainer, prepared.trainer.args
    model = trainer.accelerator.unwrap_model(trainer.model)
    settings = args.to_dict()
    guards = prepared.guards.record(args)
    if stopped_at(trainer) is not None:
        guards["stopped_by"] = CUT_SHORT
    run = {
        "pimono_sdpo": __version__,
        "method": args.METHOD,
        "run_name": args.run_name,
        "mode": mode,
        "recipe": recipe,
        "command": [_without_machine_path(word) for word in command],
        "licence": licence,
        "base_model": published_base(str(model_args.model_name_or_path)),
        "base_model_revision": prepared.revision,
        "base_model_class": type(model.get_base_model()).__name__,
        "dataset": {
            "id": dataset,
            "rows": prepared.fitted.given,
            "rows_used": len(trainer.train_dataset),
            **prepared.fitted.counts,
        },
        "teaching": teaching,
        "preflight": before.get("preflight"),
        "evaluation": evaluation,
        "hub_model_id": args.hub_model_id,
        "trackio": {
            "project": args.project,
            "space_id": args.trackio_space_id,
            "url": space_url(args.trackio_space_id),
        },
        "arguments": {
            **{
                name: settings[name]
                for name in (*TRAINING_ARGUMENTS, *SECTIONS_OF_METHOD[args.METHOD])
            },
            "max_prompt_length": prepared.fitted.prompt_budget,
            **{name: vars(model_args)[name] for name in MODEL_ARGUMENTS},
            "lora_target_modules": _modules(model.peft_config["default"].target_modules),
        },
        "hardware": _hardware(args.device),
        "versions": {name: version(name) for name in PACKAGES},
        "started_at": prepared.clock.started_at,
        "resumed_at": prepared.clock.resumed_at,
        "finished_at": now(),
        "metrics": metrics,
        "guards": guards,
        # The summary of the whole run comes last in the history and is `metrics` already.
        "log_history": [
            entry for entry in trainer.state.log_history if "train_runtime" not in entry
        ],
        "adapter": {
            "files": adapter_files,
            "trainable_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        },
    }
    finite: Json = _finite(run)
    return finite


def _without_machine_path(word: str) -> str:
    """Keep the name of a path that leaves the working folder: the rest is this machine's."""
    option, equals, value = word.rpartition("=")
    path = Path(value)
    leaves = path.is_absolute() or ".." in path.parts or value.startswith("~")
    return f"{option}{equals}{path.name}" if leaves else word


def _hardware(device: torch.device) -> Json:
    if device.type == "cuda":
        return {
            "device": "cuda",
            "name": torch.cuda.get_device_name(device),
            "count": torch.cuda.device_count(),
        }
    return {"device": device.type, "name": platform.processor() or platform.machine(), "count": 1}


def _modules(target: str | set[str] | list[str]) -> str | list[str]:
    return target if isinstance(target, str) else sorted(target)


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not know, by null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
