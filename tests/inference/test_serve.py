"""The chat client against `transformers serve` with a tiny model, which is slow to start."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from pimono_sdpo.llm.calls import Journal, Reply, Request
from pimono_sdpo.llm.chat import Chat
from pimono_sdpo.llm.settings import Limits, find_endpoint

pytest.importorskip("fastapi", reason="`transformers serve` needs fastapi and openai")
pytest.importorskip("openai", reason="`transformers serve` needs fastapi and openai")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
# One call at a time: the server's seeds are of the process.
ONE = Limits(concurrency=1, attempts=1)


def write_model(folder: Path) -> Path:
    """A random model over bytes, so that every letter is a token of its own."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*letters, "<|im_start|>", "<|im_end|>"]
    bpe = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    end = {"eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, additional_special_tokens=["<|im_start|>"], **end)
    tokenizer.chat_template = CHATML
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = Qwen2Config(vocab_size=len(names), max_position_embeddings=65_536, **sizes, **heads)
    model = Qwen2ForCausalLM(config)
    stop = tokenizer.eos_token_id
    # Without it the server ignores the temperature.
    model.generation_config = GenerationConfig(do_sample=True, eos_token_id=stop, pad_token_id=stop)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL of a running server and the name of its model."""
    model = write_model(tmp_path_factory.mktemp("model"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model)]
    place = ["--port", str(port), "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    log = model / "serve.log"
    with log.open("w") as out:
        process = subprocess.Popen([*command, *place], env=environment, stdout=out, stderr=out)
    try:
        until = time.monotonic() + 240
        while not _answers(f"http://127.0.0.1:{port}/health"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1", str(model)
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=5).status_code == 200
    except httpx2.TransportError:
        return False


@pytest.mark.slow
def test_a_real_server_answers(served: tuple[str, str], tmp_path: Path) -> None:
    url, model = served
    chat = Chat(find_endpoint(url), Journal(tmp_path / "calls.sqlite"), limits=ONE)
    turn = {"role": "user", "content": "Say something."}

    async def ask(*requests: Request) -> list[Reply]:
        return [await chat.ask(request) for request in requests]

    seeds = [
        Request(model, [turn], temperature=1.0, seed=seed, max_tokens=12, sample=sample)
        for seed, sample in ((1, 0), (1, 1), (2, 0))
    ]
    first, same, other, unknown = asyncio.run(ask(*seeds, Request("nobody/none", [turn])))
    assert [reply.error for reply in (first, same, other)] == [None] * 3
    assert first.text == same.text != other.text
    assert 0 < first.completion_tokens <= 12 < first.prompt_tokens
    assert "answered 4" in (unknown.error or "")
    assert [reply.from_journal for reply in asyncio.run(ask(*seeds))] == [True] * 3
