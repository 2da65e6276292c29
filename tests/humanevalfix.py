"""Tasks from lines of HumanEvalFix, whose `check` becomes one test per assert."""

import ast
from collections.abc import Iterator
from pathlib import Path
from symtable import symtable

import msgspec

from pimono_sdpo.errors import PimonoError
from pimono_sdpo.suites.build import Task

PATH, TEST_PATH = "solution.py", "test_solution.py"


class _Function(msgspec.Struct):
    """A line in the layout of HumanEvalFix."""

    task_id: str
    prompt: str
    canonical_solution: str
    buggy_solution: str
    entry_point: str
    test: str
    instruction: str | None = None
    bug_type: str | None = None


def read_functions(path: Path, seconds: float = 10.0) -> Iterator[Task]:
    """Yield the tasks in order; `seconds` is the CPU time for all tests of a task."""
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=_Function)
            fixed = row.prompt + row.canonical_solution
            tests = {TEST_PATH: render_tests(row.test, row.entry_point, fixed)}
        except (ValueError, SyntaxError) as error:
            raise PimonoError(f"{path}:{number} is not a task ({error}).") from error
        yield Task(
            name=row.task_id,
            goal=f"The function in `{PATH}` has a bug: its tests fail. Find it and fix it. What "
            f"it is meant to do:\n\n{(row.instruction or row.prompt).strip()}",
            files={PATH: row.prompt + row.buggy_solution},
            fixed={PATH: fixed},
            judged={"kind": "pytest", "files": tests, "seconds": seconds},
            tests=tests,
            category=row.bug_type,
        )


def render_tests(test: str, entry: str, program: str) -> str:
    """Return a file for pytest with one test per assert of `def check(candidate)`, or of `test`."""
    tree = ast.parse(test)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {entry}
    around: list[ast.stmt] = []
    body, name = tree.body, entry
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check":
            around = [one for one in tree.body if one is not node]
            around = [one for one in around if not ast.unparse(one).startswith("check(")]
            body, name = node.body, node.args.args[0].arg
    symbols = symtable(program, PATH, "exec").get_symbols()
    defined = {one.get_name() for one in symbols if one.is_assigned() and not one.is_imported()}
    given = ", ".join(sorted(used & defined))
    alias = f"{name} = {entry}" if name != entry else ""
    # Inside the tests: pytest would collect an imported `test_...`.
    before = ast.parse(f"from {PATH.removesuffix('.py')} import {given}\n{alias}").body
    tests: list[ast.stmt] = []
    for statement in body:
        match statement:
            case ast.Expr(ast.Constant()) | ast.Assert(ast.Constant(True)):
                continue
        if not any(isinstance(node, ast.Assert) for node in ast.walk(statement)):
            before.append(statement)
            continue
        (made,) = ast.parse(f"def test_{len(tests) + 1}(): pass").body
        assert isinstance(made, ast.FunctionDef)
        made.body = [*before, statement]
        tests.append(made)
    if not tests:
        raise PimonoError(f"The tests of `{entry}` assert nothing; `check` needs asserts.")
    return "\n\n\n".join(map(ast.unparse, [*around, *tests])) + "\n"
