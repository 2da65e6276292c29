"""Try a prepared trainer on a few rows before its first step: rewards, the teacher, time, memory.

Nothing is learned, logged or drawn from the run's random numbers: what follows is the same run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import torch
from trl.experimental.sdpo import SDPOTrainer

from pimono_sdpo.training.sampling import sample_rewards, untouched


@dataclass(frozen=True)
class Probe:
    """What a few real completions showed.

    rewards          of the student, one list per group of completions of one prompt
    student, teacher   rewards of fresh completions without and with the feedback that a failed
                     completion of the first list brought; one pair of lists per row
    generation_seconds, update_seconds   of one generation batch, and of loss and gradient on one
                     micro-batch of it
    peak_bytes       of the GPU's memory meanwhile; None on a CPU
    """

    rewards: list[list[float]]
    student: list[list[float]]
    teacher: list[list[float]]
    generation_seconds: float
    update_seconds: float
    peak_bytes: int | None

    @property
    def gap(self) -> float | None:
        """Return by how much feedback raises the mean reward; None when nothing was reprompted."""
        if not self.teacher:
            return None
        pairs = zip(self.teacher, self.student, strict=True)
        return _mean([_mean(told) - _mean(untold) for told, untold in pairs])


def probe(trainer: SDPOTrainer, rows: int) -> Probe:
    """Sample completions of the first rows, as a step would, and of their teachers' prompts.

    The teacher is told of completions other than those it is compared with: a failure picked for
    its feedback would make the student look worse than it is.
    """
    dataset, group = trainer.train_dataset, trainer.num_generations
    chosen = [dict(dataset[index]) for index in range(min(rows, len(dataset)))]
    inputs = [row for row in chosen for _ in range(group)]
    with untouched(trainer):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        began = monotonic()
        batch = trainer._prepare_training_batch(inputs)
        generation_seconds = monotonic() - began
        rewards = batch["rewards"].view(-1, group).tolist()
        update_seconds = _update(trainer, batch)
        masked = batch["self_distillation_mask"].bool().tolist()
        width = batch["completion_ids"].size(1)
        prompts = [
            ids[:-width][mask[:-width].bool()].tolist()
            for ids, mask in zip(
                batch["teacher_input_ids"], batch["teacher_attention_mask"], strict=True
            )
        ]
        told = [index for index, reprompted in enumerate(masked) if reprompted]
        by_student, by_teacher = [], []
        if told:
            again = [inputs[index] for index in told]
            untold = trainer._tokenize_prompts([row["prompt"] for row in again])
            by_student = sample_rewards(trainer, again, untold)
            by_teacher = sample_rewards(trainer, again, [prompts[index] for index in told])
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    return Probe(
        rewards,
        _by_row(by_student, told, group),
        _by_row(by_teacher, told, group),
        # A step samples one generation batch, whatever number of rows was tried.
        generation_seconds * trainer.args.generation_batch_size / len(inputs),
        update_seconds,
        peak,
    )


def _update(trainer: SDPOTrainer, batch: dict[str, Any]) -> float:
    """Return the seconds of loss and gradient on one micro-batch; the gradient is thrown away."""
    size = trainer.args.per_device_train_batch_size
    part = {
        name: value[:size] if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    began = monotonic()
    loss = trainer.compute_loss(trainer.model, part)
    loss.backward()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    trainer.model.zero_grad()
    return monotonic() - began


def _by_row(values: Sequence[float], told: Sequence[int], group: int) -> list[list[float]]:
    rows: dict[int, list[float]] = {}
    for index, value in zip(told, values, strict=True):
        rows.setdefault(index // group, []).append(value)
    return list(rows.values())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
