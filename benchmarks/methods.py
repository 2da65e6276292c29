"""Compare what can be learned from the same rollouts: SDPO, a hybrid, GRPO and RFT.

    python -m benchmarks.methods --out FOLDER [--world rare] [--part 1/2] [--large]

The task is synthesis_task.py. Every arm gets the same number of completions, and is run with one
and with four updates on each batch of them. In each world, the learning rate of each arm is swept on
SWEEP seeds of their own, past the end of the grid that was best, then SEEDS are run at the best one.
FOLDER keeps the base models and the result of each run; what is there is not run again, so a killed
run goes on. Two processes can share the work: --part. Writes FOLDER/methods.md and methods.json.

--large is the same with a model of 33 M parameters in bfloat16 on a GPU, in FOLDER/large; it needs no
network. --smoke tries every arm once for a few steps, also --large without a GPU.
"""

import argparse
import itertools
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, TrainerCallback

from benchmarks import synthesis_task as task
from benchmarks.learning_model import sample
from benchmarks.learning_table import interval
from benchmarks.synthesis_model import LARGE, LAZY, SMALL, Size, knowledge, write_bases
from tests.training.setup import arguments, prepare

Json = dict[str, Any]
BATCH, GROUP = 64, 8  # in 12 rounds, 768 completions
TIMES = 9  # that each held-out behaviour is asked for
SWEEP, SEEDS = (100, 101), tuple(range(8))
# By the number of updates with each batch; the sweep begins with those of BEGIN.
RATES = {1: (3e-4, 1e-3, 3e-3, 1e-2, 3e-2), 4: (1.25e-4, 5e-4, 2e-3, 8e-3, 3.2e-2)}
BEGIN = (1, 3)
DRAWS = 4000
# How often a base model finds a program of three operations unasked.
WORLDS = tuple(LAZY)
# As the recipes distil.
DISTIL = {
    "distillation_mode": "topk_logits",
    "distillation_topk": 20,
    "distillation_add_tail": True,
    "distillation_alpha": 0.5,
    "environment_feedback_only_without_solution": True,
}
ARMS: dict[str, Json] = {
    "SDPO, feedback": {"mode": "rollout"},
    "SDPO, another task's feedback": {"mode": "rollout", "other": True},
    "SDPO, no feedback": {"mode": "none"},
    "hybrid, feedback": {"mode": "rollout", "distillation_weight": 0.5},
    "GRPO": {"mode": "none", "method": "grpo"},
    "RFT": {"mode": "none", "method": "rft"},
}


