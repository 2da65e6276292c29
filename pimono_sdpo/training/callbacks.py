"""Trainer callbacks: a line per step, exact resume, EMA teacher, time limit, guards, and the log of Trackio.

Their state is part of the Trainer's state and so of every checkpoint.

TRL initialises the LoRA factors of the teacher to zero, so that it lags behind; here it starts as a
copy of the student (docs/explanations/sdpo.md). TRL saves it in every checkpoint, but cannot resume
with it, and no checkpoint contains the random generator that shuffles the rows.
"""

import math
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from time import monotonic, time
from typing import Any

import numpy as np
import torch
import trackio
from accelerate.data_loader import BatchSamplerShard
from accelerate.utils import gather_object
from httpx2 import HTTPError
from huggingface_hub import HfApi, JobInfo
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from trackio.sqlite_storage import SQLiteStorage
from transformers import TrainerCallback
from transformers.integrations import TrackioCallback
from transformers.integrations.integration_utils import rewrite_logs
from trl.experimental.sdft.teacher_sync import PEFTAdapterEMACallback as ContextEMACallback
from trl.experimental.sdpo.teacher_sync import PEFTAdapterEMACallback

from pimono_sdpo.runs.folders import read_json
from pimono_sdpo.text import shorten
from pimono_sdpo.training.console import say, warn
from pimono_sdpo.training.models import WEIGHTS
from pimono_sdpo.training.options import seconds_of
from pimono_sdpo.training.output import BEST, BEST_PARTIAL, write_json
from pimono_sdpo.version import __version__

