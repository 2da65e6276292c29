"""Measure the correction model on labelled messages, each author judged by the others' labels.

    python -m processors.corrections.eval LABELS TRACES

prints precision and recall of `correction` or `bug_report`, the baselines', and the time taken.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from pimono_sdpo.errors import PimonoError
from processors.corrections.decide import Model, decide, load_model
from processors.corrections.features import Turn, is_automated
from processors.corrections.fit import THRESHOLD, fit, probability
from processors.corrections.labels import Example, read_examples

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
    shipped = load_model()
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


def main(arguments: Sequence[str]) -> int:
    """Print the report for the labels and traces named on the command line."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m processors.corrections.eval LABELS TRACES\n")
        return 2
    try:
        report = evaluate_corrections(Path(arguments[0]), Path(arguments[1]))
    except PimonoError as problem:
        sys.stderr.write(f"eval: {problem}\n")
        return 2
    sys.stdout.write(render(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
