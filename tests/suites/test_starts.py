"""A task with several start states becomes one task per state, all on one side of the split."""

import json
import re
from pathlib import Path

import pytest

from pimono_sdpo.agent.task_tests import run_tests
from pimono_sdpo.suites.split import Leakage, Method, check_leakage, divide
from pimono_sdpo.suites.suite import Suite, load_suite, write_suite

CASES = [{"args": [1, 2], "expected": 3}]


def spec_of(text: str) -> dict[str, object]:
    tests = {"kind": "value", "module": "add.py", "entry": "add", "cases": CASES, "seconds": 2}
    return {"files": {"add.py": text}, "tests": tests}


def write(folder: Path) -> Path:
    texts = {"now": "def add(a, b):\n    return a - b\n", "old": "def add(a, b):\n    return a\n"}
    for name, text in texts.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "add.py").write_text(text)
    starts = {"old": {"repo": "old", "verifier_spec": spec_of(texts["old"])}}
    tasks = [{"task_id": f"fix_{n}", "goal": "Add.", "verifier_spec": spec_of(texts["now"])} for n in range(8)]
    listed = [{**task, "starts": starts} for task in tasks]
    suite = {"name": "adds", "defaults": {"repo": "now"}, "tasks": listed}
    (folder / "suite.json").write_text(json.dumps(suite))
    return folder


def test_each_state_is_a_task_with_its_own_files(tmp_path: Path) -> None:
    suite = load_suite(write(tmp_path / "suite"), outside=False)
    assert [task["task_id"] for task in suite.tasks[:3]] == ["fix_0", "fix_0+old", "fix_1"]
    assert [Path(task["repo"]).name for task in suite.tasks[:2]] == ["now", "old"]
    fixed = {"add.py": b"def add(a, b):\n    return a + b\n"}
    for task in suite.tasks[:2]:
        assert run_tests(task, {}).ok is False
        assert run_tests(task, fixed).ok is True


def test_the_split_keeps_all_states_on_one_side(tmp_path: Path) -> None:
    suite = load_suite(write(tmp_path / "suite"))
    methods: tuple[Method, ...] = ("threshold", "rank", "shuffle")
    for method in methods:
        sides = divide(suite.tasks, 0.5, method)
        for side in (sides.train, sides.test):
            ids = {task["task_id"] for task in side}
            assert ids == {one for base in ids for one in (base[:5], f"{base[:5]}+old")}
    # The sides are suites without `starts`, and can be split again.
    path = write_suite(Suite("train", tuple(sides.train), tmp_path / "suite" / "train.json"))
    again = load_suite(path)
    # Rows of one state leak a test task that another one is of.
    only_old = Suite("old", tuple(task for task in again.tasks if "+" in task["task_id"]), path)
    base = sides.train[0]["task_id"].partition("+")[0]
    for row in (base, f"{base}+old", f"{base}+new"):
        for suite in (again, only_old):
            with pytest.raises(Leakage, match=re.escape(f"`{row}` (1)")):
                check_leakage([{"task_id": row}], suite)
    assert check_leakage([{"task_id": f"{base}0"}, {"task_id": f"other+{base}"}], again) == 2
    assert [task["metadata"] for task in again.tasks] == [task["metadata"] for task in sides.train]
