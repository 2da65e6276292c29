"""Build a suite from a QuixBugs checkout, HumanEvalFix lines, or the project's own programs.

A checkout in the layout of QuixBugs:

    python_programs/NAME.py          the program with a bug, and a text that describes it
    correct_python_programs/NAME.py  the same without it
    python_testcases/test_NAME.py    its tests; helpers lie beside them
    json_testcases/NAME.json         lines of [arguments, expected], for some
    conftest.py                      options of the tests

Every program with tests is a task. Where the test only compares each case with its expected value,
the values are compared directly; otherwise the tests run once with the fixed program and their
calls are recorded (`rewards.verifiers.recorded_tests`).

JSON lines in the layout of HumanEvalFix:

columns read  task_id, prompt (up to the body), canonical_solution, buggy_solution (bodies),
              entry_point, test (a function `check`, called at the end); optional: instruction,
              declaration

`check` becomes one test per assert, so that partial credit and feedback name what fails. Its other
statements run before each later assert.

A program of the project is a TOML file, named like its task:

    category     the kind of bug
    goal         what a user would write in an issue, without the place of the bug
    [files]      text of the program by path, with its bug
    [tests]      text of its pytest tests by path; without them
    [judged]     the `tests` of a spec, of kind `value` or `output`: tests that nobody sees
    [[fix]]      file, before, after: the fix, which agents never see

A task is left out, with the reason, when its fixed program fails the tests, when none of them can
be recorded, or when the program with the bug passes those that can.

The output:

    OUT/suite.json      the suite
    OUT/repos/TASK/     one small repo per task; a checkout stays where it is
"""

import ast
import json
import re
import shutil
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pimono_sdpo.errors import PimonoError, SourceError
from pimono_sdpo.runs.folders import LOCK, SUITE, only_run, publish_folder, remove, require_disjoint
from pimono_sdpo.suites import split, suite
from pimono_sdpo.suites.suite import TaskRow
from rewards.sandbox import Server
from rewards.verifiers import tests as verifier
from rewards.verifiers.candidate import Candidate, changed_files
from rewards.verifiers.outcomes import Python
from rewards.verifiers.recorded_tests import NotRecordable, record


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


PROGRAMS = Path(__file__).parent / "programs"
# CPU seconds of a test run. No program needs half a second, but some hang.
SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Program:
    """One program; `fixed` has the changed files without the bug, `spec` its tests."""

    name: str
    category: str
    goal: str
    files: dict[str, str]
    tests: dict[str, str]
    fixed: dict[str, str]
    spec: dict[str, Any]


def load_programs() -> Iterator[Program]:
    """Yield the programs in order of their names."""
    for path in sorted(PROGRAMS.glob("*.toml")):
        given = tomllib.loads(path.read_text(encoding="utf-8"))
        files, tests = given["files"], given.get("tests", {})
        fixed: dict[str, str] = {}
        for fix in given["fix"]:
            text = fixed.get(fix["file"], files[fix["file"]])
            assert text.count(fix["before"]) == 1, (path.name, fix["before"])
            fixed[fix["file"]] = text.replace(fix["before"], fix["after"])
        judged = given.get("judged") or {"kind": "pytest", "files": tests}
        yield Program(
            name=path.stem,
            category=given["category"],
            goal=given["goal"].strip(),
            files=files,
            tests=tests,
            fixed=fixed,
            spec={"files": files, "answer": "any", "tests": {"seconds": SECONDS, **judged}},
        )


class Refused(Exception):
    """A task that tells right answers from wrong ones in no way; the message says why."""


def record_spec(spec: dict[str, Any], fixed: dict[str, str], python: Python) -> dict[str, Any]:
    """Return a spec whose tests for pytest are recorded calls of the fixed files.

    Raises Refused when they cannot be, or when they do not see the bug.
    """
    if spec["tests"]["kind"] != "pytest":
        return spec
    text = json.dumps([spec["files"], fixed, spec["tests"]])
    if text not in _RECORDED:
        _RECORDED[text] = json.dumps(_recorded(spec, fixed, python))
    made: dict[str, Any] = json.loads(_RECORDED[text])
    if "refused" in made:
        raise Refused(made["refused"])
    return {**spec, "tests": made}


