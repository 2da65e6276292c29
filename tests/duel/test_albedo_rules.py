"""The original rules on an example computed by hand."""

import numpy as np
import pytest

from pimono_sdpo.duel.gate import decide_by_original_rules
from pimono_sdpo.llm.settings import Duel
from processors.duel.judge import Array
from tests.duel.votes import votes

NAN = float("nan")
FEW = Duel(bootstrap_resamples=200)


def by_metric(values: list[list[list[float]]]) -> Array:
    """Votes (turns, judges, metrics) of the one order there was."""
    array = np.full((*np.shape(values)[:2], 2, 5), NAN)
    array[:, :, 0] = values
    return array


EXAMPLE = by_metric(
    [
        # Judge x: 0.7, judge y: 0.5.
        [[1, 1, 0.5, 1, 0], [0.5, 0.5, 0.5, 0.5, 0.5]],
        # Judge x: 0.4, judge y could not be read.
        [[0, 0, 0.5, 0.5, 1], [NAN] * 5],
        # Nobody could be read.
        [[NAN] * 5, [NAN] * 5],
        # Judge x: 1, judge y: 0.8.
        [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]],
    ]
)


def test_the_example_computed_by_hand() -> None:
    # x: metric means over its three turns 2/3, 2/3, 2/3, 5/6, 2/3, their mean 0.7.
    # y: over its two turns 3/4, 3/4, 3/4, 3/4, 1/4, their mean 0.65. Both: 67.5.
    verdict = decide_by_original_rules(EXAMPLE, FEW)
    assert verdict["challenger_score"] == 67.5
    assert verdict["king_score"] == 32.5
    # Two of four turns were read by all judges: just enough.
    assert (verdict["valid"], verdict["turns"]) == (2, 4)
    assert verdict["lcb"] is not None
    assert not verdict["accepted"]


def test_the_bound_is_the_quantile_of_resampled_turns() -> None:
    verdict = decide_by_original_rules(EXAMPLE, FEW)
    entropy = np.random.SeedSequence(0)
    rng = np.random.Generator(np.random.PCG64DXSM(entropy))
    deltas = np.array([0.1, -0.1, -0.5, 0.4])
    drawn = deltas[rng.integers(0, 4, size=(200, 4))].mean(axis=1)
    assert verdict["lcb"] == pytest.approx(float(np.quantile(drawn, 0.05)))


def test_too_few_turns_read_by_all_judges_refuse() -> None:
    verdict = decide_by_original_rules(votes([[[1, NAN], [1, NAN]], [[1, NAN], [NAN, NAN]]] * 2), FEW)
    assert verdict["accepted"]
    strict = Duel(bootstrap_resamples=200, min_valid_turn_frac=0.51)
    refused = decide_by_original_rules(votes([[[1, NAN], [1, NAN]], [[1, NAN], [NAN, NAN]]] * 2), strict)
    assert refused["lcb"] is None
    assert not refused["accepted"]


def test_the_margin_is_challenger_minus_king() -> None:
    won = votes([[[0.505, NAN]]] * 8)
    assert decide_by_original_rules(won, FEW)["accepted"] is False
    assert decide_by_original_rules(votes([[[0.51, NAN]]] * 8), FEW)["accepted"] is True


def test_the_second_order_is_not_looked_at() -> None:
    assert decide_by_original_rules(votes([[[1, 0]]] * 8), FEW)["challenger_score"] == 100


def test_nothing_is_a_refusal() -> None:
    none = np.empty((0, 1, 2, 5))
    assert not decide_by_original_rules(none, FEW)["accepted"]
