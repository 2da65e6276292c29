"""Know how long a run took that was killed and gone on with: every checkpoint keeps the time.

reads and writes the Trainer's state, which is saved in a checkpoint and read back from it
"""

import math
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from transformers import TrainerCallback

KEY = "pimono_sdpo_clock"


class Clock(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Add up the time of the steps that count; steps lost in a kill are made again.

    `resumed_at` holds the steps after which the run was gone on with, `before` the seconds up to
    the last of them: NaN when its checkpoint kept no time.
    """

    def __init__(self) -> None:
        self.started_at = now()
        self.resumed_at: list[int] = []
        self.before = 0.0
        self.began = monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Go on from what the checkpoint kept."""
        self.began = monotonic()
        if state.global_step:
            kept = state.stateful_callbacks.get(KEY, {})
            self.started_at = kept.get("started_at", self.started_at)
            self.resumed_at = [*kept.get("resumed_at", []), state.global_step]
            self.before = kept.get("seconds", math.nan)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave the time where the next checkpoint takes it along."""
        state.stateful_callbacks[KEY] = {
            "started_at": self.started_at,
            "resumed_at": self.resumed_at,
            "seconds": self.before + monotonic() - self.began,
        }

    def whole_run(
        self, metrics: dict[str, float], log: list[dict[str, Any]], step: int, batch: int
    ) -> dict[str, float]:
        """Make the Trainer's metrics of the steps since the last start those of the whole run."""
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
    """The mean of the loss over the logged steps; an entry is the mean since the one before it.

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
