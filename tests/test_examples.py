"""Every script of examples/ does what it says, on the sample sessions."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from datasets import load_dataset

from pimono_sdpo.duel.result import score_duel
from pimono_sdpo.duel.stages import Duel
from pimono_sdpo.filtering import run_filter
from tests.duel.stored_duel import write_duel
from tests.exports import write_samples
from tests.loopback_hub.forked import Forked

ROOT = Path(__file__).parent.parent


RUN = "import runpy, sys; sys.path[0] = {folder!r}; runpy.run_path({script!r}, run_name='__main__')"
Run = Callable[..., str]


@pytest.fixture(scope="module")
def run_example() -> Iterator[Run]:
    """Run a script of examples/ in a process that has imported `datasets` already."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    forked = Forked(("datasets", "polars", "pimono_sdpo.cli"), environment)

    def run(name: str, *arguments: object, cwd: Path) -> str:
        script = ROOT / "examples" / name
        code = RUN.format(folder=str(script.parent), script=str(script))
        done = forked.run(["-c", code, *map(str, arguments)], cwd, environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield run
    forked.close()


def test_filter_sessions(run_example: Run, tmp_path: Path) -> None:
    write_samples(tmp_path / "traces")
    printed = run_example("filter_sessions.py", "traces", cwd=tmp_path)
    assert "sessions" in printed.splitlines()[0]
    assert "Tool/environment diagnostic 1" in printed


def test_the_notebook_runs_from_top_to_bottom(run_example: Run, tmp_path: Path) -> None:
    notebook = json.loads((ROOT / "examples" / "filter_sessions.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in cells] == [[]] * len(cells)
    (tmp_path / "cells.py").write_text("\n".join("".join(cell["source"]) for cell in cells))
    printed = run_example(str(tmp_path / "cells.py"), cwd=tmp_path)
    assert "Tool/environment diagnostic 1" in printed
    assert " rows with a correction by the user" in printed
    assert not printed.startswith("0 rows")


def test_own_reader(run_example: Run, tmp_path: Path) -> None:
    log = (
        "user: Fix the failing test of the parser, please.\nagent: I run it.\n$ npm test\n"
        "! AssertionError: expected 1\n$ sed -i s/2/1/ parser.js\n> \n$ npm test\n> 12 passing\n"
    )
    (tmp_path / "chat.log").write_text(log)
    printed = run_example("own_reader.py", "chat.log", cwd=tmp_path)
    assert printed.startswith("chat-log 5.5 ['test_or_assertion']")
    assert "AssertionError: expected 1" in printed


def test_own_reward(run_example: Run, tmp_path: Path) -> None:
    write_samples(tmp_path / "traces")
    run_filter(str(tmp_path / "traces"), tmp_path / "rows")
    rows = len(load_dataset(str(tmp_path / "rows"), split="train"))
    assert f"{rows} rows, 0 attacks that win" in run_example("own_reward.py", "rows", cwd=tmp_path)


def test_duel_report(run_example: Run, tmp_path: Path) -> None:
    given = write_duel(tmp_path / "duel", 60, 40, lambda turn, judge, order: (8, 3))
    score_duel(Duel(tmp_path / "duel", given))
    printed = run_example("duel_report.py", "duel", cwd=tmp_path)
    assert printed.startswith("accepted at look ")
    assert len(printed.splitlines()) == 1 + 3 + 5
    score_duel(Duel(tmp_path / "unread", write_duel(tmp_path / "unread", 0, 1, lambda turn, judge, order: (8, 3))))
    assert "score none, without it none" in run_example("duel_report.py", "unread", cwd=tmp_path)


@pytest.mark.slow
def test_train_in_python_and_load_adapter(run_example: Run, tmp_path: Path) -> None:
    from pimono_sdpo.training.tiny_model import write_tiny_model

    write_samples(tmp_path / "traces")
    write_tiny_model(tmp_path / "tiny", 0)
    printed = run_example("train_in_python.py", "traces", "cpu", tmp_path / "tiny", cwd=tmp_path)
    assert "outputs/example/adapter" in printed
    adapter = tmp_path / "outputs" / "example" / "adapter"
    assert json.loads((adapter / "run.json").read_text())["dataset"]["id"] == "rows"
    assert run_example("load_adapter.py", adapter, "What now?", tmp_path / "tiny", cwd=tmp_path)
