"""Precision and recall of the correction model on hand-made labels, each author left out in turn.

    python -m tests.benchmarks.corrections LABELS TRACES [--write]

LABELS is a CSV with the columns file, user_ordinal (0 is the first user message), label and text
(which may be cut short); TRACES is the folder that `file` is relative to. `correction` and
`bug_report` count as corrections. `--write` fits weights.json to all labels instead.

The fit is a logistic regression pulled towards the cues' prior weights: a few hundred labels by few
authors may move a weight, not make it. The same input gives the same bytes.
"""

import argparse
import csv
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from pimono_sdpo.errors import PimonoError, SourceError
from pimono_sdpo.traces.parse import read_trace
from processors.corrections.decide import Model, compute_probability, decide, read_model
from processors.corrections.features import (
    Turn,
    find_cues,
    is_automated,
    read_cues,
    read_later_turns,
)

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
            f"`{traces}` is not a folder; give the one that the labels' files are relative to."
        )
    sessions = {name: _session(traces / name) for name in sorted({row["file"] for row in rows})}
    return [_example(row, *sessions[row["file"]]) for row in rows]


def _rows(labels_csv: Path) -> list[dict[str, str]]:
    """Read the labels; a byte order mark, as spreadsheets write it, is ignored."""
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
    return author.lower(), read_later_turns(trace.events)


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
    shown = None if is_automated(turn.text) else find_cues(turn)
    return Example(row["file"], author, row["label"], turn, shown)


def _key(text: str) -> str:
    return " ".join(text.split())[:MATCH_CHARS]


