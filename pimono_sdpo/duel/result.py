"""Score a duel's judgments into a dataset repository, and its turns into rows to train on.

reads   DIR/rules.json, answers, gate, and where they are there judgments and aa-judgments
writes  DIR/result: report.md, report.json, report.svg and README.md, and of turns that the whole
        panel read data/{final,refined,defeat}-*.parquet; an earlier result is replaced

No model is asked: stored judgments can be scored again by other rules. Rows for SFT, DPO or SDPO
are made of the turns that the challenger won:

reads   DIR/result/data/final-*.parquet, or those of other buckets
writes  OUT/data/train-*.parquet, OUT/rejects, report.json, README.md
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cards.plots import write_duel_plot
from cards.render import render_duel_card, render_duel_report
from pimono_sdpo import __version__
from pimono_sdpo.dataset_writer import Format, WriterOptions, write_dataset
from pimono_sdpo.duel.gate import (
    OUTLYING,
    WITHOUT,
    decide_by_original_rules,
    krippendorff_alpha,
    mean_of,
    to_json,
)
from pimono_sdpo.duel.stages import (
    ANSWERS,
    EQUAL_ANSWERS,
    EQUAL_JUDGMENTS,
    GATE,
    GATE_COLUMNS,
    JOURNAL,
    JUDGMENTS,
    Plan,
    decide_look,
    is_current,
    name_of,
    read_rows,
    read_verdicts,
    register_rules,
)
from pimono_sdpo.errors import EmptySelection, SourceError
from pimono_sdpo.llm.calls import Journal
from pimono_sdpo.llm.money import cost
from pimono_sdpo.llm.settings import Settings
from pimono_sdpo.report import explain_empty
from pimono_sdpo.runs.engine import Part, Piece, sha256
from pimono_sdpo.runs.folders import (
    REPORT,
    make_output,
    only_run,
    publish_folder,
    require_disjoint,
)
from pimono_sdpo.runs.parquet import read_tables
from pimono_sdpo.runs.sessions import rows_and_rejects
from pimono_sdpo.schema import DUEL, DUEL_METRICS
from pimono_sdpo.stage import Stage
from processors.duel.answers import classify_action
from processors.duel.export import TABLES, Kind, build_stages
from processors.duel.scores import (
    Array,
    Bucket,
    Votes,
    choose_bucket,
    collect_reasons,
    collect_votes,
    limit_score,
    make_duels,
    nan_mean,
    score_judgment,
    score_turns,
)

Json = dict[str, Any]
RESULT = "result"
GROUP_ROWS = 256
BUCKETS: tuple[Bucket, ...] = get_args(Bucket)
BIN = 10
# Answers whose lengths differ by less than this share count as equally long.
SAME_LENGTH = 0.1
# All but what a judge replied in full.
PANEL_COLUMNS = (
    "turn_id", "judge", "order", "parsed", "reason", "scores_challenger", "scores_opponent",
)  # fmt: skip
REPORTED = (
    "turn_id", "instance_id", "action_style", "score", "metrics", "bucket", "leaked_terms",
)  # fmt: skip


def score_duel(folder: Path, settings: Settings, original: bool = False, licence: str | None = None) -> Json:
    """Score the judgments in `folder` and return the report.

    The verdict is by the registered rules. Where the settings have others, what they would say
    stands beside it as exploratory. With `original`, the original rules are applied to the whole
    panel's judgments. Raises SourceError when there is nothing to score, OutputError when it cannot
    be written.
    """
    opponent = settings.duel.opponent
    gate, panel = name_of(GATE, opponent), name_of(JUDGMENTS, opponent)
    if not any((folder / gate).glob("*.parquet")):
        raise SourceError(f"`{folder}` has no judgments against the {opponent}; run the stages before `score`.")
    if not is_current(folder, panel, ANSWERS):
        raise SourceError(f"`{folder}` has judgments of answers that have since been replaced; run the stage `judge`.")
    plan = register_rules(folder, settings)
    verdicts = read_verdicts(folder, opponent)
    if not verdicts:
        raise SourceError(f"`{folder}` has not been looked at yet; run the stage `judge`.")
    answers = list(read_rows(folder, ANSWERS, GATE_COLUMNS))
    judgments = list(read_rows(folder, gate, PANEL_COLUMNS))
    clean = decide_look(plan, plan.rules, len(verdicts) - 1, answers, judgments, clean=True)
    singles = _read_singles(folder, judgments, "king" if opponent == "king" else "assistant")
    scores = np.array([row["score"] for row in singles])
    lengths = [[row["lengths"][side] for row in singles] for side in (0, 1)]
    dropped = Counter(row["drop_reason"] for row in answers if row["drop_reason"] is not None)
    read = list(read_rows(folder, panel, PANEL_COLUMNS))
    calls = Counter(row["judge"] for row in read)
    votes = collect_votes(plan.judges, read)
    complete = len(read) == len(votes.turns) * len(votes.judges) * 2
    if original and not (votes.turns and complete):
        raise SourceError(
            f"The original rules need every judgment of the panel, which `{folder}` does not have; "
            "run all stages with --rules original."
        )
    report: Json = {
        "pimono_sdpo": __version__,
        "source": folder.resolve().name,
        "licence": licence,
        "opponent": opponent,
        "registered": plan.sha256,
        "rules": plan.rules.model_dump(),
        "looks": list(plan.looks),
        "single_judge": {"margin": WITHOUT, "outlying": OUTLYING},
        "repositories": sorted(set(plan.repos))[:2],
        "verdict": {**verdicts[-1], "sentence": describe_verdict(verdicts[-1])},
        "exploratory": None,
        "dropped": dict(sorted(dropped.items())),
        "cost": _sum_cost(folder, settings),
        "length": summarize_lengths(scores, *lengths),
        "leaks": {
            "share": sum(row["leaked"] for row in singles) / max(len(singles), 1),
            "score_without": clean["score"],
        },
        "histogram": count_scores(scores),
        "panel": None,
        "aa_test": None,
        "original": decide_by_original_rules(votes, settings.duel) if original else None,
    }
    if settings.gate != plan.rules:
        for look in range(len(verdicts)):
            other = decide_look(plan, settings.gate, look, answers, judgments)
            if other["conclusion"] != "open":
                break
        rules = settings.gate.model_dump()
        report["exploratory"] = {"rules": rules, **other, "sentence": describe_verdict(other)}
    reasons, asked = collect_reasons(read), set(votes.turns)
    judged = (row for row in read_rows(folder, ANSWERS) if row["turn_id"] in asked)
    out = (folder / RESULT).resolve()
    with only_run(out) as work:
        finished = make_output(work, "data")
        duels = make_duels(judged, votes, reasons, opponent)
        reported, report["configs"] = _write_buckets(duels, finished / "data")
        if reported:
            counts = Counter(row["bucket"] for row in reported)
            found = [row["score"] for row in reported if row["score"] is not None]
            report["panel"] = {
                "buckets": {name: counts[name] for name in BUCKETS},
                "histogram": count_scores(np.array(found)),
                "leaked": sum(bool(row["leaked_terms"]) for row in reported),
                **summarize_panel(votes, calls, complete),
            }
            report["aa_test"] = _score_equals(folder, plan, report["panel"]["buckets"])
        report["sha256"] = {
            name: sha256(path) for name in report["configs"] for path in (finished / "data").glob(f"{name}-*.parquet")
        }
        (finished / "report.md").write_text(render_duel_report(report, reported, singles))
        (finished / "README.md").write_text(render_duel_card(report))
        write_duel_plot(report, finished / "report.svg")
        publish_folder(finished, out, report)
    return report


def _read_singles(folder: Path, judgments: Iterable[Json], theirs: str) -> list[Json]:
    """Return the gate's turns: score (the mean of the calls), judges, lengths, leaks, action."""
    by_turn: dict[str, list[Json]] = {}
    for row in judgments:
        if row["parsed"]:
            by_turn.setdefault(row["turn_id"], []).append(row)
    columns = ("turn_id", "instance_id", "leaked_terms", "challenger", theirs)
    return [
        {
            "turn_id": answer["turn_id"],
            "instance_id": answer["instance_id"],
            "action_style": classify_action(answer["challenger"]),
            "judges": [row["judge"] for row in calls],
            "score": min(sum(map(score_judgment, calls)) / len(calls), limit_score(answer)),
            "lengths": (len(answer["challenger"]), len(answer[theirs])),
            "leaked": bool(answer["leaked_terms"]),
        }
        for answer in read_rows(folder, ANSWERS, columns)
        if (calls := by_turn.get(answer["turn_id"]))
    ]


