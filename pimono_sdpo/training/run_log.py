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

NUMBER = (int, float)
NUMBER_OR_NONE = (int, float, type(None))
TEXT_OR_NONE = (str, type(None))

REPORT: dict[str, Any] = {
    "sessions": int,
    "kept": int,
    "rejected": int,
    "drop_reasons": dict,
    "input": {"source": str, "kind": str, "revision": TEXT_OR_NONE},
    "options": {"unit": str, "min_score": NUMBER, "max_samples": (int, type(None))},
    "score": {
        **dict.fromkeys(("min", "max", "mean", "cut"), NUMBER_OR_NONE),
        "histogram": [{"from": NUMBER, "to": NUMBER, "rows": int, "rejected": int}],
    },
    "stages": [{"stage": str, "rows_in": int, "rows_out": int}],
    "category_counts": dict,
    "first_sample": {
        "prompt": [{"content": str}],
        "privileged_context": str,
        "reward_terms": [str],
        "score": NUMBER_OR_NONE,
        "score_terms": object,
    },
}
FILTER_OPTIONS: dict[str, Any] = {
    "options": {
        "unit": str,
        "min_score": NUMBER,
        "max_samples": (int, type(None)),
        "test_fraction": NUMBER,
        "seed": int,
    }
}
RUN: dict[str, Any] = {
    "pimono_sdpo": str,
    "method": str,
    "run_name": str,
    "mode": str,
    "recipe": str,
    "command": [str],
    "licence": TEXT_OR_NONE,
    "base_model": str,
    "base_model_revision": TEXT_OR_NONE,
    "base_model_class": str,
    "dataset": {
        "id": str,
        "rows": int,
        "rows_used": int,
        "special_tokens_neutralised": int,
    },
    "teaching": dict,
    "evaluation": (dict, type(None)),
    "hub_model_id": TEXT_OR_NONE,
    "trackio": {"project": str, "space_id": TEXT_OR_NONE, "url": TEXT_OR_NONE},
    "arguments": {
        "max_steps": int,
        "per_device_train_batch_size": int,
        "gradient_accumulation_steps": int,
        "dtype": TEXT_OR_NONE,
        "load_in_4bit": bool,
        "load_in_8bit": bool,
        "bnb_4bit_quant_type": str,
        "use_bnb_nested_quant": bool,
        **dict.fromkeys("learning_rate seed lora_r lora_alpha lora_dropout".split(), object),
    },
    "hardware": {"device": str, "name": str, "count": int},
    "versions": {"trl": str},
    "started_at": str,
    "resumed_at": [int],
    "finished_at": str,
    "metrics": {"train_runtime": object, "train_samples_per_second": object},
    "log_history": [{"step": int}],
    "guards": {
        "alerts": [{"step": int, "guard": str}],
        "stopped_by": TEXT_OR_NONE,
        "went_back_to": (int, type(None)),
    },
    "adapter": {"trainable_parameters": int},
}

# What a run has beside, by its method.
OF_METHOD: dict[str, dict[str, Any]] = {
    "sdpo": {
        "dataset": {"prompts_shortened": int, "contexts_shortened": int, "without_reward": int},
        "teaching": {"reward": str, "gate": [str], "grade": [str], "feedback": str},
        "arguments": {
            "success_reward_threshold": NUMBER,
            **dict.fromkeys(
                "num_generations max_prompt_length max_completion_length temperature "
                "distillation_mode teacher_model_kind teacher_update_rate "
                "include_environment_feedback".split(),
                object,
            ),
        },
    },
    "sft": {
        "dataset": {"left_out": dict},
        "arguments": {"max_length": (int, type(None)), "loss_type": str, "packing": bool},
    },
    "dpo": {
        "dataset": {"left_out": dict},
        "teaching": {"adapter": TEXT_OR_NONE},
        "arguments": {
            "max_length": (int, type(None)),
            "loss_type": [str],
            "loss_weights": (list, type(None)),
            "beta": NUMBER,
        },
    },
}


def run_misfit(run: object) -> str | None:
    """Name the first part of a run log that its card would miss; None when all are there."""
    problem = misfit(run, RUN)
    if problem is not None or not isinstance(run, dict):
        return problem
    shape = OF_METHOD.get(run["method"])
    return "method" if shape is None else misfit(run, shape)


def misfit(content: object, shape: Any, name: str = "it") -> str | None:
    """Name the first part that is missing or of another kind; None when all are there.

    >>> misfit({"a": {"b": 1}}, {"a": {"b": str}})
    'a.b'
    """
    if isinstance(shape, dict):
        if not isinstance(content, dict):
            return name
        before = "" if name == "it" else f"{name}."
        parts = [(f"{before}{key}", content.get(key), part) for key, part in shape.items()]
        absent = [f"{before}{key}" for key in shape if key not in content]
        if absent:
            return absent[0]
    elif isinstance(shape, list):
        if not isinstance(content, list):
            return name
        parts = [(f"{name}[{number}]", item, shape[0]) for number, item in enumerate(content)]
    else:
        return None if isinstance(content, shape) else name
    return next(filter(None, (misfit(item, part, where) for where, item, part in parts)), None)


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
