"""Fit the weights of the correction model to labelled messages.

    python -m benchmarks.fit_corrections LABELS TRACES [LABELS TRACES ...]

Writes the weights and the intercept into processors/corrections/cues.toml: a logistic regression, pulled towards the
prior weights of the cues, since few labels show the rarer ones. The threshold is not fitted. The same input gives the
same bytes.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from benchmarks.corrections import Example, read_examples
from pimono_sdpo.errors import PimonoError
from processors.corrections.decide import Model, compute_probability, read_model
from processors.corrections.features import CUES, read_cues

# Precision and recall without each person hardly depend on it; a rare cue keeps the sign of its prior.
PULL = 10.0

Array = npt.NDArray[np.float64]


def fit(examples: Sequence[Example]) -> Model:
    """Maximise the penalised log-likelihood; messages of a harness do not count."""
    used = [(described, e.positive) for e in examples if (described := e.described) is not None]
    cues = read_cues()
    names = [cue.name for cue in cues]
    column = {name: number for number, name in enumerate(names)}
    x: Array = np.zeros((len(used), len(names) + 1))
    x[:, -1] = 1.0
    for line, (described, _) in zip(x, used, strict=True):
        line[[column[name] for name in described.cues]] = described.scale
        line[[column[name] for name in described.situation]] = 1.0
    y = np.array([float(positive) for _, positive in used])
    prior = np.array([*(cue.prior for cue in cues), 0.0])
    pull = np.array([*[PULL] * len(names), 0.0])

    def loss(weights: Array) -> tuple[float, Array]:
        z = x @ weights
        away = weights - prior
        value = np.logaddexp(0.0, z).sum() - y @ z + 0.5 * (pull * away * away).sum()
        return float(value), x.T @ (1.0 / (1.0 + np.exp(-z)) - y) + pull * away

    found = minimize(loss, prior, jac=True, method="L-BFGS-B")
    *weights, intercept = (round(float(weight), 2) for weight in found.x)
    return Model(read_model().threshold, intercept, dict(zip(names, weights, strict=True)))


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


def replace_weights(table: str, model: Model) -> str:
    """Return the text of cues.toml with the weights and the intercept of a model."""
    table = re.sub(r"(?m)^intercept = .*$", f"intercept = {model.intercept}", table)
    for name, weight in model.cues.items():
        table = re.sub(rf"(?m)(^\[{name}\]\nwhere = .*\nprior = .*\nweight = ).*$", rf"\g<1>{weight}", table)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the weights fitted to all labels."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pairs", type=Path, nargs="+", metavar="LABELS TRACES")
    given = parser.parse_args(arguments).pairs
    try:
        pairs = zip(given[::2], given[1::2], strict=True)
        examples = [one for labels, traces in pairs for one in read_examples(labels, traces)]
        CUES.write_text(replace_weights(CUES.read_text("utf-8"), fit(examples)), encoding="utf-8")
    except PimonoError as problem:
        sys.stderr.write(f"{problem}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
