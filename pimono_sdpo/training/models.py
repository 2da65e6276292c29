"""Check and load the base model, tokenizer, quantisation, LoRA layers and adapter of a run."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from datasets.exceptions import DatasetsError
from httpx2 import HTTPError
from huggingface_hub import ModelCard, hf_hub_download, snapshot_download
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError
from peft import LoraConfig, PeftConfig, PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from trl import ModelConfig, get_peft_config, get_quantization_config

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.runs.folders import read_json
from pimono_sdpo.traces.hub import explain_error
from pimono_sdpo.training.options import is_local
from pimono_sdpo.training.output import ADAPTER, LOCAL_FILE, PROBE_FILE, WEIGHTS, read_finished

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


# The prompt on which the trained model is compared with its adapter, loaded in another process.
PROBE = "The test run ends in `ENOENT`: which file is missing, and what do you do next?"
SETTINGS = ("dtype", "load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "use_bnb_nested_quant")


def probe_logits(model: Any, tokenizer: Any) -> torch.Tensor:
    """Return the float32 logits of the token that would follow PROBE, shape (vocabulary,)."""
    was_training = model.training
    # With another layout a CPU adds in another order, and the logits differ by rounding.
    keep_layout(model)
    limit_threads(model)
    model.eval()
    inputs = tokenizer(PROBE, return_tensors="pt").to(model.device)
    with torch.no_grad():
        logits: torch.Tensor = model(**inputs).logits[0, -1].float().cpu().contiguous()
    model.train(was_training)
    return logits


def write_probe(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save the logits of the trained model."""
    save_file({"logits": probe_logits(model, tokenizer)}, folder / PROBE_FILE)


def load_adapter(folder: Path) -> tuple[Any, Any]:
    """Load the base model of a run, quantised as in the run, with its adapter; return model and tokenizer."""
    run = read_finished(folder)
    # run.json has no paths of this machine, since it is published.
    local = read_json(folder / LOCAL_FILE) or run
    name, revision = str(local["base_model"]), run["base_model_revision"]
    settings = ModelConfig(**{key: run["arguments"][key] for key in SETTINGS})
    what = f"The base model `{name}` cannot be loaded with the adapter of `{folder}`"
    with translate_errors(what, "check both"):
        base = AutoModelForCausalLM.from_pretrained(name, **model_init_kwargs(settings, revision))
        model = PeftModel.from_pretrained(base, str(folder / ADAPTER))
        return model, AutoTokenizer.from_pretrained(name, revision=revision or "main")


def largest_difference(folder: Path) -> float:
    """Return the largest difference between the logits of the reloaded adapter and those saved after training."""
    model, tokenizer = load_adapter(folder)
    saved = load_file(folder / PROBE_FILE)["logits"]
    return float((probe_logits(model, tokenizer) - saved).abs().max())
