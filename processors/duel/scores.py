"""Judgments as an array of votes; what a turn scored, and the bucket it goes to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pimono_sdpo.schema import DUEL_METRICS, FINAL_SCORE, REFINED_SCORE

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Votes:
    """What a panel said of the turns of a duel.

    `values` has the shape (turns, judges, 2 orders, 5 metrics): 1 for the challenger, 0 for its
    opponent, 0.5 for a tie, nan where no judgment could be read. Order 0 showed the opponent first,
    order 1 the challenger. `turns` and `instances` name each turn and the task it comes from.
    """

    turns: tuple[str, ...]
    instances: tuple[str, ...]
    judges: tuple[str, ...]
    values: Array

    def of_judges(self, kept: Sequence[int]) -> "Votes":
        """Return the votes of these judges alone."""
        names = tuple(self.judges[index] for index in kept)
        return Votes(self.turns, self.instances, names, self.values[:, list(kept)])

    def of_turns(self, kept: Sequence[int]) -> "Votes":
        """Return the votes on these turns alone."""
        return Votes(
            tuple(self.turns[index] for index in kept),
            tuple(self.instances[index] for index in kept),
            self.judges,
            self.values[list(kept)],
        )


def votes_of(
    turns: Iterable[tuple[str, str]],
    judges: Sequence[str],
    judgments: Iterable[Mapping[str, Any]],
) -> Votes:
    """Return the votes on `turns`, pairs of turn and instance, in their order.

    columns read  turn_id, judge, order, parsed, scores_challenger, scores_opponent

    A vote is the sign of the difference of the two scores. Several judgments of one turn, judge and
    order are votes of the same turn and are averaged. Judgments of other turns or judges are left
    out; a turn that nobody judged stays, without a vote.
    """
    named = tuple(turns)
    rows = {turn: index for index, (turn, _) in enumerate(named)}
    columns = {judge: index for index, judge in enumerate(judges)}
    sums = np.zeros((len(named), len(judges), 2, len(DUEL_METRICS)))
    counts = np.zeros_like(sums)
    for judgment in judgments:
        row, column = rows.get(judgment["turn_id"]), columns.get(judgment["judge"])
        if row is None or column is None or not judgment["parsed"]:
            continue
        ours, theirs = judgment["scores_challenger"], judgment["scores_opponent"]
        cell = row, column, int(judgment["order"])
        sums[cell] += [(np.sign(ours[name] - theirs[name]) + 1) / 2 for name in DUEL_METRICS]
        counts[cell] += 1
    values = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    names = tuple(turn for turn, _ in named), tuple(instance for _, instance in named)
    return Votes(*names, tuple(judges), values)


def mean(values: Array, axis: int | tuple[int, ...]) -> Array:
    """Mean over what is there; nan where nothing is, without a warning."""
    there = ~np.isnan(values)
    count = there.sum(axis=axis)
    total = np.where(there, values, 0.0).sum(axis=axis)
    empty: Array = np.full(np.shape(total), np.nan)
    np.divide(total, count, out=empty, where=count > 0)
    return empty


Bucket = Literal["final", "refined", "defeat", "parse_fail"]


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
    if score >= FINAL_SCORE:
        return "final"
    return "refined" if score >= REFINED_SCORE else "defeat"
