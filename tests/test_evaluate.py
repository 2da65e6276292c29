"""Two models on the same held-out tasks: means, intervals by task, paired differences."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pimono_sdpo.agent.evaluation import Json, evaluate_models
from pimono_sdpo.agent.rollout import RolloutOptions
from pimono_sdpo.cli import app
from pimono_sdpo.errors import EmptySelection, SourceError
from tests.rollout_data import OTHER, final, prose, read, rollout, write, write_folder
from tests.test_step_rows import bytes_of

TASKS = [f"fix_{n}" for n in range(6)]
FAILS = [prose(), read(), write(OTHER, False), final("done")]


def folders(tmp_path: Path) -> tuple[Path, Path]:
    before = [rollout(t, s, FAILS if s or n else None) for n, t in enumerate(TASKS) for s in (0, 1)]
    after = [rollout(t, s, FAILS if s and n else None) for n, t in enumerate(TASKS) for s in (0, 1)]
    after += [rollout(TASKS[0], 9, error="503", tests_ok=None)]
    return (
        write_folder(tmp_path / "before", before, split="test"),
        write_folder(tmp_path / "after", after, split="test"),
    )


def compare_rollouts(suite: Path, baseline: Path, tuned: Path | None, out: Path) -> Json:
    return evaluate_models(RolloutOptions(suite=suite), out, print, lambda row, place: None, baseline, tuned)


def test_the_difference_is_paired_by_task(tmp_path: Path) -> None:
    before, after = folders(tmp_path)
    report = compare_rollouts(before, before, after, tmp_path / "report")
    assert report["runs"] == {"baseline": 12, "tuned": 12}
    assert report["left_out"] == {"baseline": 0, "tuned": 1}
    passed = report["metrics"]["pass_rate"]
    assert passed["baseline"]["mean"] == pytest.approx(1 / 12)
    assert passed["tuned"]["mean"] == pytest.approx(7 / 12)
    # Each task gains the same: nothing is left to chance.
    gain = {"mean": 0.5, "low": 0.5, "high": 0.5, "tasks": 6}
    assert passed["difference"] == gain
    assert passed["baseline"]["low"] <= 1 / 12 <= passed["baseline"]["high"]
    means = {name: told["tuned"]["mean"] for name, told in report["metrics"].items()}
    assert means["parse_errors"] == pytest.approx(5 / 12)
    assert means["pct_runs_with_write_file"] == 1.0
    assert means["loop_detections"] == 0.0
    assert means["avg_steps"] == pytest.approx((7 * 3 + 5 * 4) / 12)
    assert means["tool_call_validity"] == pytest.approx((7 + 5 * 0.75) / 12)
    compare_rollouts(before, before, after, tmp_path / "again")
    assert bytes_of(tmp_path / "report") == bytes_of(tmp_path / "again")
    assert {"report.json", "report.md", "report.svg"} == set(bytes_of(tmp_path / "again"))


def test_the_command_prints_the_table(tmp_path: Path) -> None:
    before, after = folders(tmp_path)
    command = ["evaluate", str(before), "--baseline", str(before), "--tuned", str(after)]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "report")])
    assert done.exit_code == 0, done.output
    assert "| pass_rate | 0.08333 (" in done.output
    assert "| 0.5 (0.5 to 0.5) |" in done.output


def test_runs_that_cannot_be_compared(tmp_path: Path) -> None:
    before, _ = folders(tmp_path)
    other = write_folder(tmp_path / "other", [rollout("else", 1)], split="test")
    with pytest.raises(EmptySelection, match="rollouts of the tuned"):
        compare_rollouts(before, before, other, tmp_path / "report")
    train = write_folder(tmp_path / "train", [rollout("a", 1)], split="train")
    with pytest.raises(SourceError, match="suite to train on"):
        compare_rollouts(train, before, None, tmp_path / "report")
    with pytest.raises(SourceError, match="has no rollouts"):
        compare_rollouts(before, tmp_path, None, tmp_path.parent / "report")
    alone = compare_rollouts(before, before, None, tmp_path / "report")
    assert "difference" not in alone["metrics"]["pass_rate"]
