"""Decide whether the challenger is better: a group sequential test, and the original fixed-sample rules.

Each turn, one per task, is read by one judge in one order; after each of up to five planned looks
the challenger is accepted, the duel is stopped for futility, or it continues. The effects of judge
severity and answer position are estimated from the same calls and subtracted. Turns of one
repository are correlated, so repositories are the independent units.

Sources: Kim and DeMets, Design and analysis of group sequential tests based on the type I error
spending rate function, 1987; Jennison and Turnbull, Group Sequential Methods, 1999, chapters 7, 19.

The original rules use one order (the king first); average over turns, then metrics, then judges; and bootstrap
single turns. They have two known defects: turns of one task count as independent, and a turn without a readable
judgment is left out of the score but counts as lost in the bound.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from pimono_sdpo.llm.settings import Duel, Gate
from pimono_sdpo.schema import PARITY
from processors.duel.judge import Array, nan_mean

# Shares of the planned turns after which a look is taken.
LOOKS = (1 / 6, 0.3, 0.47, 0.7, 1.0)
# A look with a t-value below this stops the duel. The boundary is non-binding: continuing anyway
# does not raise the chance of a false acceptance.
FUTILITY = (-1.2, -0.6, -0.2, 0.2)
# Exponent of the spending function alpha * t ** SPENDING.
SPENDING = 1.5
# A repository of n tasks has the weight n / (1 + SIMILARITY * (n - 1)), at most that of five tasks.
SIMILARITY = 0.2
# A judge this many standard errors above the others is outlying: the verdict must hold without it.
OUTLYING = 2.5
# Without any other judge, the score must be this many standard errors above parity.
WITHOUT = 0.5
# The settings of the original rules.
THRESHOLDS = ("win_margin", "gate_alpha", "min_valid_turn_frac", "bootstrap_resamples")

Unit = Literal["repo", "task"]
Json = dict[str, Any]


class Estimate(NamedTuple):
    """A mean score, its standard error, degrees of freedom and effective number of clusters; nan if unknown."""

    mean: float
    error: float
    freedom: float
    clusters: float

    def find_margin(self, z: float) -> float:
        """Return the margin of error at the t-value with the same tail probability as `z`."""
        return float(stats.t.isf(stats.norm.sf(z), max(self.freedom, 1))) * self.error


def choose_unit(repos: Sequence[str], cluster: Literal["auto", "repo", "task"]) -> Unit:
    """Return the unit of independence; all turns without a repository count as one repository."""
    if cluster != "auto":
        return cluster
    return "repo" if len({repo for repo in repos if repo}) > 1 else "task"


def weigh_clusters(sizes: Sequence[int] | NDArray[np.int64]) -> Array:
    """Return the weights, which sum to 1, of clusters of these sizes; large clusters do not dominate."""
    counts = np.asarray(sizes, float)
    weights = counts / (1 + SIMILARITY * (counts - 1))
    shares: Array = weights / weights.sum()
    return shares


def count_effective(clusters: Sequence[str]) -> float:
    """Return the effective number of clusters, given the cluster of each turn."""
    if not clusters:
        return 0.0
    return float(1 / (weigh_clusters(list(Counter(clusters).values())) ** 2).sum())


@cache
def find_boundaries(shares: tuple[float, ...], alpha: float) -> list[float]:
    """Return the z-value to exceed at each look, taken after these shares of the information.

    Without an effect, the chance of exceeding any of them is `alpha`. Computed by integrating the
    density of paths that have not crossed yet (Armitage, McPherson and Rowe 1969).

    >>> [round(z, 2) for z in find_boundaries((1.0,), 0.05)]
    [1.64]
    """
    grid = np.linspace(-8, 8, 1601)
    step = grid[1] - grid[0]
    boundaries: list[float] = []
    density: Array | None = None
    before = 0.0
    for share in shares:
        spread = np.sqrt(share - before)
        spent = alpha * (share**SPENDING - before**SPENDING)
        if density is None:
            moved = stats.norm.pdf(grid / spread) / spread
        else:
            steps = stats.norm.pdf((grid[:, None] - grid) / spread) / spread
            moved = steps @ density * step
        tail = (np.cumsum(moved[::-1])[::-1] - moved / 2) * step
        bound = float(np.interp(-spent, -tail, grid))
        boundaries.append(float(bound / np.sqrt(share)))
        density = np.where(grid < bound, moved, 0.0)
        before = share
    return boundaries


def adjust_scores(scores: Array) -> Array:
    """Return the scores without the effects of judge and position: every judge and order gets the same mean."""
    means = nan_mean(scores, axis=0)
    adjusted: Array = scores - means + mean_of(means)
    return adjusted


def estimate_score(scores: Array, clusters: Sequence[str]) -> Estimate:
    """Return the weighted mean over clusters; `clusters` has the cluster of each turn."""
    by_turn = nan_mean(adjust_scores(scores), axis=(1, 2))
    scored = ~np.isnan(by_turn)
    by_turn = by_turn[scored]
    if not len(by_turn):
        return Estimate(np.nan, np.nan, 0.0, 0.0)
    names, cluster_of = np.unique(np.asarray(clusters)[scored], return_inverse=True)
    sizes = np.bincount(cluster_of)
    means = np.bincount(cluster_of, by_turn) / sizes
    weights = weigh_clusters(sizes)
    mean, squares = float(weights @ means), float((weights**2).sum())
    # The means of judges and orders were estimated from the same calls.
    free = 1 - (_count_seats(scores) - 1) / len(by_turn)
    if len(names) < 2 or free <= 1 / len(by_turn):
        return Estimate(mean, np.nan, 0.0, 1 / squares)
    variance = float((weights**2 * (means - mean) ** 2).sum()) / (1 - squares)
    return Estimate(mean, float(np.sqrt(variance / free)), free / squares - 1, 1 / squares)


def _count_seats(scores: Array) -> int:
    return int(np.isfinite(scores).any(axis=0).sum())


def describe_judges(scores: Array, names: Sequence[str]) -> list[Json]:
    """Return for each judge its calls, its score, its bias towards the first answer, and the score without it.

    A judge is outlying if it scores more than OUTLYING standard errors above the others. The spread is that within
    judges and orders, because a judge that always gives the same score has no spread of its own.
    """
    residuals = adjust_scores(scores)
    residuals = residuals[~np.isnan(residuals)]
    free = len(residuals) - _count_seats(scores)
    spread = float(residuals.std() * np.sqrt(len(residuals) / free)) if free > 0 else np.nan
    judges = []
    for index, name in enumerate(names):
        ours, others = scores[:, index], np.delete(scores, index, axis=1)
        first, second = map(mean_of, ours.T)
        score, without = (mean_of(nan_mean(part, axis=0)) for part in (ours, others))
        counts = np.isfinite(ours).sum(), np.isfinite(others).sum()
        error = spread * np.sqrt(1 / counts[0] + 1 / counts[1]) if all(counts) else np.nan
        judge = {"name": name, "calls": counts[0], "score": score, "first_bias": (second - first) / 2}
        judges.append({**judge, "without": without, "outlying": bool(score - without > OUTLYING * error)})
    return judges


def mean_of(values: NDArray[Any]) -> float:
    """Return the mean of the values that are not nan, or nan if there are none."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else np.nan


