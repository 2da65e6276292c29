"""Summarize a duel as JSON, with what else could explain its verdict."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np

from pimono_sdpo.duel.gate import AlbedoRules, Rules, Verdict, decide_by_albedo_rules, decide_duel
from pimono_sdpo.schema import DUEL_METRICS
from processors.duel.scores import (
    Array,
    Bucket,
    Scores,
    Votes,
    choose_bucket,
    nan_mean,
    score_turns,
)


def krippendorff_alpha(ratings: Array) -> float:
    """Return Krippendorff's alpha for interval data, ratings (raters, units), nan where missing.

    1 is perfect agreement, 0 agreement by chance. Units with fewer than two ratings are left out.
    nan when nothing can be compared, 1 when all ratings are equal. Source: Krippendorff, Content
    Analysis, 4th ed. 2019, chapter 12.

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


# Answers whose lengths differ by less than this share count as equally long.
SAME_LENGTH = 0.1


@dataclass(frozen=True, slots=True)
class JudgeDiagnostics:
    """One judge: shares from 0 to 1, points from 0 to 100; nan where nothing can be compared.

    `parsed` is the share of its judgments that could be read, `consistent` the share of turns with
    the same verdict in both orders, `first_bias` the points beyond 50 for the answer shown first,
    `score` its own score, `without` the verdict of the other judges.
    """

    name: str
    parsed: float
    consistent: float
    first_bias: float
    score: float
    without: Verdict | None


@dataclass(frozen=True, slots=True)
class LengthDiagnostics:
    """`gap` is the mean of challenger minus opponent, `correlation` that of gap and score.

    `score_same` is the mean score of the `turns_same` turns whose answers are about equally long.
    """

    gap: float
    correlation: float
    score_same: float
    turns_same: int


def diagnose_judges(votes: Votes, rules: Rules) -> list[JudgeDiagnostics]:
    """Return the diagnostics of each judge, in the panel's order."""
    by_order = nan_mean(votes.values, axis=3)
    found = []
    for column, name in enumerate(votes.judges):
        pair = by_order[:, column]
        both = pair[~np.any(np.isnan(pair), axis=1)]
        winner = np.sign(both - 0.5)
        first = (1 - both[:, 0] + both[:, 1]) / 2
        others = [index for index in range(len(votes.judges)) if index != column]
        found.append(
            JudgeDiagnostics(
                name=name,
                parsed=_mean(~np.isnan(pair)),
                consistent=_mean(winner[:, 0] == winner[:, 1]),
                first_bias=100 * (_mean(first) - 0.5),
                score=100 * _mean(both),
                without=_decide_without(votes.of_judges(others), rules) if others else None,
            )
        )
    return found


def measure_agreement(votes: Votes) -> float:
    """Return Krippendorff's alpha of the judges' mean scores per turn."""
    return krippendorff_alpha(nan_mean(votes.values, axis=(2, 3)).T)


def diagnose_lengths(
    turn_scores: Array, ours: Sequence[int], theirs: Sequence[int]
) -> LengthDiagnostics:
    """Return what the lengths of the challenger's and its opponent's answers explain."""
    there = ~np.isnan(turn_scores)
    left, right = np.asarray(ours, float)[there], np.asarray(theirs, float)[there]
    scores, gap = turn_scores[there], left - right
    same = np.abs(gap) < SAME_LENGTH * np.maximum(left, right)
    varies = len(scores) > 1 and np.ptp(gap) > 0 and np.ptp(scores) > 0
    return LengthDiagnostics(
        gap=_mean(gap),
        correlation=float(np.corrcoef(gap, scores)[0, 1]) if varies else float("nan"),
        score_same=_mean(scores[same]),
        turns_same=int(same.sum()),
    )


def _decide_without(votes: Votes, rules: Rules) -> Verdict:
    # With one judge less, one judge less has to be readable.
    scores = score_turns(votes, rules.both_orders, max(1, rules.min_judges - 1))
    return decide_duel(scores.turn, votes.instances, rules)


def _mean(values: Any) -> float:
    """Return the mean, nan for no values."""
    return float(np.mean(values)) if np.size(values) else float("nan")


Json = dict[str, Any]
BUCKETS: tuple[Bucket, ...] = get_args(Bucket)
BIN = 10


def summarize_duel(
    votes: Votes,
    scores: Scores,
    rules: Rules,
    lengths: Sequence[tuple[int, int]],
    leaked: Sequence[bool],
    unanswered: int = 0,
) -> Json:
    """Return the summary of a duel; undefined numbers are None.

    `lengths` are characters of the challenger's and the opponent's answers, `leaked` says of each
    turn whether the challenger used terms that only the pull request has; `unanswered` is as in
    `decide_duel`.
    """
    verdict = decide_duel(scores.turn, votes.instances, rules, unanswered)
    judges = []
    for judge in diagnose_judges(votes, rules):
        without = _verdict_json(judge.without) if judge.without else None
        judges.append({**asdict(judge), "without": without})
    clean = ~np.asarray(leaked, bool)
    buckets = Counter(choose_bucket(score) for score in scores.turn)
    ours, theirs = [pair[0] for pair in lengths], [pair[1] for pair in lengths]
    found: Json = {
        "verdict": _verdict_json(verdict),
        "buckets": {name: buckets[name] for name in BUCKETS},
        "histogram": _histogram(scores),
        "metrics": dict(zip(DUEL_METRICS, nan_mean(scores.metric, axis=0).tolist(), strict=True)),
        "agreement": measure_agreement(votes),
        "position_consistent": _mean(scores.consistent[~np.isnan(scores.turn)]),
        "judges": judges,
        "length": asdict(diagnose_lengths(scores.turn, ours, theirs)) if lengths else {},
        "leaks": {
            "share": _mean(np.asarray(leaked, float)),
            "score_without": _mean(scores.turn[clean & ~np.isnan(scores.turn)]),
        },
        "rules": asdict(rules),
    }
    return {name: _replace_nan(value) for name, value in found.items()}


def summarize_albedo(votes: Votes, rules: AlbedoRules) -> Json:
    """Return the verdict by the original rules."""
    verdict = asdict(decide_by_albedo_rules(votes, rules))
    verdict["by_metric"] = dict(zip(DUEL_METRICS, verdict["by_metric"], strict=True))
    limits = asdict(rules)
    limits["seed"] = rules.seed.hex()
    return {name: _replace_nan(value) for name, value in (verdict | {"rules": limits}).items()}


def count_false_finals(scores: Iterable[float]) -> Json:
    """Count the buckets of two samples of one player: what chance alone gives."""
    buckets = Counter(map(choose_bucket, scores))
    judged = sum(count for name, count in buckets.items() if name != "parse_fail")
    share = buckets["final"] / judged if judged else None
    return {"buckets": {name: buckets[name] for name in BUCKETS}, "false_final": share}


def _verdict_json(verdict: Verdict) -> Json:
    return {"accepted": verdict.accepted, **asdict(verdict)}


def _histogram(scores: Scores) -> list[Json]:
    there = scores.turn[~np.isnan(scores.turn)]
    counts, edges = np.histogram(there, bins=range(0, 101, BIN))
    return [
        {"from": int(low), "to": int(low) + BIN, "turns": int(count)}
        for low, count in zip(edges, counts, strict=False)
    ]


def _replace_nan(value: Any) -> Any:
    """Replace nan and infinity, which JSON cannot hold, by None."""
    if isinstance(value, Mapping):
        return {key: _replace_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
