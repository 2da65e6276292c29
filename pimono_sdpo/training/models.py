"""Check and load the base model, tokenizer, quantisation, LoRA layers and adapter, and estimate the GPU memory.

Weights are counted module by module from the model's config, without loading any. The rest follows
from tensor shapes; its constants were fitted to peaks that PyTorch's memory tracker measured for the
12B model (48 layers, fused attention, gradient checkpointing). The tests compare with those peaks.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets.exceptions import DatasetsError
from httpx2 import HTTPError
from huggingface_hub import HfApi, ModelCard, hf_hub_download, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError
from peft import LoraConfig, PeftConfig, inject_adapter_in_model
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from trl import ModelConfig, get_peft_config, get_quantization_config

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.traces.hub import explain_error
from pimono_sdpo.training.options import find_flavor, is_local

WEIGHTS = ("adapter_model.safetensors", "adapter_config.json")
# Logits for which the loss is computed at a time: 128 MiB in float32, 128 tokens of a vocabulary of 262,144.
CHUNK_ELEMENTS = 2**25
# The text layers only: `all-linear` would also wrap the image and audio embedders, which get no
# gradient here, and PEFT has no default for this model type. Text layers are in `language_model` in a
# multimodal checkpoint and in `model.layers` in a text-only one.
TEXT_LINEARS = r"(?!.*(?:vision|audio)).*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
# Raised for files that are missing, truncated or of another size, for settings that the model does not support,
# and for a setting whose package is not installed.
LOADING_ERRORS = (OSError, ValueError, RuntimeError, ImportError, HTTPError, SafetensorError, re.error)
# With fewer parameters, one thread is faster than two.
SMALL = 5_000_000


@contextmanager
def translate_errors(what: str, advice: str) -> Iterator[None]:
    """Turn library errors about files, settings and the Hub into a TrainingInputError."""
    try:
        yield
    except (*LOADING_ERRORS, DatasetsError, StopIteration) as error:
        # `datasets` ends in a StopIteration if it finds no rows in a file.
        # The messages of `datasets` are generic; the cause has the reason.
        cause = error.__cause__ or error if isinstance(error, DatasetsError) else error
        reason = next(iter(str(cause).strip().splitlines()), type(cause).__name__).strip(" .:")
        if isinstance(error, GatedRepoError):
            reason = "it is gated: accept its terms on the Hub"
        elif isinstance(error, HTTPError):
            reason = explain_error(error)
        raise TrainingInputError(f"{what} ({reason}); {advice}.") from error


def public_name(name: str) -> str:
    """Return the name of rows or a model without this machine's path: a Hub id, or the folder's name.

    >>> public_name("/home/ann/gemma"), public_name("google/gemma-4-12B-it")
    ('gemma', 'google/gemma-4-12B-it')
    """
    return Path(name).resolve().name if is_local(name) else name


def base_model_revision(model_args: ModelConfig) -> str | None:
    """Check that the base model exists; return its commit on the Hub, None for a folder."""
    name = model_args.model_name_or_path
    if name is None:
        raise TrainingInputError("There is no base model; give --model_name_or_path.")
    if is_local(name):
        if not (Path(name) / "config.json").is_file():
            raise TrainingInputError(
                f"There is no model in the folder `{name}`; give a Hub id, or make a tiny one with "
                f"`pimono-sdpo demo model --out {name}`."
            )
        return None
    with translate_errors(
        f"The model `{name}` is not a folder here and cannot be downloaded from the Hub",
        "check the name, the revision and the network, or set HF_TOKEN when it is private",
    ):
        config = hf_hub_download(name, "config.json", revision=model_args.model_revision)
    # The Hub's cache names the folder of a snapshot after its commit.
    return Path(config).parent.name


def base_model_licence(model_args: ModelConfig, revision: str | None) -> str | None:
    """Return the licence on the base model's card, which its adapters inherit."""
    if revision is None:
        return None
    try:
        card = hf_hub_download(model_args.model_name_or_path, "README.md", revision=revision)
    except EntryNotFoundError:
        return None
    licence: str | None = ModelCard.load(card).data.get("license")
    return licence


def load_tokenizer(model_args: ModelConfig, revision: str | None, trust_remote_code: bool = False) -> Any:
    """Return the tokenizer, never a multimodal processor, whose padding SDPO would attend to."""
    what, advice = f"The tokenizer of `{model_args.model_name_or_path}`", "give a model with its tokenizer files"
    with translate_errors(f"{what} cannot be loaded", advice):
        tokenizer = AutoTokenizer.from_pretrained(
            model_args.model_name_or_path, revision=revision or "main", trust_remote_code=trust_remote_code
        )
    # If the vocabulary is missing, Transformers builds a tokenizer to which every text is unknown.
    if not {*tokenizer("a word", add_special_tokens=False)["input_ids"]} - {tokenizer.unk_token_id}:
        raise TrainingInputError(f"{what} has no vocabulary; {advice}.")
    if tokenizer.chat_template is None:
        raise TrainingInputError(f"{what} has no chat template; give an instruction-tuned model.")
    return tokenizer


