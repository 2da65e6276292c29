"""Judgments as an array of votes; what a turn scored, its bucket, and the row of its duel.

reads  ANSWER rows without `drop_reason`, JUDGMENT rows / writes  DUEL
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
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


def collect_votes(judges: Sequence[str], judgments: Sequence[Row]) -> Array:
    """Return the votes on the turns of these judgments, in their order: (turns, judges, 2 orders, metrics).

    A vote is 1 for the challenger, 0 for its opponent, 0.5 for a tie, nan where no judgment could be read.
    Order 0 shows the opponent first.
    """
    rows = {turn: at for at, turn in enumerate(dict.fromkeys(one["turn_id"] for one in judgments))}
    votes = np.full((len(rows), len(judges), 2, len(DUEL_METRICS)), np.nan)
    for one in judgments:
        if one["parsed"]:
            votes[rows[one["turn_id"]], judges.index(one["judge"]), one["order"]] = compare_metrics(one)
    return votes


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


def score_turn(votes: Array, judges: Sequence[str]) -> Json:
    """Return what a panel said of a turn, in columns of DUEL; `score` is None without enough votes.

    The score is the mean over judges of the mean over orders and metrics. A judge must be readable
    in both orders to vote, so that a preference for the first answer cancels out; it is consistent
    if both have the same winner.
    """
    read = np.flatnonzero(~np.isnan(votes).any(axis=(1, 2)))
    values, both = votes[read], [judges[at] for at in read.tolist()]
    if len(both) < min(MIN_JUDGES, len(judges)):
        unknown: Json = {"score": None, "metrics": dict.fromkeys(DUEL_METRICS), "per_judge": []}
        return {**unknown, "n_votes": len(both), "position_consistent": False}
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
            found = score_turn(collect_votes(judges, rows)[0], judges)
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
