"""Rollouts and pairs in one command: console lines and files match the reference run."""

import json
from pathlib import Path

import pytest
from datasets import load_dataset
from typer.testing import CliRunner

from pimono_sdpo.cli import app
from pimono_sdpo.errors import PimonoError
from processors.rollouts.together import check_dpo
from tests.agent.suite_of_three import knows_some, write_suite
from tests.chat_server import ChatServer

RULE = "=" * 60


def test_prefs_prints_the_lines_of_the_reference_run(tmp_path: Path, chat_server: ChatServer) -> None:
    chat_server.policy = knows_some
    suite, out = write_suite(tmp_path), tmp_path / "dpo.jsonl"
    arguments = ["--suite", str(suite), "--out", str(out), "--llm-provider", chat_server.url]
    invoked = CliRunner().invoke(app, ["prefs", *arguments, "--model", "m"], catch_exceptions=False)
    assert invoked.exit_code == 0, invoked.output
    lines = invoked.stdout.splitlines()
    assert lines[:5] == [
        "[prefs] Loaded suite: three (3 tasks)",
        "[prefs] Rollouts per task: 4",
        "[prefs] Temperature: 0.7",
        "[prefs] Base seed: 42",
        "[prefs] Starting 12 rollouts (3 tasks × 4 rollouts) with 4 workers",  # noqa: RUF001
    ]
    assert all(line.startswith("[prefs] [") for line in lines[5:17])
    assert "fix_flat seed=43: FAIL (steps=3)" in invoked.stdout
    assert lines[17:26] == [
        "",
        RULE,
        "[prefs] Summary:",
        "[prefs] Total tasks: 3",
        "[prefs] Preference pairs generated: 1",
        "[prefs] No-contrast tasks: 2",
        RULE,
        f"[prefs] Wrote 1 preference pairs to: {out}",
        f"[prefs] Wrote metadata to: {tmp_path / 'dpo_meta.jsonl'}",
    ]
    (line,) = out.read_text().splitlines()
    assert set(json.loads(line)) == {"input", "preferred_output", "non_preferred_output"}
    assert len((tmp_path / "dpo_meta.jsonl").read_text().splitlines()) == 1
    assert len(list((tmp_path / "dpo_rollouts" / "traces").iterdir())) == 12


def test_rollout_goes_on_to_pairs(tmp_path: Path, chat_server: ChatServer) -> None:
    chat_server.policy = knows_some
    suite, out, pairs = write_suite(tmp_path), tmp_path / "out", tmp_path / "pairs"
    arguments = [str(suite), "--out", str(out), "--pairs", str(pairs), "--provider", chat_server.url]
    invoked = CliRunner().invoke(app, ["rollout", *arguments, "--model", "m"], catch_exceptions=False)
    assert invoked.exit_code == 0, invoked.output
    assert f"[rollout] Wrote 1 preference pairs to: {pairs}" in invoked.stdout
    (row,) = load_dataset(str(pairs), split="train", cache_dir=str(tmp_path / "cache"))
    assert row["task_id"] == "fix_flat"
    invoked = CliRunner().invoke(
        app, ["rollout", *arguments, "--model", "m", "--rollouts", "1"], catch_exceptions=False
    )
    assert "[rollout] Tasks without a usable pair: 3 (3 ineligible)" in invoked.stdout


def test_an_output_that_is_not_named_jsonl_is_refused(tmp_path: Path) -> None:
    arguments = ["prefs", "--suite", "x.json", "--out", str(tmp_path / "out")]
    refusal = CliRunner().invoke(app, arguments)
    assert "give NAME.jsonl" in str(refusal.exception)


def refused(suite: Path, out: Path, server: ChatServer, *more: str) -> str:
    arguments = ["--suite", str(suite), "--out", str(out), "--llm-provider", server.url]
    refusal = CliRunner().invoke(app, ["prefs", *arguments, "--model", "m", *more])
    assert isinstance(refusal.exception, PimonoError)
    return str(refusal.exception)


def test_targets_that_cannot_become_lines_are_refused_before_the_first_call(
    tmp_path: Path, chat_server: ChatServer
) -> None:
    suite, out = write_suite(tmp_path), tmp_path / "dpo.jsonl"
    arguments = ["--suite", str(suite), "--out", str(out), "--target", "foo"]
    assert CliRunner().invoke(app, ["prefs", *arguments]).exit_code == 2
    assert "--tool-protocol json" in refused(suite, out, chat_server, "--tool-protocol", "native")
    suite.write_text(json.dumps({**json.loads(suite.read_text()), "split": "test"}))
    assert "held out for testing" in refused(suite, out, chat_server)
    assert not chat_server.hits
    assert sorted(tmp_path.iterdir()) == [tmp_path / "repo", suite]


