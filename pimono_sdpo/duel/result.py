"""Score the judgments of a duel into a dataset with a report, and turn its rows into training rows.

reads   DIR/rules.json, answers, gate, and judgments and aa-judgments if they exist
writes  DIR/result: report.md, report.json, report.svg and README.md, and the turns that the whole
        panel read in data/{final,refined,defeat}-*.parquet; an earlier result is replaced

No model is called, so stored judgments can be scored again by other rules. Rows for SFT, DPO or SDPO
are made from turns that the challenger won:

reads   DIR/result/data/final-*.parquet, or those of other buckets
writes  OUT/data/train-*.parquet, OUT/rejects, report.json, README.md
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa

from cards.plots import write_duel_plot
from cards.render import render_duel_card, render_duel_report
from pimono_sdpo.dataset_writer import WriterOptions, write_dataset
from pimono_sdpo.duel.gate import OUTLYING, WITHOUT, decide_by_original_rules, krippendorff_alpha, mean_of, to_json
from pimono_sdpo.duel.stages import AA, ANSWERS, GATE, JOURNAL, JUDGMENTS, VOTE_COLUMNS, Duel
from pimono_sdpo.errors import SourceError
from pimono_sdpo.left_out import explain_empty
from pimono_sdpo.llm.calls import Journal, Json, sum_costs
from pimono_sdpo.runs.engine import Part, Piece
from pimono_sdpo.runs.finish import Files, hash_file
from pimono_sdpo.runs.folders import REPORT, make_output, only_run, publish_folder, require_disjoint
from pimono_sdpo.runs.parquet import read_tables
from pimono_sdpo.runs.sessions import both, rows_and_rejects
from pimono_sdpo.schema import DUEL, DUEL_METRICS
from pimono_sdpo.stage import BATCH_ROWS, Stage
from pimono_sdpo.version import __version__
from processors.duel import judge as panel
from processors.duel.answers import classify_action
from processors.duel.export import TABLES, Kind, build_stages

RESULT = "result"
BUCKETS: tuple[panel.Bucket, ...] = get_args(panel.Bucket)
# Answers whose lengths differ by less than this share count as equally long.
SAME_LENGTH = 0.1
REPORTED = ("turn_id", "instance_id", "action_style", "score", "metrics", "bucket", "leaked_terms")


def score_duel(duel: Duel, original: bool = False, licence: str | None = None) -> Json:
    """Score the judgments of a duel by its registered rules, write DIR/result and return the report.

    If the settings have other rules, their verdict is added as exploratory; with `original`, so is the verdict of
    the original rules on the judgments of the whole panel.
    """
    folder, settings, opponent = duel.folder, duel.settings, duel.settings.duel.opponent
    if not any(duel.find(GATE).glob("*.parquet")):
        raise SourceError(f"`{folder}` has no judgments against the {opponent}; run the stages before `score`.")
    if not duel.is_current(JUDGMENTS, ANSWERS):
        raise SourceError(f"`{folder}` has judgments of answers that were replaced since; run the stage `judge`.")
    plan, verdicts = duel.register(), duel.read_verdicts()
    if not verdicts:
        raise SourceError(f"`{folder}` has no verdict of a look yet; run the stage `judge`.")
    singles = _read_singles(duel, "king" if opponent == "king" else "assistant")
    scores = np.array([row["score"] for row in singles])
    lengths = [[row["lengths"][side] for row in singles] for side in (0, 1)]
    judgments = list(duel.read(JUDGMENTS, VOTE_COLUMNS))
    votes = panel.collect_votes(plan.judges, judgments)
    complete = len(judgments) == len(votes) * len(plan.judges) * 2
    if original and not (len(votes) and complete):
        raise SourceError(
            f"The original rules need every judgment of the panel, which `{folder}` does not have; "
            "run all stages with --rules original."
        )
    dropped = Counter(row["drop_reason"] for row in duel.read(ANSWERS, ("drop_reason",)))
    del dropped[None]
    usage = Journal(folder / JOURNAL).usage()
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
        "cost": sum_costs(settings.prices, usage) if usage else None,
        "length": summarize_lengths(scores, *lengths),
        "leaks": {
            "share": sum(row["leaked"] for row in singles) / max(len(singles), 1),
            "score_without": duel.decide(plan, plan.rules, len(verdicts) - 1, clean=True)["score"],
        },
        "panel": None,
        "aa_test": None,
        "original": decide_by_original_rules(votes, settings.duel) if original else None,
    }
    if settings.gate != plan.rules:
        for look in range(len(verdicts)):
            verdict = duel.decide(plan, settings.gate, look)
            if verdict["conclusion"] != "open":
                break
        rules = settings.gate.model_dump()
        report["exploratory"] = {"rules": rules, **verdict, "sentence": describe_verdict(verdict)}

    # Generated for each bucket again, because all rows together may not fit into memory.
    def make_rows() -> Iterator[Json]:
        return panel.make_duels(duel.read(ANSWERS), judgments, plan.judges, opponent)

    out = (folder / RESULT).resolve()
    with only_run(out) as work:
        finished = make_output(work, "data")
        reported = [{name: row[name] for name in REPORTED} for row in make_rows()]
        counts = Counter(row["bucket"] for row in reported)
        report["configs"] = {name: counts[name] for name in BUCKETS[:-1] if counts[name]}
        hashes = {
            name: _write_bucket(finished, name, (row for row in make_rows() if row["bucket"] == name))
            for name in report["configs"]
        }
        if reported:
            scored = [row for row in reported if row["score"] is not None]
            metrics = panel.nan_mean(
                np.array([[*row["metrics"].values()] for row in scored]).reshape(-1, len(DUEL_METRICS)), 0
            )
            report["panel"] = {
                "buckets": {name: counts[name] for name in BUCKETS},
                "leaked": sum(bool(row["leaked_terms"]) for row in reported),
                "complete": complete,
                "metrics": to_json(dict(zip(DUEL_METRICS, metrics.tolist(), strict=True))) if complete else None,
                **summarize_judges(votes, plan.judges, Counter(row["judge"] for row in judgments), complete),
            }
            aa_judgments = list(duel.read(AA + JUDGMENTS, VOTE_COLUMNS))
            if aa_judgments and duel.is_current(AA + JUDGMENTS, AA + ANSWERS):
                turns = panel.collect_votes(plan.judges, aa_judgments)
                aa_scores = [panel.score_turn(turn, plan.judges)["score"] for turn in turns]
                report["aa_test"] = summarize_aa_test(aa_scores, counts)
        report["sha256"] = hashes
        (finished / "report.md").write_text(render_duel_report(report, reported, singles))
        (finished / "README.md").write_text(render_duel_card(report))
        write_duel_plot(report, finished / "report.svg")
        publish_folder(finished, out, report)
    return report


def _read_singles(duel: Duel, theirs: str) -> list[Json]:
    """Return the turns of the gate with the mean score of their calls, judges, lengths, leaks and action."""
    by_turn = panel.group_by_turn(row for row in duel.read(GATE, VOTE_COLUMNS) if row["parsed"])
    columns = ("turn_id", "instance_id", "leaked_terms", "challenger", theirs)
    return [
        {
            "turn_id": answer["turn_id"],
            "instance_id": answer["instance_id"],
            "action_style": classify_action(answer["challenger"]),
            "judges": [row["judge"] for row in calls],
            "score": min(sum(map(panel.score_judgment, calls)) / len(calls), panel.limit_score(answer)),
            "lengths": (len(answer["challenger"]), len(answer[theirs])),
            "leaked": bool(answer["leaked_terms"]),
        }
        for answer in duel.read(ANSWERS, columns)
        if (calls := by_turn.get(answer["turn_id"]))
    ]


def _write_bucket(finished: Path, name: str, rows: Iterator[Json]) -> str:
    """Write the rows of a bucket, and return the hash of its file, or several."""
    files = Files(finished / "data", name, DUEL.arrow_schema)
    for group in iter(lambda: list(islice(rows, BATCH_ROWS)), []):
        files.write(pa.Table.from_pylist(group, DUEL.arrow_schema))
    return " ".join(map(hash_file, files.close()))


def describe_verdict(verdict: Json) -> str:
    """Describe a verdict and the evidence for it in one sentence."""
    unit = "repositories" if verdict["unit"] == "repo" else "tasks"
    score, low, high = (verdict[name] for name in ("score", "low", "high"))
    interval = "" if low is None or high is None else f" ({low:.1f} to {high:.1f})"
    described = "no score" if score is None else f"score {score:.1f}{interval}"
    evidence = f"{described} from {verdict['scored']} turns, {verdict['calls']} judgments"
    weight = f"{verdict['clusters']:.0f}"
    look = f"look {verdict['look']} of {verdict['looks']}"
    if verdict["conclusion"] == "accepted":
        return f"accepted at {look}: {evidence}, {weight} {unit} by weight"
    reasons = [*verdict["reasons"], evidence]
    if missing := verdict["missing_clusters"]:
        reasons.insert(0, f"{missing} more {unit} are needed ({weight} by weight)")
    if len(verdict["judges"]) < 2:
        reasons.insert(0, "one judge alone does not decide")
    conclusions = {"no verdict": "no verdict", "open": f"undecided after {look}"}
    return f"{conclusions.get(verdict['conclusion'], f'not accepted at {look}')}: {'; '.join(reasons)}"


def describe_report(report: Json) -> str:
    """Return the verdicts, the buckets and the result of the A/A test, one per line."""
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


def summarize_judges(votes: panel.Array, names: Sequence[str], calls: Mapping[str, int], complete: bool) -> Json:
    """Return how the judges of a panel differ; `first_bias` is how many points the answer shown first gains.

    A panel that stops when a bucket is decided asks its last judges only about close turns, so `score` and
    `agreement` are None unless it is `complete`.
    """
    by_order = panel.nan_mean(votes, axis=3)
    judges = []
    for column, name in enumerate(names):
        missing = np.isnan(by_order[:, column])
        both = by_order[:, column][~missing.any(axis=1)]
        winner = np.sign(both - 0.5)
        judges.append(
            {
                "name": name,
                "calls": calls.get(name, 0),
                "parsed": int((~missing).sum()) / max(calls.get(name, 0), 1),
                "consistent": mean_of(winner[:, 0] == winner[:, 1]),
                "first_bias": 100 * (mean_of((1 - both[:, 0] + both[:, 1]) / 2) - 0.5),
                "score": 100 * mean_of(both) if complete else None,
            }
        )
    agreement = krippendorff_alpha(panel.nan_mean(votes, axis=(2, 3)).T) if complete else None
    return to_json({"agreement": agreement, "judges": judges})


def summarize_lengths(scores: panel.Array, ours: Sequence[int], theirs: Sequence[int]) -> Json:
    """Return how scores depend on answer lengths; `gap` is challenger minus opponent in characters."""
    challenger, opponent = np.asarray(ours, float), np.asarray(theirs, float)
    gap = challenger - opponent
    same = np.abs(gap) < SAME_LENGTH * np.maximum(challenger, opponent)
    varies = len(scores) > 1 and np.ptp(gap) > 0 and np.ptp(scores) > 0
    return to_json(
        {
            "gap": mean_of(gap),
            "correlation": float(np.corrcoef(gap, scores)[0, 1]) if varies else float("nan"),
            "score_same": mean_of(scores[same]),
            "turns_same": int(same.sum()),
        }
    )


def summarize_aa_test(scores: Sequence[float | None], real: Mapping[str, int]) -> Json:
    """Return the buckets of an A/A test, in which `false_final` is the share of `final`.

    `real` counts the buckets of the duel itself. If all its turns were equal as well, chance would explain up to the
    share `by_chance` of its `final`.
    """
    counts = Counter(map(panel.choose_bucket, scores))
    scored, real_scored = (sum(buckets[name] for name in BUCKETS[:-1]) for buckets in (counts, real))
    share = counts["final"] / scored if scored else None
    return {
        "buckets": {name: counts[name] for name in BUCKETS},
        "false_final": share,
        "by_chance": min(1.0, share / (real["final"] / real_scored)) if real["final"] and share is not None else None,
    }


# The stage whose columns the rows have, by kind.
STAGES: dict[Kind, Literal["steps", "pairs", "sdpo"]] = {"sft": "steps", "dpo": "pairs", "sdpo": "sdpo"}


def write_training_rows(
    folder: Path, kind: Kind, out: Path, buckets: Sequence[str] = ("final",), options: WriterOptions | None = None
) -> Json:
    """Write the turns of these buckets as training rows of a kind and return the report."""
    result = folder / RESULT
    if not (result / REPORT).is_file():
        raise SourceError(f"`{folder}` has no scored duel; run all stages of `duel` first.")
    require_disjoint(result.resolve(), out.resolve())
    stages = build_stages(kind)
    files = [path for name in buckets for path in sorted(result.glob(f"data/{name}-*.parquet"))]
    parts = []
    for number, path in enumerate(files):
        part = Part(
            name=f"{number:05}",
            title=path.name,
            units=1,
            input={},
            options={"kind": kind},
            run=partial(_export, path, stages, kind),
            schema=both(*TABLES[kind]).arrow_schema,
            files=(path,),
            stages=stages,
        )
        parts.append(part)
    source, selection = ("duel", folder.resolve().name), {"buckets": " ".join(buckets)}
    report = write_dataset(parts, TABLES[kind], out, options or WriterOptions(), STAGES[kind], source, selection)
    if not report["rows"]:
        advice = "take another bucket with --bucket"
        if not any(result.glob("data/*.parquet")):
            advice = "run `duel` with --export, so that the panel fills the buckets"
        raise explain_empty(report, advice)
    return report


def _export(path: Path, stages: Sequence[Stage], kind: Kind) -> Iterator[Piece]:
    for table in read_tables(path):
        yield rows_and_rejects(table, stages, *TABLES[kind], "turns")
