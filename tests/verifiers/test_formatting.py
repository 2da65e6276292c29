"""A repository's formatter, run again on what a session knows of its files."""

import pickle
from pathlib import Path

import pytest

from pimono_sdpo.errors import PimonoError
from pimono_sdpo.replay.files import Edit
from pimono_sdpo.replay.workspace import Workspace
from pimono_sdpo.traces.events import Event
from rewards.verifiers.formatting import Formatter
from rewards.verifiers.sandboxed_tools import program

CWD = "/home/ann/app"
TEXT = "x = {  'a':1 }\nlong_name = 2\n"
OLD, NEW = "{  'a':1 }", '{"a": 1}'
RUFF = {"ruff.toml": "line-length = 88\n"}


def ruff(settings: dict[str, str]) -> Formatter:
    path = program("ruff")
    assert path, "the extra `verify` has it"
    return Formatter("ruff", path, settings)


def known(command: str, output: str, formatter: Formatter, **more: str) -> list[str | None]:
    workspace = Workspace(CWD, reformat=pickle.loads(pickle.dumps(formatter)))
    workspace.file("src/a.py").write(TEXT)
    for name, text in more.items():
        workspace.file(name.replace("_", ".")).see(text, is_whole=True)
    workspace.ran(command, Event(1, "tool_result", output))
    return [workspace.file("src/a.py").predict([Edit(text, "q")]) for text in (OLD, NEW)]


FORMATTED, ASLEEP, EITHER = ["not_found", "ok"], ["ok", "not_found"], [None, None]


@pytest.mark.parametrize(
    ("command", "output", "told"),
    [
        ("ruff format .", "1 file reformatted, 3 files left unchanged", FORMATTED),
        ("uv run ruff format", "1 file reformatted", FORMATTED),
        # It says otherwise than what comes of it here.
        ("ruff format .", "4 files left unchanged", EITHER),
        # Another file was formatted, too, or instead.
        ("ruff format .", "2 files reformatted", EITHER),
        # Of these nobody knows which files they leave alone, or what they do.
        ("ruff format src/b.py", "1 file reformatted", EITHER),
        ("ruff format --line-length 40 .", "1 file reformatted", EITHER),
        ("black . && ruff format .", "1 file reformatted", EITHER),
        ("ruff check .", "All checks passed!", ASLEEP),
    ],
)
def test_ruff_is_run_again(command: str, output: str, told: list[str | None]) -> None:
    assert known(command, output, ruff(RUFF)) == told


def test_settings_that_the_session_has_seen_count() -> None:
    single = '[format]\nquote-style = "single"\n'
    assert known("ruff format .", "1 file reformatted", ruff({}), ruff_toml=single) == [
        "not_found",
        "not_found",
    ]
    assert known("ruff format .", "1 file reformatted", ruff({})) == EITHER


SCRIPTS = {**RUFF, "package.json": '{"scripts": {"check": "ruff format .", "types": "tsc"}}'}


@pytest.mark.parametrize(
    ("command", "output", "told"),
    [
        ("npm run check 2>&1 | tail -1", "1 file reformatted", FORMATTED),
        # Nothing tells whether it came to run.
        ("npm run lint 2>&1 | tail -1", "", EITHER),
        ("npm run types && npm run check | tail -1", "1 file reformatted", EITHER),
    ],
)
def test_what_scripts_run_is_known(command: str, output: str, told: list[str | None]) -> None:
    assert known(command, output, ruff(SCRIPTS)) == told


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(PimonoError, match="has no settings of ruff"):
        Formatter.of("ruff", tmp_path)
    with pytest.raises(PimonoError, match="is not there"):
        Formatter.of("biome", tmp_path, "/nowhere/biome")
    (tmp_path / "web").mkdir()
    (tmp_path / "ruff.toml").write_text("")
    (tmp_path / "web" / "package.json").write_text("{}")
    assert set(Formatter.of("ruff", tmp_path).settings) == {"ruff.toml", "web/package.json"}


@pytest.mark.skipif(program("biome") is None, reason="biome is not on the PATH")
def test_biome_is_run_again() -> None:
    biome = Formatter("biome", program("biome") or "", {"biome.json": "{}"})
    workspace = Workspace(CWD, reformat=biome)
    workspace.file("a.ts").write("let x={a:1}\n")
    workspace.ran(
        "npm run check",
        Event(1, "tool_result", "> biome check --write .\n\nChecked 1 file in 3ms. Fixed 1 file."),
    )
    assert workspace.file("a.ts").predict([Edit("{ a: 1 };", "q")]) == "ok"
