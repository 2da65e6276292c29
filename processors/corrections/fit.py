"""Fit the weights of the correction model to labelled messages.

    python -m processors.corrections.fit LABELS TRACES

writes weights.json. Logistic regression, pulled towards the cues' prior weights: a few
hundred labels by few authors may move a weight, not make it. Same input, same bytes.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pimono_sdpo.errors import PimonoError
from processors.corrections.decide import Model, score
from processors.corrections.features import cues
from processors.corrections.labels import Example, read_examples

PULL = 16.0
INTERCEPT, INTERCEPT_PULL = -2.0, 0.05
STEPS, TOLERANCE = 50, 1e-9
# One for all, never fitted: a missed correction costs a little more than a false one.
THRESHOLD = 0.4
WEIGHTS = Path(__file__).with_name("weights.json")

Array = npt.NDArray[np.float64]


def fit(examples: Sequence[Example]) -> Model:
    """Newton's method on the penalised log-likelihood; messages of a harness do not count."""
    names = [cue.name for cue in cues()]
    used = [example for example in examples if example.shown is not None]
    rows = [[float(name in (e.shown or {})) for name in names] + [1.0] for e in used]
    x: Array = np.array(rows, dtype=np.float64).reshape(len(used), len(names) + 1)
    y: Array = np.array([float(example.positive) for example in used], dtype=np.float64)
    prior: Array = np.array([cue.prior for cue in cues()] + [INTERCEPT], dtype=np.float64)
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
    return 0.0 if example.shown is None else round(score(model, example.shown), 4)


def weights_json(model: Model) -> str:
    """The data file, as text."""
    values = {
        "intercept": model.intercept,
        "threshold": model.threshold,
        "weights": dict(sorted(model.weights.items())),
    }
    return json.dumps(values, indent=2) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the weights for the labels and traces named on the command line."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m processors.corrections.fit LABELS TRACES\n")
        return 2
    try:
        examples = read_examples(Path(arguments[0]), Path(arguments[1]))
    except PimonoError as problem:
        sys.stderr.write(f"fit: {problem}\n")
        return 2
    WEIGHTS.write_text(weights_json(fit(examples)))
    sys.stdout.write(f"{len(examples)} messages, {WEIGHTS}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
