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


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of the turns of a duel, 0 to 100; nan for a turn without enough votes.

    `turn` (turns,), `metric` (turns, 5), `judge` (turns, judges); `votes` (turns,) counts the
    judges that voted, `consistent` (turns,) is whether each of them voted alike in both orders.
    """

    turn: Array
    metric: Array
    judge: Array
    votes: NDArray[np.int64]
    consistent: NDArray[np.bool_]


def score_turns(votes: Votes) -> Scores:
    """Return the mean over judges of the mean over orders and metrics.

    A judge must be readable in both orders of a turn to vote on it, so that a preference for the
    first answer cancels out.
    """
    by_order = nan_mean(votes.values, axis=3)
    left_out = np.any(np.isnan(by_order), axis=2)
    values = np.where(left_out[:, :, None, None], np.nan, votes.values)
    judge = nan_mean(values, axis=(2, 3))
    count = (~left_out).sum(axis=1)
    enough = count >= min(MIN_JUDGES, len(votes.judges))
    winner = np.sign(by_order - 0.5)
    flipped = (winner[:, :, 0] != winner[:, :, 1]) & ~left_out
    return Scores(
        turn=np.where(enough, 100 * nan_mean(judge, axis=1), np.nan),
        metric=np.where(enough[:, None], 100 * nan_mean(nan_mean(values, axis=2), axis=1), np.nan),
        judge=np.where(enough[:, None], 100 * judge, np.nan),
        votes=count,
        consistent=~np.any(flipped, axis=1) & enough,
    )


def choose_bucket(score: float) -> Bucket:
    """Name the bucket of a score: `final` from 80, `refined` from 66, else `defeat`."""
    if np.isnan(score):
        return "parse_fail"
    # A mean of five judges may miss a limit by rounding.
    rounded = round(score, 9)
    if rounded >= FINAL_SCORE:
        return "final"
    return "refined" if rounded >= REFINED_SCORE else "defeat"


def limit_score(answer: Row) -> float:
    """Return the most an answer can score: one with terms of the hidden text wins nothing."""
    return PARITY if answer["leaked_terms"] else 100.0


def make_duels(
    answers: Iterable[Row], votes: Votes, reasons: Mapping[str, str], opponent: Opponent
) -> Iterator[dict[str, Any]]:
    """Yield one row per answered turn, in the order of `votes`; `reasons` is by turn."""
    scores = score_turns(votes)
    for index, answer in enumerate(answers):
        judged = not np.isnan(scores.turn[index])
        score = min(float(scores.turn[index]), limit_score(answer)) if judged else np.nan
        per_judge = zip(votes.judges, scores.judge[index].tolist(), strict=True)
        metrics = dict(zip(DUEL_METRICS, scores.metric[index].tolist(), strict=True))
        yield {
            **{name: answer[name] for name in COPIED},
            "action_style": classify_action(answer["challenger"]),
            "opponent": opponent,
            "score": score if judged else None,
            "metrics": metrics if judged else dict.fromkeys(DUEL_METRICS),
            "per_judge": [{"judge": name, "score": value} for name, value in per_judge if value == value],
            "n_votes": int(scores.votes[index]),
            "position_consistent": bool(scores.consistent[index]),
            "bucket": choose_bucket(score),
            "reason": reasons.get(answer["turn_id"]),
        }


def collect_reasons(judgments: Iterable[Row]) -> dict[str, str]:
    """Return the reasons of each turn, a line per judgment: `judge (order 0): reason`."""
    lines: dict[str, list[str]] = {}
    for one in judgments:
        if one["parsed"] and one["reason"]:
            line = f"{one['judge']} (order {one['order']}): {one['reason']}"
            lines.setdefault(one["turn_id"], []).append(line)
    return {turn: "\n".join(found) for turn, found in lines.items()}
