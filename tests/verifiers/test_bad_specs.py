"""A row with an invalid spec is an `error` of one sentence, and never ends training."""

import json
from typing import Any

import pytest

from pimono_sdpo.errors import TrainingInputError
from rewards.verifiers import syntax, tests
from rewards.verifiers.reward import NEUTRAL, VerifierReward
from rewards.verifiers.rubric import NotAVerifier, Rubric, VerifierResult

GOOD = "```python\ndef f(x):\n    return x\n```"
CASE = {"args": [1], "expected": 1}
VALUE = {"kind": "value", "module": "a.py", "entry": "f", "cases": [CASE]}
OUTPUT = {"kind": "output", "module": "a.py", "cases": [{"expected": "1"}]}
FILES = {"a.py": "def f(): 1\n"}


def verdict(spec: dict[str, Any]) -> VerifierResult:
    reward = VerifierReward(Rubric([tests.verify]))
    assert reward(["p"], [GOOD], verifier_spec=[json.dumps(spec)]) == [NEUTRAL]
    (result,) = reward.results[0].results
    return result


@pytest.mark.parametrize(
    ("given", "feedback"),
    [
        ("x", "Expected `object`, got `str`"),
        ([], "Expected `object`, got `array`"),
        ({}, "missing required field `kind`"),
        ({**VALUE, "kind": "other"}, "Invalid value 'other' - at `$.kind`"),
        ({**VALUE, "cases": None}, "Expected `array`, got `null` - at `$.cases`"),
        ({**VALUE, "cases": []}, "Expected `array` of length >= 1 - at `$.cases`"),
        ({**VALUE, "cases": [3]}, "Expected `object`, got `int` - at `$.cases[0]`"),
        ({**VALUE, "cases": [{**CASE, "args": 1}]}, "at `$.cases[0].args`"),
        ({**VALUE, "cases": [{"args": []}]}, "a case needs either `expected` or `raises`"),
        ({**VALUE, "cases": [{**CASE, "raises": "E"}]}, "either `expected` or `raises`"),
        ({**VALUE, "module": 3}, "Expected `str`, got `int` - at `$.module`"),
        ({**VALUE, "module": "b.py"}, "`module` of the tests is 'b.py'"),
        ({**VALUE, "entry": None}, "Expected `str`, got `null` - at `$.entry`"),
        ({**VALUE, "seconds": 0}, "Expected `float` > 0.0 - at `$.seconds`"),
        ({**VALUE, "seconds": float("inf")}, "at `$.seconds`"),
        ({**VALUE, "seconds": "x"}, "Expected `float`, got `str` - at `$.seconds`"),
        ({**VALUE, "needs": 3}, "got `int` - at `$.needs`"),
        ({**VALUE, "unordered": True}, "contains unknown field `unordered`"),
        ({**OUTPUT, "cases": [{"expected": 1}]}, "at `$.cases[0].expected`"),
        ({"kind": "pytest", "files": ["a"]}, "Expected `object`, got `array` - at `$.files`"),
        ({"kind": "recorded", "files": {}}, "missing required field"),
    ],
)
def test_bad_tests_are_an_error(given: Any, feedback: str) -> None:
    result = verdict({"files": FILES, "tests": given})
    assert (result.status, result.score) == ("error", None)
    assert feedback in result.feedback


@pytest.mark.parametrize(
    ("spec", "feedback"),
    [
        ({"files": ["a"]}, "has no `files`"),
        ({}, "has no `files`"),
        ({"files": FILES, "end": 5}, "`end` of the spec is 5"),
        ({"files": FILES, "allowed": [1]}, "`allowed` of the spec is [1]"),
        ({"files": FILES, "locked": "x"}, "`locked` of the spec is 'x'"),
    ],
)
def test_bad_files_are_an_error(spec: dict[str, Any], feedback: str) -> None:
    result = verdict({"tests": VALUE, **spec})
    assert result.status == "error"
    assert feedback in result.feedback


def test_a_module_that_the_answer_may_create_is_not_an_error() -> None:
    spec = {"files": FILES, "allowed": ["*.py"], "tests": {**VALUE, "module": "b.py"}}
    assert tests.verify("no code", spec).status == "failed"


@pytest.mark.parametrize(
    ("spec", "feedback"),
    [({"a": 1}, "not the JSON text"), ('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", "not the JSON")],
)
def test_a_column_of_the_wrong_type_is_an_error(spec: Any, feedback: str) -> None:
    with pytest.raises(TrainingInputError, match=feedback):
        VerifierReward(Rubric([tests.verify]))(["p"], ["x"], verifier_spec=[spec])


def test_a_function_without_a_verdict_is_not_a_verifier() -> None:
    def number(completion: str, spec: dict[str, Any]) -> Any:
        return 1.0

    with pytest.raises(NotAVerifier, match="returns float, not VerifierResult"):
        Rubric([number])("x", {})


def test_feedback_contains_no_half_of_a_surrogate_pair() -> None:
    code = "```python\ndef f(x):\n    '\ud800' = (\n```"
    feedback = syntax.verify(code, {"files": FILES}).feedback
    assert feedback
    assert feedback.encode().decode() == feedback
    assert VerifierResult("x", "failed", 0.0, None, "a\ud800").feedback == "a\ufffd"
