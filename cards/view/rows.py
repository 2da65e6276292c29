"""Lay out a filter run for the page: where rows came from and went, charts, and the rows.

reads   data/*.parquet, rejects/*.parquet of a filter run

parts   [[text, category or null], ...]; joined they are the text

reads   report.json, the rows of `choose_rows`, and what their traces hold around the evidence
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from pimono_sdpo.failures import CATEGORIES, rules_for
from pimono_sdpo.report import SCORE_IN_DETAIL

Json = dict[str, Any]


@dataclass(frozen=True)
class Chosen:
    """The rows listed and how many there are; rejects have `score`, None when none was given."""

    kept: list[Json]
    rejected: list[Json]
    kept_total: int
    rejected_total: int


def choose_rows(folder: Path, limit: int) -> Chosen:
    """Take the best `limit` rows and as many rejects; of equal ones those that come first."""
    data = folder / "data"
    kept = _scan([*sorted(data.glob("train-*.parquet")), *sorted(data.glob("test-*.parquet"))])
    rejects = _scan(sorted((folder / "rejects").glob("*.parquet")))
    if rejects is not None:
        score = pl.col("detail").str.extract(SCORE_IN_DETAIL).cast(pl.Float64, strict=False)
        rejects = rejects.with_columns(score.alias("score"))
    listed, rows = _best(kept, limit)
    not_kept, others = _best(rejects, limit)
    return Chosen(listed, not_kept, rows, others)


def _scan(files: list[Path]) -> pl.LazyFrame | None:
    return pl.scan_parquet(files, row_index_name="row") if files else None


def _best(rows: pl.LazyFrame | None, limit: int) -> tuple[list[Json], int]:
    if rows is None:
        return [], 0
    scores = rows.select("row", "score").collect()
    best = _sorted(scores).head(limit)["row"]
    listed = rows.filter(pl.col("row").is_in(best.implode())).collect(engine="streaming")
    return _sorted(listed).drop("row").to_dicts(), scores.height


def _sorted(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.sort("score", "row", descending=[True, False], nulls_last=True)


Parts = list[list[str | None]]
MAX_MARKS = 60
_HEADER = re.compile(
    r"^(?:(Tool/environment diagnostic \d+) \(([a-z_, ]*)\)|(Later user correction \d+)):$",
    re.MULTILINE,
)


def marked(text: str, categories: list[str], spans: list[str] | None = None) -> Parts:
    """Mark what the rules of these categories find in a text, and the words of `spans`.

    >>> marked("exit: error TS2322: no", ["build_lint_compile"])
    [['exit: ', None], ['error TS2322', 'build_lint_compile'], [': no', None]]
    """
    found = [
        (match.start(), match.end(), rule.category)
        for rule in rules_for(text)
        if rule.category in categories
        for match in rule.pattern.finditer(text)
    ]
    for span in filter(None, spans or []):
        at = text.find(span)
        if at >= 0:
            found.append((at, at + len(span), "user_feedback"))
    parts: Parts = []
    done = marks = 0
    for start, stop, category in sorted(found):
        if start < done or stop == start or marks == MAX_MARKS:
            continue
        if start > done:
            parts.append([text[done:start], None])
        parts.append([text[start:stop], category])
        done, marks = stop, marks + 1
    if done < len(text):
        parts.append([text[done:], None])
    return parts


def blocks(context: str, spans: list[str]) -> list[Json]:
    """Take a privileged context apart into its numbered blocks.

    title, categories, parts; `spans` are the words by which corrections were told.
    """
    heads = list(_HEADER.finditer(context))
    if not heads or heads[0].start() > 0:
        # Not as the filter writes it: shown as it is.
        return [_block("Context", [], context, spans)] if context else []
    ends = [*(head.start() for head in heads[1:]), len(context)]
    return [
        _block(
            head[1] or head[3],
            head[2].split(", ") if head[1] else ["user_feedback"],
            context[head.end() : end].strip("\n"),
            [] if head[1] else spans,
        )
        for head, end in zip(heads, ends, strict=True)
    ]


def _block(title: str, categories: list[str], text: str, spans: list[str]) -> Json:
    return {"title": title, "categories": categories, "parts": marked(text, categories, spans)}


Key = tuple[str, str, int]
COUNTED = {
    "user_messages": "user messages",
    "tool_calls": "tool calls",
    "tool_errors": "marked errors",
    "abandoned_branches": "abandoned branches",
}


def key_of(row: Mapping[str, Any]) -> Key:
    """Name a row: the file of its session, the session, the request."""
    return row["source"], row["session_id"], row["episode"]


def rows_view(report: Json, chosen: Chosen, around: Mapping[Key, Json], note: str) -> Json:
    """Return what the page of a filter run shows.

    `around` has, by `key_of`, what `processors.event_window` found in the traces; `note` says
    where they were looked for.
    """
    rows = [_kept(row, around.get(key_of(row))) for row in chosen.kept]
    rows += [_rejected(row, around.get(key_of(row))) for row in chosen.rejected]
    return {
        "title": f"Rows from {report['input']['source']}",
        "subtitle": _subtitle(report),
        "categories": list(CATEGORIES),
        "groups": [[_funnel(report)], _charts(report)],
        "tables": [],
        "list": {
            "title": "Selected and rejected rows",
            "kept": "Selected",
            "dropped": "Rejected",
            "shown": f"{_shown(chosen)} {note}",
            "columns": {},
        },
        "rows": rows,
    }


def _subtitle(report: Json) -> str:
    score, at = report["score"], report["input"]["revision"]
    said = f"{report['sessions']:,} sessions, {report['kept']:,} rows selected, "
    said += f"{report['rejected']:,} rejected. Scores {score['min']:g} to {score['max']:g}."
    return said + (f" Commit {at[:12]}." if at else "")


def _shown(chosen: Chosen) -> str:
    """Say how much of each kind is listed."""
    told = []
    for name, rows, total in (
        ("selected", chosen.kept, chosen.kept_total),
        ("rejected", chosen.rejected, chosen.rejected_total),
    ):
        part = f"all {total:,}" if len(rows) == total else f"the best {len(rows):,} of {total:,}"
        told.append(f"{part} {name}" if total else f"none {name}")
    return f"Listed: {' and '.join(told)} rows."


def _funnel(report: Json) -> Json:
    bars = [{"name": "sessions", "value": report["sessions"]}]
    for stage in report["stages"]:
        if stage["rows_in"] == stage["rows_out"]:
            continue
        reasons = ", ".join(f"{name} {count:,}" for name, count in stage["dropped"].items())
        lost = max(stage["rows_in"] - stage["rows_out"], 0)
        bars.append(
            {
                "name": stage["stage"],
                "value": stage["rows_out"],
                "lost": lost,
                "said": f"after dropping {reasons}" if reasons else "rows, one per request",
            }
        )
    return {"kind": "bars", "title": "From sessions to rows", "bars": bars}


def _charts(report: Json) -> list[Json]:
    histogram = {
        "kind": "histogram",
        "title": "Rows by score",
        "bins": report["score"]["histogram"],
        "cut": report["score"]["cut"],
    }
    return [
        histogram,
        _bars("Selected rows by category", "category", report["category_counts"]),
        *(
            [_bars("Rejected rows by reason", "outcome", report["drop_reasons"])]
            if report["drop_reasons"]
            else []
        ),
    ]


def _bars(title: str, filtered: str, counts: Mapping[str, int]) -> Json:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    bars = [{"name": name, "value": count} for name, count in ranked]
    return {"kind": "bars", "title": title, "filter": filtered, "bars": bars}


def _kept(row: Json, found: Json | None) -> Json:
    spans = [item["span"] for item in row["corrections"]]
    facts = [
        *_facts(row),
        ("split", row["split"]),
        ("corrections told by", ", ".join(item["rule"] for item in row["corrections"]) or "-"),
        ("verifier spec", "yes" if row["verifier_spec"] else "no"),
    ]
    return _row(row, found, "selected", facts) | {
        "kept": True,
        "prompt": row["prompt"][-1]["content"],
        "history": row["prompt"][:-1],
        "words": row["reward_terms"],
        "blocks": _blocks(row["privileged_context"], spans, found),
    }


def _rejected(row: Json, found: Json | None) -> Json:
    facts = [("stage", row["stage"]), ("detail", row["detail"]), *_facts(row)]
    made = found or {"prompt": "", "words": [], "context": "", "spans": []}
    return _row({**(found or {}), **row}, found, row["drop_reason"], facts) | {
        "kept": False,
        "prompt": made["prompt"],
        "history": [],
        "words": made["words"],
        "blocks": _blocks(made["context"], made["spans"], found),
    }


def _row(row: Json, found: Json | None, outcome: str, facts: list[tuple[str, Any]]) -> Json:
    source, session, episode = key_of(row)
    request = f", request {episode + 1}" if episode else ""
    return {
        "outcome": outcome,
        "asked": "Request",
        "told": "What the teacher may see",
        "score": row["score"],
        "terms": [[item["term"], item["value"]] for item in row.get("score_terms", [])],
        "categories": row.get("categories", []),
        "where": f"{source or session}{request}",
        "facts": facts,
    }


def _facts(row: Json) -> list[tuple[str, Any]]:
    counts = row["counts"]
    facts = [("file", row["source"]), ("session", row["session_id"])]
    facts += [("harness", row["harness"])] if "harness" in row else []
    return facts + [(name, counts[key]) for key, name in COUNTED.items() if counts[key]]


def _blocks(context: str, spans: list[str], found: Json | None) -> list[Json]:
    """The blocks of a context, each with the events of the session around it."""
    places = {} if found is None else {place["title"]: place["events"] for place in found["places"]}
    return [{**block, "events": places.get(block["title"], [])} for block in blocks(context, spans)]