def _write_buckets(duels: Iterable[Json], data: Path) -> tuple[list[Json], dict[str, int]]:
    """Write each judged duel to the shard of its bucket.

    Returns the reported columns of all duels, and the number of rows of each bucket with any.
    """
    reported: list[Json] = []
    waiting: dict[str, list[Json]] = {name: [] for name in BUCKETS[:-1]}
    writers: dict[str, pq.ParquetWriter] = {}
    with ExitStack() as stack:

        def write(bucket: str) -> None:
            if bucket not in writers:
                path = data / f"{bucket}-00000-of-00001.parquet"
                writers[bucket] = stack.enter_context(pq.ParquetWriter(path, DUEL.arrow_schema))
            writers[bucket].write_table(pa.Table.from_pylist(waiting[bucket], DUEL.arrow_schema))
            waiting[bucket].clear()

        for duel in duels:
            reported.append({name: duel[name] for name in REPORTED})
            if (bucket := duel["bucket"]) in waiting:
                waiting[bucket].append(duel)
                if len(waiting[bucket]) == GROUP_ROWS:
                    write(bucket)
        for bucket in filter(waiting.get, waiting):
            write(bucket)
    counts = Counter(row["bucket"] for row in reported)
    return reported, {name: counts[name] for name in BUCKETS if name in writers}


