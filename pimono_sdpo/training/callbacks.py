"""Callbacks: the EMA teacher, exact resume, and the time a run has taken.

They keep what they need in the Trainer's state, which every checkpoint holds.

The method's teacher starts as a copy of the student and averages all weights. TRL starts both LoRA
factors at zero and averages each of them: after t steps at rate r the product has reached about
(1 - (1 - r)^t)^2 of the student's instead of 1 - (1 - r)^t, 0.05 instead of 0.21 after 24 steps at
0.01. Started as the student's copy (its B is zero, so the teacher is still the base model), the
average of the factors is the average of the products except for how A moves meanwhile;
tests/training/test_teacher.py measures both against the average of the products themselves.

TRL saves the teacher adapter in every checkpoint and the Trainer loads it back, but the callback
that averages it then tries to add it again and fails. Starting the average at zero instead would
train against another teacher than an uninterrupted run. The rows are shuffled each epoch by a
generator that no checkpoint keeps, so a resumed run would begin again with the first order.
"""

import math
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from transformers import TrainerCallback
from trl.experimental.sdpo import SDPOTrainer
from trl.experimental.sdpo.teacher_sync import PEFTAdapterEMACallback

KEY = "pimono_sdpo_clock"


class Clock(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Add up the time of the steps that count; steps lost in a kill are repeated.

    `resumed_at` holds the steps after which the run was resumed, `before` the seconds up to the
    last of them: NaN when its checkpoint kept no time.
    """

    def __init__(self) -> None:
        self.started_at = now()
        self.resumed_at: list[int] = []
        self.before = 0.0
        self.began = monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Continue from what the checkpoint kept."""
        self.began = monotonic()
        if state.global_step:
            kept = state.stateful_callbacks.get(KEY, {})
            self.started_at = kept.get("started_at", self.started_at)
            self.resumed_at = [*kept.get("resumed_at", []), state.global_step]
            self.before = kept.get("seconds", math.nan)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Put the time where the next checkpoint saves it."""
        state.stateful_callbacks[KEY] = {
            "started_at": self.started_at,
            "resumed_at": self.resumed_at,
            "seconds": self.before + monotonic() - self.began,
        }

    def whole_run(
        self, metrics: dict[str, float], log: list[dict[str, Any]], step: int, batch: int
    ) -> dict[str, float]:
        """Turn the Trainer's metrics since the last start into those of the whole run."""
        if not self.resumed_at:
            return metrics
        seconds = self.before + metrics["train_runtime"]
        return {
            **metrics,
            "train_runtime": round(seconds, 4),
            "train_samples_per_second": round(step * batch / seconds, 3),
            "train_steps_per_second": round(step / seconds, 3),
            "train_loss": mean_loss(log),
        }


def mean_loss(log: list[dict[str, Any]]) -> float:
    """Return the mean loss over the logged steps; an entry is the mean since the one before it.

    >>> mean_loss([{"step": 2, "loss": 1.0}, {"step": 3, "loss": 4.0}, {"step": 3}])
    2.0
    """
    total, last = 0.0, 0
    for entry in log:
        if "loss" in entry:
            total += entry["loss"] * (entry["step"] - last)
            last = entry["step"]
    return total / last if last else math.nan


def now() -> str:
    """Return the time in UTC to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class NoStepTooMany(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """End a run that was killed after its last step at once: the Trainer would make another."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop when no step is left."""
        control.should_training_stop |= state.global_step >= state.max_steps > 0


class TokenCount(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Keep in every checkpoint how many tokens were seen: TRL counts from 0 after a resume."""

    KEY, COUNT = "pimono_sdpo_tokens", "_total_train_tokens"

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Continue from what the checkpoint kept."""
        if self.KEY in state.stateful_callbacks:
            setattr(self.trainer, self.COUNT, state.stateful_callbacks[self.KEY])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Put the count where the next checkpoint saves it."""
        state.stateful_callbacks[self.KEY] = getattr(self.trainer, self.COUNT)


class ResumableTeacher(PEFTAdapterEMACallback):  # type: ignore[misc] # TRL ships no types
    """TRL's EMA with a teacher from the start, which continues from what a checkpoint kept.

    TRL adds the adapter when training begins, so evaluating before that fails.
    """

    def __init__(self, *, from_student: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self._initialize_teacher_adapter()
        if from_student:
            model: Any = self.accelerator.unwrap_model(self.model)
            student = get_peft_model_state_dict(model)
            set_peft_model_state_dict(model, student, self.teacher_adapter_name)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Continue from the adapter in the model, into which a checkpoint has been read."""
        model: Any = self.accelerator.unwrap_model(self.model)
        kept = get_peft_model_state_dict(model, adapter_name=self.teacher_adapter_name)
        self.shadow_weights = {name: value.detach().clone() for name, value in kept.items()}


class ReplayedShuffles(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Draw the orders of the finished epochs again, so that the next one is right."""

    def on_train_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any, **_: Any
    ) -> None:
        """Advance the sampler's generator to where the checkpoint was written."""
        batches = train_dataloader.batch_sampler
        while isinstance(batches, BatchSamplerShard):
            # With several processes, each takes its share of the same batches.
            batches = batches.batch_sampler
        sampler = batches.sampler
        if not sampler.shuffle:
            return
        for _epoch in range(int(state.epoch or 0)):
            torch.randperm(sampler.num_samples, generator=sampler.generator)


def make_resumable(trainer: SDPOTrainer) -> None:
    """Add both; with an EMA teacher, ResumableTeacher replaces TRL's callback."""
    trainer.add_callback(ReplayedShuffles())
    theirs = trainer.pop_callback(PEFTAdapterEMACallback)
    if theirs is None:
        return
    trainer.add_callback(
        ResumableTeacher(
            from_student=trainer.args.teacher_start == "student",
            model=theirs.model,
            teacher_adapter_name=theirs.teacher_adapter_name,
            update_rate=theirs.update_rate,
            sync_steps=theirs.sync_steps,
            accelerator=theirs.accelerator,
        )
    )
