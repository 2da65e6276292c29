"""SFT and DPO on a tiny random model of the real class, as a user runs the jobs."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoTokenizer, TrainerCallback

from cards.lint import lint_card
from pimono_sdpo.training import models, output, run
from pimono_sdpo.training.arguments import TYPES
from tests.card_data import TOKENIZER
from tests.training.recorded import asked, pair, pairs, step, steps, turn, written
from tests.training.setup import JOBS, Prepared, arguments, python, script

METHODS = ("sft", "dpo")
QUIET = ("--report_to", "none")


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("recorded")
    long = [*asked(9)[:3], turn("tool", "x " * 2000, tool_call_id="c1")]
    test = {"task_id": "fix_7", "split": "test"}
    return {
        "sft": written(
            folder / "steps",
            steps(*(step(n) for n in range(5)), step(9, prompt=long)),
            steps(step(7, **test), step(8, **test)),
        ),
        "dpo": written(folder / "pairs", pairs(), pairs(pair(7, **test), pair(8, **test))),
    }


def argv(method: str, rows: dict[str, Path], tiny: Path, out: Path, *more: str) -> list[str]:
    given = ["--config", "cpu", "--load_in_4bit", "true", "--dataset", str(rows[method]), *QUIET]
    return [*given, "--model_name_or_path", str(tiny), "--output_dir", str(out), *more]


@pytest.fixture(scope="module")
def done(
    tmp_path_factory: pytest.TempPathFactory, rows: dict[str, Path], tiny: Path, one_thread: None
) -> dict[str, Path]:
    """A finished run of each method, four steps long."""
    folder = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        given = argv(method, rows, tiny, folder / method, "--eval_split", "test")
        assert script(f"train_{method}").main(given) == 0
    return {method: folder / method for method in METHODS}


def prepared(method: str, folder: Path, tiny: Path, dataset: Dataset, adapter: Path | None = None) -> Prepared:
    _, model_args = arguments(folder, tiny)
    options, config = (cast("Any", kind) for kind in TYPES[method])
    args = config(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        max_steps=2,
        learning_rate=1e-3,
        per_device_train_batch_size=2,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    job = options(**({} if adapter is None else {"adapter": str(adapter)}))
    run.settle(job, args)
    setup = run.set_up(job, args, model_args)
    fitted = run.fit(setup, dataset)
    return Prepared(setup, fitted, run.build(setup, fitted.rows))


@pytest.mark.parametrize("method", METHODS)
def test_a_run_leaves_an_adapter_that_loads_and_a_card_that_says_what_it_was(
    method: str, done: dict[str, Path], tmp_path: Path
) -> None:
    out = done[method]
    log = json.loads((out / "run.json").read_text())
    assert log["method"] == method
    assert log["dataset"]["rows_used"] == 5
    assert [entry["step"] for entry in log["log_history"]] == [1, 2, 3, 4]
    assert {path.name for path in (out / "adapter").iterdir()} == {
        *models.WEIGHTS,
        "README.md",
        "run.json",
        *TOKENIZER,
        "training.html",
    }
    assert output.largest_difference(out) == 0
    card = (out / "adapter" / "README.md").read_text()
    assert lint_card(card) == []
    assert not (out / "README.md").exists()
    assert f"\n- {method}\n" in card
    assert str(tmp_path.parent) not in card
    measure = {"sft": "loss per token", "dpo": "log-ratio"}[method]
    assert f"name: {measure} on held-out rows" in card
    evaluation = log["evaluation"]
    assert (evaluation["sessions"], evaluation["completions"]) == (1, 2)
    left_out = {"sft": "Left out: too_long 1", "dpo": "were not truncated"}[method]
    assert left_out in card
    assert (out / "left-out.json").exists() == (method == "sft")


KILLED = """
import os, runpy, signal, sys
from transformers import TrainerCallback
from pimono_sdpo.training import run
class Killed(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
build = run.build
def killed(*given):
    trainer = build(*given)
    trainer.add_callback(Killed())
    return trainer
run.build = killed
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("method", ["sft", pytest.param("dpo", marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_to_the_same_adapter(
    method: str,
    done: dict[str, Path],
    rows: dict[str, Path],
    tiny: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = argv(method, rows, tiny, tmp_path / "out", "--eval_split", "test")
    died = python("-c", KILLED, str(JOBS / f"train_{method}.py"), *given, cwd=tmp_path)
    assert died.returncode == -signal.SIGKILL, died.stderr[-3000:]
    assert (tmp_path / "out" / "checkpoint-2").is_dir()
    job = script(f"train_{method}").main
    assert job([*given, "--learning_rate", "0.5"]) == 2
    assert "learning_rate 0.001, now 0.5" in capsys.readouterr().err
    assert job(given) == 0
    for name in models.WEIGHTS[:1]:
        first, second = (load_file(out / "adapter" / name) for out in (done[method], tmp_path / "out"))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)
    before, after = (json.loads((out / "run.json").read_text()) for out in (done[method], tmp_path / "out"))
    assert after["resumed_at"] == [2]
    assert after["evaluation"] == before["evaluation"]
    assert after["log_history"] == before["log_history"]
    assert job(given) == 2
    assert "holds a finished run" in capsys.readouterr().err


def test_the_loss_is_that_of_the_completion_alone(tiny: Path, tmp_path: Path) -> None:
    made = prepared("sft", tmp_path, tiny, steps())
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    row = made.trainer.train_dataset[0]
    trained = [token for token in row["labels"] if token != -100]
    text = tokenizer.decode(trained)
    assert "tests/t0.py" in text
    assert "src/f0.py" not in text
    assert text.endswith(("<turn|>", "<tool_call|>", "<turn|>\n", "<|tool_response>"))
    whole = tokenizer.decode(row["input_ids"])
    assert whole.count("read_file") == 4, "declared, called, answered, called again"
    assert "None" not in whole


@pytest.mark.parametrize("method", METHODS)
def test_lora_is_trained_in_float32(method: str, tiny: Path, tmp_path: Path) -> None:
    made = prepared(method, tmp_path, tiny, steps() if method == "sft" else pairs())
    dtypes = {p.dtype for p in made.trainer.model.parameters() if p.requires_grad}
    assert dtypes == {torch.float32}


class Losses(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """Keep what was logged."""

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
        self.seen.append(dict(logs))


def test_dpo_goes_on_from_the_adapter_of_sft(
    done: dict[str, Path], rows: dict[str, Path], tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = done["sft"] / "adapter"
    trained = load_file(adapter / models.WEIGHTS[0])
    made = prepared("dpo", tmp_path / "a", tiny, pairs(), adapter)
    model = made.trainer.model
    for name, parameter in model.named_parameters():
        if ".default." in name:
            kept = trained[name.replace(".default.", ".")]
            assert torch.equal(parameter, kept), "to the bit, not rounded to bfloat16"
            assert torch.equal(model.get_parameter(name.replace(".default.", ".ref.")), kept)
            assert parameter.requires_grad
        else:
            assert not parameter.requires_grad, name
    losses = Losses()
    made.trainer.add_callback(losses)
    made.run_steps()
    assert losses.seen[0]["rewards/margins"] == 0, "the reference is the adapter itself"
    assert losses.seen[1]["rewards/margins"] != 0
    moved = dict(model.named_parameters())
    name = next(name for name in moved if "lora_B.ref." in name)
    assert torch.equal(moved[name], trained[name.replace(".ref.", ".")]), "and stays"

    out = tmp_path / "out"
    more = ("--adapter", str(adapter), "--max_steps", "2")
    job = script("train_dpo").main
    assert job(argv("dpo", rows, tiny, out, *more)) == 0
    assert output.largest_difference(out) == 0
    config = json.loads((out / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == tiny.name
    card = (out / "adapter" / "README.md").read_text()
    assert "the adapter that it started from, `adapter (" in card
    other = tmp_path / "other"
    shutil.copytree(tiny, other)
    assert job(argv("dpo", rows, other, tmp_path / "b", *more)) == 2
    told = capsys.readouterr().err
    assert f"is for the base model `{tiny.name}`, and not for `other`" in told
    assert job(argv("dpo", rows, tiny, tmp_path / "b", "--adapter", str(rows["dpo"]))) == 2
    assert "cannot be opened (Can't find 'adapter_config.json'" in capsys.readouterr().err


def test_the_preflight_tells_and_trains_nothing(
    rows: dict[str, Path], tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = argv("sft", rows, tiny, tmp_path / "out", "--mode", "preflight")
    assert script("train_sft").main(given) == 0
    told = capsys.readouterr().out
    assert "used: 5\n" in told
    assert "left_out: {too_long: 1}" in told
    assert re.search(r"sequence: {budget: 1024, .*over: 0}", told)
    assert "of: this machine without a GPU" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("method", "more", "words"),
    [
        ("sft", ("--chat_template_path", "x.jinja"), "--chat_template_path is not supported"),
        ("sft", ("--completion_only_loss", "false"), "would train the model to write tool results"),
        ("sft", ("--max_length", "16"), "None of the 6 rows can be trained on (too_long 6;"),
        ("sft", ("--eval_split", "nosuch"), 'Unknown split "nosuch"'),
        ("sft", ("--hub_token", "hf_x"), "HF_TOKEN"),
        ("sft", ("--dataset_config", "pairs"), "BuilderConfig 'pairs' not found"),
        ("dpo", ("--loss_weights", "1.0"), "`loss_weights` must have the same length"),
        ("dpo", ("--adapter", "./gone"), "The adapter `./gone` cannot be opened"),
    ],
)
def test_what_cannot_be_trained_with_is_one_sentence(
    method: str,
    more: tuple[str, ...],
    words: str,
    rows: dict[str, Path],
    tiny: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert script(f"train_{method}").main(argv(method, rows, tiny, tmp_path / "out", *more)) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.startswith(f"train_{method}: ")
    assert words in told
    assert not (tmp_path / "out").exists()
