"""Precision and recall of the correction model on hand-made labels.

    python -m benchmarks.corrections LABELS TRACES           # the weights as shipped
    python -m benchmarks.corrections LABELS TRACES --refit   # fitted without each person

LABELS is a CSV with the columns file, user_ordinal (0 is the first user message) and label; TRACES
is the folder that `file` is relative to. More pairs of both may follow. `text`, which may be cut
short, finds a message whose ordinal was counted differently; `person` and `harness` group the
figures, otherwise the user name in the session's folder and the session's format do. `correction`
and `bug_report` count as corrections.

A label whose message is not on the path that the user kept counts as answered with no, because the
filter does not read it. Intervals are Wilson's at 95 %.
"""

import argparse
import csv
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from time import perf_counter

from pimono_sdpo.errors import PimonoError, SourceError
from pimono_sdpo.traces.parse import read_trace
from processors.corrections.decide import decide, read_model
from processors.corrections.features import Description, Turn, describe, is_automated, read_later_turns, strip_wrapper

COLUMNS = ("file", "user_ordinal", "label")
POSITIVE = frozenset({"correction", "bug_report"})
LABELS = (*sorted(POSITIVE), "steer", "other")
MATCH_CHARS = 60
# A text cut shorter than this may be the beginning of several messages.
CUT_CHARS = 20
_ADVICE = f"give a CSV with the columns {', '.join(COLUMNS)}"
THRESHOLDS = (0.2, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7)
_HOME = re.compile(r"^(?:/Users|/home|[A-Za-z]:\\Users)[/\\]([^/\\]+)")


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled message.

    `turn` is None where the path that the user kept has no such message; `described` is None, too,
    when a harness wrote it.
    """

    person: str
    harness: str
    label: str
    turn: Turn | None
    described: Description | None

    @property
    def positive(self) -> bool:
        """The label says the user corrects the agent or reports a bug."""
        return self.label in POSITIVE


@dataclass(frozen=True)
class _Session:
    person: str
    harness: str
    turns: dict[int, Turn]


def read_examples(labels_csv: Path, traces: Path) -> list[Example]:
    """Return the labelled messages in the order of the file.

    Raises SourceError for labels or sessions that cannot be read, and when no label has a message.
    """
    rows = _read_rows(labels_csv)
    if not traces.is_dir():
        raise SourceError(f"`{traces}` is not a folder; give the one that the labels' files are relative to.")
    sessions = {name: _read_session(traces / name) for name in sorted({r["file"] for r in rows})}
    examples = [_read_example(row, sessions[row["file"]]) for row in rows]
    if all(example.turn is None for example in examples):
        raise SourceError(
            f"No label of `{labels_csv}` has its message in `{traces}`; give the traces that the "
            "labels were made from."
        )
    return examples


def _read_rows(labels_csv: Path) -> list[dict[str, str]]:
    """Read the labels; a byte order mark, as spreadsheets write it, is ignored."""
    try:
        with labels_csv.open(encoding="utf-8-sig", newline="") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SourceError(f"The labels `{labels_csv}` cannot be read as CSV in UTF-8 ({why}); {_ADVICE}.") from error
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
        if row["label"] not in LABELS:
            raise SourceError(
                f"The `label` of label {number} of `{labels_csv}` is {row['label'][:40]!r}; "
                f"use one of {', '.join(LABELS)}."
            )
    return rows


def _read_session(path: Path) -> _Session:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SourceError(
            f"The labelled session `{path}` cannot be read ({error.strerror}); give the folder "
            "that the labels' files are relative to."
        ) from error
    trace = read_trace(content)
    home = _HOME.search(trace.cwd)
    # One person records in many repositories; a repository's owner may not be the recorder.
    person = home.group(1) if home else path.name.partition("__")[0]
    said = [e.index for e in trace.events if e.kind == "user" and e.on_active_branch]
    later = {turn.event_index: turn for turn in read_later_turns(trace.events)}
    turns = {number: later[index] for number, index in enumerate(said) if index in later}
    return _Session(person.lower(), trace.harness, turns)


def _read_example(row: Mapping[str, str], session: _Session) -> Example:
    ordinal = int(row["user_ordinal"])
    turn = session.turns.get(ordinal)
    if text := _shorten(strip_wrapper(row.get("text") or "")):
        near = sorted(session.turns.items(), key=lambda item: abs(item[0] - ordinal))
        turn = next((turn for _, turn in near if _begins_with(turn.text, text)), None)
    return Example(
        person=row.get("person") or session.person,
        harness=row.get("harness") or session.harness,
        label=row["label"],
        turn=turn,
        described=None if turn is None or is_automated(turn.text) else describe(turn),
    )


def _shorten(text: str) -> str:
    return " ".join(text.split())[:MATCH_CHARS]


def _begins_with(message: str, text: str) -> bool:
    cut = text.rstrip(".\u2026")
    return _shorten(message) == text or (len(cut) > CUT_CHARS and _shorten(message).startswith(cut))


_NEGATION = re.compile(
    r"\b(?:no|not|never|don'?t|doesn'?t|didn'?t|isn'?t|wrong|stop|but|why|instead|actually|wait"
    r"|undo|revert|still|again|should|wtf|fuck\w*)\b|不|没|違|ない|아니",
    re.IGNORECASE,
)
# As the notes on the traces describe them.
BASELINES: dict[str, Callable[[Turn], bool]] = {
    "after a tool error or an abort": lambda turn: turn.aborted or turn.tool_errors > 0,
    "bag of negation words": lambda turn: bool(_NEGATION.search(turn.text)),
}


@dataclass(frozen=True, slots=True)
class Score:
    """How one decider did on some messages."""

    name: str
    messages: int
    positives: int
    answers: int
    hits: int

    @property
    def precision(self) -> float:
        """The share of the answers that is right; 0 without answers."""
        return self.hits / max(1, self.answers)

    @property
    def recall(self) -> float:
        """The share of the corrections that is found; 0 without corrections."""
        return self.hits / max(1, self.positives)

    @property
    def f1(self) -> float:
        """The harmonic mean of both."""
        return 2 * self.hits / max(1, self.answers + self.positives)


def compute_interval(hits: int, of: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share.

    >>> compute_interval(8, 10)
    (0.49, 0.943)
    """
    if not of:
        return 0.0, 1.0
    z = 1.959964
    middle = (hits + z * z / 2) / (of + z * z)
    half = z * sqrt(hits * (of - hits) / of + z * z / 4) / (of + z * z)
    return round(middle - half, 3), round(middle + half, 3)


