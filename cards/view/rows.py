"""Build the page's data from a filter run, rollouts, or a sample to review; read and count review answers.

reads   report.json, data/*.parquet and rejects/*.parquet of a filter run; ROLLOUT rows; the CSV that
        the page saves: source, session_id, episode, kept, outcome, answer (y, n or empty), why
"""

import csv
import hashlib
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from datasets import Features

from cards.view import build_block
from pimono_sdpo.errors import SourceError
from pimono_sdpo.failures import CATEGORIES, find_rules
from pimono_sdpo.report import SCORE_IN_DETAIL
from pimono_sdpo.schema import REJECT, SDPO_ROW, find_mismatch, type_of
from pimono_sdpo.stats import wilson_interval
from pimono_sdpo.text import shorten, split_blocks

Json = dict[str, Any]


@dataclass(frozen=True)
class Chosen:
    """The rows to list, and how many there are in all; `score` is None in a reject that was not scored."""

    kept: list[Json]
    rejected: list[Json]
    kept_total: int
    rejected_total: int


def choose_rows(folder: Path, limit: int, ranked_by: str, seed: int | None = None) -> Chosen:
    """Return the `limit` best rows and rejects by a column, or with a seed a random sample of each.

    Ties keep the order of the rows. Raises SourceError for rows that `filter` did not write.
    """
    generator = random.Random(seed)
    ranking: Json = {"by": [ranked_by, "row"], "descending": [True, False], "nulls_last": True}

    def take(files: list[Path], features: Features, *columns: pl.Expr) -> tuple[list[Json], int]:
        if not files:
            return [], 0
        rows = pl.scan_parquet(files, row_index_name="row").with_columns(*columns)
        try:
            # Rows of earlier versions lack these columns, which are not shown.
            shown = {*features} - {"tools", "judged", "worth"}
            features = Features({name: features[name] for name in features if name in shown})
            ranked = rows.select("row", ranked_by).sort(**ranking).collect()["row"]
            numbers = ranked.head(limit)
            if seed is not None:
                sample = generator.sample(range(len(ranked)), min(limit, len(ranked)))
                numbers = pl.Series(sample, dtype=ranked.dtype)
            chosen = rows.filter(pl.col("row").is_in(numbers.implode())).collect(engine="streaming")
            listed, expected = chosen.sort(**ranking).drop("row").to_dicts(), type_of(features)
            mismatch = next(filter(None, (find_mismatch(row, expected) for row in listed)), "")
        except pl.exceptions.PolarsError as error:
            mismatch = re.split("[;\n]", str(error))[0]
        if mismatch:
            raise SourceError(
                f"The rows in `{files[0].parent}` are not as `filter` writes them ({mismatch}); make them again."
            )
        return listed, len(ranked)

    data = folder / "data"
    kept, total = take([*sorted(data.glob("train-*.parquet")), *sorted(data.glob("test-*.parquet"))], SDPO_ROW)
    if not total:
        raise SourceError(f"`{data}` holds no parquet files with rows; make them again with `filter`.")
    score = pl.col("detail").str.extract(SCORE_IN_DETAIL).cast(pl.Float64, strict=False)
    rejected, rejected_total = take(sorted((folder / "rejects").glob("*.parquet")), REJECT, score.alias("score"))
    return Chosen(kept, rejected, total, rejected_total)


Parts = list[list[str | None]]
MAX_MARKS = 60


def mark_text(text: str, categories: list[str], spans: list[str] | None = None) -> Parts:
    """Split a text at the matches of the categories' rules and at `spans`, into parts of text and category.

    Joined, the parts are the text.

    >>> mark_text("exit: error TS2322: no", ["build_lint_compile"])
    [['exit: ', None], ['error TS2322', 'build_lint_compile'], [': no', None]]
    """
    marks = [
        (match.start(), match.end(), rule.category)
        for rule in find_rules(text)
        if rule.category in categories
        for match in rule.pattern.finditer(text)
    ]
    for span in filter(None, spans or []):
        start = text.find(span)
        if start >= 0:
            marks.append((start, start + len(span), "user_feedback"))
    parts: Parts = []
    end = count = 0
    for start, stop, category in sorted(marks):
        if start >= end and stop > start and count < MAX_MARKS:
            parts += [[text[end:start], None], [text[start:stop], category]]
            end, count = stop, count + 1
    return [part for part in [*parts, [text[end:], None]] if part[0]]


