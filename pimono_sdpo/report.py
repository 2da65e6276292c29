"""Build report.json of a filter run, the source of every number on the dataset card.

It contains no times and no machine paths, so that the same input gives the same bytes.
"""

import hashlib
import math
import re
import tomllib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pimono_sdpo.traces.drift import describe_drift, sum_by_agent
from pimono_sdpo.version import __version__

BIN_WIDTH = 2.0
# How many rows readers called worth training on, by band of worth.
WORTH_BANDS = Path(__file__).with_name("worth.toml")
OVER_MAX_SAMPLES = "over_max_samples"
BY_SCORE = ("below_min_score", OVER_MAX_SAMPLES)
# The detail of a reject names its harness, then its score.
SCORE_IN_DETAIL = r"(?:^|, )score (-?[0-9][0-9.e+-]*)"
Json = dict[str, Any]


def build_report(
    described: Json, options: Json, weights: dict[str, float], counts: Json, drops: pa.Table, folder: Path
) -> Json:
    """Build the report of a run from the counts of its shards and the rows in `folder/data`.

    `described` is the input (`Source.describe`); `drops` are the rows that were dropped by a comparison with others.
    In the report, `cut` is the lowest score that was kept, None if no row was dropped for its score;
    `without_terms` counts rows whose reward_terms are only categories. Without kept rows, the keys that describe
    them are missing.
    """
    stages = [
        {"stage": name, "rows_in": rows["in"], "rows_out": rows["out"], "dropped": counts["dropped"].get(name, {})}
        for name, rows in counts.get("stages", {}).items()
    ]
    kept = stages[-1]["rows_out"] if stages else 0
    for step, used in (("dedupe", options["dedupe"]), ("choose", options["max_samples"])):
        if used:
            found = drops.filter(pc.equal(drops["stage"], step))["drop_reason"].value_counts().to_pylist()
            counted = dict(sorted((one["values"], one["counts"]) for one in found))
            before, kept = kept, kept - sum(counted.values())
            stages.append({"stage": step, "rows_in": before, "rows_out": kept, "dropped": counted})
    reasons: Counter[str] = Counter()
    for stage in stages:
        reasons.update(stage["dropped"])
    columns = counts.get("columns", {})
    lines, volume, redactions = (Counter(columns.get(name)) for name in ("counts", "volume", "redactions"))
    agents = sum_by_agent(columns.get("drift", {}))
    return {
        "pimono_sdpo": __version__,
        "input": described,
        "options": {name: value for name, value in options.items() if name != "licence"},
        "lines": {name: lines[f"lines_{name}"] for name in ("parsed", "repaired", "skipped")},
        "bytes": {
            "parsed": volume["bytes_parsed"],
            **{name: lines[f"bytes_{name}"] for name in ("repaired", "skipped", "not_utf8")},
        },
        "agents": agents,
        "drift": describe_drift(agents),
        "stages": stages,
        "sessions": sum(shard["sessions"] for shard in described["shards"]),
        "kept": kept,
        "rejected": sum(reasons.values()),
        "drop_reasons": dict(sorted(reasons.items())),
        "weights": weights,
        "secrets_redacted": dict(sorted(redactions.items())),
        "licence": options["licence"] or (described.get("upstream") or {}).get("licence"),
        "sha256": {name: _hash_files(_files(folder, name)) for name in ("data", "rejects")},
        **(_describe_rows(folder, described["source"], options) if kept else {}),
    }


def _files(folder: Path, kind: str, name: str = "") -> list[Path]:
    return sorted((folder / kind).glob(f"{name}*.parquet"))


def _read_columns(files: Sequence[Path], columns: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
    for file in files:
        with pq.ParquetFile(file) as parquet:
            yield from (batch.to_pydict() for batch in parquet.iter_batches(columns=list(columns)))


def _hash_files(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _describe_rows(folder: Path, name: str, options: Json) -> Json:
    """Count and describe the rows of a folder without loading all of them."""
    files = [*_files(folder, "data", "train-"), *_files(folder, "data", "test-")]
    columns = ["score", "worth", "split", "categories", "reward_terms", "source", "session_id"]
    sessions, scores = set[tuple[str, str]](), list[float]()
    splits, categories, sources = Counter[str](), Counter[str](), Counter[str]()
    without_terms = 0
    read = tomllib.loads(WORTH_BANDS.read_text("utf-8"))
    least = [band["from"] for band in read["bands"]]
    bands = [0] * len(least)
    for batch in _read_columns(files, columns):
        scores += batch["score"]
        for worth in batch["worth"]:
            bands[bisect_right(least, worth) - 1] += 1
        splits.update(batch["split"])
        categories.update(chain.from_iterable(batch["categories"]))
        without_terms += sum(
            set(terms) <= set(names) for terms, names in zip(batch["reward_terms"], batch["categories"], strict=True)
        )
        sessions.update(zip(batch["source"], batch["session_id"], strict=True))
        sources.update(one.rpartition("/")[0] if "/" in one else name for one in batch["source"])
    kept_bins, rejected_bins = Counter(int(score // BIN_WIDTH) for score in scores), Counter[int]()
    # Rows that were dropped for their score: the reasons, and their number per bin.
    reasons: set[str] = set()
    for batch in _read_columns(_files(folder, "rejects"), ("drop_reason", "detail")):
        for reason, detail in zip(batch["drop_reason"], batch["detail"], strict=True):
            if reason in BY_SCORE:
                reasons.add(reason)
                if score := re.search(SCORE_IN_DETAIL, detail):
                    rejected_bins[int(float(score[1]) // BIN_WIDTH)] += 1
    bins = [*kept_bins, *rejected_bins]
    return {
        "score": {
            "min": min(scores),
            "max": max(scores),
            "mean": round(math.fsum(scores) / len(scores), 6),
            "histogram": [
                {"from": i * BIN_WIDTH, "to": (i + 1) * BIN_WIDTH, "rows": kept_bins[i], "rejected": rejected_bins[i]}
                for i in range(min(bins), max(bins) + 1)
            ],
            "cut": min(scores) if OVER_MAX_SAMPLES in reasons else options["min_score"] if reasons else None,
        },
        "worth": {**read, "bands": [{**one, "kept": kept} for one, kept in zip(read["bands"], bands, strict=True)]},
        "source_sessions": len(sessions),
        "source_files": len({source for source, _ in sessions}),
        "splits": dict(sorted(splits.items())),
        "without_terms": without_terms,
        "category_counts": dict(sorted(categories.items())),
        "sources": dict(sorted(sources.items())),
        "first_sample": next(pq.ParquetFile(files[0]).iter_batches(1)).to_pylist()[0],
    }


MEASURES = {
    "sdpo": {"reward": "mean reward", "pass_rate": "pass rate"},
    "sft": {"loss": "loss per token", "token_accuracy": "token accuracy"},
    "dpo": {"log_ratio": "log-ratio", "preferred": "pairs with the chosen answer likelier"},
}
