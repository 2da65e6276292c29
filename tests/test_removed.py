"""Removed commands and options answer with one sentence that names the replacement."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pimono_sdpo.__main__ import start
from pimono_sdpo.cli import app
from pimono_sdpo.errors import PimonoError
from pimono_sdpo.removed import REMOVED
from pimono_sdpo.samples import SAMPLE_SESSIONS
from pimono_sdpo.training import train
from pimono_sdpo.training.options import find_recipe
from rewards.verifiers.rubric import import_verifier

OF_COMMANDS = [
    name for name in REMOVED if not name.startswith(("recipe ", "verifier ", "suite ")) and " of " not in name
]


@pytest.mark.parametrize("name", OF_COMMANDS)
def test_a_removed_command_or_option_names_its_replacement(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command, *option = name.split()
    underscored = [word.replace("-", "_").replace("__", "--", 1) for word in option]
    for words in (option, underscored, ["=".join(option)] if option else []):
        done = CliRunner().invoke(app, [command, "traces", *words])
        assert str(done.exception) == f"`{name}` was removed; {REMOVED[name]}."
    with pytest.raises(SystemExit) as ended:
        start(lambda: app([command, "traces", *option], standalone_mode=False), "pimono-sdpo")
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"pimono-sdpo: `{name}` was removed; ")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for name in REMOVED if " of " in name])
def test_what_was_removed_for_sessions_names_its_replacement(name: str, tmp_path: Path) -> None:
    words = name.removesuffix(" of sessions").split()
    done = CliRunner().invoke(app, [words[0], str(SAMPLE_SESSIONS), *words[1:], "--out", str(tmp_path / "out")])
    assert str(done.exception) == f"`{name}` was removed; {REMOVED[name]}."


def test_what_stays_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "step").mkdir()
    words = ["filter", str(tmp_path / "step"), "--unit", "episode", "--out", str(tmp_path / "out")]
    assert "was removed" not in str(CliRunner().invoke(app, words).exception)


def test_a_recipe_that_uses_what_was_removed_names_its_replacement(tmp_path: Path) -> None:
    for line in ("unit: step", "reward: outcome"):
        (tmp_path / "own.yaml").write_text(f"{line}\n")
        with pytest.raises(PimonoError, match="was removed; use "):
            train(tmp_path, config=str(tmp_path / "own.yaml"), output_dir=str(tmp_path / "out"))


@pytest.mark.parametrize("name", [name for name in REMOVED if name.startswith("recipe ")])
def test_a_removed_recipe_names_its_replacement(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = name.removeprefix("recipe ")
    with pytest.raises(PimonoError, match=f"`{name}` was removed; use qwen3_4b"):
        find_recipe(recipe)
    Path(f"{recipe}.yaml").write_text("max_steps: 3\n")
    assert find_recipe(f"{recipe}.yaml") == Path(f"{recipe}.yaml"), "a file of the user's own"


@pytest.mark.parametrize("name", [name for name in REMOVED if name.startswith("verifier ")])
def test_a_removed_verifier_names_its_replacement(name: str) -> None:
    with pytest.raises(PimonoError, match=f"`{name}` was removed; use tool_calls"):
        import_verifier(name.removeprefix("verifier "))
