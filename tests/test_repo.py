"""The tree, the imports and the documents agree with the code."""

import ast
import re
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import typer.main

from pimono_sdpo.cli import app
from pimono_sdpo.stage import name_of
from processors import PIPELINE
from processors.grade import WEIGHTS
from tests.shards import cli
from tests.training.setup import script

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PYPROJECT = (ROOT / "pyproject.toml").read_text()
PACKAGES = ("pimono_sdpo", "processors", "rewards", "cards")


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_typed_and_ours_alone(package: str) -> None:
    assert (ROOT / package / "py.typed").read_text() == ""
    assert set(packages_distributions().get(package, ["pimono-sdpo"])) == {"pimono-sdpo"}


def table(first_header: str) -> list[list[str]]:
    """Rows of the README table whose first header cell is given."""
    lines = README.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_header} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return rows


def test_the_table_of_stages_is_the_pipeline() -> None:
    documented = [(name, kind) for name, kind, _ in table("stage")]
    assert documented == [(name_of(stage), type(stage).__name__) for stage in PIPELINE]


def test_the_table_of_weights_is_the_scores() -> None:
    assert {term: float(weight) for term, weight in table("term")} == WEIGHTS


def test_the_tree_is_the_tree() -> None:
    tree = README.split("## Where things live")[1].split("```")[1]
    folders = ["", "", ""]
    documented = set()
    for line in filter(None, tree.splitlines()):
        depth = (len(line) - len(line.lstrip())) // 2
        path = folders[depth] + line.split()[0]
        folders[depth + 1 :] = [path, ""][: 2 - depth]
        documented.add(path)
    for entry in documented:
        assert (ROOT / entry).exists(), entry
    for package in ("pimono_sdpo", "pimono_sdpo/runs", "processors"):
        there = {
            f"{package}/{path.name}{'/' if path.is_dir() else ''}"
            for path in (ROOT / package).iterdir()
            if not path.name.startswith("__") and path.name != "py.typed"
        }
        assert there <= documented, there - documented


def cli_options() -> dict[str, set[str]]:
    group = typer.main.get_command(app)
    return {
        name: {
            option
            for p in command.params
            for option in (*p.opts, *p.secondary_opts)
            if option.startswith("--")
        }
        for name in group.commands  # type: ignore[attr-defined]
        for command in [group.get_command(None, name)]  # type: ignore[attr-defined]
    }


def test_every_command_and_option_is_in_the_readme() -> None:
    documented: dict[str, set[str]] = {"filter": {row[0] for row in table("option of `filter`")}}
    for name, _ in table("option of the other commands"):
        command, option = name.split()
        documented.setdefault(command, set()).add(option)
    assert documented == {name: options for name, options in cli_options().items() if options}


def fields_of(module: str) -> dict[str, list[str]]:
    """Names of the fields of each dataclass of a module, without what it inherits."""
    source = ast.parse((ROOT / module).read_text())
    return {
        one.name: [
            f"--{n.target.id}"
            for n in one.body
            if isinstance(n, ast.AnnAssign)
            and isinstance(n.target, ast.Name)
            and "ClassVar" not in ast.unparse(n.annotation)
        ]
        for one in ast.walk(source)
        if isinstance(one, ast.ClassDef)
    }


OWN = "own option of `train_sft.py` and `train_dpo.py`"
OPTIONS = {
    "CommonArguments": "option of every training job",
    "JobArguments": "own option of `train_sdpo.py`",
}


@pytest.mark.parametrize("job", ["train_sdpo", "train_sft", "train_dpo"])
def test_the_jobs_own_options_are_in_the_readme_and_in_their_help(
    job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        script(job).main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    fields = fields_of("pimono_sdpo/training/arguments.py")
    for name, header in OPTIONS.items():
        own = [option for option in fields[name] if name == "CommonArguments" or option != "--mode"]
        assert [row[0] for row in table(header)] == own
    both = [o for n in ("RecordedArguments", "PairArguments") for o in fields[n] if o != "--mode"]
    assert [row[0] for row in table(OWN)] == both
    headers = [OPTIONS["CommonArguments"], OWN if job != "train_sdpo" else OPTIONS["JobArguments"]]
    documented = [row[0] for header in headers for row in table(header)]
    known = [option for option in documented if (job, option) != ("train_sft", "--adapter")]
    assert all(f"{option} " in shown for option in known)
    modes = [row[0] for row in table("mode") if job == "train_sdpo" or row[0] != "prepare"]
    assert f"--mode {{{','.join(modes)}}}" in shown


def test_the_options_beside_trl_s_are_in_the_readme() -> None:
    fields = fields_of("pimono_sdpo/training/arguments.py")
    documented = [row[0] for row in table("guard or teacher option")]
    assert documented == fields["GuardOptions"] + fields["TrainingConfig"]


def test_every_recipe_is_packaged_and_in_the_readme() -> None:
    recipes = {path.stem for path in (ROOT / "jobs").glob("*.yaml")}
    packaged = re.findall(r'"jobs/(\w+)\.yaml" = "pimono_sdpo/recipes/(\w+)\.yaml"', PYPROJECT)
    assert {name for pair in packaged for name in pair} == recipes
    documented = {row[0] for row in table("recipe")} | {
        name.strip("`") for row in table("job") for name in row[2:]
    }
    assert {name.split("`")[0] for name in documented} == recipes


@pytest.mark.parametrize("command", ["", *cli_options()])
def test_help_names_every_option(command: str) -> None:
    shown = cli(*command.split(), "--help").stdout
    expected = cli_options()[command] if command else set(cli_options())
    assert all(name in shown for name in expected)


def test_every_command_line_of_the_readme_names_what_exists() -> None:
    commands = re.findall(r"^(?:pimono-sdpo|make) +([\w-]+)", README, re.MULTILINE)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert commands
    assert set(commands) <= {*cli_options(), *targets}
    for path in re.findall(r"jobs/\w+\.(?:py|yaml)", README):
        assert (ROOT / path).exists()
