"""Stored completions scored again, through the front door."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset, load_dataset

from pimono_sdpo.commands import run_rescore
from pimono_sdpo.errors import EmptySelection, OutputError, SourceError
from rewards import rescore
from rewards.verifiers.rubric import Rubric

GOOD = '<tool_call>\n{"name": "read", "arguments": {"path": "a.ts"}}\n</tool_call><|im_end|>'
BAD = GOOD.replace('"path"', '"pat"')
SPEC = json.dumps({"tools": "pi", "format": "qwen3"})
ROWS = {
    "completion": [GOOD, BAD, "just words", GOOD],
    "verifier_spec": [SPEC, SPEC, SPEC, None],
    "prompt": ["a", "b", "c", "d"],
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    Dataset.from_dict(ROWS).to_parquet(tmp_path / "in" / "rollouts.parquet")
    return tmp_path / "in"


def test_verdicts_stand_beside_the_rows(source: Path, tmp_path: Path) -> None:
    report = run_rescore(str(source), tmp_path / "out", ["tool_calls"], ["replay=2"])
    assert (report["rows"], report["judged"], report["passed"]) == (4, 3, 1)
    assert report["verdicts"]["tool_calls failed"] == 2
    rows = load_dataset("parquet", data_dir=str(tmp_path / "out" / "data"), split="train")
    assert rows["prompt"] == ROWS["prompt"]
    assert rows["reward"][0] == 1.0
    assert 0.0 < rows["reward"][1] < 1.0
    assert rows["reward"][2:] == [0.0, None]
    assert "Validation failed for tool" in rows["feedback"][1][0]
    again = run_rescore(str(tmp_path / "out" / "data"), tmp_path / "again", ["tool_calls"], [])
    assert again["passed"] == 1


def test_a_run_goes_on_behind_its_last_slice(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescore, "SLICE", 1)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_rescore(str(source), whole, ["tool_calls"], [])
    judged: list[str] = []
    real = rescore.rescore

    def stopping(row: rescore.Json, rubric: Rubric) -> rescore.Json:
        judged.append(row["prompt"])
        if len(judged) == 3:
            raise KeyboardInterrupt
        return real(row, rubric)

    monkeypatch.setattr(rescore, "rescore", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_rescore(str(source), broken, ["tool_calls"], [])
    run_rescore(str(source), broken, ["tool_calls"], [])
    assert judged == ["a", "b", "c", "c", "d"]
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    assert len(files) == 5
    assert [(whole / f).read_bytes() for f in files] == [(broken / f).read_bytes() for f in files]


@pytest.mark.parametrize(
    ("columns", "gates", "graded", "problem", "told"),
    [
        (ROWS, [], [], OutputError, "No verifier is named"),
        (ROWS, ["gone"], [], OutputError, "no verifier `gone`"),
        (ROWS, ["json:loads:x"], [], OutputError, "no verifier"),
        (ROWS, [], ["syntax=much"], OutputError, "is no number"),
        (ROWS, [], ["syntax=0"], OutputError, "not positive"),
        ({"prompt": ["a"]}, ["syntax"], [], SourceError, "but no `completion`"),
        ({**ROWS, "verifier_spec": ["{"] * 4}, ["syntax"], [], SourceError, "no JSON object"),
        ({name: [] for name in ROWS}, ["syntax"], [], EmptySelection, "has no rows"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path,
    columns: dict[str, list[str]],
    gates: list[str],
    graded: list[str],
    problem: type[Exception],
    told: str,
) -> None:
    (tmp_path / "in").mkdir()
    Dataset.from_dict(columns).to_parquet(tmp_path / "in" / "x.parquet")
    with pytest.raises(problem, match=told):
        run_rescore(str(tmp_path / "in"), tmp_path / "out", gates, graded)
    assert not (tmp_path / "out").exists()


def test_the_command_tells_the_result(source: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pimono_sdpo", "rescore", str(source)]
    command += ["--out", str(tmp_path / "out"), "--gate", "tool_calls"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "4 rows, 3 judged, 1 passed" in done.stdout
