"""Whatever is wrong with what was given is one sentence and exit code 2, and writes nothing."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from pimono_sdpo.training import models
from tests.training.setup import hand_made, job, parse, script

LOCAL = ("--config", "tiny", "--report_to", "none", "--run-name", "r1")


def refused(argv: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    """Run the job in a folder; it must say the words in one sentence and leave no file behind."""
    before = sorted(folder.rglob("*"))
    assert script().main([*LOCAL, *argv]) == 2
    # Libraries draw progress bars before.
    told = capsys.readouterr().err.strip().splitlines()[-1].rpartition("\r")[2]
    assert told.startswith("train_sdpo: ")
    assert told.endswith(".")
    assert words in told
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--max_step", "4"), "Unknown argument(s) --max_step 4"),
        (("others", "--max_steps", "4"), "Unknown argument(s) others; give one folder of rows, then options"),
        (("--mode", "trian"), "invalid choice: 'trian'"),
        (("--max_steps", "many"), "invalid int value: 'many'"),
        (("--success_reward_threshold", "nan"), "--success_reward_threshold is nan"),
        (("--min_score", "nan"), "--min_score is nan"),
        (("--max_samples", "0"), "--max_samples is 0"),
        (("--max_samples", "-3"), "--max_samples is -3"),
        (("--max_steps", "0"), "--max_steps is 0; give at least 1, or -1"),
        (("--max_steps", "-2"), "--max_steps is -2; give at least 1, or -1"),
        (("--max_steps", "-1", "--num_train_epochs", "0"), "--num_train_epochs is 0"),
        (("--seed", "-1"), "--seed is -1; give a number of at least 0"),
        (("--guard_window", "0"), "--guard_window is 0; give a number above 0"),
        (("--learning_rate", "-1e-5"), "--learning_rate is -1e-05; give a number above 0"),
        (("--learning_rate", "-inf"), "--learning_rate is -inf; give a finite number"),
        (("--learning_rate", "0"), "--learning_rate is 0.0; give a number above 0"),
        (("--temperature", "0"), "--temperature is 0.0; give a number above 0"),
        (("--per_device_train_batch_size", "0"), "--per_device_train_batch_size is 0; give a number above 0"),
        (("--gradient_accumulation_steps", "0"), "--gradient_accumulation_steps is 0; give a number above 0"),
        (("--num_generations", "0"), "--num_generations is 0; give a number above 0"),
        (("--num_iterations", "0"), "--num_iterations is 0; give a number above 0"),
        (("--max_completion_length", "-1"), "--max_completion_length is -1; give a number above 0"),
        (("--lora_r", "0"), "--lora_r is 0; give a number above 0"),
        (("--beta", "-0.1"), "--beta is -0.1; give a number of at least 0"),
        (("--weight_decay", "-1"), "--weight_decay is -1.0; give a number of at least 0"),
        (("--dataloader_num_workers", "-1"), "--dataloader_num_workers is -1; give a number of at least 0"),
        (("--top_p", "1.5"), "--top_p is 1.5; give a number from 0 to 1"),
        (("--method", "grpo", "--num_generations", "1"), "--num_generations is 1, so there is no other completion"),
        (("--distillation_weight", "0.5", "--num_generations", "1"), "--num_generations is 1, so there is no other"),
        (("--feedback", "none", "--num_generations", "1"), "--num_generations is 1, so there is no other completion"),
        (("--distillation_mode", "topk_logits"), "give --distillation_topk"),
        (("--loss_type", "ppo"), "invalid choice: 'ppo'"),
        (("--use_vllm", "true"), "--use_vllm needs the package `vllm`; install it"),
        (("--use_liger_kernel", "true"), "--use_liger_kernel needs the package `liger_kernel`; install it"),
        (("--accelerator_config", "gone.json"), "No such file or directory: 'gone.json'"),
        (("--license", "my-own"), "does not know the licence `my-own`"),
        (("--run_name", "../../esc"), "The run name `../../esc`"),
        (("--run_name", "a/b"), "The run name `a/b`"),
        (("--run_name", ".."), "The run name `..`"),
        (("--dataset", "file"), "`file` is a file; give the folder of rows"),
        (("--config", "five.yaml"), "lora_target_modules is 5 in the recipe, and not a list of texts"),
        (("--source", "./gone"), "does not exist"),
        (("--source", "dull"), "`dull` gives no rows"),
        (("--output_dir", "file", "--dataset", "x/y"), "Cannot write `file` ("),
        (("--output_dir", "file/below", "--dataset", "x/y"), "Cannot write `file/below` ("),
    ],
)
def test_arguments_are_checked_before_anything_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "five.yaml").write_text("lora_target_modules: 5")
    (tmp_path / "dull").mkdir()
    (tmp_path / "dull" / "1.jsonl").write_text('{"type":"session","version":3,"id":"s"}\n')
    refused(argv, tmp_path, capsys, words)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine can train the model")
@pytest.mark.parametrize("recipe", ["gemma4_12b", "qwen3_4b"])
def test_a_recipe_for_a_gpu_is_not_trained_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recipe: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = f"This machine has no GPU, which the recipe {recipe}.yaml needs; train with --on hf:FLAVOR"
    refused(("--config", recipe, "--dataset", "me/rows", "--force", "true"), tmp_path, capsys, words)


@pytest.mark.slow
def test_the_command_line_error_is_one_line(tmp_path: Path) -> None:
    done = job("--mode", "trian", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "usage:" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("train_sdpo: The arguments cannot")


def test_a_recipe_is_held_to_the_choices_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "own.yaml"
    for text, words in (
        ("mode: trian", "mode is trian in the recipe"),
        ("assistant_only_loss: true", "The recipe sets assistant_only_loss, which this method does not have"),
        ("sead: 1", "write seed."),
        ("a: [\nb: }", "own.yaml"),
        ("max_steps: [", "own.yaml"),
        ("max_steps: [3]", "invalid int value: '[3]'"),
        ("max_steps: 2.5", "invalid int value: '2.5'"),
        ("learning_rate: {from: 1}", "invalid float value"),
        ("learning_rate: true", "invalid float value: 'True'"),
        ("learning_rate: .nan", "--learning_rate is nan; give a finite number"),
    ):
        recipe.write_text(text)
        assert script().main(["--config", str(recipe)]) == 2
        told = capsys.readouterr().err
        assert words in told
        assert len(told.strip().splitlines()) == 1


@pytest.mark.parametrize(("given", "kept"), [("MIT", "mit"), ("Apache-2.0", "apache-2.0")])
def test_a_licence_is_spelled_as_the_hub_does(given: str, kept: str) -> None:
    parsed, *_ = parse(["--config", "tiny", "--license", given])
    assert parsed.license == kept


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer.json", None, "The tokenizer of `"),
        ("tokenizer.json", "{", "The tokenizer of `"),
        ("model.safetensors", None, "no file named model.safetensors"),
        ("model.safetensors", "", "header too small"),
        ("model.safetensors", "not weights at all", "header too large"),
        ("config.json", "{}", "Unrecognized model"),
    ],
)
def test_a_broken_model_is_one_sentence(
    tmp_path: Path,
    tiny: Path,
    filtered: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    content: str | None,
    words: str,
) -> None:
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    (model / file).unlink()
    if content is not None:
        (model / file).write_text(content)
    argv = ("--dataset", str(filtered), "--output_dir", str(tmp_path / "out"))
    refused((*argv, "--model_name_or_path", str(model)), tmp_path, capsys, words)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--lora_target_modules", "nope"), "Target modules nope not found"),
        (("--lora_target_modules", "[q"), "unterminated character set"),
        (("--adam_beta1", "2"), "Invalid beta parameter at index 0: 2.0"),
        (("--optim", "galore_adamw"), "You need to install `galore_torch`"),
        (("--lr_scheduler_type", "cosine_with_min_lr"), "One of min_lr or min_lr_rate should be set"),
        (("--attn_implementation", "flash_attention_2"), "FlashAttention2 has been toggled on"),
        (("--reprompt_template", "{prompt} {nope}"), "reprompt_template cannot be filled; put {feedback}"),
        (("--feedback_template", "{feedback_raw"), "feedback_template cannot be filled"),
        (("--solution_template", "{}"), "solution_template cannot be filled"),
    ],
)
def test_arguments_that_do_not_fit_the_model_are_one_sentence(
    tmp_path: Path, tiny: Path, filtered: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], words: str
) -> None:
    base = ("--dataset", str(filtered), "--model_name_or_path", str(tiny))
    refused((*base, "--output_dir", str(tmp_path / "out"), *argv), tmp_path, capsys, words)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("reward_terms", None, "rows names a concrete term in `reward_terms`; give other rows, or another --reward"),
        ("reward_terms", [None], "Expected `str`, got `null` - at `$.reward_terms[0]`"),
        ("reward_terms", "enoent", "Expected `array | null`, got `str` - at `$.reward_terms`"),
        ("privileged_context", 7, "got `int` - at `$.privileged_context`"),
        ("privileged_context", " ", "has a text in privileged_context, so the teacher of --feedback trace would read"),
        ("privileged_context", None, "has a text in privileged_context, so the teacher of --feedback trace would"),
        ("prompt", [{"text": "hi"}], "missing required field `role` - at `$.prompt[0]`"),
        ("prompt", "hi", "its prompt is text; write a list of messages"),
        ("prompt", [None], "Expected `object`, got `null` - at `$.prompt[0]`"),
    ],
)
def test_rows_of_other_kinds_are_named(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str], column: str, value: object, words: str
) -> None:
    rows = [{**row, column: value} for row in hand_made()]
    (tmp_path / "rows").mkdir()
    Dataset.from_list(rows).to_parquet(tmp_path / "rows" / "train.parquet")
    given = ("--dataset", str(tmp_path / "rows"), "--model_name_or_path", str(tiny), "--force", "true")
    refused((*given, "--output_dir", str(tmp_path / "out")), tmp_path, capsys, words)


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_a_report_no_card_can_be_made_from_is_refused_before_training(
    tmp_path: Path, filtered: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    rows = Path(shutil.copytree(filtered, tmp_path / "rows"))
    (rows / "report.json").write_text(text)
    given = ("--dataset", str(rows), "--output_dir", str(tmp_path / "out"))
    refused(given, tmp_path, capsys, "report.json` was not written by pimono-sdpo")


@pytest.mark.slow
def test_a_killed_run_goes_on_with_its_own_arguments_and_publishes_no_path(
    tmp_path: Path, tiny: Path, filtered: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home" / "ann"
    home.mkdir(parents=True)
    monkeypatch.chdir(home)
    model = Path(shutil.copytree(tiny, home / "models" / "tiny-gemma4"))
    given = ("--dataset", str(filtered), "--model_name_or_path", str(model), "--max_steps", "2")
    argv = [*LOCAL, *given, "--save_steps", "1", "--output_dir", str(home / "out")]
    main = script().main
    assert main(argv) == 0
    out = home / "out"
    whole = (out / "adapter" / "adapter_model.safetensors").read_bytes()
    for name in ("adapter", "checkpoint-2"):
        shutil.rmtree(out / name)
    (out / "run.json").unlink()

    capsys.readouterr()
    assert main([*argv, "--learning_rate", "0.5"]) == 2
    assert "was started with learning_rate 0.001, now 0.5:" in capsys.readouterr().err
    assert main([*argv, "--logging_steps", "2"]) == 0
    assert (out / "adapter" / "adapter_model.safetensors").read_bytes() == whole
    for file in (*(out / "adapter").iterdir(), out / "run.json"):
        assert str(tmp_path).encode() not in file.read_bytes(), file.name
    config = json.loads((out / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "tiny-gemma4"
    card = (out / "adapter" / "README.md").read_text()
    assert "--model_name_or_path tiny-gemma4" in card
    assert 'from_pretrained(\n    "tiny-gemma4"' in card

    assert models.largest_difference(out) == 0
