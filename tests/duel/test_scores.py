"""Votes to scores and buckets."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimono_sdpo.schema import DUEL_METRICS
from processors.duel.judge import choose_bucket, collect_votes, score_turn

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
    assert found.shape == (2, 2, 2, 5)
    assert found[0, 0, :, 0].tolist() == [1, 0.5]
    assert found[0, 1, 0, 0] == 0
    assert np.isnan(found[0, 1, 1]).all()
    assert np.isnan(found[1]).all()


def scored(votes: Sequence[Sequence[float]]) -> dict[str, Any]:
    """What a panel says of a turn by its votes (judges, 2 orders), nan for a reply that was not read."""
    rows = [
        {**judgment("t", str(number), order, vote, 0.5), "parsed": vote == vote}
        for number, orders in enumerate(votes)
        for order, vote in enumerate(orders)
    ]
    judges = [str(number) for number in range(len(votes))]
    return score_turn(collect_votes(judges, rows)[0], judges)


def test_a_preference_for_the_first_answer_cancels_out() -> None:
    found = scored([[0, 1], [0, 1], [0, 1]])
    assert found["score"] == 50
    assert not found["position_consistent"]


def test_the_score_is_the_mean_over_judges_and_orders() -> None:
    found = scored([[1, 1], [1, 0.5], [0, 0]])
    assert found["score"] == pytest.approx(100 * (1 + 0.75 + 0) / 3)
    assert [one["score"] for one in found["per_judge"]] == [100, 75, 0]
    assert found["metrics"] == pytest.approx(dict.fromkeys(DUEL_METRICS, found["score"]))
    assert found["n_votes"] == 3


def test_a_judge_that_was_read_once_has_no_say() -> None:
    assert scored([[1, NAN], [0, 0], [0, 0]])["score"] == 0
    found = scored([[1, NAN], [NAN, 1], [0, 0]])
    assert (found["score"], found["n_votes"]) == (None, 1)
    assert set(found["metrics"].values()) == {None}


def test_one_judge_is_a_panel() -> None:
    assert scored([[1, 1]])["score"] == 100


@pytest.mark.parametrize(
    ("score", "name"),
    [
        (80, "final"), (79.99, "refined"), (66, "refined"), (65.99, "defeat"), (0, "defeat"),
        (100, "final"), (None, "parse_fail"), (66 - 2e-14, "refined"), (80 - 2e-14, "final"),
    ],
)  # fmt: skip
def test_buckets(score: float | None, name: str) -> None:
    assert choose_bucket(score) == name


@given(st.lists(st.tuples(*[st.sampled_from([0, 0.5, 1, NAN])] * 2), min_size=3, max_size=3))
def test_players_swapped_swap_the_score(votes: list[tuple[float, float]]) -> None:
    ours, theirs = scored(votes), scored([(1 - second, 1 - first) for first, second in votes])
    if ours["score"] is None:
        assert theirs["score"] is None
    else:
        assert ours["score"] == pytest.approx(100 - theirs["score"])
    assert ours["position_consistent"] == theirs["position_consistent"]
