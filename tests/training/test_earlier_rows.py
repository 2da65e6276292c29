"""Rows that commit 77ea1c7c wrote, with `workspace` in the spec and with `--unit step`, are viewed, pushed, trained on."""

import json
import shutil
from pathlib import Path

import pytest
from datasets import load_dataset

from pimono_sdpo.cli.view import render_view
from tests.loopback_hub import LoopbackHub, run_python
from tests.test_view import view_of
from tests.training.setup import script

EARLIER = Path(__file__).parents[1] / "data" / "rows_77ea1c7c"
UNITS = {"episodes": 2, "steps": 5}
CALLS = ("--reward", "verifiers", "--gate", "tool_calls")


@pytest.mark.parametrize("unit", UNITS)
def test_earlier_rows_are_what_they_claim(unit: str) -> None:
    rows = load_dataset("parquet", data_files=str(EARLIER / unit / "data" / "train-*.parquet"), split="train")
    specs = [json.loads(spec) for spec in rows["verifier_spec"]]
    assert len(specs) == UNITS[unit]
    assert any(spec["workspace"]["files"] for spec in specs if "workspace" in spec)
    assert all(("goal" in spec) == (unit == "steps") for spec in specs)


@pytest.mark.parametrize("unit", UNITS)
def test_earlier_rows_are_shown(unit: str, capsys: pytest.CaptureFixture[str]) -> None:
    view = view_of(render_view(EARLIER / unit, [], 50))
    assert sum(row["outcome"] == "selected" for row in view["rows"]) >= UNITS[unit]
    assert ("`--unit step`, which was removed" in capsys.readouterr().err) == (unit == "steps")


@pytest.mark.parametrize("unit", UNITS)
def test_earlier_rows_are_pushed(loopback_hub: LoopbackHub, tmp_path: Path, unit: str) -> None:
    shutil.copytree(EARLIER / unit, tmp_path / "rows")
    done = run_python(loopback_hub, tmp_path, "-m", "pimono_sdpo", "push", "rows", "me/rows")
    assert done.returncode == 0, done.stderr
    assert "data/train-00000-of-00001.parquet" in loopback_hub.files("me/rows", "dataset")


@pytest.mark.parametrize(("unit", "reward"), [("episodes", ()), ("steps", ())])
def test_earlier_rows_are_trained_on(
    unit: str, reward: tuple[str, ...], tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--config", "cpu", "--report_to", "none", "--max_steps", "1", "--preflight_rows", "0", *reward]
    argv += [
        "--dataset",
        str(EARLIER / unit),
        "--model_name_or_path",
        str(tiny),
        "--output_dir",
        str(tmp_path / "out"),
    ]
    argv += ["--max_prompt_length", "4096", "--max_reprompt_len", "6144"]
    argv += ["--success_reward_threshold", "1.0"] * bool(reward)
    assert script().main(argv) == 0, capsys.readouterr().err
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run["dataset"]["rows_used"] == UNITS[unit]
