"""Fit the weights of the correction model to labelled messages.

    python -m benchmarks.fit_corrections LABELS TRACES [LABELS TRACES ...]

Writes processors/corrections/weights.json. A logistic regression, pulled towards the prior weights
of the cues: a few hundred labels may move a weight, not make it. A word counts if several people or
their agents use it, and is pulled towards 0. The same input gives the same bytes.
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
from scipy.sparse import csr_array

from benchmarks.corrections import Example, read_examples
from pimono_sdpo.errors import PimonoError
from processors.corrections.decide import Model, compute_probability, scale_words
from processors.corrections.features import read_cues

CUE_PULL, SITUATION_PULL = 12.0, 6.0
WORD_PULL, LEAST_PEOPLE, LEAST_WEIGHT = 4.0, 5, 0.05
INTERCEPT, INTERCEPT_PULL = -2.0, 0.05
STEPS = 400
# One for all, never fitted.
THRESHOLD = 0.42
WEIGHTS = Path(str(files("processors.corrections") / "weights.json"))

Array = npt.NDArray[np.float64]


def fit(examples: Sequence[Example]) -> Model:
    """Maximise the penalised log-likelihood; messages of a harness do not count."""
    used = [(e, e.described) for e in examples if e.described is not None]
    cues = {cue.name: (cue.prior, cue.pattern is None) for cue in read_cues()}
    names = [*cues, *list_shared_words(examples)]
    column = {name: number for number, name in enumerate(names)}
    values: list[float] = []
    columns: list[int] = []
    ends = [0]
    for _, described in used:
        known = sorted(described.words & column.keys())
        values += [described.scale] * len(described.cues) + [1.0] * len(described.situation)
        values += [scale_words(len(known))] * len(known)
        columns += [column[name] for name in (*described.cues, *described.situation, *known)]
        ends.append(len(columns))
    x = csr_array((values, columns, ends), shape=(len(used), len(names)))
    y: Array = np.array([float(example.positive) for example, _ in used])
    free = len(names) - len(cues)
    prior: Array = np.array([*(p for p, _ in cues.values()), *[0.0] * free, INTERCEPT])
    pulls = [SITUATION_PULL if around else CUE_PULL for _, around in cues.values()]
    pull: Array = np.array([*pulls, *[WORD_PULL] * free, INTERCEPT_PULL])

    def loss(weights: Array) -> tuple[float, Array]:
        z = x @ weights[:-1] + weights[-1]
        away = weights - prior
        value = np.logaddexp(0.0, z).sum() - y @ z + 0.5 * (pull * away * away).sum()
        wrong = 1.0 / (1.0 + np.exp(-z)) - y
        return float(value), np.append(x.T @ wrong, wrong.sum()) + pull * away

    found = minimize(loss, prior, jac=True, method="L-BFGS-B", options={"maxiter": STEPS})
    rounded = [round(float(weight), 2) for weight in found.x]
    weights = dict(zip(names, rounded, strict=False))
    return Model(
        threshold=THRESHOLD,
        intercept=rounded[-1],
        cues={name: weights[name] for name in sorted(cues)},
        words={name: weights[name] for name in names[len(cues) :] if abs(weights[name]) >= LEAST_WEIGHT},
        fitted_to=frozenset(example.session for example, _ in used),
    )


def list_shared_words(examples: Sequence[Example]) -> list[str]:
    """Return the words that several people or their agents use: others show who writes."""
    people: dict[str, set[str]] = {}
    for example in examples:
        for word in example.described.words if example.described else ():
            people.setdefault(word, set()).add(example.person)
    return sorted(word for word, users in people.items() if len(users) >= LEAST_PEOPLE)


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
        "words": model.words,
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
