"""Rewards get the tool calls of a model as TRL parses them, by the response template of its tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.held_out import sample_rewards
from pimono_sdpo.training.rewards import Scoring, check_call_format, set_response_template
from pimono_sdpo.training.trainer import read_messages
from rewards.verifiers import tool_calls
from rewards.verifiers.reward import VerifierReward
from rewards.verifiers.rubric import Rubric
from tests.training.setup import arguments, hand_made, prepare, script

READ = {"path": "src/a.ts", "offset": 3}
EDIT = {"path": "a.ts", "edits": [{"oldText": "  if (a < b) {\n", "newText": '\tif ("x") {}\n'}]}


@pytest.fixture(params=["tiny", "tiny_qwen"])
def model(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue(request.param)
    return folder


def load(model: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(model)
    set_response_template(tokenizer)
    return tokenizer


PROMPT = [{"role": "user", "content": "fix the parser in src/cli.ts"}]


def call(*calls: tuple[str, Any], content: str = "") -> dict[str, Any]:
    functions = [{"name": name, "arguments": given} for name, given in calls]
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"type": "function", "function": one} for one in functions],
    }


def templated(tokenizer: Any, messages: list[Any], **more: Any) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **more)["input_ids"]
    return ids


def written(tokenizer: Any, message: dict[str, Any]) -> list[int]:
    """The ids with which the model would write a message."""
    prompt = templated(tokenizer, PROMPT, add_generation_prompt=True, enable_thinking=False)
    whole = templated(tokenizer, [*PROMPT, message], enable_thinking=False)
    assert whole[: len(prompt)] == prompt
    return whole[len(prompt) :]


def read(tokenizer: Any, ids: list[int]) -> dict[str, Any]:
    prompt = templated(tokenizer, PROMPT, add_generation_prompt=True, enable_thinking=False)
    ((message,),) = read_messages(tokenizer, [prompt], [ids])
    return message


@pytest.mark.parametrize("arguments", [READ, EDIT], ids=["read", "edit"])
def test_the_calls_of_a_model_are_parsed(model: Path, arguments: dict[str, Any]) -> None:
    tokenizer = load(model)
    name = "edit" if "edits" in arguments else "read"
    message = read(tokenizer, written(tokenizer, call((name, arguments))))
    (found,) = message["tool_calls"]
    assert found["function"] == {"name": name, "arguments": arguments}


def test_several_calls_and_text_are_parsed_and_malformed_calls_are_text(model: Path) -> None:
    tokenizer = load(model)
    two = written(tokenizer, call(("read", READ), ("read", {"path": "b.ts"}), content="I look."))
    message = read(tokenizer, two)
    assert message["content"].strip() == "I look."
    assert [one["function"]["arguments"] for one in message["tool_calls"]] == [READ, {"path": "b.ts"}]
    one = written(tokenizer, call(("read", READ)))
    for broken in (one[: len(one) // 2], tokenizer("no call at all", add_special_tokens=False)["input_ids"]):
        assert not read(tokenizer, broken).get("tool_calls")


def test_a_call_that_is_nested_too_deeply_does_not_end_the_training(tiny_qwen: Path) -> None:
    tokenizer = load(tiny_qwen)
    nested = '<tool_call>\n{"name": "read", "arguments": ' + "[" * 100_000
    message = read(tokenizer, tokenizer(f"{nested}</tool_call>", add_special_tokens=False)["input_ids"])
    assert "tool_calls" not in message


class Seen:
    """A reward that keeps the messages it gets."""

    __name__ = "seen"

    def __init__(self) -> None:
        self.completions: list[Any] = []

    def __call__(self, completions: list[Any], **_: Any) -> list[float | None]:
        self.completions += completions
        return [0.0] * len(completions)


def trainer_of(model: Path, folder: Path, reward: Any) -> Any:
    args, model_args = arguments(folder, model, max_completion_length=64, max_reprompt_len=1024)
    rows = hand_made().add_column("verifier_spec", [json.dumps({"tools": "pi"})] * 4)
    return prepare(args, model_args, rows, Scoring(reward)).trainer


def test_every_reward_of_the_trainer_gets_messages_with_calls(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen()
    trainer = trainer_of(model, tmp_path, seen)
    seen.completions.clear()  # of the search for rows without a reward
    tokenizer = trainer.processing_class
    good, none = written(tokenizer, call(("read", READ))), tokenizer("words", add_special_tokens=False)["input_ids"]
    monkeypatch.setattr(trainer, "_generate", lambda prompt_ids: (prompt_ids, [good, none]))
    row = {**trainer.train_dataset[0], "prompt": PROMPT}
    trainer._prepare_training_batch([row, row])
    prompts = trainer._tokenize_prompts([PROMPT, PROMPT])
    sample_rewards(trainer, [row, row], prompts)
    assert len(seen.completions) == 4
    for (with_call,), (without,) in (seen.completions[:2], seen.completions[2:]):
        assert with_call["tool_calls"][0]["function"] == {"name": "read", "arguments": READ}
        assert without == {"role": "assistant", "content": "words"}


def test_the_verifier_of_calls_judges_what_the_model_wrote(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward = VerifierReward(Rubric([tool_calls.verify]))
    trainer = trainer_of(model, tmp_path, reward)
    tokenizer = trainer.processing_class
    answers = [call(("read", READ)), call(("read", {"offset": 3}))]
    monkeypatch.setattr(
        trainer, "_generate", lambda prompt_ids: (prompt_ids, [written(tokenizer, one) for one in answers])
    )
    row = {**trainer.train_dataset[0], "prompt": PROMPT}
    rewards = trainer._prepare_training_batch([row, row])["rewards"].tolist()
    assert rewards == pytest.approx([1.0, 0.2 * 0.4])
    assert "must have required property 'path'" in (reward.feedback()[1] or "")


SPECS = [None, json.dumps({"tools": "pi"})]


def test_a_model_whose_calls_cannot_be_parsed_is_refused(model: Path) -> None:
    tokenizer, rows = load(model), Dataset.from_dict({"verifier_spec": SPECS})
    check_call_format("verifiers", tokenizer, rows)
    other = AutoTokenizer.from_pretrained(model)
    other.chat_template += "{# changed #}"
    set_response_template(other)
    with pytest.raises(TrainingInputError, match="its chat template is not one that TRL knows; give a tokenizer with"):
        check_call_format("verifiers", other, rows)
    check_call_format("trace_grounding", other, rows)
    json_calls = [json.dumps(spec) for spec in ({"tools": "pi", "format": "json"}, {"tools": "repo_agent"}, {})]
    check_call_format("verifiers", other, Dataset.from_dict({"verifier_spec": json_calls}))
    other.response_template = tokenizer.response_template
    check_call_format("verifiers", other, rows)
    family = Dataset.from_dict({"verifier_spec": [json.dumps({"tools": "pi", "format": "qwen3"})]})
    with pytest.raises(TrainingInputError, match=r"`format` of the spec is 'qwen3'; use json, or leave it out"):
        check_call_format("verifiers", tokenizer, family)


def test_the_recipe_for_one_gpu_runs_with_a_tiny_model_of_its_class(
    tiny_qwen: Path, filtered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--config", "qwen3_4b", "--dataset", str(filtered), "--model_name_or_path", str(tiny_qwen)]
    argv += ["--output_dir", str(tmp_path / "out"), "--report_to", "none", "--use_cpu", "true"]
    argv += ["--generations", "8", "--gradient_accumulation_steps", "4", "--max_completion_length", "16"]
    argv += ["--preflight_rows", "0", "--dtype", "float32"]
    assert script().main(argv) == 0, capsys.readouterr().err
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()
