"""The loop closes: rollouts of a model become steps and pairs, and the jobs train on them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pimono_sdpo.cli import app
from pimono_sdpo.training import output
from tests.agent.suite_of_three import knows_some, write_suite
from tests.chat_server import ChatServer
from tests.training.setup import script

pytestmark = pytest.mark.slow


def told(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def rollouts(tmp_path: Path, chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    chat_server.policy = knows_some
    out = tmp_path / "rollouts"
    given = ("rollout", str(write_suite(tmp_path)), "--out", str(out), "--rollouts", "2")
    told(*given, "--provider", chat_server.url, "--model", "m")
    return out


def test_rollouts_train_with_sft_and_with_dpo(rollouts: Path, tiny: Path, tmp_path: Path) -> None:
    for command, method, rows in (("steps", "sft", 4), ("pairs", "dpo", 1)):
        made, out = tmp_path / command, tmp_path / method
        told(command, str(rollouts), "--out", str(made))
        given = ["--config", "cpu", "--dataset", str(made), "--max_length", "4096"]
        given += ["--model_name_or_path", str(tiny), "--max_steps", "2", "--report_to", "none"]
        given += ["--output_dir", str(out)]
        assert script(f"train_{method}").main(given) == 0
        run = json.loads((out / "run.json").read_text())
        assert run["dataset"]["rows_used"] == rows
        assert [entry["step"] for entry in run["log_history"]] == [1, 2]
        assert output.largest_difference(out) == 0
