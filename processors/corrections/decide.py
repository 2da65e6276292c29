"""Find later user messages that correct the agent or report a bug in what it did.

No fixed wording marks a correction. Each message is described by cues of many languages and by the situation; a
linear model adds their weights to a probability.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from pimono_sdpo.schema import Correction
from pimono_sdpo.traces.events import Event
from processors.corrections.features import (
    READ_CHARS,
    Description,
    Turn,
    describe,
    is_automated,
    read_cues,
    read_later_turns,
    read_table,
)
from processors.corrections.judge import judge_turns
from processors.judge import CORRECTION, Judge

SPAN_CHARS = 80
BEFORE_CHARS = 40
# From this weight on a cue's words explain a decision alone; a lone word below needs its sentence.
TELLING_WEIGHT = 1.0
# They say nothing about the work.
_POINTING = frozenset({"about_it", "exclamation"})
_SENTENCE_END = re.compile(r"[.!?\u2026](?=\s|\Z)|[\u3002\uff01\uff1f\n]")


@dataclass(frozen=True)
class Model:
    """The log-odds without any cue, what each cue adds, and the least probability of a correction."""

    threshold: float
    intercept: float
    cues: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether one message is a correction, and why.

    `rule` is the cue that speaks most for a correction, `model` when none does; `span` is the words
    that show it, the message's first words when the situation does.
    """

    is_correction: bool
    probability: float
    rule: str
    span: str


def find_corrections(events: Sequence[Event], judge: Judge | None = None) -> list[Correction]:
    """Return the user messages after the first one that correct the agent, each with its reason.

    A judge decides instead of the model where it answers; then the rule is `judge`.
    """
    turns = read_later_turns(events)
    decisions = [decide(turn, judge is not None) for turn in turns]
    if judge:
        asked = [number for number, d in enumerate(decisions) if d.rule != "automated"]
        answers = judge_turns(judge, [turns[number] for number in asked])
        for number, answer in zip(asked, answers, strict=True):
            if answer is not None:
                decisions[number] = replace(
                    decisions[number],
                    is_correction=max(answer, key=answer.__getitem__) == CORRECTION,
                    probability=round(answer[CORRECTION], 4),
                    rule="judge",
                )
    return [
        {
            "text": turn.text,
            "event_index": turn.event_index,
            "rule": decision.rule,
            "probability": decision.probability,
            "span": decision.span,
        }
        for turn, decision in zip(turns, decisions, strict=True)
        if decision.is_correction
    ]


def decide(turn: Turn, exact: bool = True) -> Decision:
    """Decide whether a message is a correction; not `exact`, one that is none has no reason.

    >>> decide(Turn(7, "No, keep the old file name")).rule
    'no'
    >>> decide(Turn(7, "ok, commit and push", aborted=True)).is_correction
    False
    """
    if is_automated(turn.text):
        return Decision(False, 0.0, "automated", "")
    model = read_model()
    described = describe(turn, None if exact else partial(_may_correct, model))
    probability = round(compute_probability(model, described), 4)
    if not exact and probability < model.threshold:
        return Decision(False, probability, "", "")
    shown = {**described.cues, **dict.fromkeys(described.situation, "")}
    rule = _choose_rule(model, shown)
    return Decision(
        is_correction=probability >= model.threshold,
        probability=probability,
        rule=rule,
        span=_cut_to_words(_choose_span(model, rule, shown, turn.text)),
    )


def _may_correct(model: Model, possible: Description) -> bool:
    """Check that a message would be a correction if it showed what speaks for one, and nothing against it."""
    speaking = {name: words for name, words in possible.cues.items() if model.cues[name] > 0.0}
    return round(compute_probability(model, replace(possible, cues=speaking)), 4) >= model.threshold


def _choose_rule(model: Model, shown: Mapping[str, str]) -> str:
    weights = {name: model.cues[name] for name in shown}
    speaking = [name for name, weight in weights.items() if weight > 0.0]
    telling = [name for name in speaking if name not in _POINTING]
    return max(telling or speaking, key=weights.__getitem__, default="model")


def _choose_span(model: Model, rule: str, shown: Mapping[str, str], text: str) -> str:
    words = shown.get(rule, "")
    if len(words.split()) == 1 and model.cues[rule] < TELLING_WEIGHT:
        return _find_sentence(words, text[:READ_CHARS])
    return words or text


def _find_sentence(words: str, text: str) -> str:
    """Return the sentence around some words, from at most BEFORE_CHARS before them on."""
    exact = re.escape(words)
    at = re.search(rf"(?<!\w){exact}(?!\w)", text) or re.search(exact, text)
    if at is None:
        return words
    ends = [end.end() for end in _SENTENCE_END.finditer(text) if end.end() <= at.start()]
    start = max([0, *ends])
    if at.start() - start > BEFORE_CHARS:
        near = text.find(" ", at.start() - BEFORE_CHARS, at.start())
        start = near + 1 if near >= 0 else at.start()
    stop = _SENTENCE_END.search(text, at.end())
    return text[start : stop.end() if stop else len(text)].strip()


def compute_probability(model: Model, described: Description) -> float:
    """Return the probability of a correction for a described message."""
    said, around = (math.fsum(map(model.cues.__getitem__, names)) for names in (described.cues, described.situation))
    return 1.0 / (1.0 + math.exp(-(model.intercept + described.scale * said + around)))


def _cut_to_words(text: str) -> str:
    """Shorten to whole words: redaction would not recognise half a secret."""
    line = text.partition("\n")[0]
    cut = line[:SPAN_CHARS].rstrip()
    whole = cut if len(line) <= SPAN_CHARS else cut.rpartition(" ")[0].rstrip()
    return whole or ("" if cut.isascii() else cut)


@cache
def read_model() -> Model:
    """Read the weights that come with the package."""
    table = read_table()
    return Model(table["threshold"], table["intercept"], {cue.name: cue.weight for cue in read_cues()})
