"""Find later user messages that correct the agent or report a bug in what it did.

No fixed wording marks a correction. Each message is described by cues, words of many languages and
the situation; a linear model adds their weights to a probability. The weights are data, fitted by
fit.py: weights.json.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from pimono_sdpo.harness.event import Event
from pimono_sdpo.schema import Correction
from processors.corrections.features import Turn, features, is_automated, later_turns

SPAN_CHARS = 80


@dataclass(frozen=True)
class Model:
    """What the labels taught: a weight per cue, and from which probability on it is a yes."""

    threshold: float
    intercept: float
    weights: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether one message is a correction, and why.

    `rule` is the cue that speaks most for a correction, `model` when none does; `span` is the
    words that show it, the message's first words when the situation does.
    """

    is_correction: bool
    probability: float
    rule: str
    span: str


def find_corrections(events: Sequence[Event]) -> list[Correction]:
    """Return the user messages after the first one that correct the agent, each with its reason."""
    found: list[Correction] = []
    for turn in later_turns(events):
        decision = decide(turn)
        if decision.is_correction:
            found.append(
                {
                    "text": turn.text,
                    "event_index": turn.event_index,
                    "rule": decision.rule,
                    "probability": decision.probability,
                    "span": decision.span,
                }
            )
    return found


def decide(turn: Turn) -> Decision:
    """Weigh one message.

    >>> decide(Turn(7, "No, keep the old file name")).rule
    'no'
    >>> decide(Turn(7, "ok, commit and push", aborted=True)).is_correction
    False
    """
    if not turn.text or is_automated(turn.text):
        return Decision(False, 0.0, "automated", "")
    model = load_model()
    shown = features(turn)
    rule = max(shown, key=lambda name: model.weights.get(name, 0.0), default="model")
    if model.weights.get(rule, 0.0) <= 0.0:
        rule = "model"
    probability = round(score(model, shown), 4)
    return Decision(
        is_correction=probability >= model.threshold,
        probability=probability,
        rule=rule,
        span=_first_words(shown.get(rule) or turn.text),
    )


def score(model: Model, shown: Iterable[str]) -> float:
    """Turn the cues of a message into a probability."""
    total = model.intercept + sum(model.weights.get(name, 0.0) for name in shown)
    return 1.0 / (1.0 + math.exp(-total))


def _first_words(text: str) -> str:
    """Whole words only: half a secret is no longer found by what takes secrets out."""
    line = text.partition("\n")[0]
    cut = line[:SPAN_CHARS].rstrip()
    if len(line) <= SPAN_CHARS:
        return cut
    whole = cut.rpartition(" ")[0].rstrip()
    return whole or ("" if cut.isascii() else cut)


@lru_cache(maxsize=1)
def load_model() -> Model:
    """Read the weights that come with the package."""
    values = json.loads((files("processors.corrections") / "weights.json").read_text("utf-8"))
    return Model(values["threshold"], values["intercept"], values["weights"])