# By what was recorded: a suite that is built again in this process does not run anything again.
_RECORDED: dict[str, str] = {}


def _recorded(spec: dict[str, Any], fixed: dict[str, str], python: Python) -> dict[str, Any]:
    try:
        made = record({**spec["files"], **fixed}, spec["tests"], python)
    except NotRecordable as reason:
        return {"refused": str(reason)}
    # A comment changes the files and leaves the bug.
    touched = {path: f"# \n{text}" for path, text in spec["files"].items() if path.endswith(".py")}
    buggy = changed_files(spec["files"], {**spec["files"], **touched})
    assert isinstance(buggy, Candidate)
    if verifier.verify_candidate(buggy, {**spec, "tests": made}, python).status == "passed":
        return {"refused": "the program with the bug passes every test that can be recorded"}
    return made


OWN = "samples"
PYTEST = "python -m pytest -q"
Kind = Literal["quixbugs", "functions", "samples"]


def detect_kind(source: str) -> tuple[Kind, Path]:
    """Detect the kind of a source by its content; raises SourceError."""
    path = Path(source).expanduser()
    if source == OWN and not path.exists():
        return "samples", path
    if not path.exists():
        raise SourceError(
            f"`{source}` does not exist; give a checkout of QuixBugs, a file of HumanEvalFix "
            f"lines, or the word `{OWN}`."
        )
    if path.is_file():
        if path.suffix == ".json" and "tasks" in _read_object(path):
            raise SourceError(
                f"`{source}` is a suite already; use it with `suite split` or `rollout`."
            )
        return "functions", path
    if (path / BUGGY).is_dir():
        return "quixbugs", path
    lines = sorted(path.glob("*.jsonl"))
    if len(lines) != 1:
        raise SourceError(
            f"`{source}` has neither {BUGGY}/ nor one file of JSON lines; give the root "
            "of a QuixBugs checkout, or a file."
        )
    return "functions", lines[0]


@dataclass(frozen=True, slots=True)
class Built:
    """The tasks of a suite, and those that were left out, with the reason."""

    rows: list[TaskRow]
    left_out: dict[str, str]


def build_suite(source: str, out: Path, hide_tests: bool) -> Built:
    """Build the suite of a source under `out`, replacing an earlier one.

    Raises SourceError or OutputError.
    """
    out, (_, path) = out.resolve(), detect_kind(source)
    if path.exists():
        require_disjoint(path.resolve(), out)
    with only_run(out, SUITE) as work:
        finished = work / "out"
        if finished.exists():  # left by a run that was killed
            shutil.rmtree(finished)
        finished.mkdir()
        try:
            built = build(source, finished, out, hide_tests)
            publish_folder(finished, out)
        finally:
            remove(work, LOCK)
    return built


