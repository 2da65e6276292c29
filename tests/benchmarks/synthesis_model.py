"""Make the base models of the benchmark of methods: tiny Gemma 4s that write small programs."""

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import decoders

from pimono_sdpo.training.tiny_model import random_model
from tests.benchmarks.learning_model import save, templated, word_tokenizer, words_of
from tests.benchmarks.synthesis_task import OPERATIONS, lesson

BATCH = 64
# 0.8 M parameters.
LARGER: dict[str, Any] = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "sliding_window": 128,
}


def write_base(folder: Path, longest_plain: int, steps: int, rate: float = 2e-3) -> Path:
    """Pre-train a base model and write it to `folder`.

    Plain requests are taught for programs of at most `longest_plain` operations, see `lesson`.
    """
    chance = random.Random(0)
    texts = [lesson(chance, 3) for _ in range(300)]
    words = {word for text, answer in texts for word in words_of(text + answer)}
    tokenizer = word_tokenizer(sorted({*words, *OPERATIONS, *map(str, range(10))}))
    # Blanks between the words: a program that is shown as a solution is read again.
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece(cleanup=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = random_model(len(tokenizer), **LARGER)
        teach(model, tokenizer, longest_plain, steps, rate)
    return save(folder, model, tokenizer)


def teach(model: Any, tokenizer: Any, longest_plain: int, steps: int, rate: float) -> None:
    """Train all weights on fresh lessons."""
    chance = random.Random(1)
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.1
    )
    model.train()
    for step in range(steps):
        lessons = [lesson(chance, longest_plain) for _ in range(BATCH)]
        prompts = templated(tokenizer, [text for text, _ in lessons])
        answers = tokenizer([a for _, a in lessons], add_special_tokens=False)["input_ids"]
        longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
        ids = torch.zeros(BATCH, longest, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            whole = prompt + answer
            ids[row, : len(whole)] = torch.tensor(whole)
            labels[row, len(prompt) : len(whole)] = torch.tensor(answer)
        loss = model(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 500 == 0:
            print(f"base {step}/{steps} loss {loss.item():.3f}", flush=True)
