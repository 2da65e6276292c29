"""Rows that were not trained on: scored before and after, and kept through a kill."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from pimono_sdpo.training import preflight
from pimono_sdpo.training import rows as rows_module
from pimono_sdpo.training.arguments import CommonArguments
from pimono_sdpo.training.rewards import Scoring
from tests.training.setup import arguments, hand_made, prepare, script


def with_test_rows(folder: Path) -> Path:
    (folder / "data").mkdir(parents=True)
    hand_made().to_parquet(folder / "data" / "train-00000-of-00001.parquet")
    hand_made().select([0, 1, 2]).to_parquet(folder / "data" / "test-00000-of-00001.parquet")
    return folder


def test_scores_are_by_session_and_the_same_twice(tmp_path: Path, tiny: Path) -> None:
    args, model_args = arguments(tmp_path, tiny)
    prepared = prepare(args, model_args, hand_made())
    rows = prepared.fitted.rows
    scores = preflight.score_rollouts(prepared.trainer, rows, 3)
    assert {name: len(found) for name, found in scores.items()} == dict.fromkeys(("s0", "s1", "s2", "s3"), 3)
    assert any(0 < reward < 1 for found in scores.values() for reward in found)
    assert preflight.score_rollouts(prepared.trainer, rows, 3) == scores
    for unnamed in (rows.remove_columns("session_id"), rows.map(lambda _: {"session_id": None})):
        alone = preflight.score_rollouts(prepared.trainer, unnamed, 3)
        assert [len(found) for found in alone.values()] == [3, 3, 3, 3]


def compared(before: dict[str, list[float]], after: dict[str, list[float]]) -> dict[str, Any]:
    rows = Dataset.from_dict({"session_id": [*before]})
    first, second = (
        {"reward": rewards, "pass_rate": {name: [float(one >= 1) for one in found] for name, found in rewards.items()}}
        for rewards in (before, after)
    )
    return preflight.compare(first, second, rows, "test")


def test_the_summary_compares_the_same_sessions() -> None:
    before = {"a": [0.0, 0.5], "b": [0.0, 0.0], "c": [0.5, 0.5]}
    after = {"a": [1.0, 1.0], "b": [0.5, 0.5], "c": [1.0, 1.0]}
    found = compared(before, after)
    assert found["sessions"] == 3
    assert found["reward"]["difference"]["mean"] == pytest.approx(3.5 / 6)
    assert found["reward"]["difference"]["low"] > 0
    assert found["pass_rate"]["before"]["mean"] == 0
    assert found["pass_rate"]["after"]["mean"] == pytest.approx(4 / 6)
    assert "a change beyond chance" in preflight.as_sentence(found, "sdpo")
    same = compared(before, before)
    assert "no change beyond chance" in preflight.as_sentence(same, "sdpo")
    one = compared({"a": [0.0]}, {"a": [1.0]})
    assert one["reward"]["difference"] == {"mean": 1.0, "low": None, "high": None}
    assert "too few sessions to tell" in preflight.as_sentence(one, "sdpo")


def test_a_reward_that_says_nothing_counts_as_nothing(tmp_path: Path, tiny: Path) -> None:
    def silent(prompts: list[Any], **_: Any) -> list[float | None]:
        return [None] * len(prompts)

    args, model_args = arguments(tmp_path, tiny)
    prepared = prepare(args, model_args, hand_made(), Scoring(silent))
    scores = preflight.score_rollouts(prepared.trainer, prepared.fitted.rows, 1)
    assert all(not math.isnan(reward) for found in scores.values() for reward in found)
    assert sum(sum(found) for found in scores.values()) == 0.0


def test_the_job_scores_before_and_after_and_shows_it(
    tmp_path: Path, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = with_test_rows(tmp_path / "rows")
    out = tmp_path / "out"
    argv = ["--config", "cpu", "--report_to", "none", "--max_steps", "1", "--eval_split", "test"]
    argv += ["--save_steps", "1"]
    argv += ["--dataset", str(rows), "--model_name_or_path", str(tiny)]
    argv += ["--output_dir", str(out)]
    assert script().main([*argv, "--eval_generations", "2"]) == 0
    assert "3 sessions): no change beyond chance" in capsys.readouterr().out
    run = json.loads((out / "run.json").read_text())
    assert run["evaluation"]["sessions"] == 3
    assert run["teaching"]["eval_split"] == "test"
    local = json.loads((out / "run-local.json").read_text())
    assert set(local["before"]["held_out"]["reward"]) == {"s0", "s1", "s2"}
    # Killed before its end and gone on with: other rows to score are another training.
    shutil.rmtree(out / "adapter")
    (out / "run.json").unlink()
    more = hand_made().select([0, 1])
    more.to_parquet(rows / "data" / "test-00000-of-00001.parquet")
    assert script().main([*argv, "--eval_generations", "2"]) == 2
    assert "held_out_rows" in capsys.readouterr().err
    hand_made().select([0, 1, 2]).to_parquet(rows / "data" / "test-00000-of-00001.parquet")
    assert script().main([*argv, "--eval_generations", "2"]) == 0
    assert "## Held-out Evaluation" in (out / "adapter" / "README.md").read_text()


def test_a_split_that_is_not_there_is_one_sentence(
    tmp_path: Path, tiny: Path, filtered: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--config", "cpu", "--report_to", "none", "--eval_split", "test"]
    argv += ["--dataset", str(filtered), "--model_name_or_path", str(tiny)]
    assert script().main([*argv, "--output_dir", str(tmp_path / "out")]) == 2
    assert "filter with --test-fraction" in capsys.readouterr().err
    assert Dataset.from_parquet(str(filtered / "data" / "train-00000-of-00001.parquet"))


def test_sessions_are_held_out_where_there_is_no_split(tmp_path: Path) -> None:
    rows = Dataset.from_dict({"session_id": [f"s{n // 3}" for n in range(30)], "row": range(30)})
    job = CommonArguments(held_out=0.2)
    training, held, name = rows_module.hold_out(rows, str(tmp_path), job)
    assert held is not None
    assert name == "2 of 10 sessions"
    assert (len(training), len(held)) == (24, 6)
    assert not {*training["session_id"]} & {*held["session_id"]}
    shuffled = rows_module.hold_out(rows.shuffle(seed=1), str(tmp_path), job)[1]
    assert shuffled is not None
    assert {*shuffled["row"]} == {*held["row"]}, "the sessions do not depend on the order of the rows"
    assert rows_module.hold_out(rows, str(tmp_path), CommonArguments(held_out=0.0))[1] is None
    with_split = with_test_rows(tmp_path / "rows")
    assert rows_module.hold_out(hand_made(), str(with_split), job)[2] == "test"