def build(source: str, work: Path, out: Path, hide_tests: bool = False) -> Built:
    """Write the suite of a source into `work`, which will be renamed `out`.

    The same source gives the same bytes. Raises PimonoError for a source that cannot be read.
    """
    kind, path = detect_kind(source)
    try:
        with Server(imports=verifier.IMPORTS) as server:
            built, about = _rows(kind, path, work, hide_tests, verifier.in_server(server))
    except (UnicodeDecodeError, SyntaxError) as error:
        raise SourceError(f"`{source}` has a file that is not valid Python ({error}).") from error
    rows = built.rows
    names = [row["task_id"] for row in rows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SourceError(f"`{source}` has the task `{twice[0]}` twice; task ids must be unique.")
    if not rows:
        why = "; ".join(f"{name}: {reason}" for name, reason in built.left_out.items())
        raise SourceError(f"`{source}` has no tasks{f' that can be used ({why})' if why else ''}.")
    # The paths of a checkout are relative to `out`, not to `work`.
    suite.write_suite(work / suite.NAME, rows[0]["suite"], rows, about, seen_from=out)
    return built


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _rows(
    kind: Kind, path: Path, work: Path, hide_tests: bool, python: Python
) -> tuple[Built, str]:
    rows: list[TaskRow] = []
    left_out: dict[str, str] = {}
    if kind == "samples":
        for program in load_programs():
            spec = record_spec(program.spec, program.fixed, python)
            rows.append(_program_row(replace(program, spec=spec), work, hide_tests))
        return Built(rows, {}), "Small programs with a bug each, written for this project."
    tasks = list(read_quixbugs(path) if kind == "quixbugs" else read_functions(path))
    groups = split.group_near_programs({task.name: task.solution for task in tasks})
    for task in tasks:
        try:
            spec = record_spec(task.spec, {task.path: task.solution}, python)
        except Refused as reason:
            left_out[task.name] = str(reason)
            continue
        recorded = replace(task, spec=spec)
        if kind == "quixbugs":
            rows.append(_quixbugs_row(recorded, path, hide_tests))
        else:
            rows.append(_function_row(recorded, work, groups, hide_tests))
    if kind == "quixbugs":
        about = "One bug in each program; the tests judge where the program does not run."
    else:
        about = "One function with a bug each."
    return Built(rows, left_out), about


def _quixbugs_row(task: Task, root: Path, hide_tests: bool) -> TaskRow:
    hide = [*ANSWERS, *([f"/{TESTS}"] if hide_tests else [])]
    goal = (
        f"The program `{task.path}` has a bug: its tests fail. Find it and fix it; change nothing "
        f"else. What the program is meant to do:\n\n{task.prompt}"
    )
    metadata = {
        "source": "quixbugs", "files": [task.path], "test_files": [*TEST_FILES],
        "group": f"fix_{NEAR.get(task.name, task.name)}",
    }  # fmt: skip
    command = f"{PYTEST} {TESTS}/test_{task.name}.py"
    return _row(f"fix_{task.name}", "quixbugs", root, goal, command, hide, metadata, task.spec)


def _function_row(task: Task, work: Path, groups: dict[str, str], hide_tests: bool) -> TaskRow:
    name = _safe_name(task.name)
    tests = task.spec["tests"]["files"]
    repo = _write_repo(work / "repos" / name, {**task.files, **tests})
    goal = (
        f"The function in `{task.path}` has a bug: its tests fail. Find it and fix it. What it is "
        f"meant to do:\n\n{task.prompt.strip()}"
    )
    metadata = {"source": "humanevalfix", "source_id": task.name, "files": [task.path],
                "group": _safe_name(groups[task.name]), "test_files": sorted(tests)}  # fmt: skip
    metadata |= {"category": task.kind} if isinstance(task.kind, str) else {}
    hide = sorted(tests) if hide_tests else []
    return _row(name, "humanevalfix", repo, goal, PYTEST, hide, metadata, task.spec)


def _program_row(program: Program, work: Path, hide_tests: bool) -> TaskRow:
    repo = _write_repo(work / "repos" / program.name, {**program.files, **program.tests})
    metadata = {"source": OWN, "category": program.category, "files": sorted(program.fixed),
                "group": program.name, "test_files": sorted(program.tests)}  # fmt: skip
    hide = sorted(program.tests) if hide_tests else []
    command = PYTEST if program.tests else None
    return _row(program.name, OWN, repo, program.goal, command, hide, metadata, program.spec)


def _row(
    name: str,
    suite_name: str,
    repo: Path,
    goal: str,
    command: str | None,
    hide: list[str],
    metadata: dict[str, Any],
    spec: dict[str, Any],
) -> TaskRow:
    return {
        "task_id": name,
        "suite": suite_name,
        "repo": str(repo.resolve()),
        "goal": goal,
        "test_cmd": command,
        "hide": hide,
        "metadata": metadata,
        "verifier_spec": suite.spec_text(spec),
        "split": None,
    }


def _write_repo(repo: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        target = repo / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, newline="")
    return repo


def _safe_name(name: str) -> str:
    """Return an id that is valid in a file name.

    >>> _safe_name("Python/12")
    'Python_12'
    """
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", name).lstrip("_.-+") or "task"


def describe_size(rows: Iterable[TaskRow]) -> str:
    """Say how many tasks there are, and how many are near duplicates."""
    rows = list(rows)
    groups = {row["metadata"].get("group", row["task_id"]) for row in rows}
    near_ones = len(rows) - len(groups)
    more = f", {near_ones} of them near duplicates of others (suite split --group-by group)"
    return f"{len(rows)} tasks{more if near_ones else ''}"
