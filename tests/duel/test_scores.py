"""Votes to scores, buckets and a verdict."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimono_sdpo.duel.gate import Rules, decide_duel
from pimono_sdpo.schema import DUEL_METRICS
from processors.duel.scores import choose_bucket, collect_votes, score_turns
from tests.duel.votes import votes

NAN = float("nan")
RULES = Rules(draws=499)


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
        # A second look at the same pair is another vote on the same turn.
        judgment("a", "x", 0, 2, 5),
        judgment("another", "x", 0, 9, 0),
        judgment("a", "unknown", 0, 9, 0),
    ]
    found = collect_votes([("a", "i"), ("b", "i")], ["x", "y"], said)
    assert found.values.shape == (2, 2, 2, 5)
    assert found.values[0, 0, :, 0].tolist() == [0.5, 0.5]
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
    assert score_turns(values, both_orders=False).turn[1] == pytest.approx(200 / 3)
    assert score_turns(values, min_judges=1).turn[1] == 0


def test_one_judge_is_a_panel() -> None:
    assert score_turns(votes([[[1, 1]]])).turn.tolist() == [100]


@pytest.mark.parametrize(
    ("score", "name"),
    [
        (80, "final"), (79.99, "refined"), (66, "refined"), (65.99, "defeat"), (0, "defeat"),
        (100, "final"), (NAN, "parse_fail"),
    ],
)  # fmt: skip
def test_buckets(score: float, name: str) -> None:
    assert choose_bucket(score) == name


def names(clusters: int, each: int = 1) -> tuple[str, ...]:
    return tuple(f"i{number}" for number in range(clusters) for _ in range(each))


def test_a_clear_winner_is_accepted() -> None:
    scores = np.tile([100.0, 60.0], 20)
    found = decide_duel(scores, names(40), RULES)
    assert found.accepted
    assert found.score == 80
    assert 70 < found.bound < 80


@pytest.mark.parametrize(
    ("scores", "clusters", "why"),
    [
        (np.full(40, 54.9), names(40), "the score 54.9 is not 5 points above 50"),
        (np.tile([100.0, 20.0], 20), names(40), "the lower bound"),
        (np.r_[np.full(35, 80.0), np.full(5, NAN)], names(40), "88% of the turns have a score"),
        (np.full(58, 80.0), names(29, 2), "29 tasks are fewer than 30"),
        (np.full(40, NAN), names(40), "0% of the turns"),
        (np.array([]), (), "0% of the turns"),
    ],
)
def test_what_does_not_hold_is_said(
    scores: np.ndarray, clusters: tuple[str, ...], why: str
) -> None:
    found = decide_duel(scores, clusters, RULES)
    assert not found.accepted
    assert any(said.startswith(why) for said in found.refusals)


def test_equal_scores_are_their_own_bound() -> None:
    found = decide_duel(np.full(30, 60.0), names(30), RULES)
    assert found.accepted
    assert found.bound == found.score == 60


def test_turns_of_one_task_are_no_independent_evidence() -> None:
    rng = np.random.default_rng(0)
    tasks = rng.normal(57, 20, 30).clip(0, 100)
    once = decide_duel(tasks, names(30), RULES)
    often = decide_duel(np.repeat(tasks, 10), names(30, 10), RULES)
    assert often.score == pytest.approx(once.score)
    assert often.bound == pytest.approx(once.bound, abs=0.3)


def test_turns_that_could_not_be_read_count_as_lost_in_the_worst_case() -> None:
    found = decide_duel(np.r_[np.full(30, 60.0), NAN, NAN], names(32), RULES)
    assert found.if_lost == pytest.approx(60 * 30 / 32)


def test_turns_that_a_player_failed_count_as_turns() -> None:
    scores = np.full(36, 80.0)
    assert decide_duel(scores, names(36), RULES, unanswered=4).accepted
    refused = decide_duel(scores, names(36), RULES, unanswered=5)
    assert refused.refusals == ("88% of the turns have a score, not 90%",)
    assert (refused.scored, refused.turns) == (36, 41)


@given(st.integers(0, 2**32 - 1))
def test_players_swapped_swap_the_score(seed: int) -> None:
    rng = np.random.default_rng(seed)
    given_votes = rng.choice([0, 0.5, 1, NAN], size=(6, 3, 2))
    swapped = 1 - given_votes[:, :, ::-1]
    ours, theirs = score_turns(votes(given_votes)), score_turns(votes(swapped))
    np.testing.assert_allclose(ours.turn, 100 - theirs.turn, equal_nan=True)
    assert (ours.consistent == theirs.consistent).all()


def test_equals_are_accepted_as_seldom_as_promised() -> None:
    rng = np.random.default_rng(1)
    accepted = 0
    for _ in range(400):
        tasks = rng.normal(50, 10, 40).repeat(3)
        scores = (tasks + rng.normal(0, 10, 120)).clip(0, 100)
        found = decide_duel(scores, names(40, 3), Rules(win_margin=0, draws=499))
        accepted += found.accepted
    # Of 400 draws at 5 %, 9 to 33 are within three standard deviations.
    assert 9 <= accepted <= 33
