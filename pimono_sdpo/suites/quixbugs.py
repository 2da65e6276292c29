"""Read tasks from a checkout in the layout of QuixBugs.

    python_programs/NAME.py          the program with a bug, and a text that describes it
    correct_python_programs/NAME.py  the same without it
    python_testcases/test_NAME.py    its tests; helpers lie beside them
    json_testcases/NAME.json         lines of [arguments, expected], for some
    conftest.py                      options of the tests

Every program with tests is a task. Where the test only compares each case with its expected value,
the values are compared directly; otherwise pytest runs the test as it is.
"""

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import PimonoError


@dataclass(frozen=True, slots=True)
class Task:
    """One bug: the file `path` of `files` has it, `solution` is that file without it.

    `spec` is the row's `verifier_spec`; `prompt` says what the program should do; `kind` is the
    kind of bug, where it is known.
    """

    name: str
    prompt: str
    path: str
    files: dict[str, str]
    solution: str
    spec: dict[str, Any]
    kind: str | None = None


BUGGY, FIXED = "python_programs", "correct_python_programs"
TESTS, CASES = "python_testcases", "json_testcases"
# Answers and expected values; the Java programs have the same bugs and their corrections.
ANSWERS = (
    "/correct_*", "/java_*", "/json_testcases", "/*.class", "/*.java", "/*.pdf", "/tester.py"
)  # fmt: skip
TEST_FILES = (f"/{TESTS}", f"/{CASES}", "/conftest.py")
# Programs so similar that one gives the other away.
NEAR = {
    "find_in_sorted": "search_in_sorted", "find_first_in_sorted": "search_in_sorted",
    "shortest_path_length": "shortest_path", "shortest_path_lengths": "shortest_path",
    "shortest_paths": "shortest_path",
    "lcs_length": "common_subsequence", "longest_common_subsequence": "common_subsequence",
    "breadth_first_search": "graph_search", "depth_first_search": "graph_search",
}  # fmt: skip
CALLS = ("{}(*input_data)", "list({}(*input_data))")


def read_quixbugs(root: Path, seconds: float = 10.0) -> Iterator[Task]:
    """Yield the tasks in order of their names; `seconds` is the CPU time per case.

    Raises PimonoError when the folder has no such tasks.
    """
    names = sorted(
        path.stem
        for path in (root / BUGGY).glob("*.py")
        if (root / TESTS / f"test_{path.stem}.py").exists() and (root / FIXED / path.name).exists()
    )
    if not names:
        raise PimonoError(
            f"{root} has no tasks: no {BUGGY}/NAME.py with {FIXED}/NAME.py and "
            f"{TESTS}/test_NAME.py; give the root of a QuixBugs checkout."
        )
    for name in names:
        path = f"{BUGGY}/{name}.py"
        source = (root / path).read_text()
        tests = _value_tests(root, name, seconds) or _pytest_tests(root, name, seconds)
        yield Task(
            name=name,
            prompt=read_description(source),
            path=path,
            files={path: source},
            solution=(root / FIXED / f"{name}.py").read_text(),
            spec={"files": {path: source}, "answer": "any", "tests": tests},
        )


def read_description(source: str) -> str:
    """Return the last string that is a statement of its own in a program."""
    texts = [
        node.value.value.strip()
        for node in ast.parse(source).body
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    return texts[-1] if texts else ""


def _value_tests(root: Path, name: str, seconds: float) -> dict[str, Any] | None:
    """Return value tests if the test only compares each case with its expected value."""
    path = root / CASES / f"{name}.json"
    if not path.exists() or not _only_compares(
        (root / TESTS / f"test_{name}.py").read_text(), name
    ):
        return None
    cases = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return {
        "kind": "value", "module": f"{BUGGY}/{name}.py", "entry": name, "seconds": seconds,
        "cases": [
            {"args": given if isinstance(given, list) else [given], "expected": expected}
            for given, expected in cases
        ],
    }  # fmt: skip


def _only_compares(source: str, name: str) -> bool:
    bodies = [node.body for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    statements = [ast.unparse(statement) for body in bodies for statement in body]
    return statements in [[f"assert {call.format(name)} == expected"] for call in CALLS]


def _pytest_tests(root: Path, name: str, seconds: float) -> dict[str, Any]:
    """Return the test file, its helpers and its data as they are."""
    helpers = [
        path for path in (root / TESTS).glob("*.py") if not path.name.startswith("test_")
    ]  # fmt: skip
    wanted = [*helpers, root / TESTS / f"test_{name}.py", root / "conftest.py"]
    wanted.append(root / CASES / f"{name}.json")
    files = {
        path.relative_to(root).as_posix(): path.read_text()
        for path in sorted(wanted)
        if path.exists()
    }
    classes = [
        path.relative_to(root).as_posix()
        for path in sorted(helpers)
        if any(isinstance(node, ast.ClassDef) for node in ast.parse(path.read_text()).body)
    ]
    return {"kind": "pytest", "files": files, "shared": classes, "seconds": 2 * seconds}
