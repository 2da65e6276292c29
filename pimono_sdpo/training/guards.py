"""Watch a training: alert when it stops learning, keep its best adapter, end it on request.

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

from pimono_sdpo import __version__
from pimono_sdpo.runs.folders import read_json
from pimono_sdpo.training import argument, warn
from pimono_sdpo.training.output import BEST, BEST_PARTIAL, WEIGHTS, write_json

# After these the adapter is worse than it was, and the best one is gone back to.
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
# Values of these that are averaged, at the start and now.
DRIFT_OF = 3
# Below this share of its best the reward does not excuse a drift.
GOOD = 0.9
# Of a mean over the window, by the noise from step to step: with 5, a reward that never changes
# raised an alert in at most 2 of 100 simulated runs of 1000 steps (with 3, in up to 100).
STANDARD_ERRORS = 5
# What a running median is taken of, and from how many values on it means something.
MEDIAN_OF, MEDIAN_FROM = 50, 8
# Shares and multiples from which the mean reward has collapsed, the loss has jumped, and entropy,
# divergence or gap have drifted from what they were at first.
COLLAPSED, SPIKE, DRIFT = 0.5, 10.0, 4.0
# Alerts once they have held for a whole window: metric, its range, sentence.
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
    """The guards of a run, mixed into a configuration of TRL.

    Without rewards, as in SFT and DPO, `loss_spike` and `not_finite` alone have something to watch:
    WATCHED_LOSS, and the gradient.
    """

    METHOD: ClassVar[str]
    WATCHED_LOSS: ClassVar[str] = "loss"

    stop_on: str = argument(f"Guards that end the training, by comma, or all: {', '.join(GUARDS)}.", default="")
    guard_window: int = argument(
        "Logged values that a moving mean of the reward is taken of, and that must go wrong in a row.", default=10
    )

    def __post_init__(self) -> None:
        """Check the guards; raises ValueError."""
        super().__post_init__()  # type: ignore[misc] # of the configuration it is mixed into
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
    """What was logged so far; a guard is a condition on it, and is raised when it begins to hold.

    A fall of the reward must be more than noise, which is known from the differences of neighbours:
    those hardly see a trend. The loss is compared with its running median; sampled-token losses
    have a sign, so sizes count. Entropy, divergence and gap are compared with their means over the
    first DRIFT_OF values: a training that learns changes them, too; one that collapses does so
    while its reward falls.
    """

    window: int
    loss: str = LOSS
    logged: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    # The moving means of the reward, by step.
    means: dict[int, float] = field(default_factory=dict)
    holding: set[str] = field(default_factory=set)

    def add(self, step: int, logs: Logs) -> dict[str, str]:
        """Add what was logged; return a sentence for each guard that has just been triggered."""
        for name in (*WATCHED, self.loss):
            if (value := logs.get(name)) is not None and math.isfinite(value):
                self.logged[name].append(value)
        if REWARD in logs and len(self.logged[REWARD]) >= self.window:
            self.means[step] = fmean(self.logged[REWARD][-self.window :])
        # TRL leaves NaN out of the means it logs, None if nothing is left; the norm of the gradients keeps it.
        sizes = logs.get(GRADIENT, 0.0), logs.get(self.loss, 0.0)
        finite = all(size is not None and math.isfinite(size) for size in sizes)
        found = {
            "reward_collapse": self._collapse(),
            "divergence": self._divergence(),
            **{guard: self._streak(*streak) for guard, streak in STREAKS.items()},
            "loss_spike": self._spike(),
            "not_finite": "" if finite else "Loss or gradient is not finite; lower learning_rate or max_grad_norm.",
        }
        new = {guard: text for guard, text in found.items() if text and guard not in self.holding}
        self.holding = {guard for guard, text in found.items() if text}
        return new

    def mean(self) -> float | None:
        """Return the mean reward over the window; None until it is full."""
        return next(reversed(self.means.values()), None)

    def _collapse(self) -> str:
        if not self.means:
            return ""
        mean, at = self.mean() or 0.0, max(self.means, key=lambda step: self.means[step])
        best, steps = self.means[at], np.diff(self.logged[REWARD])
        noise = math.sqrt(np.sum(steps**2) / max(len(steps), 1) / self.window)
        if best <= 0 or mean >= COLLAPSED * best or best - mean <= STANDARD_ERRORS * noise:
            return ""
        return (
            f"The mean of the last {self.window} rewards is {mean:.3g}, after {best:.3g} at step {at}; best/ "
            "has the adapter of the best checkpoint, if one was written; lower learning_rate or teacher_update_rate."
        )

    def _divergence(self) -> str:
        mean = self.mean()
        if mean is not None and mean >= GOOD * max(self.means.values()) > 0:
            return ""
        for name in (ENTROPY, KL, GAP):
            sizes = [abs(value) for value in self.logged[name]]
            if len(sizes) < DRIFT_OF:
                continue
            first, now = fmean(sizes[:DRIFT_OF]), fmean(sizes[-DRIFT_OF:])
            if now > DRIFT * first or (name == ENTROPY and now < first / DRIFT):
                return (
                    f"`{name}` has gone from {first:.3g} to {now:.3g} while the reward is below its best; lower "
                    "learning_rate or teacher_update_rate, or use topk_logits with distillation_alpha 0.5."
                )
        return ""

    def _streak(self, metric: str, low: float, high: float, text: str) -> str:
        recent = self.logged[metric][-self.window :]
        holds = len(recent) == self.window and all(low <= value <= high for value in recent)
        return text.format(self.window) if holds else ""

    def _spike(self) -> str:
        # Steps without a teacher have the loss 0 and say nothing about its size.
        *before, size = [abs(value) for value in self.logged[self.loss] if value] or [0.0]
        if len(before) < MEDIAN_FROM or size <= SPIKE * (usual := median(before[-MEDIAN_OF:])):
            return ""
        return f"The loss (`{self.loss}`) is {size:.3g}, its running median {usual:.3g}; lower learning_rate."


class Guards(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """The monitors over the whole run, resumed or not: what it has logged is in every checkpoint."""

    def __init__(self, config: Any) -> None:
        self.stopping = config.stopping()
        self.best = Path(config.output_dir) / BEST
        self.monitors = Monitors(config.guard_window, config.WATCHED_LOSS)
        self.alerts: list[Json] = []
        self.stopped_by: str | None = None
        self.went_back_to: int | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go over what was logged before a resume; a new run drops an older best adapter."""
        for entry in state.log_history:
            self._add(entry["step"], entry)
        control.should_training_stop |= self.stopped_by is not None
        if not state.global_step and state.is_world_process_zero:
            shutil.rmtree(self.best, ignore_errors=True)

    def on_log(self, args: Any, state: Any, control: Any, logs: Json, **_: Any) -> None:
        """Add the metrics of a step. Evaluations log under other names."""
        for alert in self._add(state.global_step, logs):
            guard, text, level = alert["guard"], alert["text"], trackio.AlertLevel.WARN
            if guard in self.stopping:
                control.should_training_stop = True
                control.should_save = args.save_strategy != "no"
                text, level = f"{text} The training ends here.", trackio.AlertLevel.ERROR
            if state.is_world_process_zero:
                warn(f"{guard} at step {state.global_step}: {text}")
                if "trackio" in args.report_to:
                    trackio.alert(guard, text, level=level)

    def _add(self, step: int, logs: Logs) -> list[Json]:
        """Return the alerts that some metrics raise."""
        raised = self.monitors.add(step, logs)
        found = [{"step": step, "guard": guard, "text": text} for guard, text in raised.items()]
        self.alerts += found
        self.stopped_by = self.stopped_by or next((guard for guard in raised if guard in self.stopping), None)
        return found

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Copy the adapter of the checkpoint just written if its reward is the best so far."""
        mean, best, step = self.monitors.mean(), self._kept_best(), state.global_step
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
        best, mean = self._kept_best(), self.monitors.mean()
        collapsed = any(alert["guard"] in COLLAPSES for alert in self.alerts)
        worse = best is not None and (mean is None or mean < best["reward_mean"])
        if best is not None and (self.stopped_by is not None or (collapsed and worse)):
            set_peft_model_state_dict(model, load_file(self.best / WEIGHTS[0]))
            self.went_back_to = best["step"]

    def record(self) -> Json:
        """Return for the run log: alerts, the best adapter, and what ended the run."""
        names = ("alerts", "stopped_by", "went_back_to")
        return {name: getattr(self, name) for name in names} | {"best": self._kept_best()}

    def _kept_best(self) -> Json | None:
        """Return step and reward_mean of the adapter in best/."""
        return read_json(self.best / "best.json") or None
