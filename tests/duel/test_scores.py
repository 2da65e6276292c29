"""Votes to scores and buckets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimono_sdpo.schema import DUEL_METRICS
from processors.duel.scores import choose_bucket, collect_votes, score_turns
from tests.duel.votes import votes

NAN = float("nan")


def judgment(turn: str, judge: str, order: int, ours: float, theirs: float) -> dict[str, object]:
    both = {"scores_challenger": ours, "scores_opponent": theirs}
    scores = {name: dict.fromkeys(DUEL_METRICS, value) for name, value in both.items()}
    return {"turn_id": turn, "judge": judge, "order": order, "parsed": True, **scores}


def test_judgments_become_votes() -> None:
    said = [
        judgment("a", "x", 0, 7, 3),
        judgment("a", "x", 1, 4, 4),
        judgment("a", "y", 0, 1, 9),
        {**judgment("a", "y", 1, 9, 1), "parsed": False},
        {**judgment("b", "x", 0, 9, 1), "parsed": False},
    ]
    found = collect_votes(["x", "y"], said)
    assert found.turns == ("a", "b")
    assert found.values.shape == (2, 2, 2, 5)
    assert found.values[0, 0, :, 0].tolist() == [1, 0.5]
    assert found.values[0, 1, 0, 0] == 0
    assert np.isnan(found.values[0, 1, 1]).all()
    assert np.isnan(found.values[1]).all()


def test_a_preference_for_the_first_answer_cancels_out() -> None:
    found = score_turns(votes([[[0, 1], [0, 1], [0, 1]]]))
    assert found.turn.tolist() == [50.0]
    assert not found.consistent[0]


def test_the_score_is_the_mean_over_judges_and_orders() -> None:
    found = score_turns(votes([[[1, 1], [1, 0.5], [0, 0]]]))
    assert found.turn[0] == pytest.approx(100 * (1 + 0.75 + 0) / 3)
    assert found.judge[0].tolist() == [100, 75, 0]
    assert found.metric[0] == pytest.approx([found.turn[0]] * 5)
    assert found.votes[0] == 3


def test_a_judge_that_was_read_once_has_no_say() -> None:
    values = votes([[[1, NAN], [0, 0], [0, 0]], [[1, NAN], [NAN, 1], [0, 0]]])
    found = score_turns(values)
    assert found.turn[0] == 0
    assert np.isnan(found.turn[1])
    assert np.isnan(found.metric[1]).all()
    assert found.votes.tolist() == [2, 1]


def test_one_judge_is_a_panel() -> None:
    assert score_turns(votes([[[1, 1]]])).turn.tolist() == [100]


@pytest.mark.parametrize(
    ("score", "name"),
    [
        (80, "final"), (79.99, "refined"), (66, "refined"), (65.99, "defeat"), (0, "defeat"),
        (100, "final"), (NAN, "parse_fail"), (66 - 2e-14, "refined"), (80 - 2e-14, "final"),
    ],
)  # fmt: skip
def test_buckets(score: float, name: str) -> None:
    assert choose_bucket(score) == name


@given(st.integers(0, 2**32 - 1))
def test_players_swapped_swap_the_score(seed: int) -> None:
    rng = np.random.default_rng(seed)
    given_votes = rng.choice([0, 0.5, 1, NAN], size=(6, 3, 2))
    swapped = 1 - given_votes[:, :, ::-1]
    ours, theirs = score_turns(votes(given_votes)), score_turns(votes(swapped))
    np.testing.assert_allclose(ours.turn, 100 - theirs.turn, equal_nan=True)
    assert (ours.consistent == theirs.consistent).all()
