"""How well the worth of a row agrees with readers who did not see it.

    python -m benchmarks.worth            # figures, with intervals from resampling repositories
    python -m benchmarks.worth --write    # also the table by band that reports and cards show

Reads tests/data/evidence/worth.csv. Nothing is fitted: worth is log2(1 + own failures) + 2 x the probability of a
correction. A row is worth training on if the mean score of its readers is at least 50.
"""

import argparse
import csv
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from pimono_sdpo.report import WORTH_BANDS
from pimono_sdpo.stats import wilson_interval

LABELS = Path(__file__).parent.parent / "tests" / "data" / "evidence" / "worth.csv"
# The commit whose rows were read, and the lower ends of the bands.
COMMIT, FROM = "2753e072", (0.0, 1.0, 1.5, 2.0, 3.0)
GOOD = 50
# The share of rows that an earlier model kept.
BEST = 0.27
RESAMPLES, SEED = 1000, 42

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def read_labels() -> tuple[Floats, Bools, list[str]]:
    """Return of each row its worth, whether readers called it worth training on, and its repository."""
    scores = defaultdict[tuple[str, str, str], list[float]](list)
    worth: dict[tuple[str, str, str], float] = {}
    with LABELS.open(newline="") as file:
        for row in csv.DictReader(file):
            key = (row["repository"], row["path"], row["episode"])
            scores[key].append(float(row["score"]))
            worth[key] = np.log2(1 + int(row["own_failures"])) + 2 * float(row["probability"])
    is_good = [sum(given) / len(given) >= GOOD for given in scores.values()]
    return np.array([worth[key] for key in scores]), np.array(is_good), [repository for repository, _, _ in scores]


def measure(worth: Floats, is_good: Bools) -> tuple[float, float]:
    """Return the AUC, and the precision of the BEST share of the rows, where equal ones count by their share."""
    good, bad = int(is_good.sum()), int((~is_good).sum())
    auc = (rankdata(worth)[is_good].sum() - good * (good + 1) / 2) / (good * bad)
    count = round(BEST * len(worth))
    least = np.sort(worth)[-count]
    above, equal = worth > least, worth == least
    return float(auc), float((is_good[above].sum() + is_good[equal].mean() * (count - above.sum())) / count)


def write_bands(worth: Floats, is_good: Bools, repositories: int) -> str:
    """Return the table of bands as TOML."""
    lines = ["# Written by benchmarks/worth.py: the rows that readers called worth training on, by worth.", ""]
    lines += [f'commit = "{COMMIT}"', f"rows = {len(worth)}", f"repositories = {repositories}"]
    for low, high in pairwise((*FROM, np.inf)):
        here = is_good[(worth >= low) & (worth < high)]
        lines += ["", "[[bands]]", f"from = {low}", f"read = {len(here)}", f"good = {int(here.sum())}"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the table that reports and cards show")
    worth, is_good, repositories = read_labels()
    names, inverse = np.unique(repositories, return_inverse=True)
    members = [np.flatnonzero(inverse == number) for number in range(len(names))]
    draw = np.random.default_rng(SEED)
    drawn = []
    for _ in range(RESAMPLES):
        at = np.concatenate([members[one] for one in draw.integers(len(names), size=len(names))])
        drawn.append(measure(worth[at], is_good[at]))
    print(f"{len(worth)} rows of {len(names)} repositories, {is_good.mean():.1%} worth training on")
    names_of = ("AUC", f"precision of the best {BEST:.0%}")
    for name, value, resampled in zip(names_of, measure(worth, is_good), zip(*drawn, strict=True), strict=True):
        low, high = np.percentile(resampled, [2.5, 97.5])
        print(f"{name}: {value:.3f} [{low:.3f}, {high:.3f}]")
    for low, high in pairwise((*FROM, np.inf)):
        here = is_good[(worth >= low) & (worth < high)]
        share = wilson_interval(int(here.sum()), len(here))
        print(f"worth from {low:g}: {len(here)} rows, {share.mean:.0%} [{share.low:.0%}, {share.high:.0%}]")
    if parser.parse_args().write:
        WORTH_BANDS.write_text(write_bands(worth, is_good, len(names)))


if __name__ == "__main__":
    main()
