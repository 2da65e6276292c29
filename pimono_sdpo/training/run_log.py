"""Write down what a run was and did, as the one JSON object its card is made from."""

import math
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from pimono_sdpo import __version__
from pimono_sdpo.training.callbacks import now
from pimono_sdpo.training.method import Prepared
from pimono_sdpo.training.models import published_base
from pimono_sdpo.training.output import CUT_SHORT
from pimono_sdpo.training.time_limit import stopped_at
from pimono_sdpo.training.tracking import MODEL_ARGUMENTS, TRAINING_ARGUMENTS, space_url

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
PACKAGES = (
    "trl transformers peft bitsandbytes torch accelerate datasets huggingface_hub trackio".split()
)
Json = dict[str, Any]


def build_run_log(
    prepared: Prepared,
    *,
    recipe: str,
    command: list[str],
    licence: str | None,
    dataset: str,
    before: Json,
    evaluation: Json | None,
    metrics: dict[str, float],
    adapter_files: dict[str, int],
) -> Json:
    """Return the run as JSON: arguments, hardware, versions, metrics and the log of each step.

    `before` holds what was found before the first step, `evaluation` the scores of held-out rows.
    """
    trainer, method = prepared.trainer, prepared.method
    args, model_args = trainer.args, method.model_args
    model = trainer.accelerator.unwrap_model(trainer.model)
    settings = args.to_dict()
    target = model.peft_config["default"].target_modules
    guards = prepared.guards.record(args)
    if stopped_at(trainer) is not None:
        guards["stopped_by"] = CUT_SHORT
    run = {
        "pimono_sdpo": __version__,
        "method": args.METHOD,
        "run_name": args.run_name,
        "mode": method.job.mode,
        "recipe": recipe,
        "command": [_without_machine_path(word) for word in command],
        "licence": licence,
        "base_model": published_base(str(model_args.model_name_or_path)),
        "base_model_revision": method.revision,
        "base_model_class": type(model.get_base_model()).__name__,
        "dataset": {
            "id": dataset,
            "rows": prepared.fitted.given,
            "rows_used": len(trainer.train_dataset),
            **prepared.fitted.counts,
        },
        "teaching": method.teaching(),
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
            "lora_target_modules": target if isinstance(target, str) else sorted(target),
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
    """Keep only the name of a path that leaves the working folder."""
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


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON cannot hold, by null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
