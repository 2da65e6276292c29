"""The project's own suite: every fixed program passes, every buggy one fails, in the sandbox."""

import json
from pathlib import Path

import pytest

from pimono_sdpo.agent.task_tests import run_tests
from pimono_sdpo.suites import suite
from pimono_sdpo.suites.build import load_programs
from pimono_sdpo.suites.suite import TaskRow, files_of

PROGRAMS = {program.name: program for program in load_programs()}
HANGING = ("backoff", "shift_plan")


@pytest.fixture(scope="module")
def tasks(own_suite: Path) -> dict[str, TaskRow]:
    return {task["task_id"]: task for task in suite.load_suite(own_suite).tasks}


def encoded(files: dict[str, str]) -> dict[str, bytes]:
    return {path: text.encode() for path, text in files.items()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_fixed_program_passes_and_the_buggy_one_fails(name: str, tasks: dict[str, TaskRow]) -> None:
    task, program = tasks[name], PROGRAMS[name]
    buggy = run_tests(task, {})
    assert (buggy.ok, buggy.error) == (False, None), buggy
    hangs = "CPU time" in buggy.output
    assert hangs == (name in HANGING), buggy
    fixed = run_tests(task, encoded(program.fixed))
    assert (fixed.ok, fixed.error) == (True, None), fixed


@pytest.mark.parametrize("name", PROGRAMS)
def test_agents_do_not_see_the_fix(name: str, tasks: dict[str, TaskRow]) -> None:
    task, program = tasks[name], PROGRAMS[name]
    assert files_of(Path(task["repo"]), task["hide"]) == {**program.files, **program.tests}
    seen = json.dumps([*files_of(Path(task["repo"])).values(), task["goal"], task["verifier_spec"]])
    for path, text in program.fixed.items():
        before = program.files[path].splitlines()
        new = [line.strip() for line in text.splitlines() if line not in before]
        told = [line for line in new if len(line) > 12 and json.dumps(line)[1:-1] in seen]
        assert not told, told
    assert task["metadata"].pop("fix_lines") > 0
    assert task["metadata"] == {
        "source": "samples", "category": program.category, "files": sorted(program.fixed),
        "group": name, "test_files": sorted(program.tests),
    }  # fmt: skip
    assert 40 < len(task["goal"]) < 400
