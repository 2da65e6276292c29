"""The tree, the packages, the recipes and the examples agree with the disk."""

import ast
import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PACKAGES = ("pimono_sdpo", "processors", "rewards", "cards")


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_typed_and_ours_alone(package: str) -> None:
    assert (ROOT / package / "py.typed").read_text() == ""
    assert set(packages_distributions().get(package, ["pimono-sdpo"])) == {"pimono-sdpo"}


def tree_of(readme: str) -> dict[str, str]:
    """The paths of the README's tree, and what stands behind each."""
    tree = readme.split("## Where things live")[1].split("```")[1]
    folders = ["", "", "", ""]
    found = {}
    for line in filter(None, tree.splitlines()):
        name, _, comment = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        path = folders[depth] + name
        folders[depth + 1] = path
        found[path] = comment.strip()
    return found


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200


def test_every_entry_of_the_tree_is_there_and_has_a_comment() -> None:
    for path, comment in tree_of(README).items():
        assert (ROOT / path).exists(), path
        assert path.endswith("/") == (ROOT / path).is_dir(), path
        assert comment, path


def test_every_package_and_top_module_is_in_the_tree() -> None:
    folders = {
        f"{path.parent.relative_to(ROOT)}/" for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")
    }
    modules = {
        str(path.relative_to(ROOT)) for path in (ROOT / "pimono_sdpo").glob("*.py") if not path.name.startswith("__")
    }
    missing = (folders | modules) - set(tree_of(README))
    assert not missing, f"README.md: the tree lacks {sorted(missing)}"


def test_every_module_says_what_it_does() -> None:
    for package in (*PACKAGES, "jobs", "examples", "docs"):
        for path in (ROOT / package).rglob("*.py"):
            first = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
            assert first.endswith((".", ":")) or "python " in first, path


def test_every_example_is_short_and_listed() -> None:
    listed = set(re.findall(r"\]\((\w+\.py)\)", (ROOT / "examples" / "README.md").read_text()))
    scripts = {path.name: path.read_text() for path in (ROOT / "examples").glob("*.py")}
    assert set(scripts) == listed
    assert all(len(text.splitlines()) <= 60 for text in scripts.values())


def test_every_recipe_is_in_the_wheel() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    included = build["targets"]["wheel"]["force-include"]
    for recipe in (ROOT / "jobs").rglob("*.yaml"):
        folder = str(recipe.parent.relative_to(ROOT))
        assert included.get(folder) == "pimono_sdpo/recipes", recipe


def test_the_table_of_moved_files_leads_somewhere() -> None:
    table = (ROOT / "docs" / "development" / "moved.md").read_text().split("| --- | --- |\n")[1]
    for line in table.splitlines():
        new = line.strip("|").split("|")[1].strip()
        targets = re.findall(r"`([^`]+)`", new)
        assert targets or new.startswith("removed"), line
        assert all((ROOT / target).exists() for target in targets), line
