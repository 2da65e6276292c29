"""Callbacks: the EMA teacher, the state for an exact resume, a line per step, the time of a run, and its limit.

They keep what they need in the Trainer's state, which every checkpoint holds.

TRL starts the LoRA factors of the teacher at zero, so that it lags behind; here it starts as a copy
of the student (docs/explanations/sdpo.md). TRL saves it in every checkpoint, but cannot resume with
it, and no checkpoint keeps the generator that shuffles the rows.
"""

import os
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic, time
from typing import Any

import torch
from accelerate.data_loader import BatchSamplerShard
from accelerate.utils import gather_object
from httpx2 import HTTPError
from huggingface_hub import HfApi
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from transformers import TrainerCallback
from trl.experimental.sdpo import SDPOTrainer
from trl.experimental.sdpo.teacher_sync import PEFTAdapterEMACallback

from pimono_sdpo.training import say, seconds_of, warn

KEY = "pimono_sdpo_progress"
# Of the metrics that TRL logs, those of one line: name, format, metric.
SHOWN = (
    ("reward", "{:.2f}", "self_distillation/reward_mean"),
    ("success", "{:.0%}", "self_distillation/success_rate"),
    ("loss", "{:.4f}", "loss"),
    ("accuracy", "{:.2f}", "mean_token_accuracy"),
    ("preferred", "{:.0%}", "rewards/accuracies"),
)


class Progress(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Print a line per logged step, and add up the time of the steps that count."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.started_at = now()
        self.resumed_at: list[int] = []
        self.before = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Continue from what the checkpoint kept."""
        self.began = self.last = monotonic()
        self.step = state.global_step
        # The Trainer would make another step after the last one.
        control.should_training_stop |= state.global_step >= state.max_steps > 0
        if state.global_step:
            kept = state.stateful_callbacks[KEY]
            self.started_at, self.before = kept["started_at"], kept["seconds"]
            self.resumed_at = [*kept["resumed_at"], state.global_step]
            # TRL counts them from 0 after a resume.
            counted = [entry["num_tokens"] for entry in state.log_history if "num_tokens" in entry]
            self.trainer._total_train_tokens = counted[-1] if counted else 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Put the time where the next checkpoint saves it."""
        kept = {"started_at": self.started_at, "resumed_at": self.resumed_at}
        state.stateful_callbacks[KEY] = kept | {"seconds": self.before + monotonic() - self.began}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Print the line; seconds are of one step."""
        if "loss" not in logs or not state.is_world_process_zero:
            return
        seconds = (monotonic() - self.last) / max(1, state.global_step - self.step)
        self.last, self.step = monotonic(), state.global_step
        shown = [f"{name} {form.format(logs[key])}" for name, form, key in SHOWN if isinstance(logs.get(key), float)]
        say("  ".join([f"step {self.step}/{state.max_steps}", *shown, f"{seconds:.1f} s"]))

    def whole_run(self, metrics: dict[str, float]) -> dict[str, float]:
        """Turn the Trainer's metrics since the last start into those of the whole run."""
        if not self.resumed_at:
            return metrics
        # The others are of the part since the resume.
        return {"train_runtime": round(self.before + metrics["train_runtime"], 4), "epoch": metrics["epoch"]}


def now() -> str:
    """Return the time in UTC to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ResumableTeacher(PEFTAdapterEMACallback):  # type: ignore[misc] # TRL ships no types
    """TRL's EMA with a teacher from the start, which continues from what a checkpoint kept.

    TRL adds the adapter when training begins, so evaluating before that fails.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._initialize_teacher_adapter()
        model: Any = self.accelerator.unwrap_model(self.model)
        set_peft_model_state_dict(model, get_peft_model_state_dict(model), self.teacher_adapter_name)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Continue from the adapter in the model, into which a checkpoint has been read."""
        model: Any = self.accelerator.unwrap_model(self.model)
        kept = get_peft_model_state_dict(model, adapter_name=self.teacher_adapter_name)
        self.shadow_weights = {name: value.detach().clone() for name, value in kept.items()}


class ReplayedShuffles(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Draw the orders of the finished epochs again, so that the next one is right."""

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any, **_: Any) -> None:
        """Advance the sampler's generator to where the checkpoint was written."""
        batches = train_dataloader.batch_sampler
        while isinstance(batches, BatchSamplerShard):
            # With several processes, each takes its share of the same batches.
            batches = batches.batch_sampler
        sampler = batches.sampler
        for _epoch in range(int(state.epoch or 0) if sampler.shuffle else 0):
            torch.randperm(sampler.num_samples, generator=sampler.generator)


def make_resumable(trainer: SDPOTrainer) -> None:
    """Add both; with an EMA teacher, ResumableTeacher replaces TRL's callback."""
    trainer.add_callback(ReplayedShuffles())
    theirs = trainer.pop_callback(PEFTAdapterEMACallback)
    if theirs is not None:
        names = ("model", "teacher_adapter_name", "update_rate", "sync_steps", "accelerator")
        trainer.add_callback(ResumableTeacher(**{name: getattr(theirs, name) for name in names}))


# The default of Hugging Face Jobs.
DEFAULT_IN_A_JOB = "30m"
# Saving, the card and the push take minutes; a short job reserves a share.
RESERVE, MOST_OF_LIMIT = 300.0, 0.25
IMPORTED = time()


def time_limit_of(given: str | None) -> "TimeLimit | None":
    """Return the limit that is given or that holds in this job, counted from its start; None without one."""
    limit, job = given or os.environ.get("TIME_LIMIT"), os.environ.get("JOB_ID")
    if not limit and not job:
        return None
    if not limit:
        limit = DEFAULT_IN_A_JOB
        warn(
            f"This Hugging Face job does not know its time limit, so the default of {limit} is assumed; "
            "give --time_limit the value of --timeout."
        )
    seconds, started = seconds_of(limit), IMPORTED
    if job:
        # Without token or network, and for a job of an organization, installing is not counted.
        with suppress(HTTPError, OSError):
            at = HfApi().inspect_job(job_id=job).started_at
            started = at.timestamp() if at else IMPORTED
    # Clocks that disagree by more than that cannot be used.
    return TimeLimit(started if 0 <= IMPORTED - started < seconds else IMPORTED, seconds)


class TimeLimit(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Stop after the last step that leaves time for the end; all processes stop together."""

    def __init__(self, started: float, seconds: float) -> None:
        self.seconds = seconds
        self.ends = started + seconds
        # Seconds that must be left after the last step.
        self.reserve = min(RESERVE, seconds * MOST_OF_LIMIT)
        self.stopped_at: int | None = None
        self._longest = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count steps from here."""
        self._last = time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop when another step as long as the longest, with its checkpoint, would be too much."""
        now = time()
        self._longest, self._last = max(self._longest, now - self._last), now
        over = now + 1.5 * self._longest + self.reserve >= self.ends
        if any(gather_object([over])) and state.global_step < state.max_steps:
            self.stopped_at = state.global_step
            control.should_training_stop = True
            control.should_save = args.save_strategy != "no"
