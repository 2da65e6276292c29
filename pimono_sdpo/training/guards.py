"""Monitor a training: alert when it stops learning, keep the best adapter, stop it on request.

reads metrics as TRL 1.16 and trainer.py log them / writes alerts to Trackio and stderr, and
OUTPUT/best
"""

import math
import shutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, ClassVar

import numpy as np
import trackio
from peft import set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import TrainerCallback

from pimono_sdpo.runs.folders import read_json
from pimono_sdpo.training.console import warn
from pimono_sdpo.training.options import argument
from pimono_sdpo.training.output import BEST, BEST_PARTIAL, WEIGHTS, write_json
from pimono_sdpo.version import __version__

# After one of these the final adapter is worse than an earlier one, so the best one is restored.
COLLAPSES = ("reward_collapse", "divergence")
REWARD = "self_distillation/reward_mean"
REPROMPTED = "self_distillation/reprompt_sample_fraction"
FLAT = "self_distillation/flat_group_fraction"
LOSS = "self_distillation/distillation_loss"
CLIPPED = "completions/clipped_ratio"
GRADIENT = "grad_norm"
ENTROPY = "self_distillation/entropy"
KL = "self_distillation/kl"
GAP = "self_distillation/teacher_gap"
WATCHED = (REWARD, REPROMPTED, FLAT, CLIPPED, ENTROPY, KL, GAP)
# Entropy, divergence and gap: means of this many values are compared, the first and the last ones.
DRIFT_VALUES = 3
# A drift raises no alert while the mean reward is at least this share of its best.
GOOD = 0.9
# How far the mean reward must fall. With 5, a reward that never changes raised an alert in at most
# 2 of 100 simulated runs of 1000 steps (with 3, in up to 100).
STANDARD_ERRORS = 5
# The loss is compared with the median of this many values, and only once there are so many.
MEDIAN_VALUES, MEDIAN_MINIMUM = 50, 8
# Thresholds: the mean reward as a share of its best, the loss as a multiple of its median, and
# entropy, divergence and gap as multiples of their first mean.
COLLAPSE, SPIKE, DRIFT = 0.5, 10.0, 4.0
# Conditions that raise an alert when they hold for a whole window: metric, its range, sentence.
STREAKS = {
    "dead_reprompts": (
        *(REPROMPTED, 0.0, 0.0),
        "Nothing was learned {} times in a row: no completion reached success_reward_threshold and "
        "none got feedback; lower the threshold, or give rows with feedback.",
    ),
    "flat_groups": (
        *(FLAT, 1.0, math.inf),
        "All completions of every prompt got the same reward {} times in a row, so nothing can be "
        "learned from it; check the reward, or raise temperature or num_generations.",
    ),
    "clipped": (
        *(CLIPPED, 0.99, math.inf),
        "All completions ran into max_completion_length {} times in a row; raise it, or check that "
        "the model ends its turn.",
    ),
}
GUARDS = (*COLLAPSES, *STREAKS, "loss_spike", "not_finite")
Json = dict[str, Any]
Logs = Mapping[str, float | None]


@dataclass
class GuardOptions:
    """The options of the guards, mixed into a configuration of TRL.

    SFT and DPO have no rewards, so only `loss_spike` and `not_finite` can be raised, by WATCHED_LOSS
    and the gradient norm.
    """

    METHOD: ClassVar[str]
    WATCHED_LOSS: ClassVar[str] = "loss"

    stop_on: str = argument(
        f"Guards that end the training, separated by commas, or all: {', '.join(GUARDS)}.", default=""
    )
    guard_window: int = argument(
        "Number of logged values in the moving mean of the reward, and in a streak that raises an alert.", default=10
    )

    def __post_init__(self) -> None:
        """Check the guards; raises ValueError."""
        super().__post_init__()  # type: ignore[misc] # of TRL's configuration
        if unknown := self.stopping() - {*GUARDS}:
            raise ValueError(
                f"--stop_on names {', '.join(sorted(unknown))}; give some of {', '.join(GUARDS)}, or all."
            )

    def stopping(self) -> set[str]:
        """Return the guards that end the training."""
        names = {name.strip() for name in self.stop_on.split(",")} - {""}
        return {*GUARDS} if names == {"all"} else names


