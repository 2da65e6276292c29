"""Do judges agree with each other."""

import numpy as np

from pimono_sdpo.duel.votes import Array


def krippendorff_alpha(ratings: Array) -> float:
    """Return Krippendorff's alpha for interval data, ratings (raters, units), nan where missing.

    1 is perfect agreement, 0 that of chance; units with fewer than two ratings tell nothing and
    are left out. nan when nothing can be compared, 1 when all ratings are the same. Source:
    Krippendorff, Content Analysis, 4th ed. 2019, chapter 12.

    >>> krippendorff_alpha(np.array([[1.0, 2, 3, 4], [1, 2, 3, 4]]))
    1.0
    """
    there = ~np.isnan(ratings)
    units = there.sum(axis=0) >= 2
    if not units.any():
        return float("nan")
    values, there = np.where(there, ratings, 0.0)[:, units], there[:, units]
    count = there.sum(axis=0)
    total, squares = values.sum(axis=0), (values**2).sum(axis=0)
    # The sum of squared differences of all pairs of n values is 2 (n sum(x^2) - sum(x)^2).
    observed = float((2 * (count * squares - total**2) / (count - 1)).sum())
    n, t, s = int(count.sum()), float(total.sum()), float(squares.sum())
    expected = 2 * (n * s - t**2) / (n - 1)
    if expected <= 0:
        return 1.0
    return 1 - observed / expected
