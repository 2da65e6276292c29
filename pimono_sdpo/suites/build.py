"""Build a suite from a QuixBugs checkout, HumanEvalFix lines, or the project's own programs.

A program of the project is a TOML file, named like its task:

    category     the kind of bug
    goal         what a user would write in an issue, without the place of the bug
    [files]      text of the program by path, with its bug
    [tests]      text of its pytest tests by path; without them
    [judged]     the `tests` of a spec, of kind `value` or `output`: tests that nobody sees
    [[fix]]      file, before, after: the fix, which agents never see

The output:

    OUT/suite.json      the suite
    OUT/repos/TASK/     one small repo per task; a checkout stays where it is
"""

import json
import re
import shutil
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pimono_sdpo.errors import SourceError
from pimono_sdpo.runs.folders import LOCK, SUITE, only_run, publish_folder, remove, require_disjoint
from pimono_sdpo.suites import humaneval, quixbugs, split, suite
from pimono_sdpo.suites.quixbugs import Task
from pimono_sdpo.suites.suite import TaskRow

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
    if (path / quixbugs.BUGGY).is_dir():
        return "quixbugs", path
    lines = sorted(path.glob("*.jsonl"))
    if len(lines) != 1:
        raise SourceError(
            f"`{source}` has neither {quixbugs.BUGGY}/ nor one file of JSON lines; give the root "
            "of a QuixBugs checkout, or a file."
        )
    return "functions", lines[0]


def build_suite(source: str, out: Path, hide_tests: bool) -> list[TaskRow]:
    """Build the suite of a source under `out`, replacing an earlier one; return its tasks.

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
            rows = build(source, finished, out, hide_tests)
            publish_folder(finished, out)
        finally:
            remove(work, LOCK)
    return rows


def build(source: str, work: Path, out: Path, hide_tests: bool = False) -> list[TaskRow]:
    """Write the suite of a source into `work`, which will be renamed `out`; return its tasks.

    The same source gives the same bytes. Raises PimonoError for a source that cannot be read.
    """
    kind, path = detect_kind(source)
    try:
        rows, about = _rows(kind, path, work, hide_tests)
    except (UnicodeDecodeError, SyntaxError) as error:
        raise SourceError(f"`{source}` has a file that is not valid Python ({error}).") from error
    names = [row["task_id"] for row in rows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SourceError(f"`{source}` has the task `{twice[0]}` twice; task ids must be unique.")
    if not rows:
        raise SourceError(f"`{source}` has no tasks.")
    # The paths of a checkout are relative to `out`, not to `work`.
    suite.write_suite(work / suite.NAME, rows[0]["suite"], rows, about, seen_from=out)
    return rows


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _rows(kind: Kind, path: Path, work: Path, hide_tests: bool) -> tuple[list[TaskRow], str]:
    if kind == "quixbugs":
        tasks = list(quixbugs.read_quixbugs(path))
        return [_quixbugs_row(task, path, hide_tests) for task in tasks], (
            "One bug in each program; the tests judge where the program does not run."
        )
    if kind == "functions":
        tasks = list(humaneval.read_functions(path))
        groups = split.group_near_programs({task.name: task.solution for task in tasks})
        return [_function_row(task, work, groups, hide_tests) for task in tasks], (
            "One function with a bug each."
        )
    return [_program_row(program, work, hide_tests) for program in load_programs()], (
        "Small programs with a bug each, written for this project."
    )


def _quixbugs_row(task: Task, root: Path, hide_tests: bool) -> TaskRow:
    hide = [*quixbugs.ANSWERS, *([f"/{quixbugs.TESTS}"] if hide_tests else [])]
    goal = (
        f"The program `{task.path}` has a bug: its tests fail. Find it and fix it; change nothing "
        f"else. What the program is meant to do:\n\n{task.prompt}"
    )
    metadata = {
        "source": "quixbugs", "files": [task.path], "test_files": [*quixbugs.TEST_FILES],
        "group": f"fix_{quixbugs.NEAR.get(task.name, task.name)}",
    }  # fmt: skip
    command = f"{PYTEST} {quixbugs.TESTS}/test_{task.name}.py"
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
