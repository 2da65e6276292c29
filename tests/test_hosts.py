"""Every command that sends texts to a model names the host before the first request."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.suite_of_three import write_suite
from tests.chat_server import ChatServer
from tests.chat_server.server import Json
from tests.duel.players import play
from tests.duel.trajectories import write_pull_requests, write_trajectories
from tests.traces import HEADER, assistant, bash, trace, user

COMMANDS = {
    "judge": "filter traces --out rows --judge m --judge-provider URL",
    "rollout": "rollout suite.json --out rollouts --provider URL --model m --limit 1",
    "estimate": "rollout suite.json --out rollouts --provider URL --model m --limit 1 --estimate",
    "evaluate": "evaluate suite.json --out report --provider URL --model m --baseline-model n --limit 1",
    "prefs": "prefs --suite suite.json --out dpo.jsonl --llm-provider URL --model m --limit 1",
    "eval": "eval --suite suite.json --llm-provider URL --model m --limit 1",
    "duel": "duel data --records prs.parquet --provider URL --model k --judge judge-1 --turns 4",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_host_is_named_before_anything_is_sent(name: str, chat_server: ChatServer, tmp_path: Path) -> None:
    failed = bash("npm test", "FAIL parser\n\nCommand exited with code 1", error=True)
    session = [HEADER, user("fix the parser, please"), *failed, assistant("Broken."), user("no, that's wrong")]
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "one.jsonl").write_text(trace(*session))
    write_suite(tmp_path)
    write_trajectories(tmp_path / "data")
    write_pull_requests(tmp_path / "prs.parquet")
    printed: list[str] = []

    def answer(body: Json) -> str | Json:
        printed.append((tmp_path / "output").read_text())
        return play(body) if name == "duel" else "yes"

    chat_server.policy = answer
    words = COMMANDS[name].replace("URL", chat_server.url).split()
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with (tmp_path / "output").open("w") as output:
        command = [sys.executable, "-m", "pimono_sdpo", *words]
        subprocess.run(command, cwd=tmp_path, env=environment, stdout=output, stderr=subprocess.STDOUT)
    assert "sent to `127.0.0.1`" in printed[0]
    assert (tmp_path / "output").read_text().count("sent to `127.0.0.1`") == 1


def test_a_host_that_a_file_chose_is_named_with_it(chat_server: ChatServer, tmp_path: Path) -> None:
    write_suite(tmp_path)
    chat_server.policy = lambda body: "yes"
    (tmp_path / ".env").write_text(f"OPENAI_BASE_URL={chat_server.url}\nOPENAI_API_KEY=dummy\n")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    words = "rollout suite.json --out rollouts --provider openai --model m --limit 1".split()
    command = [sys.executable, "-m", "pimono_sdpo", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "are sent to `127.0.0.1`, which `.env` of this folder chose\n" in done.stderr
