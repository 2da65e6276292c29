"""Fit the weights of the worth of a row to rows that were judged by hand.

    python -m tests.benchmarks.fit_worth

Reads tests/data/evidence/worth.csv and prints the weights for processors/keep.py and, at several
thresholds, the share of the kept rows that are worth training on, without and with the borderline
ones, and the share of these that are kept; each repository is predicted by weights fitted to the
others. The strict readers, who judged rows of which they knew nothing, count: how much more others
found worth it is fitted and left out. A borderline row counts half in the fit.
"""

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pimono_sdpo.stats import wilson_interval
from processors.keep import LOG_ODDS

LABELS = Path(__file__).parent.parent / "data" / "evidence" / "worth.csv"
PULL = 1.0
STRICT = {"reader 3", *(f"reader {number}" for number in range(5, 13)), "author 2"}
WORTH = {"y": 1.0, "b": 0.5, "n": 0.0}

Array = npt.NDArray[np.float64]


def read_labels() -> tuple[Array, Array, list[str], list[str]]:
    """Return the properties of each row, its label, its repository and its reader.

    Before the properties stands 1, behind them 1 for a reader who is not strict.
    """
    with LABELS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    readers = [row["judged_by"] for row in rows]
    described = [
        [1.0, *(float(row[name]) for name in LOG_ODDS), float(row["judged_by"] not in STRICT)] for row in rows
    ]
    worth = [WORTH[row["worth"]] for row in rows]
    return np.array(described), np.array(worth), [row["repository"] for row in rows], readers


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
    described, worth, repositories, readers = read_labels()
    names = np.array(repositories)
    strict = np.array([reader in STRICT for reader in readers])
    as_strict = described * [*[1.0] * (described.shape[1] - 1), 0.0]
    likely = np.zeros(len(worth))
    for name in set(repositories):
        here = names == name
        likely[here] = predict(as_strict[here], fit(described[~here], worth[~here]))
    for name, weight in zip(("intercept", *LOG_ODDS, "lenient"), fit(described, worth), strict=True):
        print(f"{name:20} {weight:6.2f}")
    print(f"{len(worth)} rows of {len(set(repositories))} repositories, {worth.mean():.0%} worth it")
    for threshold in (0.0, 0.45, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8):
        for who, chosen in (("all", strict | True), ("strict", strict)):
            kept = chosen & (likely >= threshold)
            good = wilson_interval(int((worth[kept] == 1).sum()), int(kept.sum()))
            found = wilson_interval(int((worth[kept] == 1).sum()), int((worth[chosen] == 1).sum()))
            print(
                f"{who} from {threshold:.2f}: {kept.sum()} kept,"
                f" {good.mean:.0%} [{good.low:.0%}, {good.high:.0%}] of them worth it,"
                f" {(worth[kept] > 0).mean():.0%} with borderline ones,"
                f" {found.mean:.0%} [{found.low:.0%}, {found.high:.0%}] of what is"
            )


if __name__ == "__main__":
    main()