def decide(
    scores: Array,
    names: Sequence[str],
    clusters: Sequence[str],
    unit: Unit,
    looks: Sequence[int],
    look: int,
    rules: Gate,
    unanswered: int = 0,
) -> Json:
    """Return the verdict of the look number `look`, from 0; `looks` has the turns before each look.

    `scores` has the shape (turns, judges, 2 orders), nan where nobody was asked or the reply could not be read;
    order 0 shows the opponent first. `clusters` has the cluster of each turn. `unanswered` is the number of turns
    without an answer to judge: a player that often fails must not be judged by the other turns alone.

    In the verdict, `low` and `high` bound the mean score at the error that the look may spend, `clusters` is the
    effective number of `unit`, and `if_lost` is the score if every turn without a readable judgment counts as lost.
    Unknown values are None.
    """
    estimate = estimate_score(scores, clusters)
    z = find_boundaries(tuple(turns / looks[-1] for turns in looks), rules.alpha)[look]
    margin = estimate.find_margin(z)
    low, high = np.clip([estimate.mean - margin, estimate.mean + margin], 0, 100).tolist()
    by_turn = nan_mean(scores, axis=(1, 2))
    scored, turns = int(np.isfinite(by_turn).sum()), len(clusters) + unanswered
    judges = describe_judges(scores, names)
    ratings = adjust_scores(scores).reshape(len(scores), 2 * len(names))
    agreement, pairs = krippendorff_alpha(ratings.T), int((np.isfinite(ratings).sum(axis=1) > 1).sum())

    reasons = []
    # Adding 0.0 turns -0.0 into 0.0.
    lead = round(2 * (estimate.mean - PARITY), 6) + 0.0
    if lead < 0:
        reasons.append(f"the challenger trails by {-lead:.1f} points")
    elif not lead >= rules.win_margin:
        reasons.append(f"the challenger leads by {lead:.1f} points, fewer than {rules.win_margin:g}")
    if np.isnan(low):
        reasons.append("there are too few turns for a lower bound")
    elif not low > PARITY:
        reasons.append(f"the lower bound {low:.1f} is not above {PARITY:g}")
    if scored < rules.min_parsed * turns:
        share = f"{scored / turns:.0%} of the turns have a readable judgment"
        reasons.append(f"{share}, fewer than {rules.min_parsed:.0%}")
    if len(judges) > 1:
        reasons += [_doubt_judge(scores, index, judge, clusters, z) for index, judge in enumerate(judges)]
    # Fewer pairs say nothing about the judges' agreement.
    if pairs > 3 and np.tanh(np.arctanh(min(agreement, 0.999)) + 1.645 / np.sqrt(pairs - 3)) < 0:
        reasons.append(f"the judges agree less than by chance (alpha {agreement:.2f})")
    reasons = list(filter(None, reasons)) if scored else ["no turn has a readable judgment"]

    missing = max(0, int(np.ceil(rules.min_clusters - estimate.clusters - 1e-9)))
    last = look == len(looks) - 1
    conclusion = "open"
    if missing or len(names) < 2:
        conclusion = "no verdict" if last else "open"
    elif not reasons:
        conclusion = "accepted"
    elif last or estimate.mean - PARITY < FUTILITY[look] * estimate.error:
        conclusion = "not accepted"
    return to_json(
        {
            "conclusion": conclusion,
            "look": look + 1,
            "looks": len(looks),
            "score": estimate.mean,
            "low": low,
            "high": high,
            "turns": turns,
            "scored": scored,
            "calls": np.isfinite(scores).sum(),
            "unit": unit,
            "clusters": estimate.clusters,
            "missing_clusters": missing,
            "if_lost": np.nansum(by_turn) / turns if turns else None,
            "agreement": agreement,
            "agreement_turns": pairs,
            "judges": judges,
            "reasons": reasons,
        }
    )


