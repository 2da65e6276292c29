"""Fit the weights of the worth of a row to rows that readers have scored.

    python -m benchmarks.fit_worth

Reads tests/data/evidence/worth.csv and prints the weights for processors/keep.py. Then it predicts
each repository with weights fitted to the others and prints, at several thresholds, the share of
kept rows that are worth training on (score above 50), the share that are at least borderline (above
40), and the share of the worthwhile rows that are kept. A row is fitted to the mean score of its
readers, which is the probability that a second reader calls it worth training on.
"""

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pimono_sdpo.stats import wilson_interval
from processors.keep import LOG_ODDS

LABELS = Path(__file__).parent.parent / "tests" / "data" / "evidence" / "worth.csv"
RIDGE = 3.0
WORTH, BORDERLINE = 0.5, 0.4

Array = npt.NDArray[np.float64]


def read_labels() -> tuple[Array, Array, list[str]]:
    """Return 1 and the properties of each row, its mean score from 0 to 1, and its repository."""
    scores = defaultdict[tuple[str, str, str], list[float]](list)
    described: dict[tuple[str, str, str], list[float]] = {}
    with LABELS.open(newline="") as file:
        for row in csv.DictReader(file):
            key = (row["repository"], row["path"], row["episode"])
            scores[key].append(float(row["score"]) / 100)
            described[key] = [1.0, *(float(row[name]) for name in LOG_ODDS)]
    means = [sum(given) / len(given) for given in scores.values()]
    return np.array([described[key] for key in scores]), np.array(means), [key[0] for key in scores]


def fit(described: Array, scores: Array) -> Array:
    """Return intercept and weights of a logistic regression with an L2 penalty, by Newton's method."""
    weights = np.zeros(described.shape[1])
    penalty = np.diag([0.01, *[RIDGE] * (len(weights) - 1)])
    for _ in range(30):
        predicted = predict(described, weights)
        gradient = described.T @ (predicted - scores) + penalty @ weights
        hessian = (described * (predicted * (1 - predicted))[:, None]).T @ described + penalty
        weights -= np.linalg.solve(hessian, gradient)
    return weights


def predict(described: Array, weights: Array) -> Array:
    """Return the probability of each row."""
    return np.asarray(1 / (1 + np.exp(-described @ weights)))


def main() -> None:
    """Print the weights and how well they predict repositories that they were not fitted to."""
    described, scores, repositories = read_labels()
    names = np.array(repositories)
    predicted = np.zeros(len(scores))
    for name in set(repositories):
        here = names == name
        predicted[here] = predict(described[here], fit(described[~here], scores[~here]))
    for name, weight in zip(("intercept", *LOG_ODDS), fit(described, scores), strict=True):
        print(f"{name:20} {weight:6.2f}")
    worth = scores > WORTH
    pairs = predicted[worth][:, None] - predicted[~worth]
    print(f"{len(scores)} rows of {len(set(repositories))} repositories, {worth.mean():.0%} worth training on")
    print(f"AUC {((pairs > 0) + (pairs == 0) / 2).mean():.3f}")
    for threshold in (0.0, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6):
        kept = predicted >= threshold
        good = wilson_interval(int(worth[kept].sum()), int(kept.sum()))
        found = wilson_interval(int(worth[kept].sum()), int(worth.sum()))
        print(
            f"from {threshold:.2f}: {kept.mean():.0%} kept,"
            f" {good.mean:.0%} [{good.low:.0%}, {good.high:.0%}] of them worth it,"
            f" {(scores[kept] > BORDERLINE).mean():.0%} with borderline rows,"
            f" {found.mean:.0%} [{found.low:.0%}, {found.high:.0%}] of the worthwhile ones"
        )


if __name__ == "__main__":
    main()
