"""Estimate the GPU memory that a run needs, compare hardware, and name the options that lower the peak.

Weights are counted module by module from the model's config, without loading any. The rest follows
from tensor shapes; its constants were fitted to peaks that PyTorch's memory tracker measured for the
12B model (48 layers, fused attention, gradient checkpointing). The tests compare with those peaks.
"""

import re
import sys
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub import HfApi
from peft import inject_adapter_in_model
from transformers import AutoConfig, AutoModelForCausalLM
from trl import ModelConfig
from trl.experimental.sdpo import SDPOConfig

from pimono_sdpo.training.models import lora_config, translate_errors
from pimono_sdpo.training.options import find_flavor
from pimono_sdpo.training.trainer import CHUNK_ELEMENTS

GIB = 2**30
WITHOUT_BFLOAT16 = ("T4", "V100", "P100")
# The memory of a GPU as PyTorch reports it, in GiB, by out-of-memory errors in these issues on GitHub. It is
# less than the nominal size that the Hub lists: error correction and the driver take the rest.
REPORTED = {
    "T4": 14.56,  # Zheng-Chong/CatVTON#133
    "L4": 22.03,  # ArcInstitute/evo2#190
    "A10G": 21.99,  # aws-samples/amazon-sagemaker-llm-fine-tuning-remote-decorator#2
    "L40S": 44.40,  # QwenLM/Qwen3-VL#2097, of an L40, which has the same memory
    "A100": 79.14,  # lianqi1008/Control-GIC#6
    "RTX PRO 6000": 94.97,  # antirez/ds4#431
}
PER_HOUR = {"minute": 60, "hour": 1, "second": 3600}
# CUDA's own context and kernels.
CONTEXT = int(0.6 * GIB)
# NF4: 64 weights share one absmax, which nested quantisation stores in 8 bits (256 share a float).
NF4 = 0.5 + 4 / 64
NESTED = 0.5 + 1 / 64 + 4 / (64 * 256)
# Tensors of completion x vocabulary in the dtype of the logits: student, teacher, and the gradient,
# which is assembled from chunks; and tensors of a chunk in float32 (trainer.py).
LOGIT_COPIES, CHUNK_COPIES = 4, 6
# The policy loss needs all logits in float32 at once, with log-softmax and gradient.
POLICY_COPIES = 3
# TRL computes the log-probabilities of SFT and DPO in tiles, with log-softmax and gradient.
TILE_TOKENS, TILE_COPIES = 256, 4
# Activations of a token in one layer, as multiples of hidden size and MLP size.
BACKWARD_WIDTHS = (14, 8)
FORWARD_WIDTHS = (7, 3)


@dataclass(frozen=True)
class Hardware:
    """Memory of one GPU in GiB, and dollars per hour of the machine; None if unknown."""

    name: str
    gib: float | None
    dollars_per_hour: float | None
    bfloat16: bool = True


def hardware_of(flavor: str | None) -> Hardware:
    """Return the hardware of a flavor of HF Jobs, or of this machine."""
    if flavor is None and not torch.cuda.is_available():
        return Hardware("this machine without a GPU", None, None)
    if flavor is None:
        properties = torch.cuda.get_device_properties(0)
        # On GPUs older than Ampere, PyTorch emulates bfloat16 in float32, which is many times slower.
        return Hardware(properties.name, round(properties.total_memory / GIB, 1), None, properties.major >= 8)
    with translate_errors(
        f"The Hub cannot be asked about --flavor {flavor}", "leave it out to use the figures of this machine"
    ):
        item = find_flavor(HfApi(), flavor)
    dollars = item.unit_cost_usd * PER_HOUR[item.unit_label]
    if item.accelerator is None:
        return Hardware(flavor, None, dollars)
    model, size = item.accelerator.model.upper(), re.match(r"([\d.]+) GB", item.accelerator.vram)
    # For other models the nominal size of one GPU; the Hub lists that of all GPUs together.
    nominal = float(size[1]) * 1e9 / GIB / int(item.accelerator.quantity) if size else None
    return Hardware(flavor, REPORTED.get(model, nominal), dollars, model not in WITHOUT_BFLOAT16)


def advise(args: Any, model_args: ModelConfig) -> str:
    """Return the options that would lower the peak and are not used yet."""
    batch = "a smaller --per_device_train_batch_size with more --gradient_accumulation_steps"
    used = {
        "--load_in_4bit true (NF4)": model_args.load_in_4bit,
        "--use_bnb_nested_quant true": model_args.use_bnb_nested_quant,
        "--gradient_checkpointing true": args.gradient_checkpointing,
        "--precompute_ref_log_probs true": getattr(args, "precompute_ref_log_probs", True),
        batch: args.per_device_train_batch_size == 1,
        "a smaller --sample_at_once": getattr(args, "sample_at_once", 1) == 1,
    }
    for name in ("max_completion_length", "max_prompt_length", "max_reprompt_len", "max_length"):
        used[f"a smaller --{name}"] = not hasattr(args, name)
    return ", ".join(flag for flag, is_used in used.items() if not is_used)


