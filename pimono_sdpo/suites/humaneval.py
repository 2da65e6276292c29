"""Read tasks from JSON lines in the layout of HumanEvalFix: a function with a bug, and asserts.

columns read  task_id, prompt (up to the body), canonical_solution, buggy_solution (bodies),
              entry_point, test (a function `check`, called at the end); optional: instruction,
              declaration

`check` becomes one test per assert, so that partial credit and feedback name what fails. Its other
statements run before each later assert.
"""

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import PimonoError
from pimono_sdpo.suites.quixbugs import Task

PATH = "solution.py"
TEST_PATH = "test_solution.py"
NEEDED = ("task_id", "prompt", "canonical_solution", "buggy_solution", "entry_point", "test")


def read_functions(path: Path, seconds: float = 10.0) -> Iterator[Task]:
    """Yield the tasks in order; `seconds` is the CPU time for all tests of a task.

    Raises PimonoError for lines that are not tasks.
    """
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise PimonoError(
                f"{path}:{number} is not valid JSON ({error}); correct or drop it."
            ) from None
        if not isinstance(row, dict):
            raise PimonoError(f"{path}:{number} is not an object; a line is one task.")
        if missing := [name for name in NEEDED if not isinstance(row.get(name), str)]:
            raise PimonoError(
                f"{path}:{number} has no text `{missing[0]}`; a task needs {', '.join(NEEDED)}."
            )
        buggy = row["prompt"] + row["buggy_solution"]
        try:
            one = make_task(
                name=row["task_id"], prompt=row.get("instruction") or row["prompt"], buggy=buggy,
                fixed=row["prompt"] + row["canonical_solution"], entry=row["entry_point"],
                test=row["test"], seconds=seconds,
            )  # fmt: skip
        except SyntaxError as error:
            raise PimonoError(f"{path}:{number} is not valid Python ({error.msg}).") from None
        yield replace(one, kind=row.get("bug_type"))


def make_task(
    *, name: str, prompt: str, buggy: str, fixed: str, entry: str, test: str, seconds: float = 10.0
) -> Task:
    """Return the task of one function; `test` has `def check(candidate)`, or bare asserts."""
    files = {TEST_PATH: render_tests(test, entry, fixed)}
    tests = {"kind": "pytest", "files": files, "seconds": seconds}
    spec: dict[str, Any] = {"files": {PATH: buggy}, "answer": "any", "tests": tests}
    return Task(name, prompt, PATH, {PATH: buggy}, fixed, spec)


def render_tests(test: str, entry: str, program: str) -> str:
    """Return a file for pytest with one test per assert."""
    tree = ast.parse(test)
    around: list[ast.stmt] = []
    body: list[ast.stmt] = tree.body
    alias = ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            around = [n for n in tree.body if n is not node and not _calls_check(n)]
            name = node.args.args[0].arg
            body = node.body
            alias = f"{name} = {entry}" if name != entry else ""
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {entry}
    given = sorted(used & _defined_names(program))
    lines = list(map(ast.unparse, around))
    # Inside the tests: pytest would collect an imported `test_...`.
    first = f"from {PATH.removesuffix('.py')} import {', '.join(given)}\n{alias}"
    before: list[ast.stmt] = ast.parse(first).body
    number = 0
    for statement in body:
        if _is_trivial(statement):
            continue
        if not any(isinstance(node, ast.Assert) for node in ast.walk(statement)):
            before.append(statement)
            continue
        number += 1
        inside = "\n".join(ast.unparse(one) for one in [*before, statement])
        lines.append(f"\n\ndef test_{number}():\n" + _indent(inside))
    if not number:
        raise PimonoError(f"The tests of `{entry}` assert nothing; `check` needs asserts.")
    return "\n".join(lines).lstrip() + "\n"


def _indent(source: str) -> str:
    """Indent statements as a function body; lines of multi-line strings stay as they are."""
    tree = ast.parse(f"def f():\n    pass\n{source}")
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.body = tree.body[1:]
    return ast.unparse(function).partition("\n")[2]


def _calls_check(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith("check(")


def _is_trivial(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return (
        isinstance(node, ast.Assert)
        and isinstance(node.test, ast.Constant)
        and bool(node.test.value)
    )


def _defined_names(program: str) -> set[str]:
    """Return the names that a program defines at its top level."""
    names: set[str] = set()
    for node in ast.parse(program).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {
                n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)
            }
    return names
