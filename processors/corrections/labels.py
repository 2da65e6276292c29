"""Join hand-made labels of user messages with the sessions they come from.

columns  file, user_ordinal (0 is the first user message), label, text (may be cut short)
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pimono_sdpo.errors import SourceError
from pimono_sdpo.trace import read_trace
from processors.corrections.features import Turn, features, is_automated, later_turns

COLUMNS = ("file", "user_ordinal", "label", "text")
POSITIVE = frozenset({"correction", "bug_report"})
MATCH_CHARS = 60
_ADVICE = f"give a CSV with the columns {', '.join(COLUMNS)}"
_HOME = re.compile(r"^(?:/Users|/home|[A-Za-z]:\\Users)[/\\]([^/\\]+)")


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled message; `shown` is its cues, None when a harness wrote it."""

    file: str
    author: str
    label: str
    turn: Turn
    shown: Mapping[str, str] | None

    @property
    def positive(self) -> bool:
        """The label says the user corrects the agent or reports a bug."""
        return self.label in POSITIVE


def read_examples(labels_csv: Path, traces: Path) -> list[Example]:
    """Return the labelled messages in the order of the file.

    Raises SourceError for labels that cannot be read and for a label without its message.
    """
    rows = _rows(labels_csv)
    if not traces.is_dir():
        raise SourceError(
            f"`{traces}` is no folder; give the one the labels' files are relative to."
        )
    sessions = {name: _session(traces / name) for name in sorted({row["file"] for row in rows})}
    return [_example(row, *sessions[row["file"]]) for row in rows]


def _rows(labels_csv: Path) -> list[dict[str, str]]:
    """Read the labels; a spreadsheet's mark at the beginning of the file is no part of them."""
    try:
        with labels_csv.open(encoding="utf-8-sig", newline="") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SourceError(
            f"The labels `{labels_csv}` cannot be read as CSV in UTF-8 ({why}); {_ADVICE}."
        ) from error
    if not rows:
        raise SourceError(f"`{labels_csv}` holds no labels; {_ADVICE}.")
    for number, row in enumerate(rows, 1):
        absent = [name for name in COLUMNS if row.get(name) is None]
        if absent:
            raise SourceError(f"Label {number} of `{labels_csv}` has no `{absent[0]}`; {_ADVICE}.")
        if not row["user_ordinal"].strip().isdecimal():
            raise SourceError(
                f"The `user_ordinal` of label {number} of `{labels_csv}` is "
                f"{row['user_ordinal'][:40]!r}; give the number of the message, from 0."
            )
    return rows


def _session(path: Path) -> tuple[str, list[Turn]]:
    try:
        trace = read_trace(path.read_bytes())
    except OSError as error:
        raise SourceError(
            f"The labelled session `{path}` cannot be read ({error.strerror}); give the folder "
            "that the labels' files are relative to."
        ) from error
    home = _HOME.search(trace.cwd)
    # One person records in many repositories; a repository's owner may not be the recorder.
    author = home.group(1) if home else path.name.partition("__")[0]
    return author.lower(), later_turns(trace.events)


def _example(row: Mapping[str, str], author: str, turns: list[Turn]) -> Example:
    near = sorted(
        enumerate(turns, start=1), key=lambda item: abs(item[0] - int(row["user_ordinal"]))
    )
    turn = next((turn for _, turn in near if _key(turn.text) == _key(row["text"])), None)
    if turn is None:
        raise SourceError(
            f"`{row['file']}` has no later user message that begins with {row['text'][:40]!r}; "
            "correct the label, or give the traces it was made from."
        )
    shown = None if is_automated(turn.text) else features(turn)
    return Example(row["file"], author, row["label"], turn, shown)


def _key(text: str) -> str:
    return " ".join(text.split())[:MATCH_CHARS]
