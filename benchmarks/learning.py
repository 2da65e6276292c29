"""Show that SDPO learns here, and what each of its ingredients adds.

    python -m benchmarks.learning --out FOLDER [--part mode] [--seeds 0 1 2]

Trains the base of `learning_model.py` on a world of `learning_task.py` with the trainer of the job
(NF4, LoRA, TRL's SDPO, our verifiers and feedback) and samples answers to held-out requests on the
way. FOLDER keeps the base and the result of each run; what is there is not run again. Writes
FOLDER/learning.md, learning.png and learning.json.
"""

import argparse
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, TrainerCallback

from benchmarks.learning_model import knowledge, pack, passes, write_base
from benchmarks.learning_table import write_results
from benchmarks.learning_task import MEDIUM, NEVER, RARE, World, requests, rows, scoring
from pimono_sdpo.training.rewards import Mode
from tests.training.setup import arguments, prepare

SEEDS = (0, 1, 2)
ROWS = 256
POINTS = 3  # measurements after the start
WORLDS = {"medium": MEDIUM, "rare": RARE, "never": NEVER}
Json = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """What is trained, with what changed from TRL's own defaults and BASICS."""

    name: str
    mode: Mode = "rollout"
    world: str = "medium"
    steps: int = 30
    batch: int = 32
    group: int = 4
    hopeless: bool = False
    misleading: bool = False
    changes: Json = field(default_factory=dict)

    def train(self, base: Path, seed: int, points: int = POINTS) -> Json:
        """Train once; return the passes on held-out requests by step, and what was logged."""
        tokenizer = AutoTokenizer.from_pretrained(base)
        world, (asked, held_out) = WORLDS[self.world], requests()
        dataset = rows(world, asked[:ROWS], self.hopeless, self.misleading)
        began, cpu = time.monotonic(), time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            args, model_args = arguments(
                Path(folder),
                base,
                max_steps=self.steps,
                per_device_train_batch_size=self.batch,
                gradient_accumulation_steps=1,
                num_generations=self.group,
                learning_rate=2e-3,
                lr_scheduler_type="constant",
                max_completion_length=16,
                max_prompt_length=64,
                max_reprompt_len=512,
                seed=seed,
                **self.changes,
            )
            prepared = prepare(args, model_args, dataset, scoring(), self.mode)
            exam = Exam(tokenizer, world, held_out, self.steps // points)
            prepared.trainer.add_callback(exam)
            prepared.trainer.train()
        history = prepared.trainer.state.log_history
        # Of rollouts that are used for several updates, the first has their metrics.
        log = [entry for entry in history if "self_distillation/reward_mean" in entry]
        return {
            "setting": self.name,
            "world": self.world,
            "mode": self.mode,
            "seed": seed,
            "steps": self.steps,
            "generations": self.steps * self.batch // self.changes.get("num_iterations", 1),
            "changes": self.changes,
            "passes": exam.passes,
            "reward": [entry["self_distillation/reward_mean"] for entry in log],
            "seconds": round(time.monotonic() - began, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
        }


class Exam(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Asks the student the held-out requests before the first step and every so many steps."""

    def __init__(self, tokenizer: Any, world: World, asked: list[Any], every: int) -> None:
        self.tokenizer, self.world, self.asked = tokenizer, world, asked
        self.every = every
        self.passes: dict[str, list[int]] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        model.train()  # as loaded it is in evaluation mode, see `sample`
        self.passes["0"] = self._ask(model)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        if state.global_step % self.every == 0:
            self.passes[str(state.global_step)] = self._ask(model)

    def _ask(self, model: Any) -> list[int]:
        return [int(right) for right in passes(model, self.tokenizer, self.world, self.asked)]


GRPO = {"distillation_weight": 0.0}
BLEND = {"distillation_weight": 0.5}
ALONE = {"use_successful_as_teacher": False}
TOP_K = {"distillation_mode": "topk_logits", "distillation_topk": 20, "distillation_add_tail": True}
FULL = {"distillation_mode": "full_logits"}
JSD = {**TOP_K, "distillation_alpha": 0.5}
BASE = {"teacher_model_kind": "base"}
LIVE = {"teacher_model_kind": "live"}
SLOW = {"teacher_update_rate": 0.01}
SMALL: Json = {"world": "rare", "steps": 24, "batch": 16, "group": 2}
HARD: Json = {"world": "never", "steps": 60}


def rivals(title: str, shape: Json) -> tuple[Setting, ...]:
    """Return what can be learned from the same completions, with one and four updates a batch."""
    arms: dict[str, tuple[Mode, Json]] = {
        "SDPO, feedback": ("both", JSD),
        "SDPO, no feedback": ("none", JSD),
        "hybrid, feedback": ("both", {**JSD, **BLEND}),
        "GRPO": ("none", {"method": "grpo"}),
        "RFT": ("none", {"method": "rft"}),
    }
    return tuple(
        Setting(
            f"{title}{name}, {updates} update{'s' if updates > 1 else ''}",
            mode,
            changes={**changes, "num_iterations": updates},
            **{**shape, "steps": shape["steps"] * updates},
        )
        for updates in (1, 4)
        for name, (mode, changes) in arms.items()
    )


SECTIONS: dict[str, tuple[Setting, ...]] = {
    "feedback": (
        Setting("demonstrations alone", "none"),
        Setting("and feedback: trace", "trace"),
        Setting("and feedback: rollout", "rollout"),
        Setting("and feedback: both", "both"),
        Setting("rollout, only without a demonstration", "rollout",
                changes={"environment_feedback_only_without_solution": True}),
        Setting("rollout, never a demonstration", "rollout", changes=ALONE),
        Setting("control: nothing succeeds, no feedback", "none", hopeless=True),
        Setting("control: trace of another world, never a demonstration", "trace", misleading=True,
                changes=ALONE),
    ),
    "small": (
        Setting("small: demonstrations alone", "none", **SMALL),
        Setting("small: demonstrations alone, top-k, alpha 0.5", "none", changes=JSD, **SMALL),
        Setting("small: GRPO", "none", changes=GRPO, **SMALL),
        Setting("small: rollout", "rollout", **SMALL),
        Setting("small: trace", "trace", **SMALL),
        Setting("small: both", "both", **SMALL),
        Setting("small: both, top-k, alpha 0.5", "both", changes=JSD, **SMALL),
    ),
    "rivals": rivals("rivals: ", SMALL),
    "rivals, never": rivals("never, rivals: ", HARD),
    "weight": (
        Setting("rollout, blend 0.5", changes=BLEND),
        Setting("GRPO", "none", changes=GRPO),
    ),
    "mode": (
        Setting("rollout, top-k logits", changes=TOP_K),
        Setting("rollout, top-k, alpha 0.5", changes=JSD),
        Setting("rollout, full logits", changes=FULL),
    ),
    "teacher": (
        Setting("rollout, teacher base", changes=BASE),
        Setting("rollout, teacher live", changes=LIVE),
        Setting("rollout, teacher ema 0.01", changes=SLOW),
    ),
    "never": (
        Setting("never: demonstrations alone", "none", **HARD),
        Setting("never: demonstrations alone, top-k, alpha 0.5", "none", changes=JSD, **HARD),
        Setting("never: GRPO", "none", changes=GRPO, **HARD),
        Setting("never: rollout, sampled token", "rollout", **HARD),
        Setting("never: rollout, top-k, alpha 1", "rollout", changes=TOP_K, **HARD),
        Setting("never: rollout, top-k, alpha 0.5", "rollout", changes=JSD, **HARD),
        Setting("never: trace, top-k, alpha 0.5", "trace", changes=JSD, **HARD),
        Setting("never: both, top-k, alpha 0.5", "both", changes=JSD, **HARD),
        Setting("never: both, top-k, alpha 0.5, blend 0.5", "both", changes={**JSD, **BLEND}, **HARD),
    ),
}  # fmt: skip


def main() -> None:
    """Run what is missing, then write table, picture and JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=SECTIONS, action="append", help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pack", type=Path, help="write the base into this file and stop")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    base, runs = options.out / "base", options.out / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    if not (base / "knowledge.json").is_file():
        write_base(base)
        _write(base / "knowledge.json", knowledge(base))
    if options.pack:
        return pack(base, options.pack)
    for seed in options.seeds:
        for part in options.part or SECTIONS:
            for setting in SECTIONS[part]:
                name = "".join(c if c.isalnum() else "-" for c in f"{setting.name} {seed}")
                if (runs / f"{name}.json").is_file():
                    continue
                result = {"part": part, **setting.train(base, seed)}
                _write(runs / f"{name}.json", result)
                last = list(result["passes"].values())[-1]
                print(setting.name, seed, sum(last) / len(last), result["cpu_seconds"], flush=True)
    order = [setting.name for part in SECTIONS.values() for setting in part]
    write_results(options.out, order)


def _write(path: Path, content: Json) -> None:
    """A killed run leaves no half a file behind."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1))
    part.replace(path)


if __name__ == "__main__":
    main()
