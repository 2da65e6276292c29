"""Noise in the writes of a run is detected, so that it is not learned."""

import json
from pathlib import Path

import pytest
from datasets import load_dataset
from typer.testing import CliRunner

from pimono_sdpo.cli import app
from tests.agent.suite_of_three import FIXED, Json, about, call, final, write_suite
from tests.chat_server import ChatServer

SPOILED = "x = (\n"
PADDING = "".join(f"x{n} = {n}\n" for n in range(30))


def writes_of(name: str, seed: int) -> list[tuple[str, str]]:
    """The writes of a temperament: clean, churn, stray file, test, failure, and mixtures."""
    path, fixed = f"programs/{name}.py", FIXED[name]
    clean, churn = (path, fixed), (path, fixed + PADDING)
    several = {
        1: [churn],
        2: [clean, ("notes.txt", "X=1\n")],
        3: [clean, (f"tests/test_{name}.py", "def test(): pass\n")],
        4: [(path, SPOILED), clean],
        5: [churn, clean],
        6: [(path, SPOILED)],
    }
    return several.get(seed % 8, [clean])


def varies(body: Json) -> "str | Json":
    name, seed, turns = about(body)
    writes = writes_of(name, seed)
    if turns == 0:
        return call(body, "read_file", rel_path=f"programs/{name}.py")
    if turns <= len(writes):
        path, content = writes[turns - 1]
        return call(body, "write_file", rel_path=path, content=content)
    return final(body, "done")


@pytest.mark.parametrize("protocol", ["native", "json"])
def test_no_poor_write_is_learned(protocol: str, tmp_path: Path, chat_server: ChatServer) -> None:
    chat_server.policy = varies
    suite, out = write_suite(tmp_path), tmp_path / "rollouts"
    options = ["--provider", chat_server.url, "--model", "m", "--tool-protocol", protocol]
    options += ["--rollouts", "32", "--seed", "40"]
    runner = CliRunner()
    for line in (
        ["rollout", str(suite), "--out", str(out), *options],
        ["steps", str(out), "--out", str(tmp_path / "steps"), "--tool-protocol", "json"],
    ):
        done = runner.invoke(app, line, catch_exceptions=False)
        assert done.exit_code == 0, done.output
    rows = load_dataset(str(tmp_path / "steps"), split="train", cache_dir=str(tmp_path / "cache"))
    learned = [json.loads(row["completion"][0]["content"]) for row in rows]
    writes = [one["args"] for one in learned if one["name"] == "write_file"]
    good = {(f"programs/{name}.py", text) for name, text in FIXED.items()}
    assert {(one["rel_path"], one["content"]) for one in writes} == good
    dropped = json.loads((tmp_path / "steps" / "report.json").read_text())["drop_reasons"]
    # Four times for each of three tasks: both churns; the note; the test; a failure; a failed run.
    counted = {"non_minimal": 24, "wrong_file": 12, "overwrites_tests": 12}
    counted |= {"write_failed_tests": 12, "tests_failed": 12}
    assert {**dropped, **counted} == dropped
