"""Fit the weights of the correction model to labelled messages.

    python -m tests.benchmarks.fit_corrections LABELS TRACES [LABELS TRACES ...]

Writes processors/corrections/weights.json. A logistic regression, pulled towards the prior weights
of the cues: a few hundred labels may move a weight, not make it. The words themselves do not count;
they show who writes. The same input gives the same bytes.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from pimono_sdpo.errors import PimonoError
from processors.corrections.decide import Model, compute_probability
from processors.corrections.features import read_cues
from tests.benchmarks.corrections import Example, read_examples

CUE_PULL, SITUATION_PULL = 12.0, 6.0
INTERCEPT, INTERCEPT_PULL = -2.0, 0.05
STEPS = 400
# One for all, never fitted.
THRESHOLD = 0.4
WEIGHTS = Path(str(files("processors.corrections") / "weights.json"))

Array = npt.NDArray[np.float64]


def fit(examples: Sequence[Example]) -> Model:
    """Maximise the penalised log-likelihood; messages of a harness do not count."""
    used = [(e, e.described) for e in examples if e.described is not None]
    cues = {cue.name: (cue.prior, cue.pattern is None) for cue in read_cues()}
    column = {name: number for number, name in enumerate(cues)}
    x: Array = np.zeros((len(used), len(cues)))
    for row, (_, described) in enumerate(used):
        x[row, [column[name] for name in described.cues]] = described.scale
        x[row, [column[name] for name in described.situation]] = 1.0
    y: Array = np.array([float(example.positive) for example, _ in used])
    prior: Array = np.array([*(p for p, _ in cues.values()), INTERCEPT])
    pull: Array = np.array([*(SITUATION_PULL if around else CUE_PULL for _, around in cues.values()), INTERCEPT_PULL])

    def loss(weights: Array) -> tuple[float, Array]:
        z = x @ weights[:-1] + weights[-1]
        away = weights - prior
        value = np.logaddexp(0.0, z).sum() - y @ z + 0.5 * (pull * away * away).sum()
        wrong = 1.0 / (1.0 + np.exp(-z)) - y
        return float(value), np.append(x.T @ wrong, wrong.sum()) + pull * away

    found = minimize(loss, prior, jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    rounded = [round(float(weight), 2) for weight in found.x]
    return Model(
        threshold=THRESHOLD,
        intercept=rounded[-1],
        cues=dict(sorted(zip(cues, rounded[:-1], strict=True))),
        fitted_to=frozenset(example.session for example, _ in used),
    )


def without_each(examples: Sequence[Example], groups: Sequence[str]) -> list[float]:
    """Predict every example with a model that saw nothing of its group."""
    models = {
        left_out: fit([e for e, g in zip(examples, groups, strict=True) if g != left_out])
        for left_out in sorted(set(groups))
    }
    return [predict(models[g], e) for e, g in zip(examples, groups, strict=True)]


def predict(model: Model, example: Example) -> float:
    """Return the model's probability; 0 for what a harness wrote or the filter does not read."""
    described = example.described
    return 0.0 if described is None else round(compute_probability(model, described), 4)


def weights_json(model: Model) -> str:
    """Return the data file as text."""
    values = {
        "intercept": model.intercept,
        "threshold": model.threshold,
        "cues": model.cues,
        "fitted_to": sorted(model.fitted_to),
    }
    return json.dumps(values, indent=0, ensure_ascii=False) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the weights fitted to all labels."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pairs", type=Path, nargs="+", metavar="LABELS TRACES")
    given = parser.parse_args(arguments).pairs
    try:
        pairs = zip(given[::2], given[1::2], strict=True)
        examples = [one for labels, traces in pairs for one in read_examples(labels, traces)]
        WEIGHTS.write_text(weights_json(fit(examples)), encoding="utf-8")
    except PimonoError as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
