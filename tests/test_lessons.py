"""Mistakes and corrections that recur become lessons, with what they cost and what resolved them."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pimono_sdpo.cli import app
from pimono_sdpo.errors import OutputError, SourceError
from tests.chat_server import ChatServer
from tests.traces import HEADER, Entry, bash, call, result, trace, user

GUIDE = Path(__file__).parents[1] / "docs" / "tutorials" / "recoveries.md"
ASK = user("Please look up the open issues of the tracker and close the finished ones")


def missing(program: str, instead: str) -> list[Entry]:
    said = f"zsh:1: command not found: {program}\n\nCommand exited with code 127"
    return [
        *bash(f"{program} setup.cfg --check", said, error=True, call_id="c1"),
        *bash(f"{instead} setup.cfg --check", "done", call_id="c2"),
    ]


def unread(path: str) -> list[Entry]:
    said = "File has not been read yet. Read it first before writing to it."
    return [
        call("edit", "e1", path=path, oldText="a = 1", newText="a = 2"),
        result("edit", said, error=True, call_id="e1"),
        call("read", "r1", path=path),
        result("read", "a = 1", call_id="r1"),
        call("edit", "e2", path=path, oldText="a = 1", newText="a = 2"),
        result("edit", "Edited", call_id="e2"),
    ]


def write_sessions(folder: Path) -> Path:
    """Write six sessions: three with a missing program, two of one project with unread files, one with both once more."""
    folder.mkdir(parents=True)
    sessions: dict[str, tuple[str, list[Entry]]] = {
        "a": ("app", missing("python", "python3")),
        "b": ("shop", missing("python", "python3")),
        "c": ("site", [*missing("python", "python3"), *unread("src/a.py")]),
        "d": ("app", unread("src/b.py")),
        "e": ("app", unread("src/c.py")),
        "f": ("site", missing("node18", "node")),
    }
    for number, (name, (project, entries)) in enumerate(sessions.items()):
        header = {**HEADER, "id": name, "cwd": f"/work/{project}"}
        stamped = [{**one, "timestamp": f"2026-05-0{number + 1}T10:0{at}:00Z"} for at, one in enumerate(entries)]
        (folder / f"{name}.jsonl").write_text(trace(header, ASK, *stamped))
    return folder


def run(*words: Any) -> str:
    done = CliRunner().invoke(app, ["lessons", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_what_recurs_is_a_lesson_and_the_guide_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_sessions(Path("sessions"))
    output = run("sessions", "--out", "lessons", "--accept", "1")
    assert f"```text\n{output}```\n" in GUIDE.read_text()
    assert Path("lessons/CLAUDE.md").read_text() == "- `python` is not installed; use `python3`.\n"
    listed = Path("lessons/lessons.md").read_text()
    assert "- `a.jsonl`, event 4: zsh:1: command not found: python" in listed
    assert "worked: `bash python3 setup.cfg --check`" in listed
    first, second = json.loads(Path("lessons/lessons.json").read_text())
    assert (first["sessions"], first["calls"], first["minutes"]) == (3, 6, 6.0)
    assert second["line"].startswith("Read a file before you edit it")


def test_accepted_lines_are_written_for_the_agent(tmp_path: Path) -> None:
    source = write_sessions(tmp_path / "sessions")
    run(source, "--out", tmp_path / "out", "--accept", "all", "--agent", "pi")
    assert (tmp_path / "out" / "AGENTS.md").read_text().count("\n- ") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"sessions", "out"}
    for wrong in ("3", "0", "1,x"):
        with pytest.raises(OutputError, match="is not a list of numbers from 1 to 2"):
            run(source, "--out", tmp_path / "out", "--accept", wrong)


def test_copies_and_single_mistakes_are_no_lessons(tmp_path: Path) -> None:
    source = write_sessions(tmp_path / "sessions")
    for name in "bcdef":
        (source / f"{name}.jsonl").unlink()
    for name in ("fork", "copy"):
        (source / f"{name}.jsonl").write_text((source / "a.jsonl").read_text().replace('"id":"a"', f'"id":"{name}"'))
    with pytest.raises(SourceError, match="has no mistake or correction that recurs"):
        run(source, "--out", tmp_path / "out")


def test_a_rule_of_the_user_that_recurs_is_a_lesson(tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    for number, said in enumerate(
        ("No, never use pnpm here, we use npm everywhere", "no! never use pnpm here, use npm everywhere")
    ):
        entries = [
            *bash("pnpm install", "done", call_id="c1"),
            {**user(said), "timestamp": f"2026-05-0{number + 1}T10:00:00Z"},
            *bash("npm install", "done", call_id="c2"),
        ]
        (tmp_path / "sessions" / f"{number}.jsonl").write_text(trace({**HEADER, "id": str(number)}, ASK, *entries))
    output = run(tmp_path / "sessions", "--out", tmp_path / "out")
    assert "The user has said several times: No, never use pnpm here" in output


def test_a_chat_model_words_the_lessons(
    tmp_path: Path, chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chat_server.policy = lambda body: "Run python3, not python." if "python" in str(body) else ""
    source = write_sessions(tmp_path / "sessions")
    asked = ("--judge", "m", "--judge-provider", chat_server.url)
    output = run(source, "--out", tmp_path / "out", *asked)
    assert output.startswith("redacted texts for the judge are sent to")
    assert "1  Run python3, not python." in output
    assert "2  Read a file before you edit it" in output, "no answer leaves the line as it was"
