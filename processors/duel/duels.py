"""Judged turns to duels: score, bucket, and what the judges gave as reasons.

reads  ANSWER rows without `drop_reason`, JUDGMENT rows / writes  DUEL
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pimono_sdpo.schema import DUEL, DUEL_METRICS, DUEL_TURN, Opponent
from processors.duel.scores import Scores, Votes, bucket

Row = Mapping[str, Any]
COPIED = (*DUEL_TURN, "king", "challenger", "privileged_context", "leaked_terms")


def duel_rows(
    answers: Iterable[Row],
    votes: Votes,
    scores: Scores,
    reasons: Mapping[str, str],
    opponent: Opponent,
) -> Iterator[dict[str, Any]]:
    """Yield one row per answered turn, in the order of `votes`; `reasons` is by turn."""
    for index, answer in enumerate(answers):
        if answer["turn_id"] != votes.turns[index]:
            raise ValueError(f"turn {index} is {votes.turns[index]}, not {answer['turn_id']}")
        score = float(scores.turn[index])
        judged = not np.isnan(score)
        per_judge = zip(votes.judges, scores.judge[index].tolist(), strict=True)
        metrics = dict(zip(DUEL_METRICS, scores.metric[index].tolist(), strict=True))
        row = {
            **{name: answer[name] for name in COPIED},
            "opponent": opponent,
            "score": score if judged else None,
            "metrics": metrics if judged else dict.fromkeys(DUEL_METRICS),
            "per_judge": [
                {"judge": name, "score": value} for name, value in per_judge if value == value
            ],
            "n_votes": int(scores.votes[index]),
            "position_consistent": bool(scores.consistent[index]),
            "bucket": bucket(score),
            "reason": reasons.get(answer["turn_id"]),
        }
        yield {name: row[name] for name in DUEL}


def reasons_of(judgments: Iterable[Row], judges: Sequence[str]) -> dict[str, str]:
    """Return what the judges said of each turn, a line per judgment: `judge (order 0): reason`."""
    said: dict[str, list[tuple[int, int, str]]] = {}
    for judgment in judgments:
        if judgment["parsed"] and judgment["reason"] and judgment["judge"] in judges:
            place = judges.index(judgment["judge"]), int(judgment["order"])
            line = f"{judgment['judge']} (order {place[1]}): {judgment['reason']}"
            said.setdefault(judgment["turn_id"], []).append((*place, line))
    return {turn: "\n".join(line for *_, line in sorted(lines)) for turn, lines in said.items()}