def _score_equals(folder: Path, plan: Plan, buckets: dict[str, int]) -> Json | None:
    """Score the king against another sample of itself, if the panel judged that."""
    given = list(read_rows(folder, EQUAL_JUDGMENTS, PANEL_COLUMNS))
    if not given or not is_current(folder, EQUAL_JUDGMENTS, EQUAL_ANSWERS):
        return None
    scores = score_turns(collect_votes(plan.judges, given)).turn
    return {
        **explain_finals(scores.tolist(), buckets),
        "histogram": count_scores(scores[~np.isnan(scores)]),
    }


def _sum_cost(folder: Path, settings: Settings) -> float | None:
    """Return the USD of all calls in the journal, None where a price is unknown."""
    prices = settings.prices
    costs = [cost(prices, model, used) for model, used in Journal(folder / JOURNAL).usage().items()]
    known = [one for one in costs if one is not None]
    return math.fsum(known) if known and len(known) == len(costs) else None


def describe_verdict(verdict: Json) -> str:
    """Say in a sentence what a verdict is and what it rests on."""
    unit = "repositories" if verdict["unit"] == "repo" else "tasks"
    score, low, high = (verdict[name] for name in ("score", "low", "high"))
    interval = "" if low is None or high is None else f" ({low:.1f} to {high:.1f})"
    found = "no score" if score is None else f"score {score:.1f}{interval}"
    rests = f"{found} from {verdict['scored']} turns, {verdict['calls']} judgments"
    weight = f"{verdict['clusters']:.0f}"
    at = f"look {verdict['look']} of {verdict['looks']}"
    if verdict["conclusion"] == "accepted":
        return f"accepted at {at}: {rests}, {weight} {unit} by weight"
    reasons = [*verdict["reasons"], rests]
    if missing := verdict["missing_clusters"]:
        reasons.insert(0, f"{missing} more {unit} are needed ({weight} by weight)")
    if len(verdict["judges"]) < 2:
        reasons.insert(0, "one judge alone does not decide")
    words = {"no verdict": "no verdict", "open": f"undecided after {at}"}
    return f"{words.get(verdict['conclusion'], f'not accepted at {at}')}: {'; '.join(reasons)}"