Json = dict[str, Any]
KEY = "pimono_sdpo_progress"
REWARD = "self_distillation/reward_mean"
# Metrics of each step, in nats: the student's entropy and the divergence of student from teacher.
ENTROPY, KL = "self_distillation/entropy", "self_distillation/kl"
# The metrics in the line of a step: name, format, and name in TRL's log.
SHOWN = (
    ("reward", "{:.2f}", REWARD),
    ("success", "{:.0%}", "self_distillation/success_rate"),
    ("divergence", "{:.4f}", KL),
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
        # Not every trainer of TRL returns the epoch.
        epoch = {"epoch": metrics.get("epoch", self.trainer.state.epoch)}
        if not self.resumed_at:
            return metrics | epoch
        # The other metrics only cover the steps since the resume.
        return {"train_runtime": round(self.seconds_before + metrics["train_runtime"], 4), **epoch}


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


def make_resumable(trainer: Any) -> None:
    """Add ReplayedShuffles, and replace TRL's callback of an EMA teacher by ResumableTeacher."""
    trainer.add_callback(ReplayedShuffles())
    # SDFT and SDPO have copies of the same class.
    ema = trainer.pop_callback(PEFTAdapterEMACallback) or trainer.pop_callback(ContextEMACallback)
    if ema is not None:
        names = ("model", "teacher_adapter_name", "update_rate", "sync_steps", "accelerator")
        trainer.add_callback(ResumableTeacher(**{name: getattr(ema, name) for name in names}))


# The default of Hugging Face Jobs.
DEFAULT_JOB_LIMIT = "30m"
# Seconds reserved to save and push the adapter, and their largest share of the limit.
RESERVE, RESERVE_SHARE = 300.0, 0.25
IMPORTED = time()


def job_info() -> JobInfo | None:
    """Return what the Hub says about the job that this process runs in; None elsewhere, or if it cannot be asked."""
    with suppress(HTTPError, OSError):  # no token or network, or a job of an organization
        return HfApi().inspect_job(job_id=os.environ["JOB_ID"]) if "JOB_ID" in os.environ else None
    return None


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
    # Where the Hub does not tell, the time of the installation is not counted.
    if (info := job_info()) is not None and info.started_at:
        started = info.started_at.timestamp()
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


# Guards whose final adapter is worse than an earlier one, so the best one is restored.
COLLAPSES = ("reward_collapse", "entropy_collapse")
# The mean reward as a share of its best, and the entropy as a share of its first values; how many of
# these are averaged.
COLLAPSE, NARROW, VALUES = 0.5, 0.25, 3
# How far the mean reward must fall. With 5, a reward that never changes raised an alert in at most
# 2 of 100 simulated runs of 1000 steps (with 3, in up to 100).
STANDARD_ERRORS = 5


class Guards(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Alert when the training stops learning, keep the best adapter, and end the training on request.

    reward_collapse    the mean reward falls to half of its best, by more than noise, which is estimated
                       from differences of consecutive values, since a trend hardly affects those
    entropy_collapse   the student's entropy falls to a quarter of its first values, unless the reward
                       is at its best
    not_finite         the loss or the gradient is not finite

    A resumed run reads the metrics of its first part from the checkpoint.
    """

    def __init__(self, config: Any) -> None:
        self.stopping, self.window = config.stopping(), config.guard_window
        self.best = Path(config.output_dir) / BEST
        self.rewards: list[float] = []
        self.entropies: list[float] = []
        # The moving mean of the reward by step.
        self.means: dict[int, float] = {}
        # The guards whose condition is true at the moment.
        self.active: set[str] = set()
        self.alerts: list[Json] = []
        self.stopped_by: str | None = None
        self.restored_step: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Replay the metrics logged before a resume; a new run removes an older best adapter."""
        for entry in state.log_history:
            self.add(entry["step"], entry)
        control.should_training_stop |= self.stopped_by is not None
        if not state.global_step and state.is_world_process_zero:
            shutil.rmtree(self.best, ignore_errors=True)

    def on_log(self, args: Any, state: Any, control: Any, logs: Json, **_: Any) -> None:
        """Add the metrics of a step, and raise alerts. Evaluations log under other names."""
        for guard, text in self.add(state.global_step, logs).items():
            level = trackio.AlertLevel.WARN
            if guard in self.stopping:
                control.should_training_stop = True
                control.should_save = args.save_strategy != "no"
                text, level = f"{text} The training ends here.", trackio.AlertLevel.ERROR
            if state.is_world_process_zero:
                warn(f"{guard} at step {state.global_step}: {text}")
                if "trackio" in args.report_to:
                    trackio.alert(guard, text, level=level)

    def add(self, step: int, logs: Mapping[str, float | None]) -> dict[str, str]:
        """Add the metrics of a step; record and return the alerts that they raise, a sentence by guard."""
        for name, values in ((REWARD, self.rewards), (ENTROPY, self.entropies)):
            if (value := logs.get(name)) is not None and math.isfinite(value):
                values.append(value)
        if REWARD in logs and len(self.rewards) >= self.window:
            self.means[step] = fmean(self.rewards[-self.window :])
        # TRL excludes NaN from the means it logs, and logs None if all values are NaN; the gradient norm keeps NaN.
        numbers = logs.get("grad_norm", 0.0), logs.get("loss", 0.0)
        finite = all(value is not None and math.isfinite(value) for value in numbers)
        texts = {
            "reward_collapse": self._check_reward(),
            "entropy_collapse": self._check_entropy(),
            "not_finite": "" if finite else "Loss or gradient is not finite; lower learning_rate or max_grad_norm.",
        }
        raised = {guard: text for guard, text in texts.items() if text and guard not in self.active}
        self.active = {guard for guard, text in texts.items() if text}
        self.alerts += [{"step": step, "guard": guard, "text": text} for guard, text in raised.items()]
        self.stopped_by = self.stopped_by or next((guard for guard in raised if guard in self.stopping), None)
        return raised

    def _check_reward(self) -> str:
        if not self.means:
            return ""
        mean, best_step = self._mean() or 0.0, max(self.means, key=lambda step: self.means[step])
        best, changes = self.means[best_step], np.diff(self.rewards)
        noise = math.sqrt(np.sum(changes**2) / max(len(changes), 1) / self.window)
        if best <= 0 or mean >= COLLAPSE * best or best - mean <= STANDARD_ERRORS * noise:
            return ""
        return (
            f"The mean of the last {self.window} rewards is {mean:.3g}, after {best:.3g} at step {best_step}; best/ "
            "has the adapter of the best checkpoint, if one was written; lower learning_rate or teacher_update_rate."
        )

    def _check_entropy(self) -> str:
        mean, values = self._mean(), self.entropies
        at_its_best = mean is not None and mean >= max(self.means.values()) > 0
        if at_its_best or len(values) < 2 * VALUES or fmean(values[-VALUES:]) >= NARROW * fmean(values[:VALUES]):
            return ""
        return (
            f"The entropy of the answers went from {fmean(values[:VALUES]):.3g} to {fmean(values[-VALUES:]):.3g} "
            "nats; lower learning_rate or teacher_update_rate, or use topk_logits with distillation_alpha 0.5."
        )

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Copy the adapter of the checkpoint just written if its mean reward is the best so far."""
        mean, best, step = self._mean(), self._read_best(), state.global_step
        if not state.is_world_process_zero or mean is None or (best is not None and mean <= best["reward_mean"]):
            return
        partial = self.best.with_name(BEST_PARTIAL)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for name in WEIGHTS:
            shutil.copyfile(self.best.parent / f"checkpoint-{step}" / name, partial / name)
        write_json({"pimono_sdpo": __version__, "step": step, "reward_mean": mean}, partial / "best.json")
        shutil.rmtree(self.best, ignore_errors=True)
        partial.replace(self.best)

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        """Load the best adapter into the model when a guard ended the training, or it collapsed."""
        best, mean = self._read_best(), self._mean()
        collapsed = any(alert["guard"] in COLLAPSES for alert in self.alerts)
        worse = best is not None and (mean is None or mean < best["reward_mean"])
        if best is not None and (self.stopped_by is not None or (collapsed and worse)):
            set_peft_model_state_dict(model, load_file(self.best / WEIGHTS[0]))
            self.restored_step = best["step"]

    def record(self) -> Json:
        """Return the entry of the run log: alerts, what ended the run, and the best adapter."""
        return {
            "alerts": self.alerts,
            "stopped_by": self.stopped_by,
            "went_back_to": self.restored_step,
            "best": self._read_best(),
        }

    def _mean(self) -> float | None:
        """Return the mean reward over the window; None until it is full."""
        return next(reversed(self.means.values()), None)

    def _read_best(self) -> Json | None:
        """Return step and reward_mean of the adapter in best/."""
        return read_json(self.best / "best.json") or None


SPACE_VARIABLE = "TRACKIO_SPACE_ID"
# The arguments that the dashboard and the run log list.
TRAINING_ARGUMENTS = (
    "max_steps num_train_epochs learning_rate lr_scheduler_type warmup_steps weight_decay max_grad_norm optim "
    "per_device_train_batch_size gradient_accumulation_steps gradient_checkpointing bf16 seed stop_on"
).split()
MODEL_ARGUMENTS = (
    "dtype load_in_4bit load_in_8bit bnb_4bit_quant_type use_bnb_nested_quant "
    "lora_r lora_alpha lora_dropout use_rslora use_dora"
).split()
# Rollouts per step in the dashboard.
ROLLOUTS = 8
# Rollouts in the run log: how many per step, of about how many steps, with how many characters per text.
KEPT_ROLLOUTS, KEPT_STEPS, KEPT_CHARS = 2, 12, 1000
# Totals logged at the end of the training, which would be curves of one point.
TOTALS = frozenset("train_runtime train_samples_per_second train_steps_per_second train_loss total_flos".split())


def set_up_trackio(args: Any, smoke: bool) -> None:
    """Set project and Space in place; the argument overrides the environment, a smoke run uses no Space."""
    # Otherwise Trackio publishes a public copy of the metrics after training.
    args.trackio_static_space_id = False
    if args.project == "huggingface":
        args.project = "pimono-sdpo"
    # Removed, since Trackio would read the variable itself.
    space = os.environ.pop(SPACE_VARIABLE, None)
    args.trackio_space_id = None if smoke else args.trackio_space_id or space or None


def free_run_name(args: Any) -> str:
    """Return the run's name, with the job's id or the time appended where it may be taken."""
    name = str(args.run_name)
    if "trackio" not in args.report_to:
        return name
    if args.trackio_space_id is None and name not in SQLiteStorage.get_runs(args.project):
        return name
    suffix = os.environ.get("JOB_ID") or f"{datetime.now(UTC):%m%d-%H%M%S}"
    return f"{name}-{suffix[-12:]}"


class SafeTrackio(TrackioCallback):  # type: ignore[misc] # transformers is untyped here
    """The callback of Transformers, with another config and a fallback to this machine when a Space fails.

    The callback of Transformers logs all arguments, including machine paths, and empty mappings, which
    break a later export of the run.
    """

    def __init__(self, config: Json) -> None:
        super().__init__()
        self.config = config

    def setup(self, args: Any, state: Any, model: Any, **_: Any) -> None:
        """Start the run, or continue the run of this name."""
        self._initialized = True
        if not state.is_world_process_zero:
            return
        try:
            self._begin(args)
        except Exception as error:
            # No error of the Space or its bucket may stop the training.
            if args.trackio_space_id is None:
                raise
            sync = ["trackio", "sync", "--project", args.project, "--space-id", args.trackio_space_id, "--private"]
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            warn(
                f"Trackio logs to this machine only, since the Space `{args.trackio_space_id}` cannot be used "
                f"({reason}); later: {shlex.join(sync)}"
            )
            args.trackio_space_id = None
            self._begin(args)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Log the metrics with the training step, where Trackio would count calls."""
        if state.is_world_process_zero and self._initialized:
            metrics = {name: value for name, value in logs.items() if name not in TOTALS}
            trackio.log(rewrite_logs(metrics), step=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Finish the run; Trackio waits for uploads for at most half a minute, the rest can be synced later."""
        if state.is_world_process_zero and self._initialized:
            trackio.finish()
        self._initialized = False

    def _begin(self, args: Any) -> None:
        trackio.init(
            project=args.project,
            name=args.run_name,
            space_id=args.trackio_space_id,
            bucket_id=args.trackio_bucket_id,
            private=args.hub_private_repo is not False,
            config=self.config,
            resume="allow",
        )


def note_rollouts(trainer: Any, rollouts: Sequence[Json]) -> None:
    """Log the first completions of a step to Trackio, and keep some of them in the log history.

    A rollout has the prompt, the completion, its reward (None without one) and what the teacher read.
    """
    state = trainer.state
    if not trainer.accelerator.is_main_process:
        return
    step = state.global_step + 1
    # The preflight samples before there is a run.
    if "trackio" in trainer.args.report_to and trackio.context_vars.current_run.get() is not None:
        traces = {}
        for number, rollout in enumerate(rollouts[:ROLLOUTS]):
            reward = rollout["reward"] if rollout["reward"] is not None and math.isfinite(rollout["reward"]) else None
            messages = [*rollout["prompt"], {"role": "assistant", "content": rollout["completion"]}]
            metadata = {"step": step, "reward": reward, "feedback": rollout["feedback"] or ""}
            traces[f"rollout_{number}"] = trackio.Trace(messages, metadata=metadata)
        trackio.log(traces, step=step)
    if (step - 1) % max(1, state.max_steps // KEPT_STEPS) and step != state.max_steps:
        return
    shortened = [
        {
            "prompt": shorten(str(rollout["prompt"][-1]["content"]), KEPT_CHARS),
            "completion": shorten(rollout["completion"], KEPT_CHARS),
            "reward": rollout["reward"],
            "feedback": shorten(rollout["feedback"] or "", KEPT_CHARS),
        }
        for rollout in rollouts[:KEPT_ROLLOUTS]
    ]
    # The log history is part of every checkpoint.
    state.log_history.append({"step": step, "rollouts": shortened})


def list_arguments(args: Any, model_args: Any) -> Json:
    """Return the arguments that the dashboard and the run log list."""
    settings = args.to_dict()
    named = {name: settings[name] for name in TRAINING_ARGUMENTS}
    return named | {name: vars(model_args)[name] for name in MODEL_ARGUMENTS}
