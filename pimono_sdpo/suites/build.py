"""Build a suite from a QuixBugs checkout, or from our own programs.

A QuixBugs checkout has python_programs/NAME.py (with a bug, and a docstring that describes the program),
correct_python_programs/NAME.py, python_testcases/test_NAME.py with helpers beside it, and for some
programs json_testcases/NAME.json, which the test reads. Every program with tests becomes a task; its
tests run once on the fixed program, and their calls are recorded (`rewards.verifiers.recorded_tests`).

A program of the project is a TOML file, named after its task: `category`, `goal` (what a user would
write in an issue, without the place of the bug), `files` and `tests` (texts by path), `spec_tests` (the
`tests` of a spec, instead of tests that agents see) and `fix` (file, before, after).

A task is left out, with the reason, if its fixed program fails the tests, if no test can be recorded,
or if the program with the bug passes all recorded tests. OUT gets `suite.json`, and repos/TASK/ for
each task; a checkout stays where it is.
"""

import ast
import difflib
import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pimono_sdpo.errors import PimonoError, SourceError
from pimono_sdpo.removed import refuse_removed
from pimono_sdpo.runs.folders import LOCK, SUITE, make_output, only_run, publish_folder, remove, require_disjoint
from pimono_sdpo.suites.suite import NAME, Suite, TaskRow, make_task_id, write_suite
from processors.rollouts.noise import measure_patch
from rewards.sandbox import Server
from rewards.verifiers import tests as verifier
from rewards.verifiers.candidate import changed_files
from rewards.verifiers.outcomes import Python
from rewards.verifiers.recorded_tests import NotRecordable, record

BUGGY, FIXED = "python_programs", "correct_python_programs"
TESTS, CASES = "python_testcases", "json_testcases"
# Which files are answers or tests, and which programs reveal the fix of another.
QUIXBUGS = tomllib.loads(Path(__file__).with_name("quixbugs.toml").read_text(encoding="utf-8"))
PROGRAMS = Path(__file__).parent / "programs"
# CPU seconds of a test run. No program of ours needs half a second, but some hang.
SECONDS, OWN_SECONDS = 20.0, 2.0
PYTEST = "python -m pytest -q"
OWN = "samples"
Kind = Literal["quixbugs", "samples"]


@dataclass(frozen=True, slots=True)
class Task:
    """A program with a bug."""

    name: str
    goal: str
    files: dict[str, str]
    # The fixed text of each file with the bug.
    fixed: dict[str, str]
    # The `tests` of the row's `verifier_spec`.
    spec_tests: dict[str, Any]
    # Test files that agents see unless they are hidden.
    tests: dict[str, str] = field(default_factory=dict)
    category: str | None = None

    @property
    def spec(self) -> dict[str, Any]:
        """The `verifier_spec` of the row."""
        return {"files": self.files, "tests": self.spec_tests}


def read_quixbugs(root: Path, seconds: float = SECONDS) -> Iterator[Task]:
    """Yield the tasks of a checkout by name; `seconds` is the CPU time of the tests."""
    tested = {path.stem.removeprefix("test_") for path in (root / TESTS).glob("test_*.py")}
    buggy, fixed = ({path.stem for path in (root / folder).glob("*.py")} for folder in (BUGGY, FIXED))
    names = sorted(tested & buggy & fixed)
    if not names:
        raise PimonoError(
            f"{root} has no tasks: no {BUGGY}/NAME.py with {FIXED}/NAME.py and "
            f"{TESTS}/test_NAME.py; give the root of a QuixBugs checkout."
        )
    for name in names:
        path = f"{BUGGY}/{name}.py"
        source = (root / path).read_text()
        # The last string that is a statement of its own describes the program.
        texts = [""]
        for node in ast.parse(source).body:
            match node:
                case ast.Expr(ast.Constant(str(text))):
                    texts.append(text.strip())
        yield Task(
            name=name,
            goal=f"The program `{path}` has a bug: its tests fail. Find it and fix it; change "
            f"nothing else. What the program is meant to do:\n\n{texts[-1]}",
            files={path: source},
            fixed={path: (root / FIXED / f"{name}.py").read_text()},
            spec_tests=_pytest_tests(root, name, seconds),
        )


def _pytest_tests(root: Path, name: str, seconds: float) -> dict[str, Any]:
    """Return the `tests` of a spec: the test file, its helpers and its data; helpers with classes are `shared`."""
    helpers = [path for path in (root / TESTS).glob("*.py") if not path.name.startswith("test_")]
    paths = [*helpers, root / TESTS / f"test_{name}.py", root / "conftest.py", root / CASES / f"{name}.json"]
    files = {path.relative_to(root).as_posix(): path.read_text() for path in sorted(paths) if path.exists()}
    shared = [
        path.relative_to(root).as_posix()
        for path in sorted(helpers)
        if any(isinstance(node, ast.ClassDef) for node in ast.parse(path.read_text()).body)
    ]
    return {"kind": "pytest", "files": files, "shared": shared, "seconds": seconds}


def load_programs() -> Iterator[Task]:
    """Yield the programs of the project by name."""
    for path in sorted(PROGRAMS.glob("*.toml")):
        program = tomllib.loads(path.read_text(encoding="utf-8"))
        files, tests = program["files"], program.get("tests", {})
        fixed: dict[str, str] = {}
        for fix in program["fix"]:
            text = fixed.get(fix["file"], files[fix["file"]])
            assert text.count(fix["before"]) == 1, (path.name, fix["before"])
            fixed[fix["file"]] = text.replace(fix["before"], fix["after"])
        spec_tests = {"seconds": OWN_SECONDS, **program.get("spec_tests", {"kind": "pytest", "files": tests})}
        yield Task(path.stem, program["goal"].strip(), files, fixed, spec_tests, tests, program["category"])


