"""Test the user's own stages, rewards and verifiers from a module in the current folder."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pyarrow.parquet as pq
import pytest

from pimono_sdpo.errors import OwnCodeError
from pimono_sdpo.filter_options import Unit
from pimono_sdpo.own_code import OwnReward, list_own_files
from pimono_sdpo.samples import SAMPLE_SESSIONS
from pimono_sdpo.stage import source_hash
from pimono_sdpo.traces.sources import load_sessions
from processors import pipeline, run_pipeline
from rewards.verifiers.rubric import build_rubric
from tests.exports import write_samples
from tests.plug import ROOT

MINE = """
import sys

from datasets import Value
from pimono_sdpo import Filter, FlatMap, Map
from pimono_sdpo.schema import EVIDENCE, GRADE
from rewards.verifiers.rubric import failed, passed

LAMBDA = Filter(lambda row: None, reads=("score",))


def bonus(row):
    return {"score": row["score"] + 100}


def verify(completion, spec):
    return passed("mine") if "right" in completion else failed("mine", "command_error", "wrong")


def reward(prompts, completions, **columns):
    return [1.0 if "right" in one[-1]["content"] else None for one in completions]


def several(row):
    return [row]


def wrong(row):
    return {"score": "high"}


def untold(row):
    return row["score"] > 2


def give_no_reason(row):
    return ""


def refuse_all(row):
    return "unwanted"


def leave(row):
    sys.exit("gone")


def lose(row):
    return {"score": None}


def send_away(row):
    return {"split": "validation"}


def change_nothing(row):
    return {name: row[name] for name in ALL}


ALL = {**EVIDENCE, **GRADE}
SAME = Map(change_nothing, reads=tuple(ALL), writes=ALL)
LEAVE = Filter(leave, reads=("score",))
LOSE = Map(lose, reads=("score",), writes={"score": Value("float64")})
AWAY = Map(send_away, reads=("score",), writes={"split": Value("string")})
STAGE = Map(bonus, reads=("score",), writes={"score": Value("float64")})
WRONG = Map(wrong, reads=("score",), writes={"score": Value("float64")})
UNTOLD = Filter(untold, reads=("score",))
EMPTY = Filter(give_no_reason, reads=("score",))
NOTHING = Filter(refuse_all, reads=("score",))
SEVERAL = FlatMap(several, reads=("score",), writes={"score": Value("float64")})
BLIND = Filter(untold, reads=("scores",))
RETYPED = Map(wrong, reads=("score",), writes={"score": Value("string")})
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as the console script does: the current folder is not importable by itself."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pimono_sdpo.cli import main; main()"
    command = [sys.executable, "-P", "-c", program, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def scores(folder: Path) -> list[float]:
    return sorted(pq.read_table(folder / "data", columns=["score"])["score"].to_pylist())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with an own module."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def test_an_own_stage_runs_before_the_threshold_and_again_when_it_changes(folder: Path) -> None:
    write_samples(folder / "traces")
    filtering = ("filter", "traces", "--out", "rows", "--min-score", "101", "--workers", "2")
    done = run(folder, *filtering, "--stage", "mine:STAGE")
    assert done.returncode == 0, done.stderr
    rows = scores(folder / "rows")
    assert rows
    assert min(rows) > 100
    report = json.loads((folder / "rows" / "report.json").read_text())
    assert "mine" in [stage["stage"] for stage in report["stages"]]
    (folder / "mine.py").write_text(MINE.replace("+ 100", "+ 200"))
    assert run(folder, *filtering, "--stage", "mine:STAGE").returncode == 0
    assert scores(folder / "rows") == [score + 100 for score in rows]
    failed = run(folder, *filtering, "--stage", "mine:WRONG")
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == 1, failed.stderr
    assert "The stage `mine:WRONG` failed: ArrowInvalid" in failed.stderr
    assert scores(folder / "rows") == [score + 100 for score in rows], "the rows are still there"


@pytest.mark.parametrize("unit", get_args(Unit))
def test_a_stage_may_write_every_column_unchanged(folder: Path, unit: Unit) -> None:
    sessions = load_sessions(SAMPLE_SESSIONS)
    stages = [pipeline(unit=unit, stage=own, keep_identity=True) for own in (["mine:SAME"], [])]
    with_it, without = (run_pipeline(sessions, one, keep_rejects=True) for one in stages)
    assert with_it.to_list() == without.to_list() != []


def test_the_advice_names_a_stage_that_drops_every_row(folder: Path) -> None:
    write_samples(folder / "traces")
    done = run(folder, "filter", "traces", "--out", "rows", "--stage", "mine:NOTHING")
    assert done.returncode == 2
    assert "keep more rows in your stage `mine`, or leave it out." in done.stderr


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["gone:STAGE"], "names the module `gone`, which is neither in the current folder nor"),
        (["mine:GONE"], "`GONE` is not in the module `mine`"),
        (["mine.py:STAGE"], "`mine.py` is not the name of a module; give `mine:STAGE` for a file mine.py here"),
        (["folder/mine.py"], "give `folder.mine:NAME` for a file folder/mine.py here"),
        (["/tmp/my code.py:STAGE"], "give `mine:STAGE` for a file mine.py here"),
        (["mine"], "`mine` names no object of the module; give `mine:NAME`"),
        (["mine:SEVERAL"], "is a FlatMap; give a Map or a Filter"),
        (["mine:LAMBDA"], "has a lambda"),
        (["mine:BLIND"], "reads scores; give columns among"),
        (["mine:RETYPED"], "but later stages read"),
        (["mine:STAGE", "mine:UNTOLD"], "second stage of its module"),
        (["grade:STAGE"], "`grade` is a stage of `filter`; rename your module"),
        (["broken:STAGE"], r"`broken` cannot be imported: ZeroDivisionError: .*broken.py, line 2"),
    ],
)
def test_a_stage_that_does_not_fit_is_refused(folder: Path, names: list[str], sentence: str) -> None:
    (folder / "grade.py").write_text(MINE)
    (folder / "broken.py").write_text("\n1 / 0\n")
    with pytest.raises(OwnCodeError, match=sentence):
        pipeline(stage=names)


