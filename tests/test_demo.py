"""`make demo`, without the make."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import load_dataset

from cards.lint import lint_file
from pimono_sdpo.samples import SAMPLE_SESSIONS
from tests.card_data import TOKENIZER

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_demo_goes_from_traces_to_an_adapter_that_loads(tmp_path: Path) -> None:
    # A Hub that must not be used: with these set, anything but a local run would fail.
    environment = {**os.environ, "HUB_MODEL_ID": "me/never", "TRACKIO_SPACE_ID": "me/never"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "demo.py"), "--out", str(tmp_path / "demo")],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "largest difference of the logits: 0\n" in done.stdout
    report = json.loads((tmp_path / "demo" / "rows" / "report.json").read_text())
    run = json.loads((tmp_path / "demo" / "run" / "run.json").read_text())
    sessions = len(list(SAMPLE_SESSIONS.glob("*.jsonl")))
    assert f"{sessions} sessions -> {report['kept']} rows" in done.stdout
    assert [entry["step"] for entry in run["log_history"]] == [1, 2, 3, 4]
    learned = json.loads((tmp_path / "demo" / "learned" / "run.json").read_text())
    rate = learned["evaluation"]["pass_rate"]
    assert rate["before"]["mean"] < 0.1 < 0.9 < rate["after"]["mean"]
    answers = re.findall(r"    (before|after)  +<\|tool_call>call:(\w+)", done.stdout)
    assert [when for when, _ in answers] == ["before", "after"] * 3
    steps = re.findall(r"^step \d+/30  reward .*  success .*  [\d.]+ s$", done.stdout, re.M)
    assert len(steps) == 30
    assert run["arguments"]["load_in_4bit"] is True
    assert (run["hub_model_id"], run["trackio"]["space_id"]) == (None, None)
    adapter = tmp_path / "demo" / "run" / "adapter"
    assert {path.name for path in adapter.iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "report.json",
        "run.json",
        *TOKENIZER,
        "training.html",
    }
    for card in (adapter / "README.md", tmp_path / "demo" / "rows" / "README.md"):
        assert lint_file(card) == []
    assert load_dataset(str(tmp_path / "demo" / "rows"), split="train").num_rows == report["kept"]
    assert list((tmp_path / "demo" / "trackio").glob("*.db"))


def demo(out: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "demo.py"), "--out", out],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("mine", "was not written by an earlier demo"),
        ("half", "was not written by an earlier demo"),
        (".", "was not written by an earlier demo"),
        ("..", "was not written by an earlier demo"),
        ("/", "was not written by an earlier demo"),
        ("file", "was not written by an earlier demo"),
    ],
)
def test_the_demo_empties_no_folder_but_its_own(tmp_path: Path, out: str, words: str) -> None:
    for name in ("mine/notes.txt", "half/rows/1"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    done = demo(out, tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("demo: `")
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_an_earlier_demo_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "demo" / "run").mkdir(parents=True)
    (tmp_path / "demo" / "run" / "old").write_text("of the last time")
    for name in (".pimono-sdpo-demo", "notes.txt"):
        (tmp_path / "demo" / name).touch()
    spec = importlib.util.spec_from_file_location("demo", ROOT / "benchmarks" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.empty_folder(tmp_path / "demo")
    kept = {path.name for path in (tmp_path / "demo").iterdir()}
    assert kept == {".pimono-sdpo-demo", "notes.txt"}
