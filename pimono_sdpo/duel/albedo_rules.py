"""The rules of the system that duels are modelled on, as they were, with their defects.

One order (the king first), metrics averaged over turns, then metrics, then judges; a bootstrap
over single turns. Two defects are kept, because they are part of the rules: turns of one task count
as independent, and a turn that no judge could be read on is left out of the score but counts as
lost in the bound.
"""

from dataclasses import dataclass

import numpy as np

from processors.duel.scores import Array, Votes, mean


@dataclass(frozen=True, slots=True)
class OriginalRules:
    """Thresholds as they were; `win_margin` is challenger minus king, in points."""

    win_margin: float = 2.0
    gate_alpha: float = 0.05
    min_valid_turn_frac: float = 0.5
    bootstrap_resamples: int = 10_000
    seed: bytes = b"\0" * 8


@dataclass(frozen=True, slots=True)
class OriginalVerdict:
    """Scores are points, `mean_delta` and `lcb` shares; `lcb` is None when too few turns parsed."""

    accepted: bool
    challenger_score: float
    king_score: float
    by_judge: dict[str, float]
    by_metric: tuple[float, ...]
    valid: int
    turns: int
    mean_delta: float
    lcb: float | None


def turn_shares(votes: Votes) -> Array:
    """Return each turn's mean over the judges that parsed, 0 to 1, and 0 where none did."""
    judges = np.round(mean(votes.values[:, :, 0], axis=2), 6)
    return np.nan_to_num(mean(judges, axis=1), nan=0.0)


def judge_duel(votes: Votes, rules: OriginalRules) -> OriginalVerdict:
    """Return the verdict on the votes of order 0."""
    single = votes.values[:, :, 0]
    metric_means = mean(single, axis=0)
    judge_means = mean(metric_means, axis=1)
    parsed = ~np.any(np.isnan(single), axis=2)
    valid, turns = int(np.all(parsed, axis=1).sum()), len(votes.turns)
    heard = ~np.isnan(judge_means)
    score = round(float(100 * judge_means[heard].mean()), 4) if heard.any() else 0.0
    king = round(100 - score, 4) if heard.any() else 0.0
    deltas = turn_shares(votes) - 0.5
    bound = None
    if turns and valid / turns >= rules.min_valid_turn_frac:
        bound = _bound(deltas, rules)
    return OriginalVerdict(
        accepted=bound is not None and score - king >= rules.win_margin and bound > 0,
        challenger_score=score,
        king_score=king,
        by_judge={
            name: round(100 * float(value), 4)
            for name, value in zip(votes.judges, judge_means, strict=True)
            if not np.isnan(value)
        },
        by_metric=tuple(round(100 * float(value), 4) for value in mean(metric_means, axis=0)),
        valid=valid,
        turns=turns,
        mean_delta=float(deltas.mean()) if turns else 0.0,
        lcb=bound,
    )


def _bound(deltas: Array, rules: OriginalRules) -> float:
    entropy = int.from_bytes(rules.seed[:8], "little")
    rng = np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(entropy)))
    turns, rounds = len(deltas), rules.bootstrap_resamples
    # Some at a time: the draws are the same as all at once.
    some = max(1, 1_000_000 // turns)
    sizes = [min(some, rounds - begun) for begun in range(0, rounds, some)]
    means = [deltas[rng.integers(0, turns, size=(size, turns))].mean(axis=1) for size in sizes]
    return float(np.quantile(np.concatenate(means), rules.gate_alpha))