def lay_out_blocks(context: str, spans: list[str]) -> list[Json]:
    """Return the numbered blocks of a privileged context; `spans` are the corrections to mark in it."""
    blocks = []
    for header, text in split_blocks(context):
        title, _, named = header.rstrip(":\n").partition(" (")
        categories = named.rstrip(")").split(", ") if named else ["user_feedback"]
        parts = mark_text(text, categories, [] if named else spans)
        blocks.append({"title": title, "categories": categories, "parts": parts})
    if context and not blocks:
        # A context without numbered blocks is shown unchanged.
        blocks.append({"title": "Context", "categories": [], "parts": mark_text(context, [], spans)})
    return blocks


Key = tuple[str, str, int]
COUNTED = {
    "user_messages": "user messages",
    "tool_calls": "tool calls",
    "tool_errors": "marked errors",
    "abandoned_branches": "abandoned branches",
}


def key_of(row: Mapping[str, Any]) -> Key:
    """Return the key of a row: file, session, and number of the request."""
    return row["source"], row["session_id"], row["episode"]


def rows_view(report: Json, chosen: Chosen, around: Mapping[Key, Json], note: str) -> Json:
    """Return the view of a filter run; `around` maps keys of rows to results of `processors.event_window`."""
    score, revision = report["score"], report["input"]["revision"]
    listed = [
        f"{'all' if len(rows) == total else f'the best {len(rows):,} of'} {total:,} {name}" if total else f"no {name}"
        for name, rows, total in (
            ("selected", chosen.kept, chosen.kept_total),
            ("rejected", chosen.rejected, chosen.rejected_total),
        )
    ]
    histogram = {"kind": "histogram", "title": "Rows by score", "bins": score["histogram"]}
    charts = [
        {**histogram, "cut": score["cut"]},
        _build_bars("Selected rows by category", "category", report["category_counts"]),
    ]
    if report["drop_reasons"]:
        charts.append(_build_bars("Rejected rows by reason", "outcome", report["drop_reasons"]))
    return {
        "title": f"Rows from {report['input']['source']}",
        "subtitle": f"{report['sessions']:,} sessions: {report['kept']:,} rows selected, "
        f"{report['rejected']:,} rejected. Scores {score['min']:g} to {score['max']:g}."
        + (f" Commit {revision[:12]}." if revision else ""),
        "categories": list(CATEGORIES),
        "groups": [[_build_funnel(report)], charts],
        "tables": [],
        "list": {
            "title": "Selected and rejected rows",
            "kept": "Selected",
            "dropped": "Rejected",
            "shown": f"Listed: {' and '.join(listed)} rows. {note}",
            "columns": {},
            "blocks": "What the teacher may see",
        },
        "rows": build_rows(chosen, around),
    }


def build_rows(chosen: Chosen, around: Mapping[Key, Json]) -> list[Json]:
    """Return the rows of the list, the kept ones first; `around` is as in `rows_view`."""
    groups = ((chosen.kept, True), (chosen.rejected, False))
    rows = [_build_row(row, around.get(key_of(row)), kept) for group, kept in groups for row in group]
    names = name_sessions(row["key"][0] or row["key"][1] for row in rows)
    for row in rows:
        source, session, episode = row["key"]
        request = f", request {episode + 1}" if episode else ""
        row["where"] = f"{names[source or session]}{request}"
    return rows


def name_sessions(sources: Iterable[str]) -> dict[str, str]:
    """Return a short name for each session: without common folders, and without its middle if still unique."""
    paths = sorted(set(sources))
    common = os.path.commonprefix(paths) if len(paths) > 1 else ""  # noqa: RUF071
    names = {path: path[common.rfind("/") + 1 :] for path in paths}
    stems = {path: name.partition(".jsonl")[0] for path, name in names.items()}
    short = {path: f"{stem[:8]}…{stem[-8:]}" if len(stem) > 24 else stem for path, stem in stems.items()}
    counts = Counter(short.values())
    return {path: name if counts[name] == 1 else names[path] for path, name in short.items()}