def _doubt_judge(scores: Array, index: int, judge: Json, clusters: Sequence[str], z: float) -> str:
    """Return why the verdict would not hold without a judge, or "" if it would."""
    name, without = judge["name"], judge["without"]
    if np.isnan(without):
        return f"only judgments of {name} can be read"
    if not without > PARITY:
        return f"without {name} the score is {without:.1f}"
    rest = estimate_score(np.delete(scores, index, axis=1), clusters)
    bound = rest.mean - rest.find_margin(z)
    if judge["outlying"] and not bound > PARITY:
        score = f"{name} scores {judge['score']:.1f}, far above the other judges"
        return f"{score}, and without it the lower bound is {bound:.1f}"
    if not judge["outlying"] and not rest.mean - WITHOUT * rest.error > PARITY:
        return f"without {name} the score is {rest.mean:.1f}, within {WITHOUT:g} standard errors of {PARITY:g}"
    return ""


def krippendorff_alpha(ratings: Array) -> float:
    """Return Krippendorff's alpha for interval data, ratings (raters, units), nan where missing.

    1 is perfect agreement, 0 agreement by chance. Units with fewer than two ratings are left out.
    nan when nothing can be compared, 1 when all ratings are equal. Source: Krippendorff, Content
    Analysis, 4th ed. 2019, chapter 12.

    >>> krippendorff_alpha(np.array([[1.0, 2, 3, 4], [1, 2, 3, 4]]))
    1.0
    """
    count = (~np.isnan(ratings)).sum(axis=0)
    units = count >= 2
    if not units.any():
        return float("nan")
    values, count = np.nan_to_num(ratings[:, units]), count[units]
    total, squares = values.sum(axis=0), (values**2).sum(axis=0)
    # The sum of squared differences of all pairs of n values is 2 (n sum(x^2) - sum(x)^2).
    observed = float((2 * (count * squares - total**2) / (count - 1)).sum())
    n, t, s = int(count.sum()), float(total.sum()), float(squares.sum())
    expected = 2 * (n * s - t**2) / (n - 1)
    if expected <= 0:
        return 1.0
    return 1 - observed / expected


def decide_by_original_rules(votes: Array, rules: Duel) -> Json:
    """Return the original verdict on the votes of order 0; `lcb` is a share, None if too few turns parsed."""
    single = votes[:, :, 0]
    judge_means = nan_mean(nan_mean(single, axis=0), axis=1)
    present = ~np.isnan(judge_means)
    score = round(float(100 * judge_means[present].mean()), 4) if present.any() else 0.0
    king = round(100 - score, 4) if present.any() else 0.0
    turns = len(votes)
    valid = int((~np.any(np.isnan(single), axis=(1, 2))).sum())
    # A turn without a readable judgment counts as lost.
    shares = nan_mean(np.round(nan_mean(single, axis=2), 6), axis=1)
    deltas = np.nan_to_num(shares, nan=0.0) - 0.5
    bound = None
    if turns and valid / turns >= rules.min_valid_turn_frac:
        rng = np.random.Generator(np.random.PCG64DXSM(np.random.SeedSequence(0)))
        # In batches, which gives the same draws as all at once.
        batch, rounds = max(1, 1_000_000 // turns), rules.bootstrap_resamples
        sizes = [min(batch, rounds - start) for start in range(0, rounds, batch)]
        means = [deltas[rng.integers(0, turns, size=(size, turns))].mean(axis=1) for size in sizes]
        bound = float(np.quantile(np.concatenate(means), rules.gate_alpha))
    return to_json(
        {
            "accepted": bound is not None and score - king >= rules.win_margin and bound > 0,
            "challenger_score": score,
            "king_score": king,
            "valid": valid,
            "turns": turns,
            "lcb": bound,
            "rules": {name: getattr(rules, name) for name in THRESHOLDS},
        }
    )


def to_json(values: object) -> Json:
    """Return the values as JSON has them; nan and infinity become None."""
    encoded = msgspec.json.encode(values, enc_hook=lambda number: number.item())
    decoded: Json = msgspec.json.decode(encoded)
    return decoded
