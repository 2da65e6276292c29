"""The memory estimate against real NF4 weights and against peaks measured on the 12B's shapes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config
from transformers.models.gemma4_unified import configuration_gemma4_unified as gemma
from trl import ModelConfig, get_peft_config, get_quantization_config
from trl.experimental.sdpo import SDPOConfig

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training import models
from pimono_sdpo.training.arguments import TYPES, parse_job
from pimono_sdpo.training.models import GIB, REPORTED, estimate_sampling, estimate_supervised, read_config, weights
from pimono_sdpo.training.preflight import USABLE
from pimono_sdpo.training.run import TARGETS
from tests.training.setup import arguments


def config_12b() -> Any:
    text = gemma.Gemma4UnifiedTextConfig(
        vocab_size=262144,
        hidden_size=3840,
        intermediate_size=15360,
        num_hidden_layers=48,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=256,
        global_head_dim=512,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=1024,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 8,
    )
    return gemma.Gemma4UnifiedConfig(text_config=text.to_dict())


def settings(**changes: Any) -> tuple[SDPOConfig, ModelConfig]:
    args, model_args = arguments(
        Path("nowhere"),
        Path("google/gemma-4-12B-it"),
        **{
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 1,
            "max_completion_length": 160,
            "max_prompt_length": 768,
            "max_reprompt_len": 10240,
            "gradient_checkpointing": True,
            **changes,
        },
    )
    model_args.dtype = "bfloat16"
    return args, model_args


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("quantised", [True, False])
def test_weights_are_those_of_the_loaded_model(tiny: Path, quantised: bool, nested: bool) -> None:
    _, model_args = arguments(Path("nowhere"), tiny)
    model_args.load_in_4bit, model_args.use_bnb_nested_quant = quantised, nested
    model = AutoModelForCausalLM.from_pretrained(
        tiny, dtype=torch.float32, quantization_config=get_quantization_config(model_args)
    )
    real = sum(p.numel() * p.element_size() for p in model.parameters())
    for module in model.modules():
        state = getattr(getattr(module, "weight", None), "quant_state", None)
        if state is not None:
            real += state.absmax.numel() * state.absmax.element_size()
            real += state.state2.absmax.numel() * 4 if state.nested else 0
    size, lora, _ = weights(AutoConfig.from_pretrained(tiny), model_args)
    # Nested blocks of 256 are padded at the end of each layer.
    assert size == pytest.approx(real, rel=2e-3)
    lora_config = get_peft_config(model_args)
    lora_config.target_modules = models.TEXT_LINEARS
    model.add_adapter(lora_config)
    assert lora == sum(p.numel() for n, p in model.named_parameters() if "lora_" in n)


def test_the_reference_run_has_the_known_size() -> None:
    args, model_args = settings()
    size, lora, _ = weights(config_12b(), model_args)
    assert size / GIB == pytest.approx(7.15, rel=0.02)
    assert lora == pytest.approx(32.78e6, rel=0.001)
    whole = estimate_sampling(args, model_args, config_12b(), args.max_prompt_length)
    assert sum(whole.values()) / GIB == pytest.approx(13.3, rel=0.1)
    model_args.load_in_4bit = False
    assert weights(config_12b(), model_args)[0] / GIB == pytest.approx(11.96e9 * 2 / GIB, rel=0.01)


@pytest.mark.parametrize(("length", "peak"), [(928, 0.33), (4256, 1.05), (10400, 2.81)])
def test_the_teachers_forward_follows_the_measured_peaks(length: int, peak: float) -> None:
    args, model_args = settings(max_reprompt_len=length - 160)
    part = estimate_sampling(args, model_args, config_12b(), args.max_prompt_length)["teacher"] / GIB
    # The shortest ones were dominated by the logits, which are a part of their own.
    assert part == pytest.approx(peak, abs=0.12)


@pytest.mark.parametrize(("length", "peak"), [(928, 2.1), (2208, 3.8)])
def test_the_students_step_follows_the_measured_peaks(length: int, peak: float) -> None:
    args, model_args = settings(max_prompt_length=length - 160)
    parts = estimate_sampling(args, model_args, config_12b(), args.max_prompt_length)
    # Measured with five copies of the logits.
    logits = 5 * 2 * 160 * 262144 * 2
    assert (parts["student"] + logits) / GIB == pytest.approx(peak, rel=0.12)


def test_only_a_window_of_sliding_layers_is_kept_for_generation() -> None:
    parts = []
    for tokens in (1024 - 160, 2 * 1024 - 160):
        args, model_args = settings(per_device_train_batch_size=2)
        parts.append(estimate_sampling(args, model_args, config_12b(), tokens)["generation cache"])
    full = 2 * 2 * 8 * 2 * 512
    assert parts[1] - parts[0] == 1024 * full, "8 of 48 layers keep what is older"
    assert parts[0] == 2 * 1024 * 2 * (40 * 2 * 8 * 256 + 8 * 2 * 512)


def config_qwen(hidden: int, mlp: int, layers: int, heads: int) -> Any:
    return Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    )


CONFIGS: dict[str, Callable[[], Any]] = {
    "google/gemma-4-12B-it": config_12b,
    "Qwen/Qwen3-4B-Instruct-2507": lambda: config_qwen(2560, 9728, 36, 32),
    "Qwen/Qwen3-1.7B": lambda: config_qwen(2048, 6144, 28, 16),
}


@pytest.mark.parametrize("recipe", ["gemma4_12b", "qwen3_4b"])
@pytest.mark.parametrize("method", [*TYPES])
def test_the_recipes_for_24_gb_fit_by_the_shapes_of_their_models(recipe: str, method: str) -> None:
    """Every argument is one that TRL's classes take; the weights stay on the meta device."""
    _, args, model_args, _ = parse_job(method, ["--config", recipe, "--use_cpu", "true"], recipe)
    config = CONFIGS[model_args.model_name_or_path]()
    if method in TARGETS:
        pairs, length = method == "dpo", args.max_length or 0
        needed = estimate_supervised(args, model_args, config, min(length, 8192), pairs=pairs, adapter=pairs)
    else:
        needed = estimate_sampling(args, model_args, config, args.max_prompt_length)
    assert model_args.dtype == "bfloat16"
    assert args.bf16 is False
    assert sum(needed.values()) / GIB < USABLE * REPORTED["A10G"]


def test_a_folder_without_a_model_is_one_sentence(tmp_path: Path) -> None:
    args, model_args = settings()
    model_args.model_name_or_path = str(tmp_path)
    with pytest.raises(TrainingInputError, match="cannot be read"):
        read_config(model_args, None, args.trust_remote_code)
