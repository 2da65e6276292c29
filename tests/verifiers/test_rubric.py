"""Only a complete pass gets 1.0; errors of verifiers count neither for nor against the model."""

import json
import pickle
from typing import Any

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from pimono_sdpo.errors import OutputError, OwnCodeError
from rewards.verifiers import syntax, tests, tool_calls
from rewards.verifiers.rubric import (
    GATE_SHARE,
    MAX_FEEDBACK,
    MAX_PARTIAL,
    BadSpec,
    NotAVerifier,
    Rubric,
    VerifierResult,
    build_rubric,
)
from tests.verifiers.verdicts import GATE, RUBRIC, STYLE, TESTS

WORD = st.sampled_from(["passed", "skipped", "error", "failed", "failed:0.5", "failed:1", "failed:7"])


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("", 1.0),
        ("gate:failed", 0.0),
        ("gate:failed:0.5", 0.1),
        ("gate:failed:0.5 tests:error", 0.1),
        ("gate:error", None),
        ("tests:error", None),
        ("style:failed tests:error", None),
        ("gate:skipped style:skipped", 1.0),
        ("gate:skipped style:skipped tests:skipped", None),
        ("style:skipped tests:skipped", None),
        ("style:failed tests:failed", GATE_SHARE),
        ("style:failed", GATE_SHARE + 0.79 * 0.75),
        ("tests:failed:0.5", GATE_SHARE + 0.79 * 0.625),
        ("style:skipped tests:failed:0.5", GATE_SHARE + 0.79 * 0.5),
    ],
)
def test_the_reward(completion: str, reward: float | None) -> None:
    assert RUBRIC(completion, {}).reward == (None if reward is None else pytest.approx(reward))


@given(WORD, WORD, WORD)
def test_only_a_complete_pass_is_a_success(gate: str, style: str, tests: str) -> None:
    result = RUBRIC(f"gate:{gate} style:{style} tests:{tests}", {})
    statuses = {part.status for part in result.results}
    ungraded = not gate.startswith("failed") and style == tests == "skipped"
    if "error" in statuses or ungraded:
        assert result.reward is None
    elif "failed" in statuses:
        assert result.reward is not None
        assert 0.0 <= result.reward <= MAX_PARTIAL
        assert (result.reward < GATE_SHARE) == gate.startswith("failed")
    else:
        assert result.reward == 1.0
    assert result.passed == (result.reward == 1.0)
    assert bool(result.feedback()) == (result.reward is not None and not result.passed)


def test_without_gates_the_scale_starts_at_zero() -> None:
    assert Rubric(graded=[(STYLE, 1.0)])("style:failed", {}).reward == 0.0


def test_feedback_keeps_head_and_tail() -> None:
    result = RUBRIC("style:failed tests:failed", {})
    assert result.feedback() == "style failed\n\ntests failed"
    long = Rubric(graded=[(STYLE, 1.0)] * 200)("style:failed", {}).feedback()
    assert len(long) <= MAX_FEEDBACK < 200 * len("style failed")
    assert long.startswith("style failed")
    assert long.endswith("style failed")


def test_rows_are_plain_columns() -> None:
    row = RUBRIC("style:skipped tests:failed:0.5", {}).to_row()
    assert row["verifier"] == ["gate", "style", "tests"]
    assert row["status"] == ["passed", "skipped", "failed"]
    assert row["verifier_score"] == [1.0, None, 0.5]
    assert [json.loads(metrics) for metrics in row["metrics"]] == [{}, {}, {}]
    other = RUBRIC("gate:error", {}).to_row()
    assert Dataset.from_list([row, other])[1]["reward"] is None


def test_rubrics_are_checked_and_picklable() -> None:
    with pytest.raises(ValueError, match="no verifiers"):
        Rubric()
    with pytest.raises(NotAVerifier, match="'tests' is not a verifier; give a function"):
        Rubric(gates=["tests"])  # type: ignore[list-item]
    with pytest.raises(BadSpec, match="is not a JSON object"):
        Rubric(gates=[GATE])("", None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not positive"):
        Rubric(graded=[(TESTS, 0.0)])
    again = pickle.loads(pickle.dumps(Rubric([GATE], [(TESTS, 1.0)])))
    assert again("tests:failed", {}).reward == GATE_SHARE


def faulty(completion: str, spec: dict[str, Any]) -> VerifierResult:
    raise RuntimeError(f"no judge for {completion}")


def test_a_user_verifier_that_raises_is_an_error_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    rubric = Rubric(gates=[faulty])
    for completion in ("one", "two"):
        result = rubric(completion, {})
        assert result.reward is None
        assert [part.status for part in result.results] == ["error"]
        assert result.feedback() == ""
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "Verifier `faulty` raised RuntimeError: no judge for one. Its completions get a neutral reward; fix the verifier."
    ]


def test_a_bug_of_this_package_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faulty, "__module__", "rewards.verifiers.faulty")
    with pytest.raises(RuntimeError, match="no judge"):
        Rubric(gates=[faulty])("one", {})


@pytest.mark.parametrize(
    ("gates", "graded", "problem", "message"),
    [
        ([], [], OutputError, "no verifiers"),
        (["gone"], [], OutputError, "`gone` is not a verifier"),
        (["json:loads:x"], [], OwnCodeError, "`loads:x` is not in the module `json`"),
        ([], ["syntax=much"], OutputError, "cannot be built"),
        ([], ["syntax=0"], OutputError, "cannot be built"),
        ([], ["syntax=inf"], OutputError, "cannot be built"),
        (["syntax"], ["syntax=2"], OutputError, "`syntax` is given twice"),
        (["os:system"], [], OutputError, "`os:system` is not a verifier"),
        (["json:dumps"], [], OutputError, "`json:dumps` is not a verifier"),
        (["operator:eq"], [], OutputError, "is not a verifier"),
    ],
)
def test_names_that_make_no_rubric_are_refused(
    gates: list[str], graded: list[str], problem: type[Exception], message: str
) -> None:
    with pytest.raises(problem, match=message):
        build_rubric(gates, graded)


def test_a_rubric_is_built_from_names_with_weights() -> None:
    rubric = build_rubric(["tool_calls"], ["syntax=0.5", "tests"])
    assert rubric == Rubric((tool_calls.verify,), ((syntax.verify, 0.5), (tests.verify, 1.0)))
