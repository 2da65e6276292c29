"""Trainer callbacks: EMA teacher, exact resume, a line per step, run time, and time limit.

Their state is part of the Trainer's state and so of every checkpoint.

TRL initialises the LoRA factors of the teacher to zero, so that it lags behind; here it starts as a
copy of the student (docs/explanations/sdpo.md). TRL saves it in every checkpoint, but cannot resume
with it, and no checkpoint contains the random generator that shuffles the rows.
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

from pimono_sdpo.training.console import say, warn
from pimono_sdpo.training.options import seconds_of

KEY = "pimono_sdpo_progress"
# The metrics in the line of a step: name, format, and name in TRL's log.
SHOWN = (
    ("reward", "{:.2f}", "self_distillation/reward_mean"),
    ("success", "{:.0%}", "self_distillation/success_rate"),
    ("loss", "{:.4f}", "loss"),
    ("accuracy", "{:.2f}", "mean_token_accuracy"),
    ("preferred", "{:.0%}", "rewards/accuracies"),
)


class Progress(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Print a line per logged step, and add up the training time across resumes."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.started_at = now()
        self.resumed_at: list[int] = []
        # Training time before the last resume.
        self.seconds_before = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Continue from the state in the checkpoint."""
        self.began = self.last = monotonic()
        self.step = state.global_step
        # The Trainer would take another step after the last one.
        control.should_training_stop |= state.global_step >= state.max_steps > 0
        if state.global_step:
            saved = state.stateful_callbacks[KEY]
            self.started_at, self.seconds_before = saved["started_at"], saved["seconds"]
            self.resumed_at = [*saved["resumed_at"], state.global_step]
            # TRL counts tokens from 0 again after a resume.
            tokens = [entry["num_tokens"] for entry in state.log_history if "num_tokens" in entry]
            self.trainer._total_train_tokens = tokens[-1] if tokens else 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store the training time for the next checkpoint."""
        state.stateful_callbacks[KEY] = {
            "started_at": self.started_at,
            "resumed_at": self.resumed_at,
            "seconds": self.seconds_before + monotonic() - self.began,
        }

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Print the metrics and the seconds per step."""
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
        # The other metrics only cover the steps since the resume.
        return {"train_runtime": round(self.seconds_before + metrics["train_runtime"], 4), "epoch": metrics["epoch"]}


def now() -> str:
    """Return the time in UTC to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ResumableTeacher(PEFTAdapterEMACallback):  # type: ignore[misc] # TRL ships no types
    """TRL's EMA teacher, created before training begins and restored from a checkpoint.

    TRL creates it when training begins, so an evaluation before that fails.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._initialize_teacher_adapter()
        model: Any = self.accelerator.unwrap_model(self.model)
        set_peft_model_state_dict(model, get_peft_model_state_dict(model), self.teacher_adapter_name)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Continue from the teacher in the model, which is restored from the checkpoint by now."""
        model: Any = self.accelerator.unwrap_model(self.model)
        weights = get_peft_model_state_dict(model, adapter_name=self.teacher_adapter_name)
        self.shadow_weights = {name: value.detach().clone() for name, value in weights.items()}


class ReplayedShuffles(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Repeat the shuffles of the finished epochs, so that a resumed run continues with the same order."""

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any, **_: Any) -> None:
        """Advance the sampler's generator to its state at the checkpoint."""
        batches = train_dataloader.batch_sampler
        while isinstance(batches, BatchSamplerShard):
            # With several processes, each takes its share of the same batches.
            batches = batches.batch_sampler
        sampler = batches.sampler
        for _epoch in range(int(state.epoch or 0) if sampler.shuffle else 0):
            torch.randperm(sampler.num_samples, generator=sampler.generator)


def make_resumable(trainer: SDPOTrainer) -> None:
    """Add ReplayedShuffles, and replace TRL's callback of an EMA teacher by ResumableTeacher."""
    trainer.add_callback(ReplayedShuffles())
    ema = trainer.pop_callback(PEFTAdapterEMACallback)
    if ema is not None:
        names = ("model", "teacher_adapter_name", "update_rate", "sync_steps", "accelerator")
        trainer.add_callback(ResumableTeacher(**{name: getattr(ema, name) for name in names}))


# The default of Hugging Face Jobs.
DEFAULT_JOB_LIMIT = "30m"
# Seconds reserved to save and push the adapter, and their largest share of the limit.
RESERVE, RESERVE_SHARE = 300.0, 0.25
IMPORTED = time()


def time_limit_of(option: str | None) -> "TimeLimit | None":
    """Return the limit of the option, the environment or the job, counted from the job's start; None without one."""
    limit, job = option or os.environ.get("TIME_LIMIT"), os.environ.get("JOB_ID")
    if not limit and not job:
        return None
    if not limit:
        limit = DEFAULT_JOB_LIMIT
        warn(
            f"The time limit of this Hugging Face job is not known, so the default of {limit} is assumed; "
            "give --time_limit the value of --timeout."
        )
    seconds, started = seconds_of(limit), IMPORTED
    if job:
        # Where this fails (no token or network, a job of an organization), installation time is not counted.
        with suppress(HTTPError, OSError):
            started_at = HfApi().inspect_job(job_id=job).started_at
            started = started_at.timestamp() if started_at else IMPORTED
    # A start after the import, or longer ago than the limit, means that the clocks disagree.
    return TimeLimit(started if 0 <= IMPORTED - started < seconds else IMPORTED, seconds)


class TimeLimit(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Stop while there is still time to save and publish; all processes stop at the same step."""

    def __init__(self, started: float, seconds: float) -> None:
        self.seconds = seconds
        self.end = started + seconds
        # Seconds that must remain after the last step.
        self.reserve = min(RESERVE, seconds * RESERVE_SHARE)
        self.stopped_at: int | None = None
        self._longest = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start timing the steps."""
        self._last = time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop if another step as long as the longest, with its checkpoint, might exceed the limit."""
        now = time()
        self._longest, self._last = max(self._longest, now - self._last), now
        out_of_time = now + 1.5 * self._longest + self.reserve >= self.end
        if any(gather_object([out_of_time])) and state.global_step < state.max_steps:
            self.stopped_at = state.global_step
            control.should_training_stop = True
            control.should_save = args.save_strategy != "no"
