"""Decide whether the challenger is better: by our rules, and by those duels are modelled on.

The original rules take one order (the king first); averages over turns, then metrics, then judges;
a bootstrap over single turns. Two defects are part of the rules: turns of one task count as
independent, and a turn without a readable judgment is left out of the score but counts as lost in
the bound.
"""

from dataclasses import dataclass

import numpy as np

from pimono_sdpo.stats import cluster_interval
from processors.duel.scores import Array, Votes, nan_mean

PARITY = 50.0


@dataclass(frozen=True, slots=True)
class Rules:
    """The conditions for accepting a challenger.

    `win_margin` is in points above parity, `alpha` is the chance of accepting an equal challenger,
    `min_parsed` the smallest share of turns with a score, `min_clusters` the smallest number of
    tasks, `draws` the number of bootstrap resamples.
    """

    win_margin: float = 5.0
    alpha: float = 0.05
    min_parsed: float = 0.9
    min_clusters: int = 30
    both_orders: bool = True
    min_judges: int = 2
    draws: int = 9999
    seed: int = 42


@dataclass(frozen=True, slots=True)
class Verdict:
    """`score` and `bound` are points; `bound` is the lower bound of the mean score.

    `refusals` lists the conditions that failed, empty when accepted. `if_lost` is the score if the
    challenger had lost every turn without a score.
    """

    score: float
    bound: float
    turns: int
    scored: int
    clusters: int
    if_lost: float
    refusals: tuple[str, ...]

    @property
    def accepted(self) -> bool:
        """Whether every condition holds."""
        return not self.refusals


def decide_duel(
    turn_scores: Array, instances: tuple[str, ...], rules: Rules, unanswered: int = 0
) -> Verdict:
    """Return the verdict on scores (turns,) of 0 to 100; nan is a turn without a score.

    `unanswered` is the number of further turns without a score, on which a player gave nothing to
    judge: a player that fails often must not be judged by the other turns alone.

    Turns of one instance are alike, so the bound resamples instances (BCa, one-sided). Resampling
    single turns accepts equal players about twice as often as it should.
    """
    there = ~np.isnan(turn_scores)
    clusters: dict[str, list[float]] = {}
    for instance, score in zip(instances, turn_scores, strict=True):
        if not np.isnan(score):
            clusters.setdefault(instance, []).append(float(score))
    level = 1 - 2 * rules.alpha
    found = cluster_interval(list(clusters.values()), level, rules.draws, rules.seed)
    scored = int(there.sum())
    turns = len(turn_scores) + unanswered
    parsed = scored / turns if turns else 0.0
    refusals = []
    if not scored:
        refusals.append("no turn has a score")
    elif not found.mean - PARITY >= rules.win_margin:
        refusals.append(
            f"the score {found.mean:.1f} is not {rules.win_margin:g} points above {PARITY:g}"
        )
    if scored and not found.low > PARITY:
        refusals.append(f"the lower bound {found.low:.1f} is not above {PARITY:g}")
    if not parsed >= rules.min_parsed:
        refusals.append(f"{parsed:.0%} of the turns have a score, not {rules.min_parsed:.0%}")
    if len(clusters) < rules.min_clusters:
        refusals.append(f"{len(clusters)} tasks are fewer than {rules.min_clusters}")
    return Verdict(
        score=found.mean,
        bound=found.low,
        turns=turns,
        scored=scored,
        clusters=len(clusters),
        if_lost=float(np.nansum(turn_scores) / turns) if turns else np.nan,
        refusals=tuple(refusals),
    )


@dataclass(frozen=True, slots=True)
class AlbedoRules:
    """The original thresholds; `win_margin` is challenger minus king, in points."""

    win_margin: float = 2.0
    gate_alpha: float = 0.05
    min_valid_turn_frac: float = 0.5
    bootstrap_resamples: int = 10_000
    seed: bytes = b"\0" * 8


@dataclass(frozen=True, slots=True)
class AlbedoVerdict:
    """Scores are points, `mean_delta` and `lcb` shares; `lcb` is None if too few turns parsed."""

    accepted: bool
    challenger_score: float
    king_score: float
    by_judge: dict[str, float]
    by_metric: tuple[float, ...]
    valid: int
    turns: int
    mean_delta: float
    lcb: float | None


def mean_turn_shares(votes: Votes) -> Array:
    """Return each turn's mean over its readable judges, 0 to 1, and 0 where there are none."""
    judges = np.round(nan_mean(votes.values[:, :, 0], axis=2), 6)
    return np.nan_to_num(nan_mean(judges, axis=1), nan=0.0)


def decide_by_albedo_rules(votes: Votes, rules: AlbedoRules) -> AlbedoVerdict:
    """Return the verdict on the votes of order 0."""
    single = votes.values[:, :, 0]
    metric_means = nan_mean(single, axis=0)
    judge_means = nan_mean(metric_means, axis=1)
    parsed = ~np.any(np.isnan(single), axis=2)
    valid, turns = int(np.all(parsed, axis=1).sum()), len(votes.turns)
    present = ~np.isnan(judge_means)
    score = round(float(100 * judge_means[present].mean()), 4) if present.any() else 0.0
    king = round(100 - score, 4) if present.any() else 0.0
    deltas = mean_turn_shares(votes) - 0.5
    bound = None
    if turns and valid / turns >= rules.min_valid_turn_frac:
        bound = _lower_bound(deltas, rules)
    return AlbedoVerdict(
        accepted=bound is not None and score - king >= rules.win_margin and bound > 0,
        challenger_score=score,
        king_score=king,
        by_judge={
            name: round(100 * float(value), 4)
            for name, value in zip(votes.judges, judge_means, strict=True)
            if not np.isnan(value)
        },
        by_metric=tuple(round(100 * float(value), 4) for value in nan_mean(metric_means, axis=0)),
        valid=valid,
        turns=turns,
        mean_delta=float(deltas.mean()) if turns else 0.0,
        lcb=bound,
    )


def _lower_bound(deltas: Array, rules: AlbedoRules) -> float:
    entropy = int.from_bytes(rules.seed[:8], "little")
    rng = np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(entropy)))
    turns, rounds = len(deltas), rules.bootstrap_resamples
    # In batches, which gives the same draws as all at once.
    batch = max(1, 1_000_000 // turns)
    sizes = [min(batch, rounds - start) for start in range(0, rounds, batch)]
    means = [deltas[rng.integers(0, turns, size=(size, turns))].mean(axis=1) for size in sizes]
    return float(np.quantile(np.concatenate(means), rules.gate_alpha))
