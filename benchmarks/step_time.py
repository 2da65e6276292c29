"""CPU seconds of a step beside plain TRL, measured in turns.

    python -m benchmarks.step_time [--rounds 5]

Both train the small model of `make demo` on the same rows with the same arguments: the trainer of this
project with all its callbacks, and TRL's SDPOTrainer with none. No completion succeeds, so both distil
every one from a prompt of the same words. Prints seconds and ratio of each round and their median.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import PrinterCallback
from trl.experimental.sdpo import SDPOTrainer

from benchmarks import learning_task
from benchmarks.learning_model import unpack
from pimono_sdpo.training import models, run
from pimono_sdpo.training.rewards import Feedback, Scoring
from tests.training.setup import REPO, arguments, sdpo

STEPS = 6
SETTINGS: dict[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 1,
    "num_generations": 4,
    "max_completion_length": 16,
    "max_prompt_length": 64,
    "max_reprompt_len": 512,
    "learning_rate": 1e-6,
    "include_environment_feedback": True,
    "distillation_mode": "topk_logits",
    "distillation_topk": 20,
    "distillation_alpha": 0.5,
    "distillation_add_tail": True,
}


def never(prompts: list[Any], **_: Any) -> list[float | None]:
    """Reward nothing."""
    return [0.0] * len(prompts)


def build(folder: Path, base: Path, plain: bool) -> Any:
    """Return a trainer that is ready to run."""
    args, model_args = arguments(folder, base, **SETTINGS)
    asked = learning_task.requests()[0][:128]
    rows = learning_task.rows(learning_task.RARE, asked)
    rows = rows.map(lambda _: {"privileged_context": "that is not the name of a tool " * 4})
    method = sdpo(args, model_args, Scoring(never))
    method.feedback = Feedback(args.feedback_template, "trace", args.feedback_template)
    if not plain:
        return run.build(method, run.fit(method, rows).rows)
    args.model_init_kwargs = models.model_init_kwargs(model_args, None)
    trainer = SDPOTrainer(
        model=str(base),
        reward_funcs=[never],
        args=args,
        train_dataset=rows,
        processing_class=method.tokenizer,
        peft_config=models.lora_config(model_args),
    )
    models.keep_layout(trainer.model)
    trainer.pop_callback(PrinterCallback)
    return trainer


def main() -> None:
    """Measure in turns, the first one first in every other round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = unpack(REPO / "tests" / "training" / "learned_base.safetensors", folder / "base")
        for number in range(rounds + 1):
            seconds = {}
            for plain in (True, False) if number % 2 else (False, True):
                trainer = build(folder / f"{number}-{plain}", base, plain)
                began = time.process_time()
                trainer.train()
                seconds[plain] = (time.process_time() - began) / STEPS
            if number:  # the first round warms up
                ratios.append(seconds[False] / seconds[True])
                print(f"ours {seconds[False]:.3f} TRL {seconds[True]:.3f} ratio {ratios[-1]:.3f}")
    print(f"median ratio {median(ratios):.3f} of {rounds} rounds")


if __name__ == "__main__":
    main()
