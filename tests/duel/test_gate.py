"""The gate: boundaries, estimates, and reasons against acceptance."""

from typing import Any

import numpy as np
import pytest

from pimono_sdpo.duel.gate import (
    LOOKS,
    adjust_scores,
    count_effective,
    decide,
    estimate_score,
    find_boundaries,
    weigh_clusters,
)
from pimono_sdpo.llm.settings import Gate
from processors.duel.judge import Array

JUDGES = ("a", "b", "c")
RULES = Gate()


def grid(turn: Any, judge: Any, order: Any, score: Any, turns: int = 60, judges: int = 3) -> Array:
    """The scores of these calls by turn, judge and order."""
    scores = np.full((turns, judges, 2), np.nan)
    scores[turn, judge, order] = score
    return scores


def calls_of(scores: np.ndarray, turns: int = 0) -> Array:
    """One call a turn, judges and orders in turn; further turns are not read."""
    number = np.arange(len(scores))
    return grid(number, number % 3, number // 3 % 2, scores, max(turns, len(scores)))


def look(scores: np.ndarray, rules: Gate = RULES, repos: int | None = None, unanswered: int = 0) -> dict[str, Any]:
    """The verdict of the only look."""
    count = len(scores)
    clusters = [str(turn % repos if repos else turn) for turn in range(count)]
    return decide(calls_of(scores), JUDGES, clusters, "task", (count,), 0, rules, unanswered)


def test_one_look_has_the_usual_boundary() -> None:
    assert find_boundaries((1.0,), 0.05) == pytest.approx([1.645], abs=0.002)
    assert find_boundaries((1.0,), 0.01) == pytest.approx([2.326], abs=0.002)


def test_paths_without_an_effect_cross_as_seldom_as_promised() -> None:
    bounds = np.array(find_boundaries(LOOKS, 0.05))
    assert (np.diff(bounds) < 0).all()
    rng = np.random.default_rng(0)
    steps = np.sqrt(np.diff([0.0, *LOOKS]))
    paths = (rng.normal(size=(200_000, len(LOOKS))) * steps).cumsum(axis=1) / np.sqrt(LOOKS)
    assert (paths > bounds).any(axis=1).mean() == pytest.approx(0.05, abs=0.002)


def test_position_and_severity_are_subtracted() -> None:
    rng = np.random.default_rng(1)
    plain = calls_of(rng.normal(60, 10, 360))
    judge, order = np.indices((3, 2))
    biased: Array = plain + 30 * (order - 0.5) + 20.0 * (judge - 1)
    assert adjust_scores(biased) == pytest.approx(adjust_scores(plain), nan_ok=True)
    clusters = [str(turn) for turn in range(360)]
    ours, theirs = estimate_score(biased, clusters), estimate_score(plain, clusters)
    assert (ours.mean, ours.error) == pytest.approx((theirs.mean, theirs.error))


def test_a_large_repository_weighs_at_most_as_much_as_five_tasks() -> None:
    weights = weigh_clusters([1000, 1, 1])
    assert weights[0] / weights[1] < 5
    assert count_effective([str(turn) for turn in range(40)]) == pytest.approx(40)
    assert count_effective(["one"] * 40) == 1
    assert 5 < count_effective(["one"] * 100 + [str(turn) for turn in range(20)]) < 21


def test_correlated_turns_of_one_unit_add_no_certainty() -> None:
    rng = np.random.default_rng(0)
    repos = rng.normal(57, 20, 30)
    once = estimate_score(calls_of(repos), [str(number) for number in range(30)])
    calls = grid(np.arange(300), 0, 0, np.tile(repos, 10), 300)
    often = estimate_score(calls, [str(number % 30) for number in range(300)])
    assert (often.clusters, once.clusters) == pytest.approx((30, 30))
    assert often.error > 0.85 * once.error


def test_a_clear_winner_is_accepted() -> None:
    verdict = look(np.tile([100.0, 100, 60, 60], 15))
    assert (verdict["conclusion"], verdict["reasons"]) == ("accepted", [])
    assert verdict["score"] == pytest.approx(80)
    assert 70 < verdict["low"] < 80 < verdict["high"] < 90
    assert (verdict["scored"], verdict["calls"], verdict["clusters"]) == pytest.approx((60, 60, 60))


NOISE = np.random.default_rng(3).normal(0, 30, 60)


@pytest.mark.parametrize(
    ("scores", "rules", "why"),
    [
        (np.full(60, 50.9), Gate(), "the challenger leads by 1.8 points, fewer than 2"),
        (52 + NOISE, Gate(), "the lower bound"),
        (np.tile([100.0, 45, 45], 20), Gate(), "without a the score is 45.0"),
    ],
)
def test_what_does_not_hold_is_said(scores: np.ndarray, rules: Gate, why: str) -> None:
    verdict = look(scores, rules)
    assert verdict["conclusion"] == "not accepted"
    assert any(reason.startswith(why) for reason in verdict["reasons"]), verdict["reasons"]


def test_a_judge_far_above_the_others_needs_the_bound_without_it() -> None:
    scores = np.where(np.arange(60) % 3 == 0, 100.0, 52 + NOISE)
    verdict = look(scores)
    assert verdict["judges"][0]["outlying"]
    assert all(judge["without"] > 50 for judge in verdict["judges"])
    assert verdict["low"] > 50
    (reason,) = verdict["reasons"]
    assert reason.startswith("a scores 100.0, far above the other judges")


def test_a_judge_without_a_spread_of_its_own_is_seen_on_few_turns() -> None:
    noise = np.random.default_rng(1).choice([0.0, 100], 36)
    noise += 53 - noise[np.arange(36) % 3 > 0].mean()
    verdict = look(np.where(np.arange(36) % 3 == 0, 100.0, noise))
    assert verdict["low"] > 50
    assert [judge["outlying"] for judge in verdict["judges"]] == [True, False, False]
    reasons = [reason for reason in verdict["reasons"] if reason.startswith("a scores 100.0")]
    assert "without it the lower bound is" in reasons[0]


def test_a_judge_below_the_others_does_not_stand_in_the_way() -> None:
    verdict = look(np.where(np.arange(60) % 3 == 0, 40.0, 85 + NOISE / 3))
    assert verdict["conclusion"] == "accepted"
    assert not verdict["judges"][0]["outlying"]


def test_the_score_without_a_judge_must_be_half_a_standard_error_above_parity() -> None:
    noise = np.random.default_rng(1).normal(0, 30, 60)
    others = noise - noise[np.arange(60) % 3 > 0].mean()
    verdict = look(np.where(np.arange(60) % 3 == 0, 65 + noise, 51 + others))
    assert all(judge["without"] > 50 for judge in verdict["judges"])
    assert not verdict["judges"][0]["outlying"]
    assert "without a the score is 51.0, within 0.5 standard errors of 50" in verdict["reasons"]


def test_bounds_stay_within_the_scale_and_need_more_turns_than_seats() -> None:
    scores = np.random.default_rng(0).choice([0.0, 100], 9)
    assert look(scores)["low"] == 0
    assert look(100 - scores)["high"] == 100
    verdict = look(np.tile([100.0, 60], 3), Gate(min_clusters=2))
    assert (verdict["conclusion"], verdict["low"], verdict["high"]) == ("not accepted", None, None)
    assert "there are too few turns for a lower bound" in verdict["reasons"]


def test_turns_that_a_player_failed_count_as_turns() -> None:
    scores = np.tile([100.0, 60], 30)
    assert look(scores, unanswered=6)["conclusion"] == "accepted"
    verdict = look(scores, unanswered=9)
    assert verdict["reasons"] == ["87% of the turns have a readable judgment, fewer than 90%"]
    assert (verdict["scored"], verdict["turns"]) == (60, 69)


def test_few_units_give_no_verdict() -> None:
    verdict = look(np.tile([100.0, 60], 30), repos=12)
    assert (verdict["conclusion"], verdict["missing_clusters"]) == ("no verdict", 18)
    assert verdict["score"] == pytest.approx(80)


def test_units_that_could_not_be_read_do_not_count() -> None:
    calls = calls_of(np.tile([100.0, 60], 20), 60)
    clusters = [str(turn) for turn in range(60)]
    verdict = decide(calls, JUDGES, clusters, "task", (60,), 0, Gate(min_clusters=50, min_parsed=0.5))
    assert (verdict["conclusion"], verdict["missing_clusters"]) == ("no verdict", 10)
    assert verdict["clusters"] == pytest.approx(40)


def test_one_judge_gives_no_verdict() -> None:
    turns = np.arange(60)
    calls = grid(turns, 0, turns % 2, np.tile([100.0, 60], 30), judges=1)
    clusters = [str(turn) for turn in turns]
    assert decide(calls, ("a",), clusters, "task", (60,), 0, Gate())["conclusion"] == "no verdict"


def test_one_readable_judge_of_two_does_not_decide() -> None:
    turns = np.arange(0, 60, 2)
    calls = grid(turns, 0, turns // 2 % 2, np.tile([100.0, 60], 15), judges=2)
    clusters = [str(turn) for turn in range(60)]
    verdict = decide(calls, ("a", "b"), clusters, "task", (60,), 0, Gate(min_parsed=0.5))
    assert verdict["reasons"] == ["only judgments of a can be read"]


def test_looks_are_open_until_something_is_sure() -> None:
    looks = (60, 120)
    clusters = [str(turn) for turn in range(60)]

    def first(scores: np.ndarray) -> Any:
        return decide(calls_of(scores), JUDGES, clusters, "task", looks, 0, Gate())["conclusion"]

    assert first(53 + NOISE) == "open"
    assert first(75 + NOISE) == "accepted"
    # Given up early: even the trend is against the challenger.
    assert first(40 + NOISE) == "not accepted"


def test_judges_that_contradict_each_other_are_refused() -> None:
    rng = np.random.default_rng(0)
    score = rng.choice([100.0, 40.0], 60)
    turns = np.arange(60)
    calls = grid(
        np.r_[turns, turns],
        np.r_[turns % 3, (turns + 1) % 3],
        np.r_[turns % 2, 1 - turns % 2],
        np.r_[score, 140 - score],
    )
    clusters = [str(turn) for turn in turns]
    verdict = decide(calls, JUDGES, clusters, "task", (60,), 0, Gate())
    assert verdict["agreement"] < -0.5
    assert any("agree less than by chance" in reason for reason in verdict["reasons"])


def test_nothing_to_read_gives_no_verdict() -> None:
    empty = calls_of(np.array([]), 3)
    verdict = decide(empty, JUDGES, ["x"] * 3, "task", (3,), 0, Gate(min_clusters=1))
    assert (verdict["conclusion"], verdict["missing_clusters"]) == ("no verdict", 1)
    assert verdict["reasons"] == ["no turn has a readable judgment"]