@dataclass(frozen=True)
class Report:
    """Everything the command prints; `rules` is one score for each rule that decided."""

    groups: dict[str, list[Score]]
    unread: int
    microseconds: float


def evaluate_corrections(examples: Sequence[Example], refit: bool = False) -> Report:
    """Judge labelled messages with the shipped weights, or with weights fitted without a person."""
    model = read_model()
    people = [example.person for example in examples]
    if refit:
        from benchmarks.fit_corrections import without_each

        chances = without_each(examples, people)
    else:
        chances = [0.0 if e.turn is None else decide(e.turn).probability for e in examples]
    said = [chance >= model.threshold for chance in chances]
    return Report(
        groups={
            "fitted without each person" if refit else "weights as shipped": [measure("all", examples, said)],
            "harness": _split(examples, said, [example.harness for example in examples]),
            "person": _split(examples, said, people),
            "label": _split(examples, said, [example.label for example in examples]),
            "rule": _split(examples, said, [_name_rule(example) for example in examples]),
            "other thresholds": [
                measure(f"{limit:.2f}", examples, [chance >= limit for chance in chances]) for limit in THRESHOLDS
            ],
            "baselines": [
                measure(name, examples, [example.turn is not None and rule(example.turn) for example in examples])
                for name, rule in BASELINES.items()
            ],
        },
        unread=sum(example.turn is None for example in examples),
        microseconds=time_per_message([e.turn for e in examples if e.turn is not None]),
    )


def _split(examples: Sequence[Example], said: Sequence[bool], names: Sequence[str]) -> list[Score]:
    return [measure(name, examples, said, [each == name for each in names]) for name in sorted(set(names))]


def _name_rule(example: Example) -> str:
    return "unread" if example.turn is None else decide(example.turn).rule


def measure(
    name: str, examples: Sequence[Example], said: Sequence[bool], counted: Sequence[bool] | None = None
) -> Score:
    """Count answers and hits among the examples that are counted."""
    kept = [
        (answer, example.positive)
        for position, (answer, example) in enumerate(zip(said, examples, strict=True))
        if counted is None or counted[position]
    ]
    answers = sum(answer for answer, _ in kept)
    positives = sum(truth for _, truth in kept)
    hits = sum(answer and truth for answer, truth in kept)
    return Score(name, len(kept), positives, answers, hits)


def time_per_message(turns: Sequence[Turn]) -> float:
    """Microseconds that one decision takes, the patterns being compiled."""
    for turn in turns[:1]:
        decide(turn)
    begin = perf_counter()
    for turn in turns:
        decide(turn)
    return (perf_counter() - begin) / max(1, len(turns)) * 1e6


def render(report: Report) -> str:
    """Lay the report out as a table."""
    lines = []
    for title, scores in report.groups.items():
        lines.append(f"{title:<32} {'n':>5} {'pos':>4} {'said':>4}  precision          recall")
        lines += [
            f"  {s.name:<30} {s.messages:>5} {s.positives:>4} {s.answers:>4}"
            f"  {_show_share(s.hits, s.answers)}  {_show_share(s.hits, s.positives)}"
            for s in scores
        ]
        lines.append("")
    if report.unread:
        has, counts = ("has", "counts") if report.unread == 1 else ("have", "count")
        lines.append(
            f"{report.unread} label{'' if report.unread == 1 else 's'} {has} no message on the path "
            f"that the user kept and {counts} as answered with no."
        )
    return "\n".join([*lines, f"{report.microseconds:.0f} microseconds per message", ""])


def _show_share(hits: int, of: int) -> str:
    if not of:
        return f"{'-':<17}"
    low, high = compute_interval(hits, of)
    return f"{hits / of:.2f} [{low:.2f}, {high:.2f}]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table for pairs of labels and traces."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pairs", type=Path, nargs="+", metavar="LABELS TRACES")
    parser.add_argument("--refit", action="store_true", help="fit without each person in turn")
    options = parser.parse_args(arguments)
    if len(options.pairs) % 2:
        parser.error("give pairs of labels and the folder of their traces")
    try:
        pairs = zip(options.pairs[::2], options.pairs[1::2], strict=True)
        examples = [one for labels, traces in pairs for one in read_examples(labels, traces)]
        sys.stdout.write(render(evaluate_corrections(examples, options.refit)))
    except PimonoError as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
