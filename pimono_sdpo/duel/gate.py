"""Decide whether the challenger is better: a margin, a lower bound, enough readable turns."""

from dataclasses import dataclass

import numpy as np

from pimono_sdpo.stats import cluster_interval
from processors.duel.scores import Array

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
