"""Is the challenger better: a margin, a lower bound over tasks, and enough that could be read."""

from dataclasses import dataclass

import numpy as np

from pimono_sdpo.stats import cluster_interval
from processors.duel.scores import Array

PARITY = 50.0


@dataclass(frozen=True, slots=True)
class Rules:
    """What must hold for a challenger to be accepted.

    `win_margin` are points above parity, `alpha` the chance of accepting one that is no better,
    `min_parsed` the least share of turns with a score, `min_clusters` the fewest tasks, `draws`
    the bootstrap's resamples.
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
    """`score` and `bound` are points, `bound` that of the mean score from below.

    `refusals` says in sentences what did not hold; empty when accepted. `if_lost` is the score if
    the challenger had lost every turn that could not be read.
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
        """Whether everything held."""
        return not self.refusals


def judge_duel(
    turn_scores: Array, instances: tuple[str, ...], rules: Rules, unanswered: int = 0
) -> Verdict:
    """Return the verdict on scores (turns,) of 0 to 100; nan is a turn without a score.

    So are `unanswered` more turns, on which a player gave nothing that could be judged: one that
    fails often must not be judged by the rest alone.

    Turns of one instance are alike, so the bound resamples instances (BCa, one-sided): resampled
    turn by turn it accepts equals about twice as often as it should.
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
