"""Try a prepared trainer on a few rows before its first step: rewards, the teacher, time, memory.

Nothing is learned, logged or drawn from the run's random numbers: what follows is the same run.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import torch
from trl.experimental.sdpo import SDPOTrainer


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
    with _untouched(trainer):
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
            by_student = _rewards(trainer, again, untold)
            by_teacher = _rewards(trainer, again, [prompts[index] for index in told])
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


def _rewards(
    trainer: SDPOTrainer, inputs: list[dict[str, Any]], prompt_ids: list[list[int]]
) -> list[float]:
    """Sample one completion of each prompt and score it for its row."""
    _, completions = trainer._generate(prompt_ids)
    texts = trainer.processing_class.batch_decode(completions, skip_special_tokens=True)
    said = [[{"role": "assistant", "content": text}] for text in texts]
    prompts = [row["prompt"] for row in inputs]
    scores = trainer._calculate_rewards(inputs, prompts, said, completions)
    start = trainer.accelerator.process_index * len(inputs)
    weighted = (scores * trainer.reward_weights.to(scores.device)).nansum(dim=1)
    values: list[float] = weighted[start : start + len(inputs)].tolist()
    return values


def _update(trainer: SDPOTrainer, batch: dict[str, Any]) -> float:
    """Return the seconds of loss and gradient on one micro-batch; the gradient is thrown away."""
    size = trainer.args.per_device_train_batch_size
    part = {
        name: value[:size] if isinstance(value, torch.Tensor) else value
        for name, value in batch.items()
    }
    began = monotonic()
    loss = trainer.compute_loss(trainer.model, part)
    loss.backward()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    trainer.model.zero_grad()
    return monotonic() - began


@contextmanager
def _untouched(trainer: SDPOTrainer) -> Iterator[None]:
    """Leave random numbers, metrics and counters of the trainer as they were."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    was_training = trainer.model.training
    metrics, counters = trainer._metrics, trainer._diagnostic_counters
    trainer._metrics = {mode: type(kept)(list) for mode, kept in metrics.items()}
    trainer._diagnostic_counters = {mode: type(kept)(int) for mode, kept in counters.items()}
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    # In evaluation mode bitsandbytes would lay out 4-bit weights anew on a CPU.
    trainer.model.train()
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            trainer.model.train(was_training)
            trainer._metrics, trainer._diagnostic_counters = metrics, counters


def _by_row(values: Sequence[float], told: Sequence[int], group: int) -> list[list[float]]:
    rows: dict[int, list[float]] = {}
    for index, value in zip(told, values, strict=True):
        rows.setdefault(index // group, []).append(value)
    return list(rows.values())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
