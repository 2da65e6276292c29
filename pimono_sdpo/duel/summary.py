"""A duel in numbers, as JSON: what report.json, the report and the card tell."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

import numpy as np

from pimono_sdpo.duel import albedo_rules
from pimono_sdpo.duel.diagnostics import agreement, doubt_judges, doubt_lengths
from pimono_sdpo.duel.gate import Rules, Verdict, judge_duel
from pimono_sdpo.schema import DUEL_METRICS
from processors.duel.scores import Bucket, Scores, Votes, bucket, mean

Json = dict[str, Any]
BUCKETS: tuple[Bucket, ...] = get_args(Bucket)
BIN = 10


def summary(
    votes: Votes,
    scores: Scores,
    rules: Rules,
    lengths: Sequence[tuple[int, int]],
    leaked: Sequence[bool],
    unanswered: int = 0,
) -> Json:
    """Return what is known of a duel; a number that is not defined is None.

    `lengths` are characters of the challenger's and the opponent's answers, `leaked` tells of each
    turn whether the challenger used what only the pull request holds; `unanswered` as in
    `judge_duel`.
    """
    verdict = judge_duel(scores.turn, votes.instances, rules, unanswered)
    judges = []
    for judge in doubt_judges(votes, rules):
        told = asdict(judge)
        told["without"] = _told(judge.without) if judge.without else None
        judges.append(told)
    clean = ~np.asarray(leaked, bool)
    buckets = Counter(bucket(score) for score in scores.turn)
    ours, theirs = [pair[0] for pair in lengths], [pair[1] for pair in lengths]
    found: Json = {
        "verdict": _told(verdict),
        "buckets": {name: buckets[name] for name in BUCKETS},
        "histogram": _histogram(scores),
        "metrics": dict(zip(DUEL_METRICS, mean(scores.metric, axis=0).tolist(), strict=True)),
        "agreement": agreement(votes),
        "position_consistent": _share(scores.consistent[~np.isnan(scores.turn)]),
        "judges": judges,
        "length": asdict(doubt_lengths(scores.turn, ours, theirs)) if lengths else {},
        "leaks": {
            "share": _share(np.asarray(leaked, float)),
            "score_without": _share(scores.turn[clean & ~np.isnan(scores.turn)]),
        },
        "rules": asdict(rules),
    }
    return {name: _without_nan(value) for name, value in found.items()}


def summary_of_original(votes: Votes, rules: albedo_rules.OriginalRules) -> Json:
    """Return the verdict by the original's rules."""
    told = asdict(albedo_rules.judge_duel(votes, rules))
    told["by_metric"] = dict(zip(DUEL_METRICS, told["by_metric"], strict=True))
    limits = asdict(rules)
    limits["seed"] = rules.seed.hex()
    return {name: _without_nan(value) for name, value in (told | {"rules": limits}).items()}


def false_finals(scores: Iterable[float]) -> Json:
    """Return how two samples of one player end up in the buckets: what chance alone gives."""
    buckets = Counter(map(bucket, scores))
    judged = sum(count for name, count in buckets.items() if name != "parse_fail")
    share = buckets["final"] / judged if judged else None
    return {"buckets": {name: buckets[name] for name in BUCKETS}, "false_final": share}


def _told(verdict: Verdict) -> Json:
    return {"accepted": verdict.accepted, **asdict(verdict)}


def _histogram(scores: Scores) -> list[Json]:
    there = scores.turn[~np.isnan(scores.turn)]
    counts, edges = np.histogram(there, bins=range(0, 101, BIN))
    return [
        {"from": int(low), "to": int(low) + BIN, "turns": int(count)}
        for low, count in zip(edges, counts, strict=False)
    ]


def _share(values: Any) -> float:
    return float(np.mean(values)) if np.size(values) else math.nan


def _without_nan(value: Any) -> Any:
    """JSON has no nan."""
    if isinstance(value, Mapping):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