@pytest.mark.parametrize(
    ("name", "score", "sentence"),
    [
        ("UNTOLD", 3, "The stage `mine` returned True; return None or a reason"),
        ("EMPTY", 3, "The stage `mine` returned ''; return None or a reason"),
        ("STAGE", float("nan"), "has a number that is not finite"),
        ("LEAVE", 3, r"SystemExit: gone \(mine.py, line \d+\)"),
        ("LOSE", 3, "expected `float`, got `null` in `score`"),
        ("AWAY", 3, "unknown value 'validation' in `split`"),
    ],
)
def test_an_invalid_result_of_a_stage_is_explained(folder: Path, name: str, score: float, sentence: str) -> None:
    stage = next(one for one in pipeline(stage=[f"mine:{name}"]) if one.fn.__class__.__name__ == "OwnStage")
    with pytest.raises(OwnCodeError, match=sentence):
        stage({"score": score})


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return [1.0]", "1 rewards for 2 completions"),
        ("return ['good', 'bad']", "could not convert string to float"),
        ("return [float('nan'), 0]", "not finite"),
        ("return columns['gone']", r"KeyError: 'gone' \(rewarding.py, line 2\)"),
    ],
)
def test_a_failing_own_reward_is_explained(
    folder: Path, body: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "rewarding", raising=False)
    (folder / "rewarding.py").write_text(f"def score(completions, **columns):\n    {body}\n")
    with pytest.raises(OwnCodeError, match=sentence):
        OwnReward("rewarding:score")(completions=["a", "b"], prompts=["", ""])


def test_a_built_in_function_is_refused() -> None:
    reward = OwnReward("os:getcwd")
    assert source_hash(reward) == source_hash(OwnReward("os:getcwd")) != source_hash(OwnReward("os:getpid"))
    with pytest.raises(OwnCodeError, match=r"The reward `os:getcwd` failed: TypeError: .* takes no keyword arguments"):
        reward(completions=["a"])


def test_an_own_verifier_scores_completions(folder: Path) -> None:
    rubric = build_rubric(["mine:verify"], [])
    assert [rubric(text, {}).passed for text in ("right", "bad")] == [True, False]


def test_a_folder_with_the_name_of_our_package_is_refused(folder: Path) -> None:
    (folder / "rewards").mkdir()
    (folder / "rewards" / "good.py").write_text(MINE)
    with pytest.raises(OwnCodeError, match="rename the folder `rewards` here"):
        OwnReward("rewards.good:reward")


def test_the_files_to_ship_are_the_module_or_its_whole_package(folder: Path) -> None:
    (folder / "pack").mkdir()
    for name in ("__init__", "scores", "helper"):
        (folder / "pack" / f"{name}.py").write_text("def score(): ...\n")
    files = list_own_files(["mine:reward", "pack.scores:score"])
    assert [*files] == ["mine.py", "pack/__init__.py", "pack/helper.py", "pack/scores.py"]
    assert all(path.is_file() for path in files.values())