def describe_report(report: Json) -> str:
    """Return verdict, buckets and what else was found, a line each."""
    lines = [report["verdict"]["sentence"]]
    if report["exploratory"]:
        lines.append(f"by other rules, exploratory: {report['exploratory']['sentence']}")
    if report["panel"]:
        buckets = report["panel"]["buckets"].items()
        lines.append("buckets: " + ", ".join(f"{name} {count}" for name, count in buckets))
    if report["aa_test"]:
        lines.append(f"final between equals: {report['aa_test']['buckets']['final']}")
    if report["original"]:
        accepted = "accepted" if report["original"]["accepted"] else "not accepted"
        lines.append(f"by the original rules: {accepted}")
    return "\n".join(lines)


def summarize_panel(votes: Votes, calls: Mapping[str, int], complete: bool) -> Json:
    """Return how the judges of a panel differ.

    Of each judge: its number of `calls`; `parsed` is the share of them that could be read,
    `consistent` the share of turns with the same winner in both orders, `first_bias` the points
    beyond 50 for the answer shown first.

    A panel that stops when a bucket is decided asks its last judges about close turns alone; so the
    `score` of a judge, `metrics` and `agreement` (Krippendorff's alpha of the judges' mean scores)
    are None unless the panel is `complete`.
    """
    by_order = nan_mean(votes.values, axis=3)
    judges = []
    for column, name in enumerate(votes.judges):
        read = int((~np.isnan(by_order[:, column])).sum())
        both = by_order[:, column][~np.any(np.isnan(by_order[:, column]), axis=1)]
        winner = np.sign(both - 0.5)
        judges.append(
            {
                "name": name,
                "calls": calls.get(name, 0),
                "parsed": read / max(calls.get(name, 0), 1),
                "consistent": mean_of(winner[:, 0] == winner[:, 1]),
                "first_bias": 100 * (mean_of((1 - both[:, 0] + both[:, 1]) / 2) - 0.5),
                "score": 100 * mean_of(both) if complete else None,
            }
        )
    metrics = nan_mean(score_turns(votes).metric, axis=0)
    by_judge = nan_mean(votes.values, axis=(2, 3))
    found = {
        "complete": complete,
        "metrics": dict(zip(DUEL_METRICS, metrics.tolist(), strict=True)) if complete else None,
        "agreement": krippendorff_alpha(by_judge.T) if complete else None,
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
            "gap": mean_of(gap),
            "correlation": float(np.corrcoef(gap, scores)[0, 1]) if varies else float("nan"),
            "score_same": mean_of(scores[same]),
            "turns_same": int(same.sum()),
        }
    )


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


# The stage whose columns the rows have, by kind.
STAGES: dict[Kind, Literal["steps", "pairs", "sdpo"]] = {
    "sft": "steps",
    "dpo": "pairs",
    "sdpo": "sdpo",
}


def write_training_rows(
    folder: Path,
    kind: Kind,
    out: Path,
    buckets: Sequence[str] = ("final",),
    format: Format = "trl",
    licence: str | None = None,
) -> Json:
    """Write the turns of these buckets as rows of a kind and return the report.

    Raises SourceError when the duel has no score, EmptySelection when no row is left, OutputError.
    """
    result = folder / RESULT
    if not (result / REPORT).is_file():
        raise SourceError(f"`{folder}` has no scored duel; run all stages of `duel` first.")
    require_disjoint(result.resolve(), out.resolve())
    stages = build_stages(kind)
    files = [path for name in buckets for path in sorted(result.glob(f"data/{name}-*.parquet"))]
    parts = []
    for number, path in enumerate(files):
        run = partial(_export, path, stages, kind)
        given = {"file": sha256(path)}
        parts.append(Part(number, path.name, 1, given, {"kind": kind}, run, tuple(stages)))
    options: Json = {"buckets": " ".join(buckets)}
    name = folder.resolve().name
    report = write_dataset(
        parts,
        TABLES[kind],
        out,
        WriterOptions(format=format, licence=licence),
        stage=STAGES[kind],
        source=("duel", name),
        used=options,
    )
    if not report["rows"]:
        advice = "take another bucket with --bucket"
        if not any(result.glob("data/*.parquet")):
            advice = "run `duel` with --export, so that the panel fills the buckets"
        raise EmptySelection(explain_empty(report, advice))
    return report


def _export(path: Path, stages: Sequence[Stage], kind: Kind) -> Iterator[Piece]:
    for table in read_tables(path):
        yield rows_and_rejects(table, stages, *TABLES[kind], "turns")
