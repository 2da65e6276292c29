"""Tell from what a trainer logs whether a training still learns. Plain numbers, no Trainer.

reads self_distillation/{reward_mean, reprompt_sample_fraction, flat_group_fraction,
distillation_loss}, completions/clipped_ratio and grad_norm, as TRL 1.16 logs them, over all
processes
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean, median

GUARDS = ("reward_collapse", "dead_reprompts", "flat_groups", "loss_spike", "clipped")
REWARD = "self_distillation/reward_mean"
REPROMPTED = "self_distillation/reprompt_sample_fraction"
FLAT = "self_distillation/flat_group_fraction"
LOSS = "self_distillation/distillation_loss"
CLIPPED = "completions/clipped_ratio"
GRADIENT = "grad_norm"
# Of a mean over the window, by the noise from step to step: with 5, a reward that never changes
# raised an alert in at most 2 of 100 simulated runs of 1000 steps (with 3, in up to 100).
STANDARD_ERRORS = 5
# What a running median is taken of, and from how many values on it means something.
MEDIAN_OF, MEDIAN_FROM = 50, 8
ALL_CLIPPED = 0.99


@dataclass
class Rewards:
    """The moving mean of the reward and the best it has been; it collapses below a share of that.

    The fall must also be more than noise, which is known from the differences of neighbours: those
    hardly see a trend.
    """

    window: int
    share: float
    recent: list[float] = field(default_factory=list)
    best: float | None = None
    best_step: int = 0
    count: int = 0
    squares: float = 0.0
    fallen: bool = False

    def add(self, step: int, reward: float) -> bool:
        """Take a reward in; True when the mean has just fallen."""
        if self.recent:
            self.count += 1
            self.squares += (reward - self.recent[-1]) ** 2
        self.recent = [*self.recent, reward][-self.window :]
        mean = self.mean()
        if mean is None:
            return False
        if self.best is None or mean > self.best:
            self.best, self.best_step = mean, step
        before, self.fallen = self.fallen, self._is_fallen(mean, self.best)
        return self.fallen and not before

    def mean(self) -> float | None:
        """Return the mean over the window; None until it is full."""
        return fmean(self.recent) if len(self.recent) == self.window else None

    def _is_fallen(self, mean: float, best: float) -> bool:
        variance = self.squares / 2 / max(self.count, 1)
        noise = math.sqrt(2 * variance / self.window)
        return best > 0 and mean < self.share * best and best - mean > STANDARD_ERRORS * noise


@dataclass
class Streak:
    """How often in a row something held; it raises once, when `limit` is reached (0: never)."""

    limit: int
    length: int = 0

    def add(self, holds: bool) -> bool:
        """Take an observation in; True when the limit has just been reached.

        >>> streak = Streak(2)
        >>> [streak.add(holds) for holds in (True, True, True, False, True, True)]
        [False, True, False, False, False, True]
        """
        self.length = self.length + 1 if holds else 0
        return self.length == self.limit > 0


@dataclass
class Spikes:
    """The loss beside its running median; sampled-token losses have a sign, so sizes count."""

    factor: float
    recent: list[float] = field(default_factory=list)
    high: bool = False

    def add(self, loss: float | None) -> bool:
        """Take a loss in, None when it was NaN; True when it has just jumped (factor 0: never)."""
        finite = loss is not None and math.isfinite(loss)
        usual = self.usual()
        before = self.high
        self.high = not finite or (usual is not None and abs(loss or 0.0) > self.factor * usual)
        # Steps without a teacher have no loss and say nothing about its size.
        if finite and loss:
            self.recent = [*self.recent, abs(loss)][-MEDIAN_OF:]
        return self.factor > 0 and self.high and not before

    def usual(self) -> float | None:
        """Return the running median; None while there are too few values."""
        return median(self.recent) if len(self.recent) >= MEDIAN_FROM else None


@dataclass
class Detectors:
    """All of them, with the state of each; `add` turns one log entry into alerts."""

    rewards: Rewards
    dead: Streak
    flat: Streak
    clipped: Streak
    spikes: Spikes
    loss: str = LOSS

    def add(self, step: int, logs: Mapping[str, float | None]) -> dict[str, str]:
        """Return a sentence for each guard that has just been raised."""
        found: dict[str, str] = {}
        reward, usual = logs.get(REWARD), self.spikes.usual()
        if reward is not None and math.isfinite(reward) and self.rewards.add(step, reward):
            found["reward_collapse"] = (
                f"The mean of the last {self.rewards.window} rewards is {self.rewards.mean():.3g}, "
                f"after {self.rewards.best:.3g} at step {self.rewards.best_step}; best/ "
                "has the adapter of the best checkpoint, if one was written; lower learning_rate "
                "or teacher_update_rate."
            )
        if REPROMPTED in logs and self.dead.add(logs[REPROMPTED] == 0):
            found["dead_reprompts"] = (
                f"Nothing was learned {self.dead.limit} times in a row: no completion reached "
                "success_reward_threshold and none got feedback; lower the threshold, or give rows "
                "with feedback."
            )
        if FLAT in logs and self.flat.add((logs[FLAT] or 0.0) >= 1.0):
            found["flat_groups"] = (
                f"All completions of every prompt got the same reward {self.flat.limit} times in a "
                "row, so that the reward tells nothing; check the reward, or raise temperature or "
                "num_generations."
            )
        # TRL leaves NaN out of the means it logs; the norm of the gradients keeps it.
        broken = not math.isfinite(logs.get(GRADIENT) or 0.0)
        loss = None if broken else logs.get(self.loss)
        if self.loss in logs and self.spikes.add(loss):
            found["loss_spike"] = (
                f"The loss (`{self.loss}`) is {loss:.3g}, its running median {usual:.3g}"
                if loss is not None and usual is not None
                else "The loss or its gradient is no finite number"
            ) + "; lower learning_rate or max_grad_norm."
        if CLIPPED in logs and self.clipped.add((logs[CLIPPED] or 0.0) >= ALL_CLIPPED):
            found["clipped"] = (
                f"All completions ran into max_completion_length {self.clipped.limit} times in a "
                "row; raise it, or check that the model ends its turn."
            )
        return found
