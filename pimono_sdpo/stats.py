"""Compute confidence intervals of a proportion, and of a mean over clusters such as completions of a session."""

from collections.abc import Sequence
from math import isnan, nan
from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """A mean and the bounds of its confidence interval; nan if there are too few data."""

    mean: float
    low: float
    high: float

    def as_json(self) -> dict[str, float | None]:
        """Return the numbers by name, with None for nan."""
        return {name: None if isnan(value) else value for name, value in self._asdict().items()}


def cluster_interval(
    clusters: Sequence[Sequence[float]], level: float = 0.95, draws: int = 2000, seed: int = 0
) -> Interval:
    """Return the mean over all values and its BCa bootstrap interval from resampled clusters.

    Values of one cluster are correlated, so resampling single values would make the interval too
    narrow. If all clusters have the same mean, BCa is undefined and the interval is the mean itself.
    Sources: Efron, Better Bootstrap Confidence Intervals, 1987; Field and Welsh, Bootstrapping
    Clustered Data, 2007.
    """
    from scipy import stats

    filled = [cluster for cluster in clusters if len(cluster)]
    if not filled:
        return Interval(nan, nan, nan)
    sums = np.array([float(sum(cluster)) for cluster in filled])
    counts = np.array([len(cluster) for cluster in filled])
    mean = float(sums.sum() / counts.sum())
    if len(filled) < 2:
        return Interval(mean, nan, nan)
    if np.ptp(sums / counts) == 0:
        return Interval(mean, mean, mean)
    interval = stats.bootstrap(
        (sums, counts),
        lambda total, number, axis: total.sum(axis=axis) / number.sum(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=draws,
        confidence_level=level,
        method="BCa",
        rng=np.random.default_rng(seed),
        # As many resamples at a time as fit into about 30 MB.
        batch=max(1, 2_000_000 // len(filled)),
    ).confidence_interval
    return Interval(mean, float(interval.low), float(interval.high))


def wilson_interval(successes: int, trials: int) -> Interval:
    """Return the proportion of successes and its Wilson score interval at 95 %.

    Source: Wilson, Probable Inference, the Law of Succession, and Statistical Inference, 1927.
    """
    from scipy import stats

    if not trials:
        return Interval(nan, nan, nan)
    interval = stats.binomtest(successes, trials).proportion_ci(0.95, "wilson")
    return Interval(successes / trials, float(interval.low), float(interval.high))
