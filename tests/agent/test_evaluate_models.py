"""Models are evaluated on held-out programs of the project's own suite, and compared."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pimono_sdpo.cli import app
from pimono_sdpo.errors import PimonoError
from tests.agent.suite_of_our_own import NAMES, models, write_own
from tests.agent.test_rollouts import files_of
from tests.chat_server import ChatServer, busy, garbage

KNOWS = {"before": NAMES[:1], "after": NAMES[:3]}


@pytest.fixture
def suite(own_suite: Path, tmp_path: Path, chat_server: ChatServer) -> Path:
    chat_server.policy = models(KNOWS)
    return write_own(own_suite, tmp_path, NAMES)


def make_arguments(suite: Path, out: Path, url: str, *more: str) -> list[str]:
    run = ["evaluate", str(suite), "--out", str(out), "--provider", url, "--rollouts", "2"]
    return [*run, "--model", "after", *more]


def run_command(arguments: list[str]) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(arguments: list[str]) -> str:
    with pytest.raises(PimonoError) as caught:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    return str(caught.value)


def test_two_models_differ_as_they_should(suite: Path, tmp_path: Path, chat_server: ChatServer) -> None:
    out = tmp_path / "report"
    output = run_command(make_arguments(suite, out, chat_server.url, "--baseline-model", "before"))
    assert "[evaluate] Model: before\n[evaluate] Loaded suite: own (4 tasks)" in output
    assert "[evaluate] [8/8]" in output
    assert "baseline (before): 8 runs of 4 tasks, 0 left out" in output
    assert "tuned (after): 8 runs of 4 tasks, 0 left out" in output
    report = json.loads((out / "report.json").read_text())
    passed = report["metrics"]["pass_rate"]
    assert (passed["baseline"]["mean"], passed["tuned"]["mean"]) == (0.25, 0.75)
    assert (passed["difference"]["mean"], passed["difference"]["tasks"]) == (0.5, 4)
    assert report["metrics"]["parse_errors"]["tuned"]["mean"] == 0.5
    assert report["metrics"]["avg_steps"]["difference"]["mean"] == 0.0
    assert report["models"] == {"baseline": ["before"], "tuned": ["after"]}
    assert report["warnings"] == []
    folder = tmp_path / "report_rollouts"
    assert {path.name for path in folder.iterdir()} >= {"before", "after", "calls.sqlite"}
    # A stored folder against the same new run: the same report, and nobody is asked.
    n_calls = len(chat_server.hits)
    shutil.copytree(folder / "before", tmp_path / "stored")
    stored = ("--baseline", str(tmp_path / "stored"))
    run_command(make_arguments(suite, out, chat_server.url, *stored))
    assert json.loads((out / "report.json").read_text()) == report
    folders = ("--baseline", str(folder / "before"), "--tuned", str(folder / "after"))
    run_command(["evaluate", str(suite), *folders, "--out", str(tmp_path / "again")])
    assert files_of(tmp_path / "again") == files_of(out)
    assert len(chat_server.hits) == n_calls


def test_one_model_alone_has_no_difference(suite: Path, tmp_path: Path, chat_server: ChatServer) -> None:
    alone = tmp_path / "alone"
    output = run_command(make_arguments(suite, alone, chat_server.url, "--limit", "2"))
    assert "| metric | model |" in output
    report = json.loads((alone / "report.json").read_text())
    assert set(report["metrics"]["pass_rate"]) == {"model"}
    assert report["tasks"] == {"model": 2}
    # The baseline is measured on the same tasks alone, and what was not run alike is told.
    before = tmp_path / "alone_rollouts" / "after"
    native = ("--tool-protocol", "native", "--limit", "1", "--baseline", str(before))
    output = run_command(make_arguments(suite, tmp_path / "other", chat_server.url, *native))
    assert "baseline (after): 2 runs of 1 tasks" in output
    assert "Warning: protocol is json for the baseline and native for the tuned model" in output


def test_what_was_not_asked_for_well_asks_nobody(
    suite: Path, own_suite: Path, tmp_path: Path, chat_server: ChatServer
) -> None:
    out, url = tmp_path / "report", chat_server.url
    for more in (("--tuned", "x"), ("--baseline", "x", "--baseline-model", "before")):
        assert "give one of each" in refused(make_arguments(suite, out, url, *more))
    assert "give one of each" in refused(
        ["evaluate", str(suite), "--out", "x", "--baseline", "y", "--baseline-model", "before"]
    )
    assert "give --model, or --baseline" in refused(["evaluate", str(suite), "--out", "x"])
    assert "is the model itself" in refused(make_arguments(suite, out, url, "--baseline-model", "after"))
    assert "has no rollouts" in refused(make_arguments(suite, out, url, "--baseline", str(tmp_path)))
    train = write_own(own_suite, tmp_path, NAMES[:1], "train")
    assert "suite to train on" in refused(make_arguments(train, out, url))
    assert "holds files that no earlier run" in refused(make_arguments(suite, Path(), url))
    out.mkdir()
    (out / "mine").touch()
    assert "holds files that no earlier run" in refused(make_arguments(suite, out, url))
    assert not chat_server.hits
    assert not (tmp_path / "report_rollouts").exists()


def test_a_model_that_cannot_be_asked_leaves_the_report_as_it_was(
    suite: Path, tmp_path: Path, chat_server: ChatServer
) -> None:
    out = tmp_path / "report"
    run_command(make_arguments(suite, out, chat_server.url))
    before, n_calls = files_of(out), len(chat_server.hits)
    chat_server.choose_fault = lambda body, times: busy(401) if body["model"] == "before" else None
    both = ("--baseline-model", "before")
    assert "answered 401" in refused(make_arguments(suite, out, chat_server.url, *both))
    assert files_of(out) == before
    # Nor is the other model asked when of one nothing came to its end.
    chat_server.choose_fault = lambda body, times: garbage() if body["model"] == "before" else None
    assert "Every rollout failed" in refused(make_arguments(suite, out, chat_server.url, *both))
    assert files_of(out) == before
    chat_server.choose_fault = lambda body, times: None
    chat_server.hits.clear()
    run_command(make_arguments(suite, out, chat_server.url, *both))
    # The other model's answers are in the journal.
    assert len(chat_server.hits) == n_calls


def test_eval_takes_the_flags_it_had_first(own_suite: Path, tmp_path: Path, chat_server: ChatServer) -> None:
    chat_server.policy = models(KNOWS)
    suite = write_own(own_suite, tmp_path, NAMES[:2])

    def run(model: str, *more: str) -> str:
        endpoint = ("--llm-provider", chat_server.url, "--model", model, "--num-workers", "2")
        protocol = ("--tool-protocol", "json", "--trace-dir", f"runs/{model}")
        report = ("--report", f"{model}.json")
        return run_command(["eval", "--suite", str(suite), *protocol, *report, *endpoint, *more])

    output = run("before")
    assert "[eval] Rollouts per task: 1" in output
    assert "[eval] Wrote the report to: before.json" in output
    assert "[eval] Wrote rollouts to: runs/before" in output
    assert len(list((tmp_path / "runs/before/traces").iterdir())) == 2
    output = run("after", "--baseline", "runs/before")
    assert "| pass_rate | 0.5 (" in output
    report = json.loads((tmp_path / "after.json").read_text())
    assert report["metrics"]["pass_rate"]["difference"]["mean"] == 0.5
    assert "![Evaluation](after.svg)" in (tmp_path / "after.md").read_text()
    assert "pass_rate" in (tmp_path / "after.svg").read_text()
    # Without a model, what is there is measured.
    n_calls = len(chat_server.hits)
    run_command(["eval", "--suite", str(suite), "--trace-dir", "runs/before", "--report", "again.json"])
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "before.json").read_bytes()
    assert len(chat_server.hits) == n_calls
    (tmp_path / "mine.json").write_text("{}")
    (tmp_path / "README.md").touch()
    for name, words in (("mine", "not the report"), ("README", "exists"), ("none/of", "no rollouts")):
        arguments = ["eval", "--suite", str(suite), "--report", f"{name}.json"]
        assert words in refused([*arguments, "--baseline", str(tmp_path)])
    assert "give NAME.json" in refused(["eval", "--suite", str(suite), "--report", "report.md"])


def test_a_report_among_the_traces_leaves_the_rollouts_alone(
    own_suite: Path, tmp_path: Path, chat_server: ChatServer
) -> None:
    chat_server.policy = models(KNOWS)
    suite = write_own(own_suite, tmp_path, NAMES[:2])
    where = ["--trace-dir", "runs/ft", "--report", "runs/ft/report.json"]
    endpoint = ["--llm-provider", chat_server.url, "--model", "after", "--tool-protocol", "json"]
    line = ["eval", "--suite", str(suite), *where, *endpoint, "--num-workers", "4"]
    run_command(line)
    before = (tmp_path / "runs/ft/report.json").read_bytes()
    hits = len(chat_server.hits)
    run_command(line)
    assert len(chat_server.hits) == hits
    assert (tmp_path / "runs/ft/report.json").read_bytes() == before
    report = json.loads((tmp_path / "runs/ft/rollouts/report.json").read_text())
    assert (report["stage"], report["rollouts"]) == ("rollouts", 2)
    # The outer folder stands for the rollouts in it.
    run_command(["eval", "--suite", str(suite), "--trace-dir", "runs/ft", "--report", "again.json"])
    assert (tmp_path / "again.json").read_bytes() == before
    within = ["--trace-dir", "runs/ft/rollouts", "--report", "runs/ft/rollouts/eval.json"]
    assert "has rollouts" in refused(["eval", "--suite", str(suite), *within, *endpoint])