@dataclass
class Monitors:
    """The metrics logged so far; a guard is a condition on them and is raised when it becomes true.

    The reward must fall by more than noise, which is estimated from differences of consecutive values,
    since a trend hardly affects those. The loss is compared with its running median, in absolute values,
    since sampled-token losses can be negative. Entropy, divergence and gap are compared with the mean
    of their first DRIFT_VALUES values; learning changes them, too, so a drift counts only while the
    reward is below its best.
    """

    window: int
    loss: str = LOSS
    logged: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    # The moving mean of the reward by step.
    means: dict[int, float] = field(default_factory=dict)
    # The guards whose condition is true at the moment.
    active: set[str] = field(default_factory=set)

    def add(self, step: int, logs: Logs) -> dict[str, str]:
        """Add the metrics of a step; return a sentence for each guard that it raises."""
        for name in (*WATCHED, self.loss):
            if (value := logs.get(name)) is not None and math.isfinite(value):
                self.logged[name].append(value)
        if REWARD in logs and len(self.logged[REWARD]) >= self.window:
            self.means[step] = fmean(self.logged[REWARD][-self.window :])
        # TRL excludes NaN from the means it logs, and logs None if all values are NaN; the gradient norm keeps NaN.
        values = logs.get(GRADIENT, 0.0), logs.get(self.loss, 0.0)
        finite = all(value is not None and math.isfinite(value) for value in values)
        texts = {
            "reward_collapse": self._check_collapse(),
            "divergence": self._check_divergence(),
            **{guard: self._check_streak(*streak) for guard, streak in STREAKS.items()},
            "loss_spike": self._check_spike(),
            "not_finite": "" if finite else "Loss or gradient is not finite; lower learning_rate or max_grad_norm.",
        }
        raised = {guard: text for guard, text in texts.items() if text and guard not in self.active}
        self.active = {guard for guard, text in texts.items() if text}
        return raised

    def mean(self) -> float | None:
        """Return the mean reward over the window; None until it is full."""
        return next(reversed(self.means.values()), None)

    def _check_collapse(self) -> str:
        if not self.means:
            return ""
        mean, best_step = self.mean() or 0.0, max(self.means, key=lambda step: self.means[step])
        best, changes = self.means[best_step], np.diff(self.logged[REWARD])
        noise = math.sqrt(np.sum(changes**2) / max(len(changes), 1) / self.window)
        if best <= 0 or mean >= COLLAPSE * best or best - mean <= STANDARD_ERRORS * noise:
            return ""
        return (
            f"The mean of the last {self.window} rewards is {mean:.3g}, after {best:.3g} at step {best_step}; best/ "
            "has the adapter of the best checkpoint, if one was written; lower learning_rate or teacher_update_rate."
        )

    def _check_divergence(self) -> str:
        mean = self.mean()
        if mean is not None and mean >= GOOD * max(self.means.values()) > 0:
            return ""
        for name in (ENTROPY, KL, GAP):
            values = [abs(value) for value in self.logged[name]]
            if len(values) < DRIFT_VALUES:
                continue
            first, last = fmean(values[:DRIFT_VALUES]), fmean(values[-DRIFT_VALUES:])
            if last > DRIFT * first or (name == ENTROPY and last < first / DRIFT):
                return (
                    f"`{name}` went from {first:.3g} to {last:.3g} while the reward is below its best; lower "
                    "learning_rate or teacher_update_rate, or use topk_logits with distillation_alpha 0.5."
                )
        return ""

    def _check_streak(self, metric: str, low: float, high: float, text: str) -> str:
        recent = self.logged[metric][-self.window :]
        holds = len(recent) == self.window and all(low <= value <= high for value in recent)
        return text.format(self.window) if holds else ""

    def _check_spike(self) -> str:
        # Steps without a teacher have a loss of 0, which says nothing about its usual size.
        *before, loss = [abs(value) for value in self.logged[self.loss] if value] or [0.0]
        if len(before) < MEDIAN_MINIMUM or loss <= SPIKE * (usual := median(before[-MEDIAN_VALUES:])):
            return ""
        return f"The loss (`{self.loss}`) is {loss:.3g}, its running median {usual:.3g}; lower learning_rate."


class Guards(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Apply the monitors over the whole run; a resumed run reads earlier metrics from its checkpoint."""

    def __init__(self, config: Any) -> None:
        self.stopping = config.stopping()
        self.best = Path(config.output_dir) / BEST
        self.monitors = Monitors(config.guard_window, config.WATCHED_LOSS)
        self.alerts: list[Json] = []
        self.stopped_by: str | None = None
        self.restored_step: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Replay the metrics logged before a resume; a new run removes an older best adapter."""
        for entry in state.log_history:
            self._add(entry["step"], entry)
        control.should_training_stop |= self.stopped_by is not None
        if not state.global_step and state.is_world_process_zero:
            shutil.rmtree(self.best, ignore_errors=True)

    def on_log(self, args: Any, state: Any, control: Any, logs: Json, **_: Any) -> None:
        """Add the metrics of a step, and raise alerts. Evaluations log under other names."""
        for guard, text in self._add(state.global_step, logs).items():
            level = trackio.AlertLevel.WARN
            if guard in self.stopping:
                control.should_training_stop = True
                control.should_save = args.save_strategy != "no"
                text, level = f"{text} The training ends here.", trackio.AlertLevel.ERROR
            if state.is_world_process_zero:
                warn(f"{guard} at step {state.global_step}: {text}")
                if "trackio" in args.report_to:
                    trackio.alert(guard, text, level=level)

    def _add(self, step: int, logs: Logs) -> dict[str, str]:
        """Record and return the alerts that the metrics of a step raise, a sentence by guard."""
        raised = self.monitors.add(step, logs)
        self.alerts += [{"step": step, "guard": guard, "text": text} for guard, text in raised.items()]
        self.stopped_by = self.stopped_by or next((guard for guard in raised if guard in self.stopping), None)
        return raised

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Copy the adapter of the checkpoint just written if its mean reward is the best so far."""
        mean, best, step = self.monitors.mean(), self._read_best(), state.global_step
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
        best, mean = self._read_best(), self.monitors.mean()
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

    def _read_best(self) -> Json | None:
        """Return step and reward_mean of the adapter in best/."""
        return read_json(self.best / "best.json") or None
