"""Lay out a filter run for the page: where rows came from and went, charts, and the rows.

reads   report.json, the rows of `choose_rows`, and what their traces hold around the evidence
"""

from collections.abc import Mapping
from typing import Any

from cards.view.chosen import Chosen
from cards.view.marks import blocks
from pimono_sdpo.failures import CATEGORIES

Json = dict[str, Any]
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

    `around` has, by `key_of`, what `processors.around` found in the traces; `note` says where they
    were looked for.
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