MAX_CHARS = 4000
VERDICTS = {True: "pass", False: "fail", None: "not tested"}


def rollouts_view(name: str, rows: Iterable[Json], total: int) -> Json:
    """Return the view of the first of `total` rollouts: their verdicts, and the turns of each."""
    listed = [_build_rollout(row, number) for number, row in enumerate(rows)]
    counts = Counter(row["outcome"] for row in listed)
    return {
        "title": f"Rollouts of {name}",
        "subtitle": f"{len(listed):,} of {total:,} rollouts, of {len({row['where'] for row in listed}):,} tasks.",
        "categories": [],
        "groups": [[_build_bars("Rollouts by verdict", "outcome", counts)]],
        "tables": [],
        "list": {
            "title": "Rollouts",
            "kept": "Passed",
            "dropped": "Others",
            "shown": "The first rollouts in order, each with all of its turns.",
            "columns": {"score": "Steps", "outcome": "Verdict", "where": "Task"},
            "blocks": "What happened",
        },
        "rows": listed,
    }


def _build_rollout(row: Json, number: int) -> Json:
    turns = row["messages"]
    first = next((index for index, turn in enumerate(turns) if turn["role"] == "user"), -1)
    blocks = []
    for turn in turns[first + 1 :]:
        calls = [json.dumps(call["function"], ensure_ascii=False) for call in turn["tool_calls"] or ()]
        text = "\n".join(filter(None, [turn["content"], *calls]))
        blocks.append(build_block(turn["role"], shorten(text, MAX_CHARS)))
    facts = [(name, row[name]) for name in ("run_id", "task_id", "suite", "seed", "model", "ended")]
    facts += [("tokens", row["completion_tokens"]), ("error", row["error"]), ("patch", row["patch"])]
    return {
        **{name: [] for name in ("terms", "categories", "words")},
        "id": str(number + 1),
        "kept": bool(row["tests_ok"]),
        "outcome": "error" if row["error"] else VERDICTS[row["tests_ok"]],
        "score": row["n_steps"],
        "where": row["task_id"],
        "facts": [fact for fact in facts if fact[1] not in (None, "")],
        "prompt": turns[first]["content"] if turns else "",
        "history": turns[: max(first, 0)],
        "blocks": blocks,
    }


def _build_funnel(report: Json) -> Json:
    bars = [{"name": "sessions", "value": report["sessions"]}]
    for stage in report["stages"]:
        if stage["rows_in"] != stage["rows_out"]:
            reasons = ", ".join(f"{name} {count:,}" for name, count in stage["dropped"].items())
            lost = max(stage["rows_in"] - stage["rows_out"], 0)
            note = f"after dropping {reasons}" if reasons else "rows, one per request"
            bars.append({"name": stage["stage"], "value": stage["rows_out"], "lost": lost, "note": note})
    return {"kind": "bars", "title": "From sessions to rows", "bars": bars}


def _build_bars(title: str, filtered: str, counts: Mapping[str, int]) -> Json:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    bars = [{"name": name, "value": count} for name, count in ranked]
    return {"kind": "bars", "title": title, "filter": filtered, "bars": bars}


def _build_row(row: Json, window: Json | None, kept: bool) -> Json:
    key, facts = key_of(row), _list_facts(row)
    if kept:
        spans = [item["span"] for item in row["corrections"]]
        context, prompt, words = row["privileged_context"], row["prompt"][-1]["content"], row["reward_terms"]
        facts += [
            ("split", row["split"]),
            ("correction rules", ", ".join(item["rule"] for item in row["corrections"]) or "-"),
            ("verifier spec", "yes" if row["verifier_spec"] else "no"),
        ]
    else:
        trace = window or {"prompt": "", "words": [], "context": "", "spans": []}
        spans, context, prompt, words = (trace[name] for name in ("spans", "context", "prompt", "words"))
        facts = [("stage", row["stage"]), ("detail", row["detail"]), *facts]
        row = {**trace, **row}
    events = {} if window is None else {place["title"]: place["events"] for place in window["places"]}
    return {
        # A link to a row stays valid when the page is made again.
        "id": hashlib.sha256(json.dumps(key).encode()).hexdigest()[:10],
        "outcome": "selected" if kept else row["drop_reason"],
        "score": row["score"],
        "terms": [[item["term"], item["value"]] for item in row.get("score_terms", [])],
        "categories": row.get("categories", []),
        "key": key,
        "facts": facts,
        # Each block with the session events around it.
        "blocks": [{**block, "events": events.get(block["title"], [])} for block in lay_out_blocks(context, spans)],
        "kept": kept,
        "prompt": prompt,
        "history": row["prompt"][:-1] if kept else [],
        "words": words,
    }


