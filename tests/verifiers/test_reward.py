"""A completion without a verdict gets a neutral reward, also in the sums of TRL."""

import json
import math
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.rewards import Scoring
from pimono_sdpo.training.tiny_model import write_tiny_model
from rewards.verifiers import patches, tool_calls
from rewards.verifiers.reward import NEUTRAL, VerifierReward
from rewards.verifiers.rubric import Rubric, VerifierResult, error, failed, passed
from tests.training.setup import arguments, prepare
from tests.verifiers.verdicts import RUBRIC

SPEC = "{}"


def rewards_of(*completions: str, prompts: str = "", specs: list[str | None] | None = None) -> list[Any]:
    reward = VerifierReward(RUBRIC)
    all_prompts = list(prompts or "p" * len(completions))
    return reward(all_prompts, completions, verifier_spec=specs or [SPEC] * len(completions))


def test_errors_get_the_mean_of_their_group() -> None:
    assert rewards_of("", "gate:failed", "gate:error") == [1.0, 0.0, 0.5]
    assert rewards_of("gate:error", "gate:failed") == [0.0, 0.0], "the mean of what was judged"
    assert rewards_of("", "tests:error", "gate:failed", "", prompts="aabb") == [1.0, 1.0, 0.0, 1.0]
    other_spec = rewards_of("", "tests:error", "gate:failed", "", specs=["{}", "{}", '{"a":1}', '{"a":1}'])
    assert other_spec == [1.0, 1.0, 0.0, 1.0]


def test_groups_without_a_verdict_get_the_same_reward_below_success() -> None:
    assert rewards_of("gate:error", "tests:error") == [NEUTRAL, NEUTRAL]
    assert rewards_of("gate:error", "gate:error", "", "gate:failed", prompts="aabb") == [0.5, 0.5, 1.0, 0.0]
    assert rewards_of("gate:error", "gate:error", "", "", prompts="aabb") == [0.99, 0.99, 1.0, 1.0]
    assert rewards_of("", "", specs=[None, None]) == [NEUTRAL, NEUTRAL]
    assert rewards_of("", "", specs=["", SPEC]) == [0.99, 1.0]
    assert rewards_of("gate:skipped style:skipped tests:skipped", "gate:failed") == [0.0, 0.0]


def test_missing_columns_are_an_error() -> None:
    reward = VerifierReward(RUBRIC)
    with pytest.raises(TrainingInputError, match="no column `verifier_spec`"):
        reward(["p"], ["x"])
    with pytest.raises(TrainingInputError, match="not the JSON text"):
        reward(["p"], ["x"], verifier_spec=["{"])
    with pytest.raises(TrainingInputError, match="not the JSON text of an object"):
        reward(["p"], ["x"], verifier_spec=["[]"])


