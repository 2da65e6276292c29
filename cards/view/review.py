"""Lay out a random sample of rows to be judged one by one, and count what a judge answered.

reads   a CSV that the page saves: source, session_id, episode, kept, outcome, answer (y, n or
        empty), why
"""

import csv
import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cards.view.rows import Chosen, Key, build_rows
from pimono_sdpo.errors import SourceError
from pimono_sdpo.failures import CATEGORIES
from pimono_sdpo.stats import wilson_interval

Json = dict[str, Any]
COLUMNS = ("source", "session_id", "episode", "kept", "outcome", "answer", "why")
# What would tell a judge whether the filter kept the row.
_FACTS = frozenset({"file", "session", "user messages", "tool calls"})


def review_view(name: str, chosen: Chosen, around: Mapping[Key, Json], seed: int) -> Json:
    """Lay out a sample in random order; whether a row was kept shows only once it is answered.

    `around` is as in `rows_view`. Rejected rows whose traces were not found have nothing to judge
    and are left out.
    """
    rows = [
        {
            **row,
            "facts": [fact for fact in row["facts"] if fact[0] in _FACTS],
            "terms": [],
            "events": around[row["key"]]["events"] if row["key"] in around else [],
        }
        for row in build_rows(chosen, around)
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
            # Answers are kept in the browser under this name until they are saved.
            "id": hashlib.sha256(keys.encode()).hexdigest()[:16],
        },
    }


def read_labels(path: Path) -> list[Json]:
    """Return the lines of a CSV that the page saved, checked; raises SourceError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            labels = list(reader)
    except FileNotFoundError as error:
        raise SourceError(f"There is no file `{path}`.") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"Cannot read `{path}` ({error}).") from error
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
    """Yield a line per share: selected and rejected rows worth training on, rejected by reason."""
    for kept, name in (("yes", "selected"), ("no", "rejected")):
        of_kind = [label for label in labels if label["kept"] == kept]
        yield _describe_share(f"{name} rows", of_kind)
        outcomes = sorted({label["outcome"] for label in of_kind})
        if kept == "no":
            for outcome in outcomes:
                those = [label for label in of_kind if label["outcome"] == outcome]
                yield _describe_share(f"  {outcome}", those)
    unanswered = sum(not label["answer"] for label in labels)
    yield f"not answered: {unanswered} of {len(labels)}"


def _describe_share(name: str, labels: Sequence[Json]) -> str:
    answers = [label["answer"] for label in labels if label["answer"]]
    good = answers.count("y")
    if not answers:
        return f"{name}: none answered"
    share = wilson_interval(good, len(answers))
    return (
        f"{name}: {good} of {len(answers)} worth training on, {share.mean:.1%} "
        f"(95 % interval {share.low:.1%} to {share.high:.1%})"
    )