# Recorded tests by spec and fix: a suite that is built again in this process runs nothing again.
_RECORDED: dict[str, dict[str, Any]] = {}


def record_tests(task: Task, python: Python) -> Task:
    """Return the task with its pytest tests as recorded calls of the fixed files; raises NotRecordable."""
    if task.spec_tests["kind"] != "pytest":
        return task
    key = json.dumps([task.spec, task.fixed])
    if key not in _RECORDED:
        recorded = record({**task.files, **task.fixed}, task.spec_tests, python)
        # A comment makes the files count as changed and keeps the bug.
        touched = {path: f"# \n{text}" for path, text in task.files.items() if path.endswith(".py")}
        buggy = changed_files(task.files, {**task.files, **touched})
        if verifier.verify_candidate(buggy, {**task.spec, "tests": recorded}, python).status == "passed":
            raise NotRecordable("the program with the bug passes every test that can be recorded")
        _RECORDED[key] = recorded
    return replace(task, spec_tests=_RECORDED[key])


def detect_kind(source: str) -> tuple[Kind, Path]:
    """Return the kind of a source, detected by its content, and its path."""
    path = Path(source).expanduser()
    if source == OWN and not path.exists():
        return "samples", path
    if (path / BUGGY).is_dir():
        return "quixbugs", path
    if path.is_dir() and next(path.rglob("task.toml"), None):
        refuse_removed("suite build HARBOR")
    if path.suffix == ".jsonl" or any(path.glob("*.jsonl")):
        refuse_removed("suite build FILE.jsonl")
    raise SourceError(f"`{source}` is not a QuixBugs checkout with {BUGGY}/, or the word `{OWN}`.")


def build_suite(source: str, out: Path, hide_tests: bool = False) -> tuple[list[TaskRow], dict[str, str]]:
    """Build the suite of a source under `out`; return its tasks, and the reasons for tasks left out, by name."""
    out, (kind, path) = out.resolve(), detect_kind(source)
    if path.exists():
        require_disjoint(path.resolve(), out)
    with only_run(out, SUITE) as work:
        finished = make_output(work)
        try:
            rows, left_out = _build(source, kind, path, finished, hide_tests)
            # The paths of a checkout are relative to `out`.
            write_suite(Suite(kind, tuple(rows), finished / NAME), seen_from=out)
            publish_folder(finished, out)
        finally:
            remove(work, LOCK)
    return rows, left_out


def _build(source: str, kind: Kind, path: Path, work: Path, hide_tests: bool) -> tuple[list[TaskRow], dict[str, str]]:
    rows, left_out = list[TaskRow](), dict[str, str]()
    tasks = list(read_quixbugs(path) if kind == "quixbugs" else load_programs())
    groups: dict[str, str] = QUIXBUGS["near"] if kind == "quixbugs" else {}
    with Server(imports=verifier.IMPORTS) as server:
        for task in tasks:
            try:
                recorded = record_tests(task, verifier.in_server(server))
                group = groups.get(task.name, task.name)
                rows.append(_make_row(recorded, kind, path, work, group, hide_tests))
            except NotRecordable as reason:
                left_out[task.name] = str(reason)
    if not rows:
        why = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise SourceError(f"`{source}` has no tasks{f' that can be used ({why})' if why else ''}.")
    return rows, left_out


def _make_row(task: Task, kind: Kind, checkout: Path, work: Path, group: str, hide_tests: bool) -> TaskRow:
    diffs = (
        difflib.unified_diff(_list_code(path, task.files[path]), _list_code(path, text), lineterm="")
        for path, text in task.fixed.items()
    )
    metadata: dict[str, Any] = {"source": kind, "files": sorted(task.fixed)}
    metadata["fix_lines"] = sum(measure_patch("\n".join(diff))[0] for diff in diffs)
    if kind == "quixbugs":
        name, repo = f"fix_{task.name}", checkout
        hide = [*QUIXBUGS["answers"], *[f"/{TESTS}"] * hide_tests]
        command: str | None = f"{PYTEST} {TESTS}/test_{task.name}.py"
        metadata |= {"group": f"fix_{group}", "test_files": QUIXBUGS["tests"]}
    else:
        name = make_task_id(task.name)
        repo, hide = work / "repos" / name, sorted(task.tests) * hide_tests
        for path, text in {**task.files, **task.tests}.items():
            (repo / path).parent.mkdir(parents=True, exist_ok=True)
            (repo / path).write_text(text, newline="")
        command = PYTEST if task.tests else None
        metadata |= {"group": make_task_id(group), "test_files": sorted(task.tests)}
    metadata |= {"category": task.category} if task.category else {}
    return {
        "task_id": name,
        "suite": kind,
        "repo": str(repo.resolve()),
        "goal": task.goal,
        "test_cmd": command,
        "hide": hide,
        "metadata": metadata,
        "verifier_spec": json.dumps(task.spec, ensure_ascii=False),
        "split": None,
    }


def _list_code(path: str, text: str) -> list[str]:
    """Return the lines of a file; of a Python file, without comments, docstrings and other strings on their own."""
    if not path.endswith(".py"):
        return text.splitlines()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree).splitlines()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def describe_size(rows: Iterable[TaskRow]) -> str:
    """Return the number of tasks, and how many are near duplicates, as text."""
    groups = [row["metadata"].get("group", row["task_id"]) for row in rows]
    near = len(groups) - len(set(groups))
    note = f", {near} of them near duplicates of others (suite split --group-by group)"
    return f"{len(groups)} tasks{note if near else ''}"
