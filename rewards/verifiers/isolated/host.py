"""Outside the sandbox: what the two processes are given, and what they report."""

import ast
import importlib.util
import json
import sys
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from rewards.sandbox import Limits, Ran, local
from rewards.verifiers.answer import parsed
from rewards.verifiers.outcomes import Python

OUTPUT = 8 << 20
PACKAGES = ("rewards", "rewards.sandbox", "rewards.verifiers", "rewards.verifiers.isolated")
MODULES = (
    "rewards.sandbox.kernel", "rewards.sandbox.landlock", "rewards.verifiers.isolated.wire",
    "rewards.verifiers.isolated.codec", "rewards.verifiers.isolated.serve",
    "rewards.verifiers.isolated.handles", "rewards.verifiers.isolated.copies",
    "rewards.verifiers.isolated.connection", "rewards.verifiers.isolated.judge",
)  # fmt: skip
# Sources, not paths: the sandbox cannot read a checkout.
BOOT = """
import sys, types
def _put(name, source):
    module = sys.modules[name] = types.ModuleType(name)
    parent, _, last = name.rpartition(".")
    if parent: setattr(sys.modules[parent], last, module)
    exec(compile(source, "<" + name + ">", "exec"), module.__dict__)
for name, source in {0!r}: _put(name, source)
sys.modules["rewards.verifiers.isolated.judge"].main()
"""
Events = list[dict[str, Any]]


@cache
def source() -> str:
    """Return the program that the sandbox runs."""
    root = Path(__file__).resolve().parents[3]
    parts = [(name, "") for name in PACKAGES]
    parts += [(name, (root / f"{name.replace('.', '/')}.py").read_text()) for name in MODULES]
    return BOOT.format(parts)


def run(
    files: Mapping[str, str], before: Mapping[str, str], tests: Mapping[str, Any],
    arguments: list[str], seconds: float, python: Python,
) -> tuple[Ran, Events]:  # fmt: skip
    """Run the tests on the files; what came of it, and what was reported.

    Modules of the files stand before others of their name, if they did `before` the answer.
    """
    theirs: Mapping[str, str] = tests["files"]
    roots = tests.get("roots") or [
        "",
        *(["src"] if any(p.startswith("src/") for p in files) else []),
    ]
    shared = {PurePosixPath(path).stem: theirs[path] for path in tests.get("shared", ())}
    old = {name.partition(".")[0] for name in modules_of(before, roots)}
    modules = {
        name: package
        for name, package in modules_of(files, roots).items()
        if name not in shared and (name.partition(".")[0] in old or not _taken(name))
    }
    job = {
        "read": list(local.readable()), "roots": roots, "shared": shared,
        "files": {**_packages(files, theirs), **theirs}, "arguments": arguments,
        "modules": modules, "entries": sorted(functions_of(before)),
    }  # fmt: skip
    limits = Limits(cpu_seconds=seconds, wall_seconds=max(30, 5 * seconds), output=OUTPUT)
    ran = python(["-c", source()], files, json.dumps(job).encode(), limits)
    lines = ran.stdout.split(b"\n")[:-1]
    return ran, [json.loads(line) for line in lines if line.startswith(b"{")]


def functions_of(files: Mapping[str, str]) -> set[str]:
    """Return the names of functions that are none of a class.

    >>> functions_of({"a.py": "class A:\\n    def F(self): pass\\ndef A(): pass"})
    {'F'}
    """
    trees = [
        tree for path, text in files.items() if path.endswith(".py") and (tree := parsed(text))
    ]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in nodes if isinstance(node, functions)} - classes


def modules_of(files: Collection[str], roots: list[str]) -> dict[str, bool]:
    """Return the names under which files can be imported, and whether each is a package."""
    found: dict[str, bool] = {}
    for root in roots:
        for path in files:
            pure = PurePosixPath(path)
            if pure.suffix != ".py" or not pure.is_relative_to(root or "."):
                continue
            parts = pure.relative_to(root or ".").with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            else:
                found.setdefault(".".join(parts), False)
            for depth in range(1, len(parts) + (pure.name == "__init__.py")):
                found[".".join(parts[:depth])] = True
    return {name: package for name, package in found.items() if name}


def _packages(files: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Return the empty `__init__.py` that tests inside of a package need on their side."""
    above = {
        str(parent / "__init__.py") for path in theirs for parent in PurePosixPath(path).parents
    }
    return dict.fromkeys(above & files.keys(), "")


def _taken(name: str) -> bool:
    """Whether the tests' interpreter has a module of that name."""
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names or importlib.util.find_spec(top) is not None
