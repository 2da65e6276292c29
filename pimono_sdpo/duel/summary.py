"""Summarize a duel as JSON, with what else could explain its verdict."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

import numpy as np

from pimono_sdpo.duel.gate import (
    AlbedoRules,
    Verdict,
    decide_by_albedo_rules,
    krippendorff_alpha,
)
from pimono_sdpo.schema import DUEL_METRICS
from processors.duel.scores import Array, Bucket, Votes, choose_bucket, nan_mean, score_turns

Json = dict[str, Any]
BUCKETS: tuple[Bucket, ...] = get_args(Bucket)
BIN = 10
# Answers whose lengths differ by less than this share count as equally long.
SAME_LENGTH = 0.1


def summarize_verdict(verdict: Verdict | None) -> Json | None:
    """Return a verdict as JSON, with a `sentence` on it; None for none."""
    if verdict is None:
        return None
    found = to_json(asdict(verdict))
    return {**found, "sentence": describe_verdict(found)}


def describe_verdict(verdict: Json) -> str:
    """Say in a sentence what a verdict is and what it rests on; `verdict` is as JSON."""
    unit = "repositories" if verdict["unit"] == "repo" else "tasks"
    score, low, high = (verdict[name] for name in ("score", "low", "high"))
    interval = "" if low is None or high is None else f" ({low:.1f} to {high:.1f})"
    found = "no score" if score is None else f"score {score:.1f}{interval}"
    rests = f"{found} from {verdict['scored']} turns, {verdict['calls']} judgments"
    at = f"look {verdict['look']} of {verdict['looks']}"
    if verdict["conclusion"] == "accepted":
        return f"accepted at {at}: {rests}, {verdict['clusters']:.0f} {unit} by weight"
    reasons = list(verdict["reasons"])
    if verdict["missing_clusters"]:
        there = f"{verdict['clusters']:.0f} by weight"
        reasons.insert(0, f"{verdict['missing_clusters']} more {unit} are needed ({there})")
    elif verdict["conclusion"] == "no verdict":
        reasons.insert(0, "one judge alone does not decide")
    words = {"no verdict": "no verdict", "open": f"undecided after {at}"}
    conclusion = words.get(verdict["conclusion"], f"not accepted at {at}")
    return f"{conclusion}: {'; '.join([*reasons, rests])}"


def summarize_panel(votes: Votes) -> Json:
    """Return the buckets of the turns that the whole panel read, and how its judges differ.

    `turns` counts them by bucket, `histogram` by score in steps of 10; `agreement` is
    Krippendorff's alpha of the judges' mean scores. Of each judge: `parsed` is the share of its
    judgments that could be read, `consistent` the share of turns with the same winner in both
    orders, `first_bias` the points beyond 50 for the answer shown first, `score` its own score.
    """
    scores = score_turns(votes)
    buckets = Counter(choose_bucket(score) for score in scores.turn)
    there = scores.turn[~np.isnan(scores.turn)]
    by_order = nan_mean(votes.values, axis=3)
    judges = []
    for column, name in enumerate(votes.judges):
        both = by_order[:, column][~np.any(np.isnan(by_order[:, column]), axis=1)]
        winner = np.sign(both - 0.5)
        judges.append(
            {
                "name": name,
                "parsed": _mean(~np.isnan(by_order[:, column])),
                "consistent": _mean(winner[:, 0] == winner[:, 1]),
                "first_bias": 100 * (_mean((1 - both[:, 0] + both[:, 1]) / 2) - 0.5),
                "score": 100 * _mean(both),
            }
        )
    found = {
        "buckets": {name: buckets[name] for name in BUCKETS},
        "histogram": count_scores(there),
        "metrics": dict(zip(DUEL_METRICS, nan_mean(scores.metric, axis=0).tolist(), strict=True)),
        "agreement": krippendorff_alpha(nan_mean(votes.values, axis=(2, 3)).T),
        "judges": judges,
    }
    return to_json(found)


def count_scores(scores: Array) -> list[int]:
    """Count scores in ten steps of 10 points."""
    counts: list[int] = np.histogram(scores, bins=range(0, 101, BIN))[0].tolist()
    return counts


def summarize_lengths(turn_scores: Array, ours: Sequence[int], theirs: Sequence[int]) -> Json:
    """Return what the lengths of the challenger's and its opponent's answers explain.

    `gap` is the mean of challenger minus opponent in characters, `correlation` that of gap and
    score; `score_same` is the mean score of the `turns_same` turns with about equal lengths.
    """
    there = ~np.isnan(turn_scores)
    left, right = np.asarray(ours, float)[there], np.asarray(theirs, float)[there]
    scores, gap = turn_scores[there], left - right
    same = np.abs(gap) < SAME_LENGTH * np.maximum(left, right)
    varies = len(scores) > 1 and np.ptp(gap) > 0 and np.ptp(scores) > 0
    return to_json(
        {
            "gap": _mean(gap),
            "correlation": float(np.corrcoef(gap, scores)[0, 1]) if varies else float("nan"),
            "score_same": _mean(scores[same]),
            "turns_same": int(same.sum()),
        }
    )


def _mean(values: Any) -> float:
    """Return the mean, nan for no values."""
    return float(np.mean(values)) if np.size(values) else float("nan")


def summarize_albedo(votes: Votes, rules: AlbedoRules) -> Json:
    """Return the verdict by the original rules."""
    verdict = asdict(decide_by_albedo_rules(votes, rules))
    verdict["by_metric"] = dict(zip(DUEL_METRICS, verdict["by_metric"], strict=True))
    limits = asdict(rules)
    limits["seed"] = rules.seed.hex()
    return to_json(verdict | {"rules": limits})


def explain_finals(equals: Iterable[float], buckets: Mapping[str, int]) -> Json:
    """Return the buckets of two samples of one player, and what chance explains of `final`.

    `false_final` is the share of equal turns in `final`. If as many of the real turns were equal,
    chance would explain at most `by_chance` of the real ones in `final`.
    """
    counted = Counter(map(choose_bucket, equals))
    judged = sum(count for name, count in counted.items() if name != "parse_fail")
    share = counted["final"] / judged if judged else None
    real = sum(count for name, count in buckets.items() if name != "parse_fail")
    finals = buckets["final"] / real if real else 0.0
    return {
        "buckets": {name: counted[name] for name in BUCKETS},
        "false_final": share,
        "by_chance": min(1.0, share / finals) if finals and share is not None else None,
    }


def to_json(found: Mapping[str, Any]) -> Json:
    """Return the same without nan and infinity, which JSON cannot hold: they become None."""
    return {name: _replace_nan(value) for name, value in found.items()}


def _replace_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _replace_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
