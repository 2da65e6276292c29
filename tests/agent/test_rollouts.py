"""Rollouts through the command line: rows, traces, console, kills, faults and refusals."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import load_dataset
from typer.testing import CliRunner

from pimono_sdpo.agent.task_tests import ResultStore, result_key
from pimono_sdpo.cli import app
from pimono_sdpo.errors import PimonoError
from pimono_sdpo.llm.calls import Journal
from pimono_sdpo.schema import ROLLOUT
from pimono_sdpo.suites import suite as suites
from tests.agent.suite_of_three import BUGGY, FIXED, Json, about, knows_some, write_suite
from tests.chat_server import ChatServer, garbage


def arguments(suite: Path, out: Path, url: str, *more: str) -> list[str]:
    return ["rollout", str(suite), "--out", str(out), "--provider", url, "--model", "m", *more]


def roll(suite: Path, out: Path, url: str, *more: str) -> str:
    result = CliRunner().invoke(app, arguments(suite, out, url, *more), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def rows_of(out: Path) -> list[Json]:
    rows = load_dataset(str(out), split="train", cache_dir=str(out.parent / "cache"))
    return [dict(row) for row in rows]


def files_of(out: Path) -> dict[str, bytes]:
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_rows_traces_and_console(tmp_path: Path, chat_server: ChatServer) -> None:
    chat_server.policy = knows_some
    suite, out = write_suite(tmp_path), tmp_path / "out"
    output = roll(suite, out, chat_server.url, "--rollouts", "2").splitlines()
    # The lines before are those of `prefs`.
    assert [line.split("] ")[1] for line in output[5:11]] == [f"[{n}/6" for n in range(1, 7)]
    assert sorted(line.split("] ", 2)[2] for line in output[5:11]) == [
        "fix_flat seed=42: PASS (steps=3)",
        "fix_flat seed=43: FAIL (steps=3)",
        "fix_gcd seed=42: PASS (steps=3)",
        "fix_gcd seed=43: PASS (steps=3)",
        "fix_last seed=42: FAIL (steps=3)",
        "fix_last seed=43: FAIL (steps=3)",
    ]
    assert output[14:16] == ["[rollout] Total tasks: 3", "[rollout] Rollouts: 6 (3 FAIL, 3 PASS)"]
    assert output[17:19] == [f"[rollout] Wrote 6 rollouts to: {out}", f"[rollout] Wrote traces to: {out / 'traces'}"]

    rows = rows_of(out)
    assert list(rows[0]) == list(ROLLOUT)
    assert [(row["task_id"], row["seed"]) for row in rows] == [
        (f"fix_{name}", seed) for name in BUGGY for seed in (42, 43)
    ]
    first = rows[0]
    assert first["tests_ok"] is True
    assert first["test_output"] == "1 of 1 tests pass."
    assert first["files_touched"] == ["programs/gcd.py"]
    assert [step["kind"] for step in first["steps"]] == ["tool_call", "tool_call", "final"]
    assert first["steps"][0]["args"] == {"rel_path": "programs/gcd.py"}
    assert len(chat_server.hits[0].body["messages"]) == 2
    repo = tmp_path / "applied"
    shutil.copytree(tmp_path / "repo", repo)
    subprocess.run(["git", "apply", "-"], input=first["patch"].encode(), cwd=repo, check=True)
    assert (repo / "programs/gcd.py").read_text() == FIXED["gcd"]

    text = (out / "traces" / f"{first['run_id']}.jsonl").read_text()
    trace = [json.loads(line) for line in text.split("\n") if line]
    assert [event["kind"] for event in trace][-2:] == ["final", "run_end"]
    assert text.count('"kind": "final"') == 1
    assert len(list((out / "traces").iterdir())) == 6
    # The copy of the suite finds the repo from where it lies now.
    # The repo is where it was, outside the rollouts' folder.
    more = ["--rollouts", "1", "--allow-outside-repo"]
    again = roll(out / "suite.json", tmp_path / "again", chat_server.url, *more)
    assert "Loaded suite: three (3 tasks)" in again
    report = json.loads((out / "report.json").read_text())
    assert report["verdicts"] == {"FAIL": 3, "PASS": 3}
    assert report["pass_rate"] == 0.5
    hidden = json.dumps([hit.body for hit in chat_server.hits])
    assert "answers" not in hidden


def test_the_same_bytes_by_any_number_of_workers_and_from_the_journal_alone(
    tmp_path: Path, chat_server: ChatServer
) -> None:
    chat_server.policy = knows_some
    suite = write_suite(tmp_path)
    one, four = tmp_path / "one", tmp_path / "four"
    roll(suite, one, chat_server.url, "--max-workers", "1", "--rollouts", "3")
    roll(suite, four, chat_server.url, "--max-workers", "4", "--rollouts", "3")
    assert files_of(one) == files_of(four)
    n_calls = len(chat_server.hits)
    replayed = tmp_path / "replayed"
    kept = ["--replay", "--journal", str(tmp_path / "one.calls.sqlite"), "--rollouts", "3"]
    roll(suite, replayed, "hf", *kept)
    assert files_of(replayed) == files_of(one)
    assert len(chat_server.hits) == n_calls
    more = ["--replay", "--journal", str(tmp_path / "one.calls.sqlite"), "--rollouts", "4"]
    with pytest.raises(PimonoError, match=r"lacks an answer .* 9 of 12 rollouts are finished"):
        roll(suite, tmp_path / "more", "hf", *more)
    assert not (tmp_path / "more").exists()


def test_what_fails_is_an_error_and_is_repeated_by_the_next_run(tmp_path: Path, chat_server: ChatServer) -> None:
    chat_server.policy = knows_some
    suite, out = write_suite(tmp_path), tmp_path / "out"
    chat_server.choose_fault = lambda body, before: (
        garbage() if about(body)[0] == "flat" and about(body)[2] == 1 else None
    )
    output = roll(suite, out, chat_server.url, "--rollouts", "1")
    assert "fix_flat seed=42: ERROR (steps=1)" in output
    assert "[rollout] Rollouts: 3 (1 ERROR, 1 FAIL, 1 PASS)" in output
    assert "[rollout] 1 failed and are tried again by the same command: `127.0.0.1`" in output
    assert rows_of(out)[1]["tests_ok"] is None
    n_calls = len(chat_server.hits)
    chat_server.choose_fault = lambda body, before: None
    assert "Rollouts: 3 (1 FAIL, 2 PASS)" in roll(suite, out, chat_server.url, "--rollouts", "1")
    assert len(chat_server.hits) == n_calls + 2


def test_the_journal_of_a_finished_command_is_the_one_file(tmp_path: Path, chat_server: ChatServer) -> None:
    chat_server.policy = knows_some
    suite, out = write_suite(tmp_path), tmp_path / "out"
    command = [sys.executable, "-m", "pimono_sdpo"]
    command += arguments(suite, out, chat_server.url, "--limit", "1", "--rollouts", "1")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    assert [path.name for path in tmp_path.glob("out.*")] == ["out.calls.sqlite"]
    assert Journal(tmp_path / "out.calls.sqlite").usage().popitem()[1].calls == len(chat_server.hits) > 0


def test_an_estimate_spends_little_and_is_not_lost(tmp_path: Path, chat_server: ChatServer) -> None:
    chat_server.policy = knows_some
    suite, out = write_suite(tmp_path), tmp_path / "out"
    (tmp_path / "chain.toml").write_text('[prices."m"]\ninput = 1.0\noutput = 2.0\n')
    output = roll(suite, out, chat_server.url, "--estimate")
    assert "estimate for 12 rows, from 3 that were run:" in output
    assert "m: 36 calls" in output
    assert "up to 6 pairs are a pilot" in output
    assert not out.exists()
    assert len(chat_server.hits) == 9
    roll(suite, out, chat_server.url)
    assert len(chat_server.hits) == 36
    assert rows_of(out)[0]["cost"] > 0


def test_a_limit_of_costs_stops_a_run_that_goes_on_later(tmp_path: Path, chat_server: ChatServer) -> None:
    chat_server.policy = knows_some
    suite, out = write_suite(tmp_path), tmp_path / "out"
    (tmp_path / "chain.toml").write_text('[prices."m"]\ninput = 100.0\noutput = 100.0\n')
    with pytest.raises(PimonoError, match=r"limit of \$0.50 is reached .* of 12 rollouts are fin"):
        roll(suite, out, chat_server.url, "--max-cost", "0.5")
    n_calls = len(chat_server.hits)
    assert 0 < n_calls < 36
    roll(suite, out, chat_server.url, "--max-cost", "50")
    assert len(chat_server.hits) == 36


def test_bad_input_is_one_sentence(tmp_path: Path, chat_server: ChatServer) -> None:
    suite, out, url = write_suite(tmp_path), tmp_path / "out", chat_server.url

    def refuse(message: str, *given: str) -> None:
        with pytest.raises(PimonoError, match=message):
            CliRunner().invoke(app, given, catch_exceptions=False)

    refuse("No such file", *arguments(tmp_path / "no.json", out, url))
    refuse("needs a key", *arguments(suite, out, "hf"))
    refuse("No model is named", "rollout", str(suite), "--out", str(out), "--provider", url)
    refuse("inside each other", *arguments(suite, tmp_path / "repo" / "out", url))
    refuse("no journal", *arguments(suite, out, url, "--replay"))
    refuse("needs the price", *arguments(suite, out, url, "--max-cost", "1"))
    wrong = CliRunner().invoke(app, arguments(suite, out, url, "--test-policy", "always"))
    assert wrong.exit_code == 2
    assert "not one of 'on_write', 'on_final', 'never'" in wrong.output
    out.mkdir()
    (out / "report.json").write_text('{"pimono_sdpo": "1"}')
    refuse("another command", *arguments(suite, out, url))
    assert chat_server.hits == []


def test_a_changed_repo_is_tested_again(tmp_path: Path, chat_server: ChatServer) -> None:
    chat_server.policy = knows_some
    suite, out = write_suite(tmp_path), tmp_path / "out"
    options = ["--rollouts", "1", "--limit", "1"]
    assert "1 PASS" in roll(suite, out, chat_server.url, *options)
    verdicts = ResultStore(tmp_path / "out.calls.sqlite")
    task = dict(suites.load_suite(suite).tasks[0])
    fixed = {"programs/gcd.py": FIXED["gcd"].encode()}
    known = verdicts.get(result_key(task, fixed))
    assert known is not None
    assert (known.ok, known.output) == (True, "1 of 1 tests pass.")
    assert verdicts.get(result_key(task, {"programs/gcd.py": b""})) is None
    assert verdicts.get(result_key({**task, "verifier_spec": "{}"}, fixed)) is None
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path / "repo", moved)
    assert verdicts.get(result_key({**task, "repo": str(moved)}, fixed)) == known
    (moved / "programs" / "last.py").write_text("other")
    shutil.copytree(moved, tmp_path / "other")
    assert verdicts.get(result_key({**task, "repo": str(tmp_path / "other")}, fixed)) is None


def test_a_repo_outside_the_suite_s_folder_needs_a_flag(tmp_path: Path, chat_server: ChatServer) -> None:
    chat_server.policy = knows_some
    content = json.loads(write_suite(tmp_path).read_text())
    content["defaults"]["repo"] = "../repo"
    suite = tmp_path / "suites" / "suite.json"
    suite.parent.mkdir()
    suite.write_text(json.dumps(content))
    (suite.parent / "link").symlink_to(tmp_path / "repo")
    linked = suite.with_name("linked.json")
    linked.write_text(json.dumps({**content, "defaults": {**content["defaults"], "repo": "link"}}))
    for given in (suite, linked):
        line = arguments(given, tmp_path / "out", chat_server.url)
        with pytest.raises(PimonoError, match="outside the suite's folder; add --allow-outside"):
            CliRunner().invoke(app, line, catch_exceptions=False)
    assert not chat_server.hits
    roll(suite, tmp_path / "out", chat_server.url, "--rollouts", "1", "--allow-outside-repo")
    assert [row["tests_ok"] for row in rows_of(tmp_path / "out")] == [True, True, False]


def test_paraphrases_take_turns_and_stay_on_the_side_of_their_task(tmp_path: Path, chat_server: ChatServer) -> None:
    chat_server.policy = knows_some
    suite, out = write_suite(tmp_path), tmp_path / "out"
    others = ["Fix programs/gcd.py, please.", "programs/gcd.py never ends. Why?"]
    (tmp_path / "words.jsonl").write_text(json.dumps({"task_id": "fix_gcd", "goals": others}))
    more = ["--paraphrases", str(tmp_path / "words.jsonl")]
    roll(suite, out, chat_server.url, *more, "--rollouts", "6")
    rows = [row for row in rows_of(out) if row["task_id"] == "fix_gcd"]
    goal = json.loads(suite.read_text())["tasks"][0]["goal"]
    requests = [row["messages"][1]["content"] for row in rows]
    # Seed 42 is a multiple of three.
    assert [next(g for g in (goal, *others) if g in text) for text in requests] == [goal, *others] * 2
    for row, number in zip(rows, [0, 1, 2] * 2, strict=True):
        trace = (out / "traces" / f"{row['run_id']}.jsonl").read_text()
        assert f'"paraphrase": {number}' in trace
    assert json.loads((out / "report.json").read_text())["paraphrases"] == {"fix_gcd": [goal, *others]}
    # A held-out task holds out all of its paraphrases.
    content = json.loads(suite.read_text()) | {"split": "test"}
    content["tasks"] = content["tasks"][:1]
    held_out = tmp_path / "test.json"
    held_out.write_text(json.dumps(content))
    result = CliRunner().invoke(app, ["suite", "check", str(held_out), str(out)])
    assert "6 of 18 training rows" in str(result.exception)


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ('{"task_id": "nobody", "goals": ["Do it."]}', ":1 has the task `nobody`, which is not in"),
        ('{"task_id": "fix_gcd"}', "cannot be read as paraphrases .*goals"),
        ('{"task_id": "fix_gcd", "goals": []}', "cannot be read as paraphrases"),
        (None, r"words\.jsonl` cannot be read as paraphrases"),
    ],
)
def test_bad_paraphrases_are_one_sentence(
    line: str | None, output: str, tmp_path: Path, chat_server: ChatServer
) -> None:
    words = tmp_path / "words.jsonl"
    if line is not None:
        words.write_text(line)
    given = arguments(write_suite(tmp_path), tmp_path / "out", chat_server.url)
    with pytest.raises(PimonoError, match=output):
        CliRunner().invoke(app, [*given, "--paraphrases", str(words)], catch_exceptions=False)
    assert not chat_server.hits