@dataclass(frozen=True)
class Run:
    """One training."""

    world: str
    arm: str
    updates: int
    rate: float
    seed: int

    @property
    def file(self) -> str:
        """Return the name of its result."""
        parts = (self.world, self.arm, self.updates, f"{self.rate:g}", self.seed)
        return "-".join("".join(c for c in str(p) if c.isalnum() or c == ".") for p in parts)

    def train(self, base: Path, size: Size = SMALL) -> Json:
        """Train once; return how often each held-out behaviour is found, before and after."""
        tokenizer = AutoTokenizer.from_pretrained(base)
        settings = dict(ARMS[self.arm])
        mode, other = settings.pop("mode"), settings.pop("other", False)
        asked = task.behaviours()[0][3]
        rows = task.rows(task.draw_tasks(asked, size.rounds * BATCH // GROUP, self.seed))
        exam = Exam(tokenizer)
        began, cpu = time.monotonic(), time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            args, model_args = arguments(
                Path(folder),
                base,
                use_cpu=size.device == "cpu",
                max_steps=size.rounds * self.updates,
                num_iterations=self.updates,
                per_device_train_batch_size=BATCH,
                gradient_accumulation_steps=1,
                num_generations=GROUP,
                learning_rate=self.rate,
                lr_scheduler_type="constant",
                max_completion_length=8,
                max_prompt_length=96,
                max_reprompt_len=512,
                seed=self.seed,
                **DISTIL,
                **settings,
            )
            model_args.dtype = size.dtype
            scoring = task.scoring(other)
            prepared = prepare(args, model_args, rows, scoring, mode)
            prepared.trainer.add_callback(exam)
            prepared.trainer.train()
        log = [
            entry["self_distillation/reward_mean"]
            for entry in prepared.trainer.state.log_history
            if "self_distillation/reward_mean" in entry
        ]
        return {
            **asdict(self),
            "before": exam.before,
            "after": exam.after,
            "reward": [round(value, 4) for value in log],
            "seconds": round(time.monotonic() - began, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
        }


class Exam(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Ask the student for the held-out behaviours before the first step and after the last."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        chance = random.Random(7)
        asked = task.behaviours()[1][3]
        self.tasks = [task.draw_task(one, chance) for one in asked for _ in range(TIMES)]
        self.before: list[int] = []
        self.after: list[int] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        model.train()  # as loaded it is in evaluation mode, see `sample`
        self.before = self._ask(model)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        self.after = self._ask(model)

    def _ask(self, model: Any) -> list[int]:
        said = sample(model, self.tokenizer, [one.words for one in self.tasks])
        right = [task.passes(text, one) for text, one in zip(said, self.tasks, strict=True)]
        return [sum(right[at : at + TIMES]) for at in range(0, len(right), TIMES)]


def sweep(results: dict[str, Json], world: str, arm: str, updates: int) -> tuple[list[Run], dict[float, float]]:
    """Return the runs of a sweep, and its means by rate, best first; none while a run is missing."""
    rates, (low, high) = RATES[updates], BEGIN
    while True:
        runs = [Run(world, arm, updates, rate, seed) for rate in rates[low:high] for seed in SWEEP]
        if any(run.file not in results for run in runs):
            return runs, {}
        found: dict[float, list[list[int]]] = {}
        for run in runs:
            found.setdefault(run.rate, []).append(results[run.file]["after"])
        means = {rate: float(np.mean(after)) / TIMES for rate, after in found.items()}
        best = max(means, key=means.__getitem__)
        if best == rates[low] and low:
            low -= 1
        elif best == rates[high - 1] and high < len(rates):
            high += 1
        else:
            return runs, dict(sorted(means.items(), key=lambda pair: -pair[1]))


def planned(results: dict[str, Json], worlds: Sequence[str]) -> Iterator[Run]:
    """Yield the runs in their order, world by world: the sweep, then the seeds at the best rates."""
    arms = list(itertools.product(ARMS, RATES))
    for world in worlds:
        swept = {one: sweep(results, world, *one) for one in arms}
        for runs, _ in swept.values():
            yield from runs
        for seed, (one, (_, means)) in itertools.product(SEEDS, swept.items()):
            if means:
                yield Run(world, *one, next(iter(means)), seed)


def load(folder: Path) -> dict[str, Json]:
    """Return the results by file name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def tabulate(results: dict[str, Json], world: str) -> list[str]:
    """Return the tables of a world, in Markdown: the seeds at the best rates, and the sweep."""
    lines = [
        f"| {world} | updates | rate | before | after, 95 % interval | beside SDPO with feedback | CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    swept = ["", f"| {world}, sweep | updates | rate: after |", "|---|---|---|"]
    for updates in RATES:
        finals: dict[str, list[Json]] = {}
        for arm in ARMS:
            _, means = sweep(results, world, arm, updates)
            shown = ", ".join(f"{rate:g}: {mean:.3f}" for rate, mean in sorted(means.items()))
            swept += [f"| {arm} | {updates} | {shown} |"] if means else []
            files = [Run(world, arm, updates, rate, seed).file for rate in [*means][:1] for seed in SEEDS]
            finals[arm] = [results[file] for file in files if file in results]
        for arm, runs in finals.items():
            if not runs:
                continue
            mean, low, high = interval([np.divide(run["after"], TIMES) for run in runs])
            before = np.mean([run["before"] for run in runs]) / TIMES
            cpu = np.mean([run["cpu_seconds"] for run in runs])
            beside = difference(runs, finals["SDPO, feedback"])
            lines.append(
                f"| {arm} | {updates} | {runs[0]['rate']:g} | {before:.2f} | {mean:.3f} "
                f"({low:.3f}-{high:.3f}), {len(runs)} seeds | {beside} | {cpu:.0f} |"
            )
    return [*lines, *swept, ""]


def difference(runs: list[Json], others: list[Json]) -> str:
    """Return the mean difference of runs with the same seed, with its 95 % interval.

    Seeds and behaviours are both drawn anew.
    """
    by_seed = {run["seed"]: run for run in others}
    pairs = [(run, by_seed[run["seed"]]) for run in runs if run["seed"] in by_seed]
    if not pairs or runs is others:
        return ""
    apart = np.array([np.subtract(one["after"], two["after"]) / TIMES for one, two in pairs])
    chance = np.random.default_rng(0)
    seeds = chance.integers(len(apart), size=(DRAWS, len(apart)))
    asked = chance.integers(apart.shape[1], size=(DRAWS, apart.shape[1]))
    drawn = [apart[one][:, other].mean() for one, other in zip(seeds, asked, strict=True)]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return f"{apart.mean():+.3f} ({low:+.3f} to {high:+.3f})"


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, then write table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--world", choices=WORLDS, action="append", help="default: both")
    parser.add_argument("--part", default="1/1", help="I/N: every Nth of the missing runs")
    parser.add_argument("--table", action="store_true", help="only write the table")
    parser.add_argument("--large", action="store_true", help="33 M parameters in bfloat16 on a GPU")
    parser.add_argument("--smoke", action="store_true", help="every arm once, a few steps")
    options = parser.parse_args(argv)
    if options.large and not options.smoke and not torch.cuda.is_available():
        parser.error("--large needs a GPU; --smoke tries the same code without one")
    part, parts = map(int, options.part.split("/"))
    size, out = (LARGE, options.out / "large") if options.large else (SMALL, options.out)
    if options.smoke:
        size, out = size.shortest(), out / "smoke"
    torch.set_num_threads(1)
    folder = out / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    bases = {world: out / f"base-{world}" for world in WORLDS}
    if not (bases["rare"] / "knowledge.json").is_file():
        if part > 1:
            raise SystemExit("The base models are missing; start part 1 first.")
        write_bases(bases, size)
        for base in bases.values():
            write(base / "knowledge.json", knowledge(base, size, 8 if options.smoke else 400))
    while not options.table:
        done = load(folder)
        todo = list(planned(done, options.world or WORLDS))
        if options.smoke:
            todo = [Run("rare", arm, updates, 1e-3, 0) for updates in RATES for arm in ARMS]
        todo = [run for run in todo if run.file not in done]
        mine = next((run for run in todo if hash_of(run.file) % parts == part - 1), None)
        if mine is None:
            break
        result = mine.train(bases[mine.world], size)
        write(folder / f"{mine.file}.json", result)
        mean = np.mean(result["after"]) / TIMES
        print(mine.file, f"{mean:.3f}", result["cpu_seconds"], len(todo) - 1, flush=True)
    results = load(folder)
    lines = [line for world in WORLDS for line in tabulate(results, world)]
    (out / "methods.md").write_text("\n".join(lines))
    packed = [{**run, **{at: "".join(map(str, run[at])) for at in ("before", "after")}} for run in results.values()]
    write(out / "methods.json", packed)


def hash_of(name: str) -> int:
    """Return a number that is the same in every process."""
    return sum(name.encode())


def write(path: Path, content: Any) -> None:
    """Write JSON; a killed run leaves no half a file behind."""
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(content))
    partial.replace(path)


if __name__ == "__main__":
    main()
