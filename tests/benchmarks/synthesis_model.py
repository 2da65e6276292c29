"""Make the base models of the benchmark of methods: Gemma 4s of 0.46 M parameters."""

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import decoders
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from pimono_sdpo.training.tiny_model import random_model
from tests.benchmarks.learning_model import sample, save, templated, word_tokenizer, words_of
from tests.benchmarks.synthesis_task import (
    OPERATIONS,
    behaviours,
    draw_tasks,
    judged,
    lesson,
    passes,
    teachers_words,
)

BATCH = 64
SHARE_OF_PROMPTS = 0.5  # of the loss: what programs do is in the prompts too
LARGER: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 128,
}


def write_base(folder: Path, lazy: float = 0.85, steps: int = 2400, rate: float = 2e-3) -> Path:
    """Pre-train a base model and write it to `folder`."""
    chance = random.Random(0)
    texts = [lesson(chance, lazy) for _ in range(300)]
    words = {word for text, answer in texts for word in words_of(text + answer)}
    tokenizer = word_tokenizer(sorted({*words, *OPERATIONS, *map(str, range(10))}))
    # Blanks between the words: a program that is shown as a solution is read again.
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece(cleanup=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = random_model(len(tokenizer), **LARGER)
        teach(model, tokenizer, lazy, steps, rate)
    return save(folder, model, tokenizer)


def write_lazier(
    folder: Path, base: Path, lazy: float = 0.99, steps: int = 300, rate: float = 1e-3
) -> Path:
    """Teach a base model on to be lazier and write it to `folder`."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base)
    teach(model, tokenizer, lazy, steps, rate)
    return save(folder, model, tokenizer)


def teach(model: Any, tokenizer: Any, lazy: float, steps: int, rate: float) -> None:
    """Train all weights on fresh lessons."""
    chance = random.Random(1)
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, total_steps=steps, pct_start=0.1
    )
    model.train()
    batches: list[list[tuple[str, str]]] = []
    for step in range(steps):
        if not batches:  # texts of one length together
            drawn = [lesson(chance, lazy) for _ in range(8 * BATCH)]
            drawn.sort(key=lambda texts: len(words_of(texts[0])))
            batches = [drawn[at : at + BATCH] for at in range(0, len(drawn), BATCH)]
            chance.shuffle(batches)
        lessons = batches.pop()
        prompts = templated(tokenizer, [text for text, _ in lessons])
        answers = tokenizer([a for _, a in lessons], add_special_tokens=False)["input_ids"]
        longest = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
        ids = torch.zeros(BATCH, longest, dtype=torch.long)
        answered, asked = torch.full_like(ids, -100), torch.full_like(ids, -100)
        for row, (prompt, right) in enumerate(zip(prompts, answers, strict=True)):
            whole = torch.tensor(prompt + right)
            ids[row, : len(whole)] = whole
            asked[row, : len(prompt)] = whole[: len(prompt)]
            answered[row, len(prompt) : len(whole)] = whole[len(prompt) :]
        logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits[:, :-1].flatten(0, 1)
        loss = cross_entropy(logits, answered[:, 1:].flatten())
        loss += SHARE_OF_PROMPTS * cross_entropy(logits, asked[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 500 == 0:
            print(f"base {step}/{steps} loss {loss.item():.3f}", flush=True)


def knowledge(folder: Path, number: int = 400) -> dict[str, float]:
    """Measure a base: alone, and where that failed, again alone, with feedback, with a solution."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    found = {}
    for side, lengths in zip(("trained", "held out"), behaviours(), strict=True):
        for length, asked in lengths.items():
            tasks = draw_tasks(asked, number, 3)
            said = sample(model, tokenizer, [task.words for task in tasks])
            failed = [(t, one) for t, one in zip(said, tasks, strict=True) if not passes(t, one)]
            asked_again = [one for _, one in failed]
            heard = [judged(text, one) for text, one in failed]
            texts = {
                "again": [one.words for one in asked_again],
                "with feedback": list(map(teachers_words, asked_again, heard)),
                "with another task's feedback": list(
                    map(teachers_words, asked_again, heard[1:] + heard[:1])
                ),
                "with a solution": [
                    teachers_words(one, "", " ".join(one.program)) for one in asked_again
                ],
            }
            name = f"{side}, {length} operations"
            found[f"{name}: alone"] = 1 - len(failed) / number
            for kind, words in texts.items():
                said = sample(model, tokenizer, words, 1)
                right = [passes(text, one) for text, (_, one) in zip(said, failed, strict=True)]
                found[f"{name}: failed, {kind}"] = sum(right) / len(right)
    return found
