"""Join hand-made labels of user messages with the sessions they come from.

columns  file, user_ordinal (0 is the first user message), label, text (may be cut short)
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pimono_sdpo.trace import read_trace
from processors.corrections.features import Turn, features, is_automated, later_turns

POSITIVE = frozenset({"correction", "bug_report"})
MATCH_CHARS = 60
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
    """Return the labelled messages in the order of the file; a label without message raises."""
    with labels_csv.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    sessions = {name: _session(traces / name) for name in {row["file"] for row in rows}}
    return [_example(row, *sessions[row["file"]]) for row in rows]


def _session(path: Path) -> tuple[str, list[Turn]]:
    trace = read_trace(path.read_text("utf-8", errors="replace"))
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
        raise ValueError(f"`{row['file']}` has no later user message like {row['text'][:40]!r}")
    shown = None if is_automated(turn.text) else features(turn)
    return Example(row["file"], author, row["label"], turn, shown)


def _key(text: str) -> str:
    return " ".join(text.split())[:MATCH_CHARS]