@pytest.mark.parametrize("protocol", ["json", "native"])
def test_sides_of_several_turns_are_one_answer_in_a_line(
    protocol: str, tmp_path: Path, chat_server: ChatServer
) -> None:
    chat_server.policy = knows_some
    suite, out = write_suite(tmp_path), tmp_path / "dpo.jsonl"
    arguments = ["--suite", str(suite), "--out", str(out), "--llm-provider", chat_server.url]
    more = ["--model", "m", "--target", "truncated", "--tool-protocol", protocol]
    invoked = CliRunner().invoke(app, ["prefs", *arguments, *more], catch_exceptions=False)
    assert invoked.exit_code == 0, invoked.output
    assert "[prefs] Warning: the target truncated has results of tools" in invoked.stdout
    line = json.loads(out.read_text())
    assert check_dpo(line) is None
    chosen, rejected = (
        json.loads(line[name][0]["content"])["trajectory"] for name in ("preferred_output", "non_preferred_output")
    )
    result = "user" if protocol == "json" else "tool"
    for side, text in ((chosen, "for y in x"), (rejected, "x = (")):
        roles = ["assistant", result, "assistant", result, "assistant"]
        assert [turn["role"] for turn in side] == roles
        assert text in json.dumps(side[2])
        assert "TESTS" not in json.dumps(side)


def test_a_suite_without_pairs_is_reported_in_one_sentence(tmp_path: Path, chat_server: ChatServer) -> None:
    chat_server.policy = knows_some
    suite, out = write_suite(tmp_path), tmp_path / "dpo.jsonl"
    out.write_text("earlier\n")
    message = refused(suite, out, chat_server, "--rollouts", "1")
    assert message.startswith("`three` gives no pairs (3 ineligible)")
    assert f"`{out}` is not written" in message
    assert out.read_text() == "earlier\n"


@pytest.mark.parametrize("policy", ["on_write", "never"])
def test_the_lines_may_be_written_among_the_traces(policy: str, tmp_path: Path, chat_server: ChatServer) -> None:
    chat_server.policy = knows_some
    suite, traces = write_suite(tmp_path), tmp_path / "runs"
    where = ["--trace-dir", str(traces), "--out", str(traces / "_prefs.jsonl")]
    asked = ["--llm-provider", chat_server.url, "--model", "m", "--tool-protocol", "json"]
    line = ["prefs", "--suite", str(suite), *where, *asked, "--test-policy", policy]
    first = CliRunner().invoke(app, line, catch_exceptions=False)
    assert first.exit_code == 0, first.output
    hits = len(chat_server.hits)
    again = CliRunner().invoke(app, line, catch_exceptions=False)
    assert again.exit_code == 0, again.output
    assert len(chat_server.hits) == hits
    assert len(list((traces / "rollouts" / "traces").iterdir())) == 12
    number = 1 if policy == "on_write" else 0
    assert f"[prefs] Preference pairs generated: {number}\n" in again.stdout
    assert (traces / "_prefs.jsonl").exists() == bool(number)
    assert ("no preference pairs" in again.stdout) == (not number)
    loose = ["--no-require-success", "--no-require-valid-tool-ok", "--format", "json"]
    extract = ["sft-extract", "--trace-dir", str(traces), "--output", str(tmp_path / "sft.jsonl")]
    extracted = CliRunner().invoke(app, [*extract, *loose], catch_exceptions=False)
    assert extracted.exit_code == 0, extracted.output
    assert (tmp_path / "sft.jsonl").read_text()


def test_an_occupied_folder_for_pairs_is_refused_before_the_first_call(
    tmp_path: Path, chat_server: ChatServer
) -> None:
    suite, out = write_suite(tmp_path), tmp_path / "dpo.jsonl"
    (tmp_path / "dpo_pairs").mkdir()
    (tmp_path / "dpo_pairs" / "notes.txt").write_text("mine")
    assert "dpo_pairs` holds files" in refused(suite, out, chat_server)
    into = ["--out", str(tmp_path / "runs"), "--pairs", str(tmp_path / "runs" / "pairs")]
    arguments = ["rollout", str(suite), *into, "--provider", chat_server.url, "--model", "m"]
    assert "lie inside each other" in str(CliRunner().invoke(app, arguments).exception)
    assert not chat_server.hits
