"""Test that each option is one field, from which help, report, resume key and reference follow."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from docs.generate import describe_command
from pimono_sdpo.__main__ import start
from pimono_sdpo.cli import app
from pimono_sdpo.cli.command_line import COMMANDS, load, summary_of
from tests.plug import copy_project, insert_line, run_python

OPTIONS = """
    shout: bool = option("Write prompts in capitals.", default=False, decides="row")
    quiet: bool = option("Write prompts in small letters.", default=False, decides="output")
"""
READS = "    quiet = options.quiet"
SHOWN = """
import json, sys
sys.path.insert(0, {root!r})
from typer.testing import CliRunner
from pimono_sdpo.cli import app
from pimono_sdpo.cli.command_line import load
from docs.generate import describe_command
from pimono_sdpo.filtering import FilterOptions
from pimono_sdpo.options import report_options, resume_key
given = FilterOptions(shout=True, quiet=True)
print(json.dumps({{
    "help": CliRunner().invoke(app, ["filter", "--help"]).output,
    "reference": describe_command("filter"),
    "report": report_options(given),
    "key": resume_key(given),
}}))
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_name_options_that_exist(command: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"]).output
    for line in load(command).help.splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["pimono-sdpo"]:
            assert line.strip().startswith(f"pimono-sdpo {command} "), line
        assert [word for word in words if word[:2] == "--" and word.strip(".,;:") not in shown] == []


def test_wrong_choices_missing_options_and_typos_are_reported() -> None:
    for words, sentence in (
        ("filter x --out y --unit week", "'week' is not one of 'session', 'episode'"),
        ("filter x --out y --unit episod", "'recovery'. Did you mean 'episode'?"),
        ("filter x --out y --min-scor 2", "Possible options: --min-score"),
        ("filter x", "Missing option '--out'"),
        ("filter x --out y --history-chars -1", "Invalid value for '--history-chars'"),
        ("fliter x", "Did you mean 'filter'?"),
        ("suite biuld x", "Did you mean 'build'?"),
    ):
        done = CliRunner().invoke(app, words.split())
        assert done.exit_code == 2, words
        assert sentence in done.output, words


@pytest.mark.parametrize("words", [["--help"], ["filter", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    script = (
        "import sys; from pimono_sdpo.cli import app\n"
        f"try: app({words})\n"
        "except SystemExit: pass\n"
        "heavy = {'datasets', 'pyarrow', 'numpy', 'huggingface_hub', 'torch', 'matplotlib', 'rich'}\n"
        "sys.exit(' '.join(heavy & {*sys.modules}) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(words) > 1 or all(command.split()[0] in done.stdout for command in COMMANDS)


def test_the_list_of_commands_has_each_on_a_line_of_its_own() -> None:
    shown = CliRunner().invoke(app, ["-h"], terminal_width=80).output.splitlines()
    for command in COMMANDS:
        assert any(line.split() == [*command.split(), *summary_of(command).split()] for line in shown), command


@pytest.mark.parametrize(
    ("words", "completed"), [("fi", ["filter"]), ("suite ", ["build", "split", "check"]), ("duel --see", ["--seed"])]
)
def test_the_shell_completes_commands_and_options(words: str, completed: list[str]) -> None:
    program = "import sys; sys.argv = ['pimono-sdpo']; from pimono_sdpo.cli import main; main()"
    typed = {"COMP_WORDS": f"pimono-sdpo {words}", "COMP_CWORD": str(len(words.split(" ")))}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **typed, "_PIMONO_SDPO_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == completed, done.stderr
    # The shell is found among the parents of the process.
    show = f"{sys.executable} -m pimono_sdpo --show-completion; exit $?"
    script = subprocess.run(["bash", "-c", show], capture_output=True, text=True)
    assert script.returncode == 0, script.stderr
    assert "COMP_WORDS" in script.stdout


def test_a_new_option_is_one_field(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project", "docs/generate.py")
    package = project / "pimono_sdpo"
    of_class = '    """The options that decide which rows are made from a source."""'
    insert_line(package / "filter_options.py", OPTIONS, of_class)
    insert_line(project / "processors" / "__init__.py", READS, "    options = options or FilterOptions(**given)")
    done = run_python(project, "-c", SHOWN.format(root=str(project)))
    assert done.returncode == 0, done.stderr
    shown: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert "--shout" in shown["help"]
    assert "Write prompts in capitals." in shown["help"]
    assert "* `--shout`: Write prompts in capitals." in shown["reference"]
    assert shown["report"]["shout"] is shown["report"]["quiet"] is shown["key"]["shout"] is True
    assert "quiet" not in shown["key"]


def test_the_reference_has_every_option() -> None:
    for command in COMMANDS:
        assert all(one.metadata["help"] in describe_command(command) for one in fields(load(command).options))


@pytest.mark.parametrize("group", ["suite", "demo"])
def test_help_of_a_group_looks_like_that_of_the_program(group: str) -> None:
    for words in ([group], [group, "-h"]):
        shown = CliRunner().invoke(app, words).output
        assert "\nOptions:\n" in shown
        assert shown.isascii(), "without boxes"


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EACCES, "permission denied; check its permissions"),
        (errno.ENAMETOOLONG, "file name too long; use a shorter name"),
    ],
)
def test_a_file_that_cannot_be_opened_is_named(capsys: pytest.CaptureFixture[str], number: int, reason: str) -> None:
    def command() -> None:
        raise OSError(number, "", "/x/rows")

    with pytest.raises(SystemExit) as end:
        start(command, "pimono-sdpo")
    assert end.value.code == 2
    assert capsys.readouterr().err == f"pimono-sdpo: Cannot open `/x/rows`: {reason}.\n"
