"""SDPO on a tiny random model of the real class: NF4, LoRA, resume, the saved adapter."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import ModelConfig

from pimono_sdpo.cli.demo import MODEL_FILES
from pimono_sdpo.training import models, output, rows, run
from pimono_sdpo.training.tiny_model import write_tiny_model
from tests.training.setup import (
    TASKS,
    Prepared,
    SeenPrompts,
    StopAfter,
    adapter_state,
    arguments,
    digest,
    hand_made,
    prepare,
)


def test_the_tiny_model_is_the_real_class_and_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    again = write_tiny_model(tmp_path / "again")
    # Which `demo model` may replace.
    assert {file.name for file in again.iterdir()} == {*MODEL_FILES}
    other = write_tiny_model(tmp_path / "other", seed=1)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert digest(again / name) == digest(tiny / name)
    assert digest(other / "model.safetensors") != digest(tiny / "model.safetensors")
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    assert type(tokenizer).__name__ == "GemmaTokenizer"
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id)
    assert ids == (0, 1, 2)
    assert tokenizer.convert_tokens_to_ids(["<|turn>", "<turn|>"]) == [105, 106]
    text = "naïve\n  Error: 漢字 'x' → 1"
    decoded = tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert decoded == text
    nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32, quantization_config=nf4)
    assert type(model).__name__ == "Gemma4UnifiedForConditionalGeneration"
    assert model.config.model_type == "gemma4_unified"
    assert model.generation_config.eos_token_id == [1, 106, 50]


def test_completions_are_sampled_so_many_at_once(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"max_steps": 1, "gradient_accumulation_steps": 6, "sample_at_once": 4}
    prepared = prepare(*arguments(tmp_path, tiny, **changes), hand_made())
    sizes: list[int] = []
    sample = prepared.trainer.model.generate

    def counted(*given: Any, **named: Any) -> Any:
        sizes.append(len(named["input_ids"]))
        return sample(*given, **named)

    monkeypatch.setattr(prepared.trainer.model, "generate", counted)
    prepared.run_steps()
    assert sizes == [4, 2]


def test_training_moves_the_adapter_and_nothing_is_cut(
    straight: tuple[Prepared, dict[str, float], SeenPrompts, ModelConfig],
) -> None:
    prepared, metrics, seen, _ = straight
    trainer = prepared.trainer
    assert trainer.state.global_step == 6
    assert metrics["train_loss"] != 0
    weights = adapter_state(trainer)
    moved = [name for name, value in weights.items() if "lora_B" in name and value.abs().max() > 0]
    assert len(moved) == 20, "all text layers, and none of the image and audio embedders"
    assert all("language_model" in name for name in weights)
    # <bos> first and whole means that TRL cut nothing from the left.
    assert len(seen.student) == len(seen.teacher) == 12
    assert {ids[0] for ids in seen.student + seen.teacher} == {2}
    assert all(len(ids) <= 96 for ids in seen.student)
    assert all(len(ids) <= 256 for ids in seen.teacher)
    assert max(len(ids) for ids in seen.student) > 85
    assert prepared.fitted.counts == {
        "prompts_shortened": 1,
        "contexts_shortened": 1,
        "special_tokens_neutralised": 1,
        "without_reward": 0,
        "left_out": {},
    }
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in steps] == [1, 2, 3, 4, 5, 6]
    assert "self_distillation/rewards/letters_reward" in steps[0]
    failed = [entry for entry in steps if entry["self_distillation/reward_max"] < 1]
    used = {entry["self_distillation/feedback_used_fraction"] for entry in failed}
    assert used == {1.0}, "every failed completion was told of its row's feedback"
    assert sum(seen.masks) >= 2 * len(failed)


@pytest.mark.parametrize(
    ("stop", "file"),
    [
        pytest.param(2, "optimizer.pt", id="first epoch"),
        pytest.param(5, "teacher/adapter_model.safetensors", id="second epoch", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_goes_on_to_the_same_weights_past_a_damaged_checkpoint(
    stop: int,
    file: str,
    straight: tuple[Prepared, dict[str, float], SeenPrompts, ModelConfig],
    tiny: Path,
    filtered: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dataset = rows.load_rows(str(filtered))
    changes = {"save_strategy": "steps", "save_steps": stop, "save_total_limit": 1}
    first_args, model_args = arguments(tmp_path, tiny, **changes)
    first = prepare(first_args, model_args, dataset)
    first.trainer.add_callback(StopAfter(stop))
    part = first.run_steps()
    assert first.trainer.state.global_step == stop
    assert first.progress.resumed_at == []
    # What a kill in the middle of writing a checkpoint leaves.
    (tmp_path / f"checkpoint-{stop + 1}").mkdir()
    checkpoint = output.last_checkpoint(tmp_path)
    assert checkpoint == tmp_path / f"checkpoint-{stop}"
    # What a full disk leaves of a newer one.
    damaged = tmp_path / f"checkpoint-{stop + 2}"
    shutil.copytree(checkpoint, damaged)
    (damaged / file).write_bytes((damaged / file).read_bytes()[:-100])
    assert output.last_checkpoint(tmp_path) == checkpoint

    second_args, model_args = arguments(tmp_path, tiny, **changes)
    second = prepare(second_args, model_args, dataset)
    whole = second.run_steps()
    said = f"`{file}` of {damaged.name} is damaged, so the training resumes from {checkpoint.name}"
    assert said in capsys.readouterr().out
    assert second.trainer.state.global_step == 6
    assert second.progress.resumed_at == [stop]
    assert second.progress.started_at == first.progress.started_at
    assert 0 < second.progress.seconds_before <= part["train_runtime"] < whole["train_runtime"]
    for adapter in ("default", "teacher"):
        expected = adapter_state(straight[0].trainer, adapter)
        resumed = adapter_state(second.trainer, adapter)
        assert expected.keys() == resumed.keys()
        assert all(torch.equal(expected[key], resumed[key]) for key in expected), adapter
    assert not all(
        torch.equal(value, adapter_state(second.trainer, "teacher")[key])
        for key, value in adapter_state(second.trainer).items()
    )


def test_the_saved_adapter_is_clean_and_loads(
    straight: tuple[Prepared, dict[str, float], SeenPrompts, ModelConfig], tiny: Path, tmp_path: Path
) -> None:
    prepared, _, _, _ = straight
    trained = adapter_state(prepared.trainer)
    folder = tmp_path / "adapter"
    files = output.save_adapter(prepared.trainer.model, folder, str(tiny), "a" * 40)
    assert {path.name for path in folder.iterdir()} == set(files) == set(models.WEIGHTS)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tiny)
    assert config["revision"] == "a" * 40
    assert config["r"] == 8
    assert config["target_modules"] == models.TEXT_LINEARS
    saved = load_file(folder / "adapter_model.safetensors")
    assert saved.keys() == trained.keys()
    assert all(torch.equal(saved[name], trained[name]) for name in saved)
    base = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    ids = torch.tensor([[2, 105, 300, 301, 106]])
    with torch.no_grad():
        before = base(ids).logits
        after = PeftModel.from_pretrained(base, folder)(ids).logits
    assert not torch.equal(before, after)

    log = run.describe_run(prepared.setup, prepared.trainer, 4, prepared.fitted)
    assert log == json.loads(json.dumps(log, allow_nan=False))
    assert log["base_model_class"] == "Gemma4UnifiedForConditionalGeneration"
    assert log["base_model_revision"] is None
    assert log["dataset"] == {"rows": 4, "rows_used": 4, **prepared.fitted.counts}
    assert log["arguments"]["max_prompt_length"] == 96
    assert log["arguments"]["bnb_4bit_quant_type"] == "nf4"
    assert log["arguments"]["include_environment_feedback"] is True
    assert [entry["step"] for entry in log["log_history"]] == [1, 2, 3, 4, 5, 6]
    sampled = [(one["step"], one["prompt"]) for one in log["rollouts"]]
    assert [step for step, _ in sampled] == [step for step in range(1, 7) for _ in range(2)]
    assert {prompt[:12] for _, prompt in sampled} <= {task[:12] for task, *_ in TASKS}
    assert any("TS2304" in one["feedback"] for one in log["rollouts"])
    assert log["resumed_at"] == []
    assert log["adapter"]["trainable_parameters"] == sum(v.numel() for v in trained.values())


@pytest.mark.slow
def test_evaluating_before_training_works_and_changes_nothing(
    straight: tuple[Prepared, dict[str, float], SeenPrompts, ModelConfig], tiny: Path, filtered: Path, tmp_path: Path
) -> None:
    args, model_args = arguments(tmp_path, tiny, per_device_eval_batch_size=2)
    prepared = prepare(args, model_args, rows.load_rows(str(filtered)))
    trainer = prepared.trainer
    before = torch.get_rng_state()
    found = trainer.evaluate(trainer.train_dataset)
    torch.set_rng_state(before)
    assert found["eval_self_distillation/reward_mean"] > 0
    prepared.run_steps()
    for adapter in ("default", "teacher"):
        expected = adapter_state(straight[0].trainer, adapter)
        after = adapter_state(trainer, adapter)
        assert all(torch.equal(value, expected[name]) for name, value in after.items())


@pytest.mark.slow
def test_a_run_killed_after_its_last_step_makes_no_more(
    straight: tuple[Prepared, dict[str, float], SeenPrompts, ModelConfig], tiny: Path, filtered: Path, tmp_path: Path
) -> None:
    changes = {"save_strategy": "steps", "save_steps": 6, "lr_scheduler_type": "constant"}
    dataset = rows.load_rows(str(filtered))
    args, model_args = arguments(tmp_path, tiny, **changes)
    first = prepare(args, model_args, dataset)
    first.run_steps()
    args, model_args = arguments(tmp_path, tiny, **changes)
    again = prepare(args, model_args, dataset)
    again.run_steps()
    assert again.trainer.state.global_step == 6
    expected, found = (adapter_state(one.trainer) for one in (first, again))
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
    steps = [entry["step"] for entry in again.trainer.state.log_history if "loss" in entry]
    assert steps == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_a_killed_run_of_rft_with_two_updates_a_batch_goes_on_to_the_same_weights(
    tiny: Path, filtered: Path, tmp_path: Path
) -> None:
    dataset = rows.load_rows(str(filtered))

    def run_to(folder: Path, stop: int | None) -> Prepared:
        args, model_args = arguments(
            folder,
            tiny,
            **{"method": "rft", "num_iterations": 2, "success_reward_threshold": 0.01},
            **{"save_strategy": "steps", "save_steps": 4},
        )
        prepared = prepare(args, model_args, dataset, mode="none")
        if stop is not None:
            prepared.trainer.add_callback(StopAfter(stop))
        prepared.run_steps()
        return prepared

    whole = adapter_state(run_to(tmp_path / "whole", None).trainer)
    run_to(tmp_path / "killed", 4)
    resumed = run_to(tmp_path / "killed", None)
    assert resumed.progress.resumed_at == [4]
    again = adapter_state(resumed.trainer)
    assert any(value.abs().max() > 0 for name, value in whole.items() if "lora_B" in name)
    assert all(torch.equal(whole[name], again[name]) for name in whole)
