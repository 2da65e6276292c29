"""Other explanations of a verdict: agreement and bias of judges, and lengths of answers."""

from typing import Any

import numpy as np
import pytest

from pimono_sdpo.duel.gate import krippendorff_alpha
from pimono_sdpo.duel.result import summarize_judges, summarize_lengths
from tests.duel.votes import votes as votes_of

NAN = float("nan")
# The four observers of Krippendorff's "Computing Krippendorff's Alpha-Reliability" (2011), part C
# to E: 12 units, values 1 to 5.
OBSERVERS = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
    [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
]


def test_alpha_of_the_published_example() -> None:
    assert krippendorff_alpha(np.array(OBSERVERS)) == pytest.approx(0.849, abs=0.0005)


def test_alpha_at_its_ends() -> None:
    assert krippendorff_alpha(np.array([[1.0, 2], [1, 2]])) == 1
    assert krippendorff_alpha(np.array([[1.0, 1], [1, 1]])) == 1
    assert krippendorff_alpha(np.array([[0.0, 1], [1, 0]])) < 0
    assert np.isnan(krippendorff_alpha(np.array([[1.0, NAN], [NAN, 2]])))


def summarize(values: object, complete: bool = True) -> dict[str, Any]:
    """The summary of a panel that was asked about everything."""
    votes = votes_of(values)
    names = [f"j{number}" for number in range(votes.shape[1])]
    return summarize_judges(votes, names, dict.fromkeys(names, 2 * len(votes)), complete)


def test_a_judge_that_prefers_the_first_answer() -> None:
    biased, fair = [0, 1], [1, 1]
    found = summarize([[biased, fair]] * 40)["judges"]
    assert (found[0]["first_bias"], found[0]["consistent"], found[0]["score"]) == (50, 0, 50)
    assert (found[1]["first_bias"], found[1]["consistent"], found[1]["score"]) == (0, 1, 100)


def test_what_could_be_read_is_counted_per_judge() -> None:
    found = summarize([[[1, NAN], [1, 1]], [[NAN, NAN], [0, 0]]])["judges"]
    assert [judge["parsed"] for judge in found] == [0.25, 1]
    assert found[0]["consistent"] is None


def test_judges_that_say_opposite_things_agree_less_than_by_chance() -> None:
    assert summarize([[[1, 1], [0, 0]], [[0, 0], [1, 1]]])["agreement"] < 0
    assert summarize([[[1, 1], [1, 1]], [[0, 0], [0, 0]]])["agreement"] == 1


def test_longer_answers_that_win() -> None:
    scores = np.array([100.0, 80, 50, 20])
    found = summarize_lengths(scores, [400, 300, 200, 100], [200, 200, 200, 200])
    assert found["gap"] == pytest.approx(50)
    assert found["correlation"] == pytest.approx(np.corrcoef([200, 100, 0, -100], scores)[0, 1])
    assert (found["score_same"], found["turns_same"]) == (50, 1)


def test_lengths_that_do_not_vary_explain_nothing() -> None:
    found = summarize_lengths(np.array([100.0, 0]), [10, 10], [10, 10])
    assert found["correlation"] is None
    assert found["score_same"] == 50
