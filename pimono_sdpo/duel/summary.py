"""Summarize a duel as JSON, for report.json, the report and the card."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

import numpy as np

from pimono_sdpo.duel.albedo_rules import AlbedoRules, decide_by_albedo_rules
from pimono_sdpo.duel.diagnostics import diagnose_judges, diagnose_lengths, measure_agreement
from pimono_sdpo.duel.gate import Rules, Verdict, decide_duel
from pimono_sdpo.schema import DUEL_METRICS
from processors.duel.scores import Bucket, Scores, Votes, choose_bucket, nan_mean

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
