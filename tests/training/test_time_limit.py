"""A training that ends in time, and goes on later."""

import json
from pathlib import Path

import pytest

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.callbacks import TimeLimit, time_limit_of
from tests.training.setup import digest, script

ARGUMENTS = ("--config", "cpu", "--max_steps", "3", "--report_to", "none", "--preflight_rows", "0")


@pytest.mark.parametrize("text", ["0h", "3 hours", "-3h", "h", "1e3"])
def test_a_limit_that_is_none_is_one_sentence(text: str) -> None:
    with pytest.raises(TrainingInputError, match="is not a valid time limit; use a duration such as 90m or 3h"):
        time_limit_of(text)


def test_the_limit_is_given_told_by_the_job_or_assumed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JOB_ID", raising=False)
    monkeypatch.delenv("TIME_LIMIT", raising=False)
    assert time_limit_of(None) is None
    given = time_limit_of("2h")
    assert given is not None
    assert given.seconds == 7200
    monkeypatch.setenv("TIME_LIMIT", "3h")
    told = time_limit_of(None)
    assert told is not None
    assert told.seconds == 10800
    monkeypatch.delenv("TIME_LIMIT")
    monkeypatch.setenv("JOB_ID", "0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assumed = time_limit_of(None)
    assert assumed is not None
    assert assumed.seconds == 1800
    assert "give --time_limit the value of --timeout" in capsys.readouterr().err


def test_the_end_leaves_time_for_what_comes_after() -> None:
    assert TimeLimit(0.0, 3600.0).reserve == 300.0
    assert TimeLimit(0.0, 60.0).reserve == 15.0


@pytest.mark.slow
def test_a_training_cut_short_goes_on_to_the_same_adapter(
    tiny: Path, filtered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*ARGUMENTS, "--dataset", str(filtered), "--model_name_or_path", str(tiny)]
    asked += ["--eval_split", "train", "--eval_generations", "1"]
    whole, out = tmp_path / "whole", tmp_path / "cut"
    assert script().main([*asked, "--output_dir", str(whole)]) == 0
    asked += ["--output_dir", str(out)]
    assert script().main([*asked, "--time_limit", "1s"]) == 0
    assert "the time limit ended the training after step 1 of 3;" in capsys.readouterr().out
    run = json.loads((out / "run.json").read_text())
    assert run["guards"]["stopped_by"] == "time_limit"
    assert run["evaluation"] is None
    assert "stopped by time_limit" in (out / "adapter" / "README.md").read_text()
    assert (out / "checkpoint-1").is_dir()

    assert script().main(asked) == 0
    run = json.loads((out / "run.json").read_text())
    assert (run["guards"]["stopped_by"], run["resumed_at"]) == (None, [1])
    assert run["evaluation"] == json.loads((whole / "run.json").read_text())["evaluation"]
    weights = "adapter/adapter_model.safetensors"
    assert digest(out / weights) == digest(whole / weights)
    assert script().main(asked) == 2, "finished now"
