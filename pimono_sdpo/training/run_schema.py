"""What a run log and a filter report must hold for a card to be made from them."""

from typing import Any

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