def end_ids(model_args: ModelConfig, revision: str | None) -> list[int]:
    """Return the ids that end a turn, from the model's generation config, if it has one."""
    try:
        config = GenerationConfig.from_pretrained(model_args.model_name_or_path, revision=revision or "main")
    except OSError:
        # Without generation_config.json, the tokenizer's own token ends a turn.
        return []
    ids = config.eos_token_id
    return [ids] if isinstance(ids, int) else list(ids or ())


def model_init_kwargs(model_args: ModelConfig, revision: str | None) -> dict[str, Any]:
    """Return the arguments that load the base model: dtype, quantisation, attention, commit."""
    kwargs = {
        # Otherwise TRL loads weights that are not quantised, above all the embedding, in float32.
        "dtype": model_args.dtype,
        "attn_implementation": model_args.attn_implementation or "sdpa",
        "quantization_config": get_quantization_config(model_args),
        "revision": revision,
    }
    return {name: value for name, value in kwargs.items() if value is not None}


def keep_layout(model: Any) -> None:
    """Keep bitsandbytes from repacking 4-bit weights at their first use in evaluation mode on a CPU.

    It does so on CPUs with AVX512-BF16, and gradients of later steps are then wrong (bitsandbytes
    0.50.2: their cosine similarity to the correct ones was 0.35).
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def limit_threads(model: Any) -> None:
    """Use one thread for a small model on a CPU, unless OMP_NUM_THREADS is set.

    Several threads mostly wait for each other; on a busy machine steps took up to 60 times as long.
    """
    size = sum(parameter.numel() for parameter in model.parameters())
    if model.device.type == "cpu" and size < SMALL and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def lora_config(model_args: ModelConfig) -> LoraConfig:
    """Return the LoRA configuration; without --lora_target_modules, all text layers."""
    if not model_args.use_peft:
        raise TrainingInputError("This job trains a LoRA adapter and `use_peft` is off; set use_peft to true.")
    with translate_errors("The LoRA arguments cannot be used", "correct --lora_r and the other --lora_*"):
        config = get_peft_config(model_args)
    if config.target_modules is None:
        config.target_modules = TEXT_LINEARS
    return config


def open_adapter(name: str, model_args: ModelConfig) -> Path:
    """Return the folder of an adapter, and set the LoRA arguments to those of its config, in place."""
    advice = "give the folder or the Hub id of one"
    with translate_errors(f"The adapter `{name}` cannot be opened", advice):
        folder = Path(name) if is_local(name) else Path(snapshot_download(name, allow_patterns=list(WEIGHTS)))
        # If a folder has no config, PEFT would look for one on the Hub.
        config = PeftConfig.from_pretrained(str(folder), local_files_only=True)
    if not isinstance(config, LoraConfig) or not (folder / WEIGHTS[0]).is_file():
        raise TrainingInputError(f"`{name}` is not a LoRA adapter with its {WEIGHTS[0]}; {advice}.")
    base, model = public_name(str(config.base_model_name_or_path)), public_name(str(model_args.model_name_or_path))
    if base != model:
        raise TrainingInputError(
            f"The adapter `{name}` is for the base model `{base}`, and not for `{model}`; give "
            "that as --model_name_or_path."
        )
    model_args.use_peft, model_args.lora_r = True, config.r
    for key in ("lora_alpha", "lora_dropout", "use_rslora", "use_dora"):
        setattr(model_args, key, getattr(config, key))
    target = config.target_modules
    model_args.lora_target_modules = sorted(target) if isinstance(target, set) else target
    return folder


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


def estimate_sampling(args: Any, model_args: ModelConfig, config: Any, prompt_tokens: int) -> dict[str, int]:
    """Return the bytes at the peak of one process by purpose, with fused attention."""
    base, lora, cache = weights(config, model_args)
    backward, forward = _bytes_per_token(args, model_args, config)
    width = element_size(model_args, config)
    batch, completion = args.per_device_train_batch_size, args.max_completion_length
    logits = batch * completion * config.get_text_config().vocab_size
    weight = getattr(args, "distillation_weight", 1.0)
    policy = POLICY_COPIES * 4 * logits if weight < 1 else 0
    teacher_tokens = batch * (args.max_reprompt_len + completion) if weight else 0
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
