"""Train a small model on exercises from failing steps; score held-out sessions before and after.

    python -m benchmarks.exercises --out FOLDER [--seeds 0 1] [--arms rft:4 sdpo:1]

120 written sessions of Pi, in each of which a read fails and another one works: the file lies in
another folder, or ends otherwise. `filter --unit step` makes the exercises and holds out
one session in four. The base is the tiny Gemma 4, taught for BASE_STEPS steps to make a call of the
right form, the failed one most often. Then the recipe `exercises` trains with next_call for a
reward, shortened to this model, by a method and with so many updates for each batch of completions: 384
in all, whatever the arm. FOLDER keeps base and rows.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pimono_sdpo import train
from pimono_sdpo.filtering import FilterOptions, run_filter
from pimono_sdpo.training.rows import load_rows
from pimono_sdpo.training.tiny_model import write_tiny_model
from tests.traces import HEADER, assistant, call, result, trace, user

NAMES = "app cli agent parser server client config session index utils".split()
WORDS = "now please today again once first".split()
BASE_STEPS, BATCH, RATE = 500, 6, 3e-3
# What the base does at such a step: how often it makes the failed call, the right one, another.
CHANCES = (0.6, 0.25, 0.15)
FOLDERS, ENDINGS = ("src", "lib", "test"), (".md", ".rst", ".txt")
SMALL: dict[str, Any] = {
    "dtype": "float32",
    "use_cpu": True,
    "lora_r": 8,
    "lora_alpha": 16,
    "learning_rate": 4e-3,
    "lr_scheduler_type": "constant",
    "generations": 384,
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": False,
    "max_completion_length": 64,
    "max_prompt_length": 640,
    "max_reprompt_len": 1280,
    "save_strategy": "no",
    "report_to": "none",
    "overwrite": True,
}


def session(number: int, name: str, word: str) -> str:
    """Return a session in which one call fails and the next one works."""
    moved = number % 2
    old = f"src/{name}.py" if moved else f"docs/{name}.md"
    new = f"lib/{name}.py" if moved else f"docs/{name}.rst"
    return trace(
        {**HEADER, "id": f"s{number}", "cwd": f"/home/ann/w{number}"},
        user(f"Show the {'code' if moved else 'page'} of {name} {word}."),
        assistant(f"I read {old.rpartition('/')[2]}.", "toolUse"),
        call("read", "a", path=old),
        result("read", f"ENOENT: no such file or directory, access '{old}'", True, "a"),
        call("read", "b", path=new),
        result("read", f"It is about {name}.\n", call_id="b"),
        assistant("That is all of it."),
    )


def write_rows(folder: Path) -> None:
    """Write the sessions and the exercises that the filter makes of them."""
    (folder / "traces").mkdir(parents=True)
    pairs = [(name, word) for name in NAMES for word in WORDS]
    for number in range(2 * len(pairs)):
        text = session(number, *pairs[number // 2])
        (folder / "traces" / f"{number:03}.jsonl").write_text(text)
    options = FilterOptions(unit="step", test_fraction=0.25, split_by="session", dedupe=False)
    run_filter(str(folder / "traces"), folder / "rows", options)


def write_base(folder: Path) -> None:
    """Teach the tiny model to answer with a call, on the rows to train on."""
    write_tiny_model(folder / "base")
    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    rows, chance = list(load_rows(str(folder / "rows"))), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    for step in range(BASE_STEPS):
        texts = [lesson(tokenizer, row, chance) for row in chance.sample(rows, BATCH)]
        longest = max(len(prompt) + len(answer) for prompt, answer in texts)
        ids = torch.zeros(BATCH, longest, dtype=torch.long)
        labels = torch.full_like(ids, -100)
        for at, (prompt, answer) in enumerate(texts):
            whole = torch.tensor(prompt + answer)
            ids[at, : len(whole)] = whole
            labels[at, len(prompt) : len(whole)] = torch.tensor(answer)
        loss = model(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"base {step}/{BASE_STEPS} loss {loss.item():.3f}", flush=True)
    model.save_pretrained(folder / "base")


def lesson(tokenizer: Any, row: Any, chance: random.Random) -> tuple[list[int], list[int]]:
    """Return the ids of a prompt and of a call, right or wrong."""
    path = json.loads(row["verifier_spec"])["failed_call"]["args"]["path"]
    parts = FOLDERS if path.startswith(FOLDERS[0]) else ENDINGS
    path = path.replace(parts[0], chance.choices(parts, CHANCES)[0])
    text = json.dumps({"type": "tool_call", "name": "read", "args": {"path": path}})
    prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=True)["input_ids"]
    answer = tokenizer(text, add_special_tokens=False)["input_ids"]
    return list(prompt), [*answer, tokenizer.convert_tokens_to_ids("<turn|>")]


def main() -> None:
    """Train with each method and seed, and print what the held-out sessions show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--arms", nargs="+", default=["rft:1", "rft:4", "sdpo:1", "sdpo:4"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not (options.out / "rows").is_dir():
        write_rows(options.out)
    if not (options.out / "base" / "model.safetensors").is_file():
        write_base(options.out)
    for arm in options.arms:
        for seed in options.seeds:
            method, _, updates = arm.partition(":")
            name = f"{method}-{updates}-{seed}"
            output = train(
                options.out / "rows",
                method=method,
                config="exercises",
                model_name_or_path=options.out / "base",
                output_dir=options.out / name,
                num_iterations=updates,
                seed=seed,
                **SMALL,
            )
            found = json.loads((output / "run.json").read_text())["evaluation"]
            rate, reward = found["pass_rate"], found["reward"]
            print(
                f"== {name}: pass rate {rate['before']['mean']:.3f} -> {rate['after']['mean']:.3f}"
                f" ({rate['difference']['low']:+.3f} to {rate['difference']['high']:+.3f}), "
                f"reward {reward['before']['mean']:.3f} -> {reward['after']['mean']:.3f}, "
                f"{found['sessions']} sessions, {found['completions']} completions",
                flush=True,
            )


if __name__ == "__main__":
    main()