def read_config(model_args: ModelConfig, revision: str | None, trust_remote_code: bool) -> Any:
    """Return the config of a model; raises TrainingInputError when it cannot be read."""
    name = model_args.model_name_or_path
    with translate_errors(f"The config of `{name}` cannot be read", "give a causal language model"):
        return AutoConfig.from_pretrained(name, revision=revision or "main", trust_remote_code=trust_remote_code)


def estimate_sdpo(args: SDPOConfig, model_args: ModelConfig, config: Any, prompt_tokens: int) -> dict[str, int]:
    """Return the bytes at the peak of one process by purpose, with fused attention."""
    base, lora, cache = weights(config, model_args)
    backward, forward = _bytes_per_token(args, model_args, config)
    width = element_size(model_args, config)
    batch, completion = args.per_device_train_batch_size, args.max_completion_length
    logits = batch * completion * config.get_text_config().vocab_size
    policy = POLICY_COPIES * 4 * logits if args.distillation_weight < 1 else 0
    teacher_tokens = batch * (args.max_reprompt_len + completion) if args.distillation_weight else 0
    sampled = batch * args.steps_per_generation
    cached = sum(size * min(prompt_tokens + completion, window) for size, window in cache)
    return {
        "base weights": base,
        "LoRA, its gradient, Adam, EMA teacher": (4 * lora * (6 if args.teacher_model_kind == "ema" else 4)),
        "student": batch * (prompt_tokens + completion) * backward,
        "teacher": teacher_tokens * forward,
        "logits": LOGIT_COPIES * logits * width + CHUNK_COPIES * 4 * min(logits, CHUNK_ELEMENTS) + policy,
        "generation cache": min(sampled, args.sample_at_once or sampled) * cached * width,
        "CUDA context": CONTEXT,
    }


def estimate_supervised(
    args: Any, model_args: ModelConfig, config: Any, longest: int, *, pairs: bool, adapter: bool
) -> dict[str, int]:
    """Return the bytes at the peak by purpose, for rows of at most `longest` tokens; DPO has two answers a row."""
    base, lora, _ = weights(config, model_args)
    backward, forward = _bytes_per_token(args, model_args, config)
    tokens = args.per_device_train_batch_size * longest * (2 if pairs else 1)
    return {
        "base weights": base,
        # Weights, gradient and the two moments of Adam; with an adapter, also the reference.
        "LoRA, its gradient, Adam": 4 * lora * (5 if pairs and adapter else 4),
        "sequences": tokens * backward,
        "reference": tokens * forward if pairs else 0,
        "logits": TILE_COPIES * TILE_TOKENS * config.get_text_config().vocab_size * 4,
        "CUDA context": CONTEXT,
    }


def _bytes_per_token(args: Any, model_args: ModelConfig, config: Any) -> tuple[int, int]:
    """Return the bytes of a token's activations with and without a backward pass."""
    text = config.get_text_config()
    hidden, layers = text.hidden_size, text.num_hidden_layers
    mlp = getattr(text, "intermediate_size", None) or 4 * hidden
    backward = BACKWARD_WIDTHS[0] * hidden + BACKWARD_WIDTHS[1] * mlp
    backward = layers * hidden + backward if args.gradient_checkpointing else layers * backward
    width = element_size(model_args, config)
    return backward * width, (FORWARD_WIDTHS[0] * hidden + FORWARD_WIDTHS[1] * mlp) * width


def weights(config: Any, model_args: ModelConfig) -> tuple[int, int, list[tuple[int, int]]]:
    """Measure the modules of a model, without loading weights.

    Returns the bytes of the base model as it is loaded, the number of LoRA parameters, and for each
    layer the number of cached elements (keys and values) per token, and how many tokens are cached.
    """
    text = config.get_text_config()
    layer_types = getattr(text, "layer_types", None) or []
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings()
    quantised, cache = 0, list[tuple[int, int]]()
    for name, module in model.named_modules():
        if name.endswith("k_proj"):
            sliding = len(cache) < len(layer_types) and layer_types[len(cache)] == "sliding_attention"
            window = text.sliding_window if sliding else sys.maxsize
            # Keys and values have the same shape, even if a layer shares one projection for both.
            cache.append((2 * module.out_features, window))
        if isinstance(module, torch.nn.Linear) and module is not head:
            quantised += module.weight.numel()
    element = element_size(model_args, config)
    in_4bit = NESTED if model_args.use_bnb_nested_quant else NF4
    size = in_4bit if model_args.load_in_4bit else 1 if model_args.load_in_8bit else element
    others = sum(parameter.numel() for parameter in model.parameters()) - quantised
    inject_adapter_in_model(lora_config(model_args), model, low_cpu_mem_usage=True)
    lora = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return int(quantised * size + others * element), lora, cache


def element_size(model_args: ModelConfig, config: Any) -> int:
    """Return the bytes per element of weights that are not quantised; dtype `auto` is that of the config."""
    name = model_args.dtype
    dtype = config.dtype if name == "auto" else getattr(torch, str(name or "float32"))
    return torch.tensor([], dtype=dtype or torch.float32).element_size()
