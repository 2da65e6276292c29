"""Estimate by shapes how much GPU memory SFT or DPO needs: sequences as long as the rows are.

See memory.py, of whose counts and constants this is made. TRL computes log-probabilities of these
methods in tiles, so that logits of the whole vocabulary exist for a few tokens only.
"""

from typing import Any

from trl import ModelConfig

from pimono_sdpo.training.memory import (
    BACKWARD_WIDTHS,
    CONTEXT,
    FORWARD_WIDTHS,
    Estimate,
    element_size,
    read_config,
    weights,
)

# Of TRL's tiles, with their log-softmax and gradient.
TILE_TOKENS, TILE_COPIES = 256, 4


def estimate(
    args: Any, model_args: ModelConfig, revision: str | None, longest: int, adapter: bool
) -> Estimate:
    """Return the peak of one process for rows of at most `longest` tokens."""
    config = read_config(model_args, revision, args.trust_remote_code)
    return of_config(args, model_args, config, longest, adapter)


def of_config(
    args: Any, model_args: ModelConfig, config: Any, longest: int, adapter: bool
) -> Estimate:
    """Return the same for a model's config; DPO takes two answers of a row at once."""
    text = config.get_text_config()
    width = element_size(model_args, config)
    hidden, layers = text.hidden_size, text.num_hidden_layers
    mlp = getattr(text, "intermediate_size", None) or 4 * hidden
    pair = args.METHOD == "dpo"
    tokens = args.per_device_train_batch_size * longest * (2 if pair else 1)
    backward = BACKWARD_WIDTHS[0] * hidden + BACKWARD_WIDTHS[1] * mlp
    kept = layers * hidden + backward if args.gradient_checkpointing else layers * backward
    forward = FORWARD_WIDTHS[0] * hidden + FORWARD_WIDTHS[1] * mlp
    base, lora, _ = weights(config, model_args)
    parts = {
        "base weights": base,
        # Weights, gradient and Adam's two; the adapter of before as reference.
        "LoRA, its gradient, Adam": 4 * lora * (5 if pair and adapter else 4),
        "sequences": int(tokens * kept * width),
        "reference": int(tokens * forward * width) if pair else 0,
        "logits": TILE_COPIES * TILE_TOKENS * text.vocab_size * 4,
        "CUDA context": CONTEXT,
    }
    flags = {
        "base weights": ""
        if model_args.load_in_4bit
        else "--load_in_4bit true (NF4), with --use_bnb_nested_quant true",
        "sequences": "--gradient_checkpointing true, a smaller --per_device_train_batch_size with "
        "more --gradient_accumulation_steps, or a smaller --max_length",
        "reference": "--precompute_ref_log_probs true",
    }
    return Estimate(parts, flags)