def _list_facts(row: Json) -> list[tuple[str, Any]]:
    facts = [("file", row["source"]), ("session", row["session_id"])]
    facts += [("harness", row["harness"])] if "harness" in row else []
    return facts + [(name, row["counts"][key]) for key, name in COUNTED.items() if row["counts"][key]]


COLUMNS = ("source", "session_id", "episode", "kept", "outcome", "answer", "why")
# The only facts in a review; the others would show whether the filter kept the row.
_FACTS = frozenset({"file", "session", "user messages", "tool calls"})


def review_view(name: str, chosen: Chosen, around: Mapping[Key, Json], seed: int) -> Json:
    """Return the view of a random sample to review; it hides whether a row was kept until it is answered."""
    rows = [
        {
            **row,
            "facts": [fact for fact in row["facts"] if fact[0] in _FACTS],
            "terms": [],
            "events": around[row["key"]]["events"] if row["key"] in around else [],
        }
        for row in build_rows(chosen, around)
        # A reject has no text of its own, so it cannot be judged without its trace.
        if row["kept"] or row["key"] in around
    ]
    random.Random(seed).shuffle(rows)
    keys = json.dumps([row["key"] for row in rows])
    kept = sum(row["kept"] for row in rows)
    return {
        "title": f"Review of {name}",
        "subtitle": f"A random sample with seed {seed}: {kept:,} of {chosen.kept_total:,} selected "
        f"and {len(rows) - kept:,} of {chosen.rejected_total:,} rejected rows, in random order.",
        "categories": list(CATEGORIES),
        "rows": rows,
        "review": {
            "columns": COLUMNS,
            "file": f"{name.rpartition('/')[2]}-labels.csv",
            # The browser stores the answers under this name until they are saved.
            "id": hashlib.sha256(keys.encode()).hexdigest()[:16],
        },
    }


def read_labels(path: Path) -> list[Json]:
    """Return the rows of a CSV that the page saved; raises SourceError for any other file."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            labels = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"Cannot read `{path}` ({error}); give a CSV that the page of --review saved.") from error
    if missing := [name for name in COLUMNS if name not in columns]:
        raise SourceError(f"`{path}` has no column `{missing[0]}`; use a CSV that the page of --review saved.")
    for number, label in enumerate(labels, start=1):
        label["answer"] = (label["answer"] or "").strip().lower()
        if label["answer"] not in {"y", "n", ""} or label["kept"] not in {"yes", "no"}:
            raise SourceError(
                f"Row {number} of `{path}` has the answer `{label['answer']}` and kept "
                f"`{label['kept']}`; an answer is y, n or empty, and kept is yes or no."
            )
    return labels


def describe_labels(labels: Sequence[Json]) -> Iterator[str]:
    """Yield a line with the share worth training on: of selected rows, of rejected rows, and by reason."""
    outcomes = sorted({label["outcome"] for label in labels if label["kept"] == "no"})
    groups = [("selected rows", "yes", None), ("rejected rows", "no", None)]
    for name, kept, outcome in [*groups, *((f"  {reason}", "no", reason) for reason in outcomes)]:
        group = [label for label in labels if label["kept"] == kept and outcome in (None, label["outcome"])]
        answers = [label["answer"] for label in group if label["answer"]]
        if not answers:
            yield f"{name}: none answered"
            continue
        good = answers.count("y")
        share = wilson_interval(good, len(answers))
        yield (
            f"{name}: {good} of {len(answers)} worth training on, {share.mean:.1%} "
            f"(95 % interval {share.low:.1%} to {share.high:.1%})"
        )
    yield f"not answered: {sum(not label['answer'] for label in labels)} of {len(labels)}"
