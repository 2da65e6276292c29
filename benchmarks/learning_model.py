"""Make the base model of the benchmark of learning: a tiny Gemma 4, taught the world beforehand.

0.4 M parameters of the real classes with a vocabulary of words. It knows the calls and what
feedback means; which names a world offers it does not know.
"""

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from benchmarks.learning_task import KINDS, MEDIUM, NEVER, RARE, Request, World, lesson, requests, rubric
from pimono_sdpo.training.rewards import set_response_template
from pimono_sdpo.training.tiny_model import (
    CORE_TOKENS,
    EXTRA_SPECIAL_TOKENS,
    chat_template,
    generation_config,
    random_model,
)
from pimono_sdpo.training.trainer import read_messages
from rewards.verifiers.reward import VerifierReward

WORD = r"\w+|[^\w\s]"
BATCH = 32
# Shares of the steps on the shortest texts, which are plain requests, and on those with solutions:
# cheap steps, in which it learns to carry words into its answer.
FIRST, SECOND = 0.1, 0.3
SHORT = 30  # tokens of a prompt
ANSWER = 16  # tokens; the right calls have eleven


def write_base(
    folder: Path, steps: int = 2000, learning_rate: float = 3e-3, lessons: int = 8000, kinds: Sequence[str] = KINDS
) -> Path:
    """Pre-train the base model on requests that are not held out and write it to `folder`."""
    chance = random.Random(0)
    taught = [lesson(chance, requests()[0], kinds) for _ in range(lessons)]
    words = sorted({word for _, text, answer in taught for word in words_of(text + answer)})
    tokenizer = word_tokenizer(words)
    generator_state = torch.get_rng_state()
    torch.manual_seed(0)
    model = random_model(len(tokenizer))
    _teach(model, tokenizer, taught, steps, learning_rate)
    torch.set_rng_state(generator_state)
    return save(folder, model, tokenizer)


def pack(base: Path, file: Path) -> None:
    """Write weights (float16) and words of a base model into one small file."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float16)
    vocabulary = AutoTokenizer.from_pretrained(base).get_vocab()
    words = " ".join(sorted(vocabulary, key=vocabulary.__getitem__))
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    save_file(weights, file, metadata={"words": words})


def unpack(file: Path, folder: Path) -> Path:
    """Write the base model that `pack` put into a file to `folder`."""
    with safe_open(file, "pt") as packed:
        words = packed.metadata()["words"].split()
        weights = {name: packed.get_tensor(name).float() for name in packed.keys()}  # noqa: SIM118
    tokenizer = word_tokenizer(words)
    model = random_model(len(tokenizer))
    for name, value in model.named_parameters():
        value.data = weights[name]
    return save(folder, model, tokenizer)


def save(folder: Path, model: Any, tokenizer: Any) -> Path:
    """Write model and tokenizer to `folder`, with what ends a turn."""
    model.generation_config = generation_config(
        tokenizer.convert_tokens_to_ids(["<eos>", "<turn|>", "<|tool_response>"])
    )
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def words_of(text: str) -> list[str]:
    """Return the words and signs of a text, blanks left out."""
    return re.findall(WORD, text)


def word_tokenizer(words: list[str]) -> Any:
    """Return a tokenizer of one token a word, with the special tokens and template of Gemma 4."""
    special = [*CORE_TOKENS, *EXTRA_SPECIAL_TOKENS]
    names = [*special, *(word for word in ["user", "model", "a", *words] if word not in special)]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        extra_special_tokens=EXTRA_SPECIAL_TOKENS,
        padding_side="left",
        model_max_length=8192,
    )
    fast.chat_template = chat_template()
    return fast


def _teach(model: Any, tokenizer: Any, lessons: list[tuple[str, str, str]], steps: int, rate: float) -> None:
    prompts = templated(tokenizer, [text for _, text, _ in lessons])
    answers = tokenizer([answer for *_, answer in lessons], add_special_tokens=False)["input_ids"]
    # Texts of one length together: a plain request has a fifth of the tokens of one with feedback.
    order = sorted(range(len(lessons)), key=lambda at: len(prompts[at]))
    batches = [order[at : at + BATCH] for at in range(0, len(order) - BATCH + 1, BATCH)]
    short = [batch for batch in batches if len(prompts[batch[-1]]) < SHORT]
    plain = [batch for batch in short if all(lessons[at][0] == "plain" for at in batch)]
    stages = [plain] * int(steps * FIRST) + [short] * int(steps * SECOND)
    stages += [batches] * (steps - len(stages))
    chance = random.Random(1)
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    model.train()
    for stage in stages:
        batch = chance.choice(stage)
        longest = max(len(prompts[at]) + len(answers[at]) for at in batch)
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        for row, at in enumerate(batch):
            whole = prompts[at] + answers[at]
            ids[row, : len(whole)] = torch.tensor(whole)
            labels[row, len(prompts[at]) : len(whole)] = torch.tensor(answers[at])
        loss = model(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def templated(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Return the ids of the prompt of each user text."""
    ids: list[list[int]] = tokenizer.apply_chat_template(
        [[{"role": "user", "content": text}] for text in texts],
        add_generation_prompt=True,
        tokenize=True,
        enable_thinking=False,
        return_dict=True,
    )["input_ids"]
    return ids


