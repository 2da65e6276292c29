"""SIGKILL at any rename of any command that writes rows: the same command then gives the same bytes.

A fork runs the command and kills itself just before its n-th rename or link: of a part's files, of
its record, of what is assembled, or of the folder. So no import is repeated, and every moment in
which a half-finished state is on disk is tried.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pimono_sdpo.agent import rollout as rollouts
from pimono_sdpo.cli import app
from pimono_sdpo.filtering import run_part
from processors.duel import turns
from tests import shards
from tests.agent.suite_of_three import knows_some, write_suite
from tests.chat_server import ChatServer
from tests.duel.players import Json, is_judge, play
from tests.duel.trajectories import write_pull_requests, write_trajectories
from tests.loopback_hub.forked import Forked
from tests.rollout_data import FIXED, OTHER, final, read, rollout, write, write_folder

ROOT = Path(__file__).parents[1]
Arguments = list[object]


def filter_command(folder: Path, url: str) -> Arguments:
    return ["filter", shards.write_shards(folder / "traces", 3)]


def part_command(folder: Path, url: str) -> Arguments:
    return [*filter_command(folder, url), "--shard", "1/2"]


def merge_command(folder: Path, url: str) -> Arguments:
    traces = shards.write_shards(folder / "traces", 3)
    for number in (1, 2):
        run_part(str(traces), folder / f"part-{number}", (number, 2))
    return ["filter", "--merge", folder / "part-1", folder / "part-2"]


def rollouts_of_two(folder: Path) -> Path:
    passes = [read(), write(FIXED, True), final("the sign was wrong")]
    fails = [read(), write(OTHER, False), final("done")]
    rows = [rollout(f"t{n // 2}", n % 2, fails if n % 2 else passes) for n in range(20)]
    return write_folder(folder / "rollouts", rows)


def steps_command(folder: Path, url: str) -> Arguments:
    return ["steps", rollouts_of_two(folder)]


def pairs_command(folder: Path, url: str) -> Arguments:
    return ["pairs", rollouts_of_two(folder)]


def rollout_command(folder: Path, url: str) -> Arguments:
    asked = ["--provider", url, "--model", "m", "--rollouts", "2", "--max-workers", "2"]
    return ["rollout", write_suite(folder), *asked]


def duel_command(folder: Path, url: str) -> Arguments:
    asking = f'provider = "{url}"\nconcurrency = 4\n'
    config = folder / "chain.toml"
    config.write_text(
        f'[duel]\n{asking}model = "k"\nturns = 12\nseed = 1\n'
        f'[judge]\n{asking}models = ["judge-1", "judge-2"]\n[gate]\nmin_clusters = 3\n'
    )
    write_trajectories(folder / "trajectories")
    records = write_pull_requests(folder / "prs.parquet")
    given = ["--records", records, "--config", config, "--export"]
    return ["duel", folder / "trajectories", *given]


COMMANDS: dict[str, Callable[[Path, str], Arguments]] = {
    "filter": filter_command,
    "filter of a part": part_command,
    "filter of merged parts": merge_command,
    "steps": steps_command,
    "pairs": pairs_command,
    "rollout": rollout_command,
    "duel": duel_command,
}


def policy(body: Json) -> str | Json:
    if is_judge(body) or body["model"] == "k":
        return play(body)
    return knows_some(body)


RUN = "import sys; from tests.test_kills import run_command; run_command(*sys.argv[1:])"


class Runner:
    """Runs commands, each in a fork of a process that has imported everything and has no threads.

    A fork of the test's own process could wait forever for a thread that it does not have.
    """

    def __init__(self) -> None:
        commands = {name.split()[0] for name in COMMANDS}
        modules = ("tests.test_kills", *(f"pimono_sdpo.cli.{name}" for name in commands))
        self.forked = Forked(modules, dict(os.environ))

    def run(self, arguments: Arguments, count: Path, kill_at: int = 0) -> int:
        """Run a command; return its exit code, or -9. `count` gets the number of its renames.

        The command ends with its output; only what is renamed beside that is counted, no caches.
        """
        named = [str(one) for one in (count, kill_at, *arguments)]
        return self.forked.run(["-c", RUN, *named], Path.cwd(), dict(os.environ)).returncode


def run_command(count: str, kill_at: str, *arguments: str) -> None:
    """Run a command with parts of few rows; kill this process just before a rename of its output."""
    rollouts.SHARD_ROWS, turns.SHARD_ROWS = 2, 5
    beside, seen = str(Path(arguments[-1]).parent), 0

    def watch(event: str, paths: tuple[object, ...]) -> None:
        nonlocal seen
        if event in {"os.rename", "os.link"} and str(paths[1]).startswith(beside):
            seen += 1
            if seen == int(kill_at):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    Path(count).write_text(str(seen))
    Path(count).with_suffix(".output").write_text(done.output)
    sys.exit(done.exit_code)


def outputs(out: Path) -> dict[str, bytes]:
    """All that is published, without journals, locks and records of parts."""
    return {
        name: content
        for name, content in shards.all_bytes(out).items()
        if not {"done", ".lock"} & {*Path(name).parts} and not name.startswith("calls.sqlite")
    }


def check_kills(name: str, folder: Path, chat_server: ChatServer, runner: Runner, at_all: bool) -> None:
    chat_server.policy = policy
    command = COMMANDS[name](folder, chat_server.url)
    count = folder / "count"
    assert runner.run([*command, "--out", folder / "whole" / "out"], count) == 0
    whole, renames = outputs(folder / "whole" / "out"), int(count.read_text())
    assert renames > 5, "too few parts to be killed between them"
    assert any(path.endswith(".parquet") for path in whole)
    # Within a part; for one command also when the folder has its name and is to be cleared.
    few = [renames // 3, *([renames] if name == "steps" else [])]
    for kill_at in range(1, renames + 1) if at_all else few:
        out = folder / f"killed-{kill_at}" / "out"
        assert runner.run([*command, "--out", out], count, kill_at) == -signal.SIGKILL
        assert runner.run([*command, "--out", out], count) == 0
        assert outputs(out) == whole, f"killed at rename {kill_at} of {renames}"
        assert not out.with_name(".out.partial").exists()


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    made = Runner()
    yield made
    made.forked.close()


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings or keys of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LLM_API_KEY", raising=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_is_resumed_to_the_same_bytes(
    name: str, tmp_path: Path, chat_server: ChatServer, runner: Runner
) -> None:
    check_kills(name, tmp_path, chat_server, runner, at_all=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_any_rename_a_command_is_resumed_to_the_same_bytes(
    name: str, tmp_path: Path, chat_server: ChatServer, runner: Runner
) -> None:
    check_kills(name, tmp_path, chat_server, runner, at_all=True)


def test_finished_parts_of_other_code_are_made_again_and_it_is_said(tmp_path: Path, runner: Runner) -> None:
    command = [*filter_command(tmp_path, ""), "--out", tmp_path / "out"]
    assert runner.run(command, tmp_path / "count", kill_at=8) == -signal.SIGKILL
    for done in (tmp_path / ".out.partial" / "done").iterdir():
        record = json.loads(done.read_text())
        record["made_from"]["code"] = "the hash of an earlier version"
        done.write_text(json.dumps(record))
    assert runner.run(command, tmp_path / "count") == 0
    said = (tmp_path / "count.output").read_text()
    assert "The code has changed: 1 finished parts are made again.\n" in said
    assert runner.run([*command[:-1], tmp_path / "whole"], tmp_path / "count") == 0
    assert outputs(tmp_path / "out") == outputs(tmp_path / "whole")
