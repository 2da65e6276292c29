"""A suite is read, checked and written; errors are one sentence."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from pimono_sdpo.errors import SourceError
from pimono_sdpo.schema import TASK
from pimono_sdpo.suites import suite
from pimono_sdpo.suites.suite import list_files

GOOD: dict[str, Any] = {
    "name": "mine",
    "defaults": {"repo": "code", "test_cmd": "python -m pytest -q"},
    "tasks": [
        {"task_id": "one", "goal": "Mend it."},
        {"task_id": "two", "goal": "Mend that.", "repo": "other", "test_cmd": "make check",
         "hide": ["answers"], "metadata": {"group": "g", "n": [1]},
         "verifier_spec": {"files": {"a.py": "ü"}, "tests": {"kind": "value", "refs": [math.inf]}}},
        {"task_id": "three", "goal": "Only train on it.", "test_cmd": ""},
    ],
}  # fmt: skip


def given(root: Path, content: Any) -> Path:
    for name in ("code", "other"):
        (root / name).mkdir(exist_ok=True)
    path = root / "suite.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_suite_becomes_a_dataset_with_the_columns_of_tasks(tmp_path: Path) -> None:
    read = suite.load_suite(given(tmp_path, GOOD))
    rows = Dataset.from_list([dict(row) for row in read.tasks], features=TASK)
    one, two, three = rows
    assert one == {
        "task_id": "one", "suite": "mine", "repo": str(tmp_path / "code"), "goal": "Mend it.",
        "test_cmd": "python -m pytest -q", "hide": list(suite.HIDE), "metadata": {},
        "verifier_spec": None, "split": None,
    }  # fmt: skip
    assert (two["repo"], two["test_cmd"]) == (str(tmp_path / "other"), "make check")
    assert (two["hide"], two["metadata"]) == (["answers"], {"group": "g", "n": [1]})
    assert json.loads(two["verifier_spec"])["files"] == {"a.py": "ü"}
    assert three["test_cmd"] is None
    assert [suite.has_tests(task) for task in read.tasks] == [True, True, False]
    assert suite.load_suite(tmp_path).tasks == read.tasks


def test_what_is_written_elsewhere_reads_the_same(tmp_path: Path) -> None:
    read = suite.load_suite(given(tmp_path, GOOD))
    path = suite.write_suite(suite.Suite("mine", read.tasks, tmp_path / "deep" / "er" / "train.json"))
    assert suite.load_suite(path).tasks == read.tasks
    again = suite.write_suite(replace(suite.load_suite(path), path=tmp_path / "deep" / "er" / "again.json"))
    assert again.read_bytes() == path.read_bytes()
    assert '"repo": "../../code"' in path.read_text()
    one = suite.write_suite(suite.Suite("m", read.tasks[:1], tmp_path / "one.json", "what it is", "test"))
    assert [(task["suite"], task["split"]) for task in suite.load_suite(one).tasks] == [("m", "test")]
    assert suite.load_suite(one).description == "what it is"


def test_a_suite_inside_of_its_repo_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a")
    content = {**GOOD, "defaults": {"repo": ".", "hide": []}, "tasks": GOOD["tasks"][:1]}
    (task,) = suite.load_suite(given(tmp_path, content)).tasks
    assert list(list_files(Path(task["repo"]), task["hide"])) == ["a.py"]


def changed(**more: Any) -> dict[str, Any]:
    return {**GOOD, **more}


def task(**more: Any) -> dict[str, Any]:
    return changed(tasks=[{"task_id": "one", "goal": "g", **more}])


BAD: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "is not a task suite"),
    "half a character": ('{"name": "\\ud800"}', "is not a task suite"),
    "deep": ("[" * 99999, "is not a task suite"),
    "strange": (changed(task=[]), "unknown field `task`"),
    "split": (changed(split="dev"), r"'dev' - at `\$.split`"),
    "no tasks": (changed(tasks=[]), r"at `\$.tasks`"),
    "twice": (changed(tasks=GOOD["tasks"][:1] * 2), "has `one` twice"),
    "id path": (task(task_id="../x"), r"at `\$.tasks\[0\].task_id`"),
    "id line": (task(task_id="x\n"), r"at `\$.tasks\[0\].task_id`"),
    "key": (task(tests="x"), "unknown field `tests`"),
    "no repo": (changed(defaults={}), "Task `one` of .* has no `repo`"),
    "repo": (task(repo="nowhere"), "nowhere` does not exist"),
    "hide": (task(hide="answers"), r"at `\$.tasks\[0\].hide`"),
    "negated": (task(hide=["!a"]), r"at `\$.tasks\[0\].hide\[0\]`"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_suite_is_one_sentence(tmp_path: Path, name: str) -> None:
    content, said = BAD[name]
    with pytest.raises(SourceError, match=said) as caught:
        suite.load_suite(given(tmp_path, content))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


def test_a_path_without_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="give a suite's JSON file"):
        suite.load_suite(tmp_path / "none.json")
    (tmp_path / "latin.json").write_bytes(b'{"name": "\xff"}')
    with pytest.raises(SourceError, match="is not a task suite"):
        suite.load_suite(tmp_path / "latin.json")
