"""Judgments to duels: scores, verdict, buckets, report.

reads   DIR/answers/*.parquet, DIR/judgments/*.parquet, and DIR/aa-judgments/*.parquet if there
writes  DIR/result: data/{final,refined,defeat}-*.parquet, report.md, report.json, report.png and
        README.md, a dataset repository; an earlier result is replaced

Nothing is asked of any model: stored judgments can be scored again by other rules.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo import __version__
from pimono_sdpo.commands.duel import ANSWERS, JUDGMENTS
from pimono_sdpo.commands.duel import EQUALS as PREFIX
from pimono_sdpo.errors import SourceError
from pimono_sdpo.runs.engine import sha256

if TYPE_CHECKING:
    from pimono_sdpo.duel.albedo_rules import OriginalRules
    from pimono_sdpo.duel.gate import Rules
    from pimono_sdpo.schema import Opponent

Json = dict[str, Any]
KINGS, EQUALS = PREFIX + ANSWERS, PREFIX + JUDGMENTS
RESULT = "result"
BATCH = 256
ABOUT = (
    "turn_id", "instance_id", "drop_reason", "king", "challenger", "assistant", "leaked_terms",
)  # fmt: skip
# Nobody was asked about a turn whose pull request is not known.
UNKNOWN = "no_pull_request"
TOLD = ("turn_id", "instance_id", "action_style", "score", "metrics", "bucket")


def run_score(
    folder: Path,
    rules: "Rules",
    original: "OriginalRules | None" = None,
    opponent: "Opponent" = "king",
    licence: str | None = None,
) -> Json:
    """Score what was judged in `folder` and return the report.

    Raises SourceError when there is nothing to score, OutputError when it cannot be written.
    """
    from cards.duel_report import render_duel_card, render_duel_report, write_duel_plot
    from pimono_sdpo.duel.summary import summary, summary_of_original
    from pimono_sdpo.runs.folders import REPORT, only_run, publish_folder
    from processors.duel.duels import duel_rows, reasons_of
    from processors.duel.scores import score_turns, votes_of

    theirs = "king" if opponent == "king" else "assistant"
    answered = [_short(row, theirs) for row in _rows(folder, ANSWERS, ABOUT)]
    kept = [row for row in answered if row["drop_reason"] is None]
    judges = _judges(folder, JUDGMENTS, opponent)
    if not _of(folder, JUDGMENTS, ANSWERS):
        raise SourceError(
            f"`{folder}` holds judgments of answers that were asked for again since; run the stage "
            "`judge`."
        )
    if not kept or not judges:
        what = f"judgments against the {opponent}" if kept else "turns that both players answered"
        raise SourceError(f"`{folder}` holds no {what}; run the stages before `score`.")
    turns = [(row["turn_id"], row["instance_id"]) for row in kept]
    votes = votes_of(turns, judges, _judged(folder, JUDGMENTS, opponent))
    scores = score_turns(votes, rules.both_orders, rules.min_judges)
    lengths = [row["lengths"] for row in kept]
    leaked = [row["leaked"] for row in kept]
    dropped = Counter(row["drop_reason"] for row in answered if row["drop_reason"] is not None)
    report: Json = {
        "pimono_sdpo": __version__,
        "source": folder.resolve().name,
        "licence": licence,
        "opponent": opponent,
        "dropped": dict(sorted(dropped.items())),
        "cost": _cost(folder),
        "aa_test": _between_equals(folder, rules, judges),
        "original": summary_of_original(votes, original) if original else None,
        **summary(votes, scores, rules, lengths, leaked, sum(dropped.values()) - dropped[UNKNOWN]),
    }
    reasons = reasons_of(_judged(folder, JUDGMENTS, opponent), judges)
    answers = (row for row in _rows(folder, ANSWERS) if row["drop_reason"] is None)
    out = (folder / RESULT).resolve()
    with only_run(out) as work:
        finished = work / "out"
        shutil.rmtree(finished, ignore_errors=True)
        (finished / "data").mkdir(parents=True)
        duels = duel_rows(answers, votes, scores, reasons, opponent)
        told, report["configs"] = write_buckets(duels, finished / "data")
        report["sha256"] = {
            name: sha256(path)
            for name in report["configs"]
            for path in (finished / "data").glob(f"{name}-*.parquet")
        }
        (finished / "report.md").write_text(render_duel_report(report, told))
        (finished / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        (finished / "README.md").write_text(render_duel_card(report))
        write_duel_plot(report, finished / "report.png")
        publish_folder(finished, out)
    return report


def _short(answer: Json, theirs: str) -> Json:
    """What scoring needs of an answer, without its texts."""
    return {
        **{name: answer[name] for name in ("turn_id", "instance_id", "drop_reason")},
        "lengths": (len(answer["challenger"] or ""), len(answer[theirs] or "")),
        "leaked": bool(answer["leaked_terms"]),
    }


def write_buckets(duels: Iterable[Json], data: Path) -> tuple[list[Json], dict[str, int]]:
    """Write each judged duel to the shard of its bucket; return what the report tells of all, and
    the rows of each bucket that has any.
    """
    from pimono_sdpo.schema import DUEL

    schema = DUEL.arrow_schema
    told: list[Json] = []
    batches: dict[str, list[Json]] = {}
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        writers: dict[str, pq.ParquetWriter] = {}
        for duel in duels:
            told.append({name: duel[name] for name in TOLD})
            name = duel["bucket"]
            if name == "parse_fail":
                continue
            counts[name] += 1
            if name not in writers:
                path = data / f"{name}-00000-of-00001.parquet"
                writers[name] = stack.enter_context(pq.ParquetWriter(path, schema))
            batches.setdefault(name, []).append(duel)
            if len(batches[name]) == BATCH:
                writers[name].write_table(
                    pa.Table.from_pylist(batches.pop(name), writers[name].schema)
                )
        for name, rows in batches.items():
            writers[name].write_table(pa.Table.from_pylist(rows, writers[name].schema))
    return told, {name: counts[name] for name in ("final", "refined", "defeat") if counts[name]}


def _between_equals(folder: Path, rules: "Rules", panel: Sequence[str]) -> Json | None:
    """How turns score when this king meets another sample of itself, if this panel judged that."""
    from pimono_sdpo.duel.summary import false_finals
    from processors.duel.scores import score_turns, votes_of

    judges = _judges(folder, EQUALS, "king")
    same = _kings(folder, KINGS) <= _kings(folder, ANSWERS) and _of(folder, EQUALS, KINGS)
    if not judges or judges != panel or not same:
        return None
    judged = _judged(folder, EQUALS, "king")
    turns = sorted({(row["turn_id"], row["instance_id"]) for row in judged})
    votes = votes_of(turns, judges, _judged(folder, EQUALS, "king"))
    return false_finals(score_turns(votes, rules.both_orders, rules.min_judges).turn.tolist())


def _judges(folder: Path, name: str, opponent: "Opponent") -> list[str]:
    """The panel, by name; raises SourceError when not all shards were judged by the same."""
    panels: set[frozenset[str]] = set()
    for path in sorted((folder / name).glob("*.parquet")):
        rows = pq.read_table(path, columns=["judge", "opponent"]).to_pylist()
        panels.add(frozenset(row["judge"] for row in rows if row["opponent"] == opponent))
    panels -= {frozenset()}
    if len(panels) > 1:
        raise SourceError(
            f"`{folder / name}` holds judgments of several panels, as a stage leaves them that was "
            "stopped; run the stage `judge` to its end."
        )
    return sorted(*panels) if panels else []


def _kings(folder: Path, name: str) -> set[str]:
    return {row["king_model"] for row in _rows(folder, name, ("king_model",))}


def _of(folder: Path, name: str, given: str) -> bool:
    """Whether the shards of a stage were made of those that the stage before it has now."""
    from pimono_sdpo.llm.shards import is_of

    shards = sorted((folder / name).glob("*.parquet"))
    return all(is_of(path, folder / given / path.name.replace(name, given)) for path in shards)


def _judged(folder: Path, name: str, opponent: "Opponent") -> Iterator[Json]:
    return (row for row in _rows(folder, name) if row["opponent"] == opponent)


def _cost(folder: Path) -> float | None:
    """USD of what was asked, None where a price is not known."""
    used = [
        row["usage"]
        for name in (ANSWERS, JUDGMENTS, KINGS, EQUALS)
        for row in _rows(folder, name, ("usage",))
        if row["usage"] is not None
    ]
    # What needed no call cost nothing, whatever the prices.
    costs = [usage["cost"] for usage in used if usage["prompt_tokens"]]
    return sum(costs) if costs and None not in costs else None


def _rows(folder: Path, name: str, columns: Sequence[str] | None = None) -> Iterator[Json]:
    """The rows of a stage in the order of its shards; none when it has not run."""
    for path in sorted((folder / name).glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH, columns=columns and list(columns)):
                yield from batch.to_pylist()