def test_the_tools_of_a_row_are_those_of_its_spec_unless_it_has_its_own() -> None:
    reward = VerifierReward(Rubric([tool_calls.verify]))
    tools = tool_calls.definitions("codex")
    function = {"name": "bash", "arguments": {"command": "ls"}}
    call = [{"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}]
    specs = ["{}", '{"tools": ["read"]}', "{}", None]
    reward(["a", "b", "c", "d"], [call] * 4, verifier_spec=specs, tools=[tools, tools, [], tools])
    verdicts = [[result.status for result in found.results] for found in reward.results]
    assert verdicts == [["passed"], ["failed"], ["skipped"], []]
    reward(["a"], [call], verifier_spec=['{"tools": "pi"}'])
    assert reward.results[0].reward == 1.0, "rows of older versions have no such column"


def test_feedback_is_of_the_last_call() -> None:
    reward = VerifierReward(RUBRIC)
    assert reward.feedback() == []
    reward(["p"] * 3, ["", "tests:failed", "gate:error"], verifier_spec=[SPEC] * 3)
    assert reward.feedback() == [None, "tests failed", None]
    conversation = [{"role": "assistant", "content": "style:failed"}]
    assert reward([[{"role": "user", "content": "p"}]], [conversation], verifier_spec=[SPEC]) != [1.0]
    assert reward.feedback() == ["style failed"]


class Counting:
    """Fails, errs or passes by its text, and counts; waits until `together` calls are there."""

    def __init__(self, together: int = 1) -> None:
        self.calls: list[str] = []
        self.barrier = threading.Barrier(together, timeout=60)

    def __call__(self, completion: str, spec: dict[str, Any]) -> VerifierResult:
        self.barrier.wait()
        self.calls.append(completion)
        return error("count", "down") if completion == "error" else passed("count")


def test_only_results_without_errors_are_cached() -> None:
    verifier = Counting()
    reward = VerifierReward(Rubric([verifier]))
    for _ in range(3):
        reward(["p"] * 3, ["x", "x", "error"], verifier_spec=[SPEC] * 3)
    reward(["p"], ["x"], verifier_spec=['{"other": 1}'])
    assert sorted(verifier.calls) == ["error"] * 3 + ["x"] * 2


def test_verifiers_run_in_parallel_and_results_keep_their_order() -> None:
    reward = VerifierReward(Rubric([Counting(together=4)]), workers=4)
    completions = ["a", "b", "error", "c"]
    assert reward(["p"] * 4, completions, verifier_spec=[SPEC] * 4) == [1.0] * 4
    assert [result.results[0].status for result in reward.results] == ["passed", "passed", "error", "passed"]


def test_it_is_picklable() -> None:
    reward = VerifierReward(RUBRIC)
    reward(["p"], ["tests:failed"], verifier_spec=[SPEC])
    again = pickle.loads(pickle.dumps(reward))
    assert again.__name__ == "verifier_reward"
    assert again.feedback() == []
    assert again(["p"], ["gate:failed"], verifier_spec=[SPEC]) == [0.0]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def report_spec(completion: str, spec: dict[str, Any]) -> VerifierResult:
    return failed("seen", "command_error", json.dumps([completion, spec.get("tool_calls"), spec.get("truncated")]))


def test_verifiers_see_the_calls_of_messages_and_whether_the_answer_was_cut_off() -> None:
    function = {"name": "read", "arguments": '{"path": "a.ts"}'}
    call = {"role": "assistant", "content": "I look.", "tool_calls": [{"type": "function", "function": function}]}
    completions: list[Any] = ["text", [{"role": "assistant", "content": "no call"}], [call]]
    reward = VerifierReward(Rubric([report_spec]), end_ids=[7])
    reward(["p"] * 3, completions, completion_ids=[[1], [1, 7], [2, 7]], verifier_spec=[SPEC] * 3)
    read = {"name": "read", "arguments": {"path": "a.ts"}}
    assert [json.loads(text or "") for text in reward.feedback()] == [
        ["text", None, True],
        ["no call", [], False],
        [f"I look.\n{json.dumps(read)}", [read], False],
    ]
    reward = VerifierReward(Rubric([report_spec]))
    reward(["p"], ["text"], completion_ids=[[1]], verifier_spec=[SPEC])
    assert json.loads(reward.feedback()[0] or "") == ["text", None, None], "it is not known what ends a turn"


class Alternating:
    """Fails, passes, passes and errs in turn, whatever the completion is."""

    def __init__(self) -> None:
        self.turn = 0

    def __call__(self, completion: str, spec: dict[str, Any]) -> VerifierResult:
        self.turn += 1
        if self.turn % 4 == 1:
            return failed("turns", "command_error", "wrong", 0.25)
        return error("turns", "down") if self.turn % 4 == 0 else passed("turns")


@pytest.mark.parametrize("neutral", [True, False])
def test_in_trl_an_error_does_not_change_the_advantages(tiny: Path, tmp_path: Path, neutral: bool) -> None:
    """TRL's own `_prepare_training_batch` sums; a None in the place of the mean becomes 0."""
    turns = VerifierReward(Rubric([Alternating()]), workers=1)

    def verifier_reward(**given: Any) -> list[float | None]:
        values = turns(**given)
        if neutral:
            return values
        return [v if r.reward is not None else None for v, r in zip(values, turns.results, strict=True)]

    rows = Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": "run the build"}],
                "privileged_context": "TypeError",
                "reward_terms": ["typeerror"],
                "verifier_spec": SPEC,
            }
        ]
    )
    args, model_args = arguments(
        tmp_path, tiny, num_generations=4, per_device_train_batch_size=4, gradient_accumulation_steps=1, max_steps=1
    )
    trainer = prepare(args, model_args, rows, Scoring(turns)).trainer
    trainer.reward_funcs = [verifier_reward]
    gate = turns.rubric.gates[0]
    assert isinstance(gate, Alternating)
    gate.turn = 0
    torch.manual_seed(0)
    batch = trainer._prepare_training_batch([dict(rows[0])] * 4)
    statuses = [result.results[0].status for result in turns.results]
    assert statuses == ["failed", "passed", "passed", "error"]
    rewards, advantages = batch["rewards"].tolist(), batch["advantages"].tolist()
    mean = (0.2 * 0.25 + 2) / 3
    if neutral:
        assert rewards == pytest.approx([0.05, 1.0, 1.0, mean])
        assert math.isclose(advantages[3], 0.0, abs_tol=1e-5)
    else:
        assert rewards == pytest.approx([0.05, 1.0, 1.0, 0.0])
        assert advantages[3] < -0.5


def test_a_diff_at_the_end_of_an_answer_applies_and_a_truncated_one_does_not() -> None:
    diff = "--- a/x\n+++ b/x\n@@ @@\n-a\n+b"
    reward = VerifierReward(Rubric([patches.verify]), end_ids=[7])
    spec = json.dumps({"files": {"x": "a\n"}})
    scored = reward(["p"] * 2, [diff] * 2, completion_ids=[[1], [1, 7]], verifier_spec=[spec] * 2)
    assert scored == [0.0, 1.0]
    (feedback, nothing) = reward.feedback()
    assert nothing is None
    assert "cut off at its maximum length" in (feedback or "")
