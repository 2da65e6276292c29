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
    # No more at once than a step samples, or memory would be that of another run.
    at_once = trainer.args.per_device_train_batch_size * trainer.args.steps_per_generation
    size = max(1, at_once // group)
    found: list[Probe] = []
    with untouched(trainer):
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        for start in range(0, len(chosen), size):
            found.append(_try(trainer, chosen[start : start + size]))
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    return Probe(
        [group for one in found for group in one.rewards],
        [row for one in found for row in one.student],
        [row for one in found for row in one.teacher],
        max(one.generation_seconds for one in found),
        max(one.update_seconds for one in found),
        peak,
    )


def _try(trainer: SDPOTrainer, chosen: list[dict[str, Any]]) -> Probe:
    group = trainer.num_generations
    inputs = [row for row in chosen for _ in range(group)]
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
    by_student: list[float] = []
    by_teacher: list[float] = []
    if told:
        again = [inputs[index] for index in told]
        untold = trainer._tokenize_prompts([row["prompt"] for row in again])
        by_student = sample_rewards(trainer, again, untold)
        by_teacher = sample_rewards(trainer, again, [prompts[index] for index in told])
    return Probe(
        rewards,
        _by_row(by_student, told, group),
        _by_row(by_teacher, told, group),
        generation_seconds,
        update_seconds,
        None,
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
