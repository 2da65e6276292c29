"""Make the base models of the benchmark of methods: Gemma 4s of 0.46 M parameters, or of 33 M."""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import decoders
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.learning_model import sample, save, templated, word_tokenizer, words_of
from benchmarks.synthesis_task import OPERATIONS, behaviours, draw_tasks, judged, lesson, passes, teachers_words
from pimono_sdpo.training.tiny_model import random_model

BATCH = 64
SHARE_OF_PROMPTS = 0.5  # of the loss: what programs do is in the prompts too


@dataclass(frozen=True)
class Size:
    """A base model: its shape, the dtype that it computes in, and how long it is taught.

    steps, rate          of the lessons in which the share LAZY of plain requests is cut short
    more, slower         steps and rate of those after them for the world `rare`
    rounds               batches of completions of a training
    """

    shape: dict[str, Any]
    dtype: str = "float32"
    steps: int = 2400
    rate: float = 2e-3
    more: int = 300
    slower: float = 1e-3
    rounds: int = 12

    @property
    def device(self) -> str:
        """Return where it computes: the figures for the small size are of a CPU."""
        on_gpu = self.dtype == "bfloat16" and torch.cuda.is_available()
        return "cuda" if on_gpu else "cpu"

    def shortest(self) -> "Size":
        """Return a trial of the same code on a CPU."""
        return replace(self, shape=SMALL.shape, steps=2, more=1, rounds=1)


SMALL = Size(
    {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 128}
)
LARGE = Size(
    {
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "global_head_dim": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 4,
        "sliding_window": 128,
    },
    dtype="bfloat16",
    steps=6000,
    rate=6e-4,
    more=600,
    slower=3e-4,
)
# Shares of the lessons on three operations that show two, by world.
LAZY = {"some": 0.85, "rare": 0.99}


def write_bases(folders: dict[str, Path], size: Size) -> None:
    """Pre-train a base model for each world and write it to its folder."""
    chance = random.Random(0)
    texts = [lesson(chance, LAZY["some"]) for _ in range(300)]
    words = {word for text, answer in texts for word in words_of(text + answer)}
    tokenizer = word_tokenizer(sorted({*words, *OPERATIONS, *map(str, range(10))}))
    # Blanks between the words: a program that is shown as a solution is read again.
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece(cleanup=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = random_model(len(tokenizer), **size.shape).to(size.device)
        teach(model, tokenizer, LAZY["some"], size.steps, size.rate, size.dtype)
    save(folders["some"], model, tokenizer)
    teach(model, tokenizer, LAZY["rare"], size.more, size.slower, size.dtype)
    save(folders["rare"], model, tokenizer)


def teach(model: Any, tokenizer: Any, lazy: float, steps: int, rate: float, dtype: str) -> None:
    """Train all weights on fresh lessons; they stay in float32."""
    device = model.device
    chance = random.Random(1)
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
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
        ids, answered, asked = ids.to(device), answered.to(device), asked.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
            found = model(input_ids=ids, attention_mask=(ids != 0).long())
        logits = found.logits[:, :-1].flatten(0, 1).float()
        loss = cross_entropy(logits, answered[:, 1:].flatten())
        loss += SHARE_OF_PROMPTS * cross_entropy(logits, asked[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 500 == 0:
            print(f"base {step}/{steps} loss {loss.item():.3f}", flush=True)


def knowledge(folder: Path, size: Size, number: int = 400) -> dict[str, float]:
    """Measure a base: alone, and where that failed, again alone, with feedback, with a solution."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=size.dtype).to(size.device)
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
                "with another task's feedback": list(map(teachers_words, asked_again, heard[1:] + heard[:1])),
                "with a solution": [teachers_words(one, "", " ".join(one.program)) for one in asked_again],
            }
            name = f"{side}, {length} operations"
            found[f"{name}: alone"] = 1 - len(failed) / number
            for kind, words in texts.items():
                said = sample(model, tokenizer, words, 1)
                right = [passes(text, one) for text, (_, one) in zip(said, failed, strict=True)]
                found[f"{name}: failed, {kind}"] = sum(right) / max(len(right), 1)
    return found
