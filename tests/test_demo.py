"""`make demo`, without the make."""

import json
import os
import subprocess
import sys
from pathlib import Path

from datasets import load_dataset

from cards import lint_card
from pimono_sdpo.samples import SAMPLE_SESSIONS

ROOT = Path(__file__).parent.parent


def test_the_demo_goes_from_traces_to_an_adapter_that_loads(tmp_path: Path) -> None:
    # A Hub that must not be used: with these set, anything but a local run would fail.
    environment = {**os.environ, "HUB_MODEL_ID": "me/never", "TRACKIO_SPACE_ID": "me/never"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "demo.py"), "--out", str(tmp_path / "demo")],
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
    assert run["arguments"]["load_in_4bit"] is True
    assert (run["hub_model_id"], run["trackio"]["space_id"]) == (None, None)
    adapter = tmp_path / "demo" / "run" / "adapter"
    assert {path.name for path in adapter.iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "report.json",
        "run.json",
        "training.png",
    }
    for card in (adapter / "README.md", tmp_path / "demo" / "rows" / "README.md"):
        assert lint_card(card.read_text()) == []
    assert load_dataset(str(tmp_path / "demo" / "rows"), split="train").num_rows == report["kept"]
    assert list((tmp_path / "demo" / "trackio").glob("*.db"))
