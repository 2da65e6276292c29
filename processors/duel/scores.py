"""Judgments as an array of votes; what a turn scored, its bucket, and the row of its duel.

reads  ANSWER rows without `drop_reason`, JUDGMENT rows / writes  DUEL
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pimono_sdpo.schema import DUEL_METRICS, DUEL_TURN, FINAL_SCORE, PARITY, REFINED_SCORE, Opponent
from processors.duel.answers import classify_action

Array = NDArray[np.float64]
Bucket = Literal["final", "refined", "defeat", "parse_fail"]
Row = Mapping[str, Any]
Json = dict[str, Any]
# A turn needs the votes of so many judges, or of all where there are fewer.
MIN_JUDGES = 2
COPIED = (*DUEL_TURN, "king", "challenger", "privileged_context", "leaked_terms")


@dataclass(frozen=True, slots=True)
class Votes:
    """A panel's votes on the turns of a duel.

    `values` has the shape (turns, judges, 2 orders, 5 metrics): 1 for the challenger, 0 for its
    opponent, 0.5 for a tie, nan where no judgment could be read. Order 0 shows the opponent first,
    order 1 the challenger.
    """

    turns: tuple[str, ...]
    judges: tuple[str, ...]
    values: Array


def collect_votes(judges: Sequence[str], judgments: Sequence[Row]) -> Votes:
    """Return the votes on the turns of these judgments, in their order.

    columns read  turn_id, judge, order, parsed, scores_challenger, scores_opponent

    A vote is the sign of the difference of the two scores.
    """
    rows = {turn: at for at, turn in enumerate(dict.fromkeys(one["turn_id"] for one in judgments))}
    values = np.full((len(rows), len(judges), 2, len(DUEL_METRICS)), np.nan)
    for one in judgments:
        if one["parsed"]:
            cell = rows[one["turn_id"]], judges.index(one["judge"]), one["order"]
            values[cell] = compare_metrics(one)
    return Votes(tuple(rows), tuple(judges), values)


def compare_metrics(judgment: Row) -> list[float]:
    """Return 1 for each metric that the challenger won, 0.5 for a tie, 0 for a loss."""
    ours, theirs = judgment["scores_challenger"], judgment["scores_opponent"]
    return [((ours[m] > theirs[m]) + (ours[m] >= theirs[m])) / 2 for m in DUEL_METRICS]


def score_judgment(row: Row) -> float:
    """Return the score of one readable judgment, 0 to 100: the metrics the challenger won."""
    return 100 * sum(compare_metrics(row)) / len(DUEL_METRICS)


def nan_mean(values: Array, axis: int | tuple[int, ...]) -> Array:
    """Return the mean of all values that are not nan, and nan where there are none."""
    mean: Array = np.ma.masked_invalid(values).mean(axis=axis).filled(np.nan)
    return mean


def score_turn(judgments: Iterable[Row], judges: Sequence[str]) -> Json:
    """Return what a panel said of a turn, in columns of DUEL; `score` is None without enough votes.

    The score is the mean over judges of the mean over orders and metrics. A judge must be readable
    in both orders to vote, so that a preference for the first answer cancels out; it is consistent
    if both have the same winner.
    """
    votes: dict[str, dict[int, list[float]]] = {name: {} for name in judges}
    for one in judgments:
        if one["parsed"]:
            votes[one["judge"]][one["order"]] = compare_metrics(one)
    both = [judge for judge in judges if len(votes[judge]) == 2]
    if len(both) < min(MIN_JUDGES, len(judges)):
        unknown: Json = {"score": None, "metrics": dict.fromkeys(DUEL_METRICS), "per_judge": []}
        return {**unknown, "n_votes": len(both), "position_consistent": False}
    values = np.array([[votes[judge][order] for order in (0, 1)] for judge in both])
    means, metrics = 100 * values.mean(axis=(1, 2)), 100 * values.mean(axis=1).mean(axis=0)
    winners = np.sign(values.mean(axis=2) - 0.5)
    return {
        "score": float(100 * values.mean(axis=(1, 2)).mean()),
        "metrics": dict(zip(DUEL_METRICS, metrics.tolist(), strict=True)),
        "per_judge": [{"judge": judge, "score": mean} for judge, mean in zip(both, means.tolist(), strict=True)],
        "n_votes": len(both),
        "position_consistent": bool((winners[:, 0] == winners[:, 1]).all()),
    }


def choose_bucket(score: float | None) -> Bucket:
    """Name the bucket of a score: `final` from 80, `refined` from 66, else `defeat`."""
    if score is None:
        return "parse_fail"
    # A mean of five judges may miss a limit by rounding.
    rounded = round(score, 9)
    if rounded >= FINAL_SCORE:
        return "final"
    return "refined" if rounded >= REFINED_SCORE else "defeat"


def limit_score(answer: Row) -> float:
    """Return the most an answer can score: one with terms of the hidden text wins nothing."""
    return PARITY if answer["leaked_terms"] else 100.0


def group_by_turn(judgments: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the judgments of each turn, in their order."""
    by_turn: dict[str, list[Row]] = {}
    for one in judgments:
        by_turn.setdefault(one["turn_id"], []).append(one)
    return by_turn


def make_duels(
    answers: Iterable[Row], judgments: Iterable[Row], judges: Sequence[str], opponent: Opponent
) -> Iterator[Json]:
    """Yield a DUEL row for each answer that was judged; `reason` has a line per judgment."""
    by_turn = group_by_turn(judgments)
    for answer in answers:
        if rows := by_turn.get(answer["turn_id"]):
            found = score_turn(rows, judges)
            score = None if found["score"] is None else min(found["score"], limit_score(answer))
            read = (one for one in rows if one["parsed"] and one["reason"])
            yield {
                **{name: answer[name] for name in COPIED},
                **found,
                "action_style": classify_action(answer["challenger"]),
                "opponent": opponent,
                "score": score,
                "bucket": choose_bucket(score),
                "reason": "\n".join(f"{one['judge']} (order {one['order']}): {one['reason']}" for one in read) or None,
            }
