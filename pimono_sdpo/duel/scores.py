"""What a turn scored, and the bucket it goes to."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pimono_sdpo.duel.votes import Array, Votes, mean

Bucket = Literal["final", "refined", "defeat", "parse_fail"]
FINAL, REFINED = 80.0, 66.0


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of the turns of a duel, 0 to 100; nan for a turn without enough votes.

    `turn` (turns,), `metric` (turns, 5), `judge` (turns, judges); `votes` (turns,) counts the
    judges that had a say, `consistent` (turns,) tells whether all of them said the same in both
    orders.
    """

    turn: Array
    metric: Array
    judge: Array
    votes: NDArray[np.int64]
    consistent: NDArray[np.bool_]


def score_turns(votes: Votes, both_orders: bool = True, min_judges: int = 2) -> Scores:
    """Return the mean over judges of the mean over orders and metrics.

    A judge that could not be read in one of the orders has no say in that turn (`both_orders`), so
    that a preference for the first answer cancels out. A turn needs `min_judges` judges, or all of
    them where there are fewer.
    """
    by_order = mean(votes.values, axis=3)
    missing = np.isnan(by_order)
    left_out = np.any(missing, axis=2) if both_orders else np.all(missing, axis=2)
    values = np.where(left_out[:, :, None, None], np.nan, votes.values)
    judge = mean(values, axis=(2, 3))
    count = (~left_out).sum(axis=1)
    enough = count >= min(min_judges, len(votes.judges))
    said = np.sign(by_order - 0.5)
    flipped = (said[:, :, 0] != said[:, :, 1]) & ~np.any(missing, axis=2)
    return Scores(
        turn=np.where(enough, 100 * mean(judge, axis=1), np.nan),
        metric=np.where(enough[:, None], 100 * mean(mean(values, axis=2), axis=1), np.nan),
        judge=np.where(enough[:, None], 100 * judge, np.nan),
        votes=count,
        consistent=~np.any(flipped, axis=1) & enough,
    )


def bucket(score: float) -> Bucket:
    """Name the bucket of a score: `final` from 80, `refined` from 66, else `defeat`."""
    if np.isnan(score):
        return "parse_fail"
    if score >= FINAL:
        return "final"
    return "refined" if score >= REFINED else "defeat"
