"""Score a duel's judgments into a dataset repository, and its turns into rows to train on.

reads   DIR/answers/*.parquet, DIR/judgments/*.parquet, and DIR/aa-judgments/*.parquet if there
writes  DIR/result: data/{final,refined,defeat}-*.parquet, report.md, report.json, report.svg and
        README.md; an earlier result is replaced

No model is asked: stored judgments can be scored again by other rules. Rows for SFT, DPO or SDPO
are made of the turns that the challenger won:

reads   DIR/result/data/final-*.parquet, or those of other buckets
writes  OUT/data/train-*.parquet, OUT/rejects, report.json, README.md
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from cards.plots import write_duel_plot
from cards.render import render_duel_card, render_duel_report
from pimono_sdpo import __version__
from pimono_sdpo.dataset_writer import DatasetSpec, Format, explain_empty, write_dataset
from pimono_sdpo.duel.gate import AlbedoRules, Rules
from pimono_sdpo.duel.stages import ANSWERS, EQUAL_ANSWERS, EQUAL_JUDGMENTS, JUDGMENTS
from pimono_sdpo.duel.summary import count_false_finals, summarize_albedo, summarize_duel
from pimono_sdpo.errors import EmptySelection, SourceError
from pimono_sdpo.llm.rows import is_of
from pimono_sdpo.runs.engine import Part, Piece, sha256
from pimono_sdpo.runs.folders import REPORT, only_run, publish_folder, require_disjoint
from pimono_sdpo.runs.parquet import read_tables, write_to_files
from pimono_sdpo.runs.sessions import rows_and_rejects
from pimono_sdpo.schema import DUEL, Opponent
from pimono_sdpo.stage import Stage
from processors.duel.export import TABLES, Kind, build_stages
from processors.duel.scores import collect_reasons, collect_votes, make_duels, score_turns

Json = dict[str, Any]
RESULT = "result"
BATCH = 256
ANSWER_COLUMNS = (
    "turn_id", "instance_id", "drop_reason", "king", "challenger", "assistant", "leaked_terms",
)  # fmt: skip
# Nobody was asked about a turn without a known pull request.
UNKNOWN = "no_pull_request"
REPORTED = ("turn_id", "instance_id", "action_style", "score", "metrics", "bucket")


def score_duel(
    folder: Path,
    rules: Rules,
    original: AlbedoRules | None = None,
    opponent: Opponent = "king",
    licence: str | None = None,
) -> Json:
    """Score the judgments in `folder` and return the report.

    Raises SourceError when there is nothing to score, OutputError when it cannot be written.
    """
    theirs = "king" if opponent == "king" else "assistant"
    answered = [_drop_texts(row, theirs) for row in _read_rows(folder, ANSWERS, ANSWER_COLUMNS)]
    kept = [row for row in answered if row["drop_reason"] is None]
    judges = _read_panel(folder, JUDGMENTS, opponent)
    if not _is_current(folder, JUDGMENTS, ANSWERS):
        raise SourceError(
            f"`{folder}` has judgments of answers that have since been replaced; run the stage "
            "`judge`."
        )
    if not kept or not judges:
        what = f"judgments against the {opponent}" if kept else "turns that both players answered"
        raise SourceError(f"`{folder}` has no {what}; run the stages before `score`.")
    turns = [(row["turn_id"], row["instance_id"]) for row in kept]
    votes = collect_votes(turns, judges, _read_judgments(folder, JUDGMENTS, opponent))
    scores = score_turns(votes, rules.both_orders, rules.min_judges)
    lengths = [row["lengths"] for row in kept]
    leaked = [row["leaked"] for row in kept]
    dropped = Counter(row["drop_reason"] for row in answered if row["drop_reason"] is not None)
    unanswered = dropped.total() - dropped[UNKNOWN]
    report: Json = {
        "pimono_sdpo": __version__,
        "source": folder.resolve().name,
        "licence": licence,
        "opponent": opponent,
        "dropped": dict(sorted(dropped.items())),
        "cost": _sum_cost(folder),
        "aa_test": _score_equals(folder, rules, judges),
        "original": summarize_albedo(votes, original) if original else None,
        **summarize_duel(votes, scores, rules, lengths, leaked, unanswered),
    }
    reasons = collect_reasons(_read_judgments(folder, JUDGMENTS, opponent), judges)
    answers = (row for row in _read_rows(folder, ANSWERS) if row["drop_reason"] is None)
    out = (folder / RESULT).resolve()
    with only_run(out) as work:
        finished = work / "out"
        shutil.rmtree(finished, ignore_errors=True)
        (finished / "data").mkdir(parents=True)
        duels = make_duels(answers, votes, scores, reasons, opponent)
        reported, report["configs"] = _write_buckets(duels, finished / "data")
        report["sha256"] = {
            name: sha256(path)
            for name in report["configs"]
            for path in (finished / "data").glob(f"{name}-*.parquet")
        }
        (finished / "report.md").write_text(render_duel_report(report, reported))
        (finished / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        (finished / "README.md").write_text(render_duel_card(report))
        write_duel_plot(report, finished / "report.svg")
        publish_folder(finished, out)
    return report


def _drop_texts(answer: Json, theirs: str) -> Json:
    """Return what scoring needs of an answer, without its texts."""
    return {
        **{name: answer[name] for name in ("turn_id", "instance_id", "drop_reason")},
        "lengths": (len(answer["challenger"] or ""), len(answer[theirs] or "")),
        "leaked": bool(answer["leaked_terms"]),
    }


def _write_buckets(duels: Iterable[Json], data: Path) -> tuple[list[Json], dict[str, int]]:
    """Write each judged duel to the shard of its bucket.

    Returns the reported columns of all duels, and the number of rows of each bucket with any.
    """
    reported: list[Json] = []

    def place() -> Iterator[tuple[Path, Json]]:
        for duel in duels:
            reported.append({name: duel[name] for name in REPORTED})
            if duel["bucket"] != "parse_fail":
                yield data / f"{duel['bucket']}-00000-of-00001.parquet", duel

    counts = write_to_files(place(), DUEL.arrow_schema)
    buckets = {path.name.partition("-")[0]: count for path, count in counts.items()}
    return reported, {
        name: buckets[name] for name in ("final", "refined", "defeat") if name in buckets
    }


def _score_equals(folder: Path, rules: Rules, panel: Sequence[str]) -> Json | None:
    """Score this king against another sample of itself, if this panel judged that."""
    judges = _read_panel(folder, EQUAL_JUDGMENTS, "king")
    kings = [
        {row["king_model"] for row in _read_rows(folder, name, ("king_model",))}
        for name in (EQUAL_ANSWERS, ANSWERS)
    ]
    is_same = kings[0] <= kings[1] and _is_current(folder, EQUAL_JUDGMENTS, EQUAL_ANSWERS)
    if not judges or judges != panel or not is_same:
        return None
    judged = _read_judgments(folder, EQUAL_JUDGMENTS, "king")
    turns = sorted({(row["turn_id"], row["instance_id"]) for row in judged})
    votes = collect_votes(turns, judges, _read_judgments(folder, EQUAL_JUDGMENTS, "king"))
    return count_false_finals(score_turns(votes, rules.both_orders, rules.min_judges).turn.tolist())


def _read_panel(folder: Path, name: str, opponent: Opponent) -> list[str]:
    """Return the sorted names of the judges; raises SourceError when shards differ in them."""
    panels: set[frozenset[str]] = set()
    for path in sorted((folder / name).glob("*.parquet")):
        rows = pq.read_table(path, columns=["judge", "opponent"]).to_pylist()
        panels.add(frozenset(row["judge"] for row in rows if row["opponent"] == opponent))
    panels -= {frozenset()}
    if len(panels) > 1:
        raise SourceError(
            f"`{folder / name}` has judgments of several panels, because the stage was stopped "
            "before it replaced all of them; run the stage `judge` until it is finished."
        )
    return sorted(*panels) if panels else []


def _is_current(folder: Path, name: str, given: str) -> bool:
    """Whether the shards of a stage were made of those that the stage before it has now."""
    shards = sorted((folder / name).glob("*.parquet"))
    return all(is_of(path, folder / given / path.name.replace(name, given)) for path in shards)


def _read_judgments(folder: Path, name: str, opponent: Opponent) -> Iterator[Json]:
    return (row for row in _read_rows(folder, name) if row["opponent"] == opponent)


def _sum_cost(folder: Path) -> float | None:
    """Return the USD of all calls, None where a price is unknown."""
    used = [
        row["usage"]
        for name in (ANSWERS, JUDGMENTS, EQUAL_ANSWERS, EQUAL_JUDGMENTS)
        for row in _read_rows(folder, name, ("usage",))
        if row["usage"] is not None
    ]
    # Rows without a call cost nothing, whatever the prices.
    costs = [usage["cost"] for usage in used if usage["prompt_tokens"]]
    return sum(costs) if costs and None not in costs else None


def _read_rows(folder: Path, name: str, columns: Sequence[str] | None = None) -> Iterator[Json]:
    """Yield the rows of a stage in the order of its shards; none when it has not run."""
    for path in sorted((folder / name).glob("*.parquet")):
        for table in read_tables(path, BATCH, columns):
            yield from table.to_pylist()


# The stage whose columns the rows have, by kind.
STAGES = {"sft": "steps", "dpo": "pairs", "sdpo": "sdpo"}


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
    files = [
        path for name in buckets for path in sorted((result / "data").glob(f"{name}-*.parquet"))
    ]
    parts = []
    for number, path in enumerate(files):
        given = {"file": sha256(path)}
        run = partial(_export, path, stages, kind)
        parts.append(Part(number, path.name, 1, given, {"kind": kind}, run, tuple(stages)))
    options: Json = {"buckets": " ".join(buckets)}
    name = folder.resolve().name
    spec = DatasetSpec(STAGES[kind], name, "duel", options, format, licence)  # type: ignore[arg-type]
    report = write_dataset(spec, parts, TABLES[kind], out)
    if not report["rows"]:
        raise EmptySelection(explain_empty(report, "take another bucket with --bucket"))
    return report


def _export(path: Path, stages: Sequence[Stage], kind: Kind) -> Iterator[Piece]:
    for table in read_tables(path):
        yield rows_and_rejects(table, stages, *TABLES[kind], "turns")