def sample(model: Any, tokenizer: Any, texts: list[str], seed: int = 0) -> list[str]:
    """Sample one answer to each user text at temperature 1, with its special tokens."""
    return [tokenizer.decode(ids) for ids in sample_ids(model, tokenizer, texts, seed)]


def sample_ids(model: Any, tokenizer: Any, texts: list[str], seed: int = 0) -> list[list[int]]:
    """Sample the ids of one answer to each user text at temperature 1.

    The model stays in training mode, which changes nothing without dropout. In evaluation mode
    bitsandbytes 0.50 packs 4-bit weights for this kind of CPU (AVX512-BF16), for good, and what is
    packed has no backward pass: the steps after it would have a wrong gradient.
    """
    prompts = tokenizer.pad({"input_ids": templated(tokenizer, texts)}, return_tensors="pt")
    prompts = prompts.to(model.device)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        ids = model.generate(**prompts, max_new_tokens=ANSWER, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
    answers = ids[:, prompts["input_ids"].shape[1] :].tolist()
    return [[token for token in answer if token] for answer in answers]


def passes(model: Any, tokenizer: Any, world: World, asked: list[Request], seed: int = 0) -> list[bool]:
    """Tell for each request whether its sampled answer is the right call."""
    texts = [request.words for request in asked]
    set_response_template(tokenizer)
    ids = sample_ids(model, tokenizer, texts, seed)
    messages = read_messages(tokenizer, templated(tokenizer, texts), ids)
    specs = [json.dumps(world.spec(request)) for request in asked]
    reward = VerifierReward(rubric(), workers=1)
    reward(prompts=texts, completions=messages, verifier_spec=specs)
    return [result.passed for result in reward.results]


def knowledge(folder: Path) -> dict[str, float]:
    """Measure the base on held-out requests: alone in each world, and told by kind of text."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    held_out = requests()[1]
    found = {
        f"alone, {name}": _mean(passes(model, tokenizer, world, held_out))
        for name, world in (("medium", MEDIUM), ("rare", RARE), ("never", NEVER))
    }
    chance = random.Random(7)
    lessons = [lesson(chance, held_out) for _ in range(600)]
    said = sample(model, tokenizer, [text for _, text, _ in lessons])
    for kind in sorted({kind for kind, *_ in lessons}):
        right = [answer == text for (of, _, answer), text in zip(lessons, said, strict=True) if of == kind]
        found[f"told, {kind}"] = _mean(right)
    return found


def _mean(values: list[bool]) -> float:
    return sum(values) / len(values)
