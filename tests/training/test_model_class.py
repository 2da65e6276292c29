"""What of the base model is trained, what is quantised, and what ends a completion."""

import re
from pathlib import Path

import bitsandbytes as bnb
import torch
import transformers
from peft import get_peft_model
from transformers import AutoConfig, AutoTokenizer
from trl import ModelConfig

from pimono_sdpo.training import models
from tests.training.setup import Prepared, SeenPrompts, arguments

Straight = tuple[Prepared, dict[str, float], SeenPrompts, ModelConfig]


def linears(model: torch.nn.Module) -> set[str]:
    return {
        name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and "lora_" not in name
    }


def wrapped(model: torch.nn.Module) -> set[str]:
    return {name.split(".lora_A.")[0] for name, _ in model.named_parameters() if ".lora_A." in name}


def test_the_adapter_sits_on_every_layer_of_the_language_model_and_nowhere_else(straight: Straight) -> None:
    model = straight[0].trainer.model
    text = {
        name.removesuffix(".base_layer") for name in linears(model) if re.search(r"language_model\.layers\.", name)
    }
    others = linears(model.get_base_model()) - {
        name.removeprefix("base_model.model.") + ".base_layer" for name in text
    }
    assert wrapped(model) == text
    assert len(text) == 20
    assert {name.split(".")[-1] for name in others} == {*("lm_head", "patch_dense", "embedding_projection")}
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert trained == {f"{name}.lora_{factor}.default.weight" for name in text for factor in ("A", "B")}


def test_layers_are_in_4_bits_and_embedding_and_head_are_not(straight: Straight) -> None:
    model = straight[0].trainer.model
    quantised = {n for n, module in model.named_modules() if isinstance(module, bnb.nn.Linear4bit)}
    assert {f"{name}.base_layer" for name in wrapped(model)} <= quantised
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert not isinstance(head, bnb.nn.Linear4bit)
    assert head.weight is embedding.weight, "tied"
    assert embedding.weight.dtype == torch.float32


def test_the_end_of_a_turn_ends_a_completion(straight: Straight) -> None:
    trainer = straight[0].trainer
    tokenizer = trainer.processing_class
    ends = tokenizer.convert_tokens_to_ids(["<eos>", "<turn|>", "<|tool_response>"])
    assert ends == [1, 106, 50]
    assert trainer.eos_token_ids == trainer.generation_config.eos_token_id == ends
    assert isinstance(tokenizer, transformers.PreTrainedTokenizerBase), "no processor, which pads"


def test_a_checkpoint_of_the_text_tower_alone_is_adapted_on_the_same_layers(
    straight: Straight, tiny: Path, tmp_path: Path
) -> None:
    """Gemma4UnifiedForCausalLM has the same layers under other names."""
    config = AutoConfig.from_pretrained(tiny).text_config
    with torch.device("meta"):
        text = transformers.Gemma4UnifiedForCausalLM(config)
    lora = models.lora_config(arguments(tmp_path, tiny)[1])
    tower = {name.split("layers.")[1] for name in wrapped(get_peft_model(text, lora))}
    assert tower == {name.split("layers.")[1] for name in wrapped(straight[0].trainer.model)}


def test_the_layers_of_image_and_sound_encoders_are_left_alone() -> None:
    """E2B, E4B and the larger models have encoders with layers named like those of the text."""
    names = {
        "model.language_model.layers.0.self_attn.q_proj": True,
        "model.layers.3.mlp.down_proj": True,
        "model.vision_tower.encoder.layers.0.self_attn.q_proj": False,
        "model.audio_tower.layers.0.self_attn.k_proj": False,
        "model.embed_vision.embedding_projection": False,
        "lm_head": False,
    }
    found = {name: re.fullmatch(models.TEXT_LINEARS, name) is not None for name in names}
    assert found == names


def test_the_tokenizer_alone_pads_nothing(tiny: Path) -> None:
    ids = AutoTokenizer.from_pretrained(tiny)(["short", "a much longer text than that"])
    assert len({len(row) for row in ids["input_ids"]}) == 2
