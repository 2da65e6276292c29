"""Imports go one way: each module imports only from its own storey or from a lower one, and no two from each other."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# From the ground up. Packages of one storey that import each other are one entry.
STOREYS = (
    ("", *"version errors text program".split()),
    "schema own_code stage stats shell failures prefilter removed options".split(),
    ("filter_options", "push_options", "session_options"),
    ("traces",),
    ("runs", "report"),
    ("llm",),
    ("edits", "actions", "samples"),
    ("/processors", "/rewards", "/cards"),
    (
        "agent",
        "suites",
        "duel",
        "training",
        "dataset_writer",
        "filtering",
        "left_out",
        "lessons",
        "push",
        "source_options",
    ),
    ("cli", "__main__"),
    ("/jobs",),
)
APART = {"processors", "rewards", "cards"}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("pimono_sdpo", "processors", "rewards", "cards", "jobs")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def storey(module: str) -> int | None:
    """Return the storey of a module, None for a package that is not ours."""
    first, _, rest = module.partition(".")
    name = rest.partition(".")[0] if first == "pimono_sdpo" else f"/{first}"
    return next((number for number, names in enumerate(STOREYS) if name in names), None)


def imports(path: Path) -> set[str]:
    """Return the modules of ours that a file imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_down(module: str) -> None:
    mine = storey(module)
    assert mine is not None, f"`{module}` has no storey; add its package to STOREYS"
    for other in imports(MODULES[module]):
        below = storey(other)
        if below is None:
            continue
        roots = {name.partition(".")[0] for name in (module, other)}
        assert below <= mine, f"{module} imports {other}, which is above it"
        assert not (roots <= APART and len(roots) == 2), f"{module} imports its sibling {other}"


def test_no_modules_import_each_other() -> None:
    graph = {name: (imports(path) & MODULES.keys()) - {name} for name, path in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