THRESHOLDS = tuple(step / 100 for step in range(20, 81))
_NEGATION = re.compile(
    r"\b(?:no|not|never|don'?t|doesn'?t|didn'?t|isn'?t|wrong|stop|but|why|instead|actually|wait"
    r"|undo|revert|still|again|should|wtf|fuck\w*)\b|不|没|違|ない|아니",
    re.IGNORECASE,
)
_TIGHT = re.compile(
    r"^\W*(?:no|nope|nah|wrong|stop|undo|revert|wait|don'?t)\b|\bthat'?s (?:not|wrong)"
    r"|\bthis is (?:not|wrong)|\bnot (?:what|how|right|correct)|\bi (?:said|told|asked|meant)"
    r"|\bstill (?:not|fails?|broken)|\b(?:doesn'?t|does not) work|\byou (?:forgot|broke|missed)"
    r"|\bwtf\b|\binstead\b|不是|不对|違う|아니",
    re.IGNORECASE,
)
_FOLLOW_UP = re.compile(r"^\W*(?:ok|okay|yes|yeah|continue|commit|proceed|go|thanks)\b", re.I)
# As the notes on the traces describe them.
BASELINES: dict[str, Callable[[Turn], bool]] = {
    "after a tool error or an abort": lambda turn: turn.aborted or turn.tool_errors > 0,
    "bag of negation words": lambda turn: bool(_NEGATION.search(turn.text)),
    "tight phrases or aborted, no follow-up": lambda turn: (
        (turn.aborted or bool(_TIGHT.search(turn.text)))
        and not _FOLLOW_UP.search(turn.text)
        and not is_automated(turn.text)
    ),
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


@dataclass(frozen=True)
class Report:
    """Everything the command prints; `authors` and `left_out` never saw the judged author."""

    authors: list[Score]
    left_out: Score
    left_out_threshold: Score
    session_left_out: Score
    in_sample: Score
    curve: list[Score]
    baselines: list[Score]
    microseconds: float


def evaluate_corrections(labels_csv: Path, traces_dir: Path) -> Report:
    """Fit without each author in turn and judge that author's messages."""
    examples = read_examples(labels_csv, traces_dir)
    authors = [example.author for example in examples]
    by_author = without_each(examples, authors)
    by_session = without_each(examples, [example.file for example in examples])
    shipped = read_model()
    said = [p >= THRESHOLD for p in by_author]
    return Report(
        authors=[
            measure(name, examples, said, [author == name for author in authors])
            for name in sorted(set(authors))
        ],
        left_out=measure("leave one author out", examples, said),
        left_out_threshold=measure(
            "... and its threshold too", examples, nested(examples, authors, by_author)
        ),
        session_left_out=measure(
            "leave one session out", examples, [p >= THRESHOLD for p in by_session]
        ),
        in_sample=measure(
            "in sample (weights as shipped)",
            examples,
            [probability(shipped, example) >= shipped.threshold for example in examples],
        ),
        curve=[
            measure(f"threshold {limit:.2f}", examples, [p >= limit for p in by_author])
            for limit in (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)
        ],
        baselines=[
            measure(name, examples, [baseline(example.turn) for example in examples])
            for name, baseline in BASELINES.items()
        ],
        microseconds=time_per_message([example.turn for example in examples]),
    )


def without_each(examples: Sequence[Example], groups: Sequence[str]) -> list[float]:
    """Predict every example with a model that saw nothing of its group."""
    models: dict[str, Model] = {
        left_out: fit([e for e, g in zip(examples, groups, strict=True) if g != left_out])
        for left_out in sorted(set(groups))
    }
    return [probability(models[g], e) for e, g in zip(examples, groups, strict=True)]


def nested(
    examples: Sequence[Example], authors: Sequence[str], left_out: Sequence[float]
) -> list[bool]:
    """Decide with the threshold that gives the other authors' sessions, left out, the best F1."""
    limits = {}
    for name in sorted(set(authors)):
        others = [e for e, author in zip(examples, authors, strict=True) if author != name]
        inner = without_each(others, [e.file for e in others])
        scores = [measure("", others, [p >= limit for p in inner]).f1 for limit in THRESHOLDS]
        limits[name] = THRESHOLDS[scores.index(max(scores))]
    return [p >= limits[author] for p, author in zip(left_out, authors, strict=True)]


def measure(
    name: str,
    examples: Sequence[Example],
    said: Sequence[bool],
    counted: Sequence[bool] | None = None,
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
    groups = (
        ("authors, each left out", report.authors),
        (
            f"all messages (threshold {THRESHOLD})",
            [
                report.left_out,
                report.left_out_threshold,
                report.session_left_out,
                report.in_sample,
            ],
        ),
        ("leave one author out", report.curve),
        ("baselines", report.baselines),
    )
    lines = []
    for title, scores in groups:
        lines.append(f"{title:<40} {'n':>5} {'pos':>5} {'said':>5} {'P':>6} {'R':>6} {'F1':>6}")
        lines += [
            f"  {s.name:<38} {s.messages:>5} {s.positives:>5} {s.answers:>5}"
            f" {s.precision:>6.3f} {s.recall:>6.3f} {s.f1:>6.3f}"
            for s in scores
        ]
        lines.append("")
    return "\n".join([*lines, f"{report.microseconds:.0f} microseconds per message", ""])


PULL = 16.0
INTERCEPT, INTERCEPT_PULL = -2.0, 0.05
STEPS, TOLERANCE = 50, 1e-9
# One for all, never fitted: a missed correction costs a little more than a false one.
THRESHOLD = 0.4
WEIGHTS = Path(str(files("processors.corrections") / "weights.json"))

Array = npt.NDArray[np.float64]


def fit(examples: Sequence[Example]) -> Model:
    """Newton's method on the penalised log-likelihood; messages of a harness do not count."""
    names = [cue.name for cue in read_cues()]
    used = [example for example in examples if example.shown is not None]
    rows = [[float(name in (e.shown or {})) for name in names] + [1.0] for e in used]
    x: Array = np.array(rows, dtype=np.float64).reshape(len(used), len(names) + 1)
    y: Array = np.array([float(example.positive) for example in used], dtype=np.float64)
    prior: Array = np.array([cue.prior for cue in read_cues()] + [INTERCEPT], dtype=np.float64)
    pull: Array = np.array([PULL] * len(names) + [INTERCEPT_PULL], dtype=np.float64)
    weights = prior.copy()
    for _ in range(STEPS):
        p = 1.0 / (1.0 + np.exp(-(x @ weights)))
        gradient = x.T @ (p - y) + pull * (weights - prior)
        hessian = (x.T * (p * (1.0 - p))) @ x + np.diag(pull)
        step = np.linalg.solve(hessian, gradient)
        weights = weights - step
        if float(np.abs(step).max()) < TOLERANCE:
            break
    rounded = [round(float(weight), 3) for weight in weights]
    return Model(THRESHOLD, rounded[-1], dict(zip(names, rounded[:-1], strict=True)))


def probability(model: Model, example: Example) -> float:
    """The model's probability; 0 for what a harness wrote."""
    return 0.0 if example.shown is None else round(compute_probability(model, example.shown), 4)


def weights_json(model: Model) -> str:
    """The data file, as text."""
    values = {
        "intercept": model.intercept,
        "threshold": model.threshold,
        "weights": dict(sorted(model.weights.items())),
    }
    return json.dumps(values, indent=2) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table for labels and traces, or write the weights fitted to them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("labels", type=Path)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--write", action="store_true", help="fit and write weights.json")
    options = parser.parse_args(arguments)
    try:
        if options.write:
            WEIGHTS.write_text(weights_json(fit(read_examples(options.labels, options.traces))))
        else:
            sys.stdout.write(render(evaluate_corrections(options.labels, options.traces)))
    except PimonoError as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
