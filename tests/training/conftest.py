"""A tiny model, filtered rows and one finished training for the whole session."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import ModelConfig, chat_template_utils

from pimono_sdpo.training import rows
from pimono_sdpo.training.method import Method
from pimono_sdpo.training.tiny_model import SEED_TEXT, write_tiny_model
from tests.training.setup import SeenPrompts, arguments, hand_made, prepare


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads waiting for each other on a busy machine cost far more than they save here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def tiny_qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model of the class, chat template and special tokens of Qwen3-4B-Instruct-2507."""
    folder = tmp_path_factory.mktemp("tiny_qwen") / "model"
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=512, show_progress=False, initial_alphabet=alphabet, special_tokens=special
    )
    learner.train_from_iterator(SEED_TEXT.splitlines(keepends=True), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=learner, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    tokenizer.chat_template = chat_template_utils.qwen3_instruct_2507_chat_template
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 8192}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **sizes, **heads))
    ends = {"eos_token_id": [tokenizer.eos_token_id, tokenizer.pad_token_id], "pad_token_id": tokenizer.pad_token_id}
    model.generation_config = GenerationConfig(**ends, do_sample=True)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def filtered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows in the layout the filter writes, rejects beside them."""
    folder = tmp_path_factory.mktemp("filtered") / "rows"
    for name in ("data", "rejects"):
        (folder / name).mkdir(parents=True)
    hand_made().to_parquet(folder / "data" / "train-00000-of-00001.parquet")
    Dataset.from_dict({"drop_reason": ["no_evidence"]}).to_parquet(
        folder / "rejects" / "rejects-00000-of-00001.parquet"
    )
    return folder


@pytest.fixture(scope="session")
def straight(
    tmp_path_factory: pytest.TempPathFactory, tiny: Path, filtered: Path
) -> tuple[Method, dict[str, float], SeenPrompts, ModelConfig]:
    """Six steps without a break; an epoch has four."""
    args, model_args = arguments(tmp_path_factory.mktemp("straight"), tiny)
    prepared = prepare(args, model_args, rows.load_rows(str(filtered)))
    seen = SeenPrompts()
    prepared.trainer.add_callback(seen)
    return prepared, prepared.run_steps(), seen, model_args
