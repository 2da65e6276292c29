"""Fit the weights of the worth of a row to rows that were judged by hand.

    python -m tests.benchmarks.fit_worth

Reads tests/data/evidence/worth.csv and prints the weights for processors/keep.py and, at several
thresholds, the share of the kept rows that are worth training on and the share of these that are
kept; each repository is predicted by weights fitted to the others.
"""

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pimono_sdpo.stats import wilson_interval
from processors.keep import LOG_ODDS

LABELS = Path(__file__).parent.parent / "data" / "evidence" / "worth.csv"
PULL = 1.0

Array = npt.NDArray[np.float64]


def read_labels() -> tuple[Array, Array, list[str]]:
    """Return the properties of each row with a leading 1, its label and its repository."""
    with LABELS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    described = [[1.0, *(float(row[name]) for name in LOG_ODDS)] for row in rows]
    worth = [float(row["worth"] == "y") for row in rows]
    return np.array(described), np.array(worth), [row["repository"] for row in rows]


def fit(described: Array, worth: Array) -> Array:
    """Return the intercept and the weights of a logistic regression pulled towards 0."""
    weights = np.zeros(described.shape[1])
    pull = np.diag([0.01, *[PULL] * (len(weights) - 1)])
    for _ in range(30):
        likely = predict(described, weights)
        slope = described.T @ (likely - worth) + pull @ weights
        bend = (described * (likely * (1 - likely))[:, None]).T @ described + pull
        weights -= np.linalg.solve(bend, slope)
    return weights


def predict(described: Array, weights: Array) -> Array:
    """Return the probability of each row."""
    return np.asarray(1 / (1 + np.exp(-described @ weights)))


def main() -> None:
    """Print the weights and what they are worth on repositories they were not fitted to."""
    described, worth, repositories = read_labels()
    names = np.array(repositories)
    likely = np.zeros(len(worth))
    for name in set(repositories):
        here = names == name
        likely[here] = predict(described[here], fit(described[~here], worth[~here]))
    for name, weight in zip(("intercept", *LOG_ODDS), fit(described, worth), strict=True):
        print(f"{name:20} {weight:6.2f}")
    print(
        f"{len(worth)} rows of {len(set(repositories))} repositories, {worth.mean():.0%} worth it"
    )
    for threshold in (0.0, 0.5, 0.6, 0.65, 0.7, 0.75):
        kept = likely >= threshold
        good = wilson_interval(int(worth[kept].sum()), int(kept.sum()))
        found = wilson_interval(int(worth[kept].sum()), int(worth.sum()))
        print(
            f"from {threshold:.2f}: {kept.sum()} kept, {good.mean:.0%} [{good.low:.0%}, {good.high:.0%}]"
            f" of them worth it, {found.mean:.0%} [{found.low:.0%}, {found.high:.0%}] of what is"
        )


if __name__ == "__main__":
    main()
