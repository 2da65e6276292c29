"""Pytest in the sandbox: honest answers pass, and attempts to deceive pytest are refused or ineffective."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rewards.verifiers import pytest_tests
from rewards.verifiers.pytest_tests import find_offence, refused_file
from rewards.verifiers.rubric import BadSpec
from rewards.verifiers.tests import verify
from tests.verifiers import cheats
from tests.verifiers.programs import writing


def spec_of(**more: Any) -> dict[str, Any]:
    tests = {"kind": "pytest", "files": {cheats.TEST_PATH: cheats.TEST}, "passes": cheats.NODES, "needs": ["work/*"]}
    files = {
        cheats.MAIN: cheats.SORTS, "answers/main.py": cheats.CORRECT,
        "cases.json": json.dumps(cheats.CASES),
    }  # fmt: skip
    return {
        "files": files, "allowed": ["*"], "locked": [],
        "tests": {**tests, "seconds": 5, **more},
    }  # fmt: skip


def test_the_correct_program_passes() -> None:
    result = verify(writing(cheats.CORRECT), spec_of())
    assert (result.status, result.metrics) == ("passed", {"tests": 4, "passed": 4}), result


def test_the_buggy_program_fails_with_the_shortest_case() -> None:
    result = verify(writing(cheats.SORTS + "\n"), spec_of())
    assert (result.status, result.score, result.category) == ("failed", 0.5, "test_or_assertion")
    assert f"{cheats.NODES[2]}: assert [1, 2] == [1, 2, 2]" in result.feedback


@pytest.mark.parametrize("name", cheats.CHEATS)
def test_no_cheat_wins(name: str) -> None:
    path, content = cheats.CHEATS[name]
    result = verify(writing(content, path), spec_of())
    assert result.status == "failed", result


# Not screened: these must come to nothing by the way the tests are run.
UNSCREENED = ["os_exit", "os_exit_in_function", "print_and_exit", "system_exit", "skip_test", "xfail",
              "pytest_exit", "atexit_forge", "fork_and_exit", "writes_to_every_descriptor"]  # fmt: skip


@pytest.mark.parametrize("name", UNSCREENED)
def test_forged_reports_are_ignored_without_the_check_of_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest_tests, "find_refusal", lambda candidate, tests: None)
    result = verify(writing(cheats.CHEATS[name][1]), spec_of())
    assert result.status == "failed", result
    assert result.score is not None
    assert result.score <= 0.5


@pytest.mark.parametrize("name", ["os_exit", "skip_test", "always_equal", "patched_runtest"])
def test_pytest_without_these_checks_is_deceived(name: str, tmp_path: Path) -> None:
    for path, content in ((cheats.MAIN, cheats.CHEATS[name][1]), (cheats.TEST_PATH, cheats.TEST)):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).write_text(content)
    done = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0


def test_locked_files_cannot_be_read_by_default() -> None:
    spec = {**spec_of(), "allowed": [cheats.MAIN]}
    del spec["tests"]["needs"]
    result = verify(writing("from answers.main import f\n"), spec)
    assert (result.status, result.category) == ("failed", "runtime_exception"), result
    assert "No module named 'answers'" in result.feedback


def test_a_hang_is_a_timeout() -> None:
    result = verify(writing("def f(xs):\n    while xs: pass\n    return []\n"), spec_of(seconds=4))
    assert (result.category, result.score) == ("timeout", 0.25), result
    assert cheats.NODES[1] in result.feedback


def test_a_program_that_cannot_be_imported_gets_the_reason() -> None:
    result = verify(writing("import nothing_like_it\n"), spec_of())
    assert (result.category, result.score) == ("runtime_exception", 0.0), result
    assert "nothing_like_it" in result.feedback


def test_a_removed_test_has_not_passed() -> None:
    more = [*cheats.NODES, "tests/test_main.py::test_more"]
    result = verify(writing(cheats.CORRECT), spec_of(passes=more))
    assert (result.status, result.metrics["tests"]) == ("failed", 6.0)


@pytest.mark.parametrize("passes", [None, 4, []])
def test_tests_without_passes_are_an_error(passes: Any) -> None:
    with pytest.raises(BadSpec, match=r"`passes`|`array`, got `.*` - at `..passes`"):
        verify(writing(cheats.CORRECT), spec_of(passes=passes))


@pytest.mark.parametrize(
    "path", ["work", "tests", "x" * 300, "work/main.py/x.py", "a/" * 600 + "b", "work/half\ud800.py"]
)
def test_files_that_cannot_be_written_fail(path: str) -> None:
    result = verify(writing("x = 1\n", path), spec_of())
    assert result.status == "failed", result


@pytest.mark.parametrize(
    "source",
    ["import sys\nprint(sys.argv, sys.maxsize)", "x = getattr(y, 'name', None)", "import os.path",
     "class A:\n    def __init__(self): self.a = type(self)", "import re\nre.match('a', 'b')",
     "import collections, operator, functools, heapq, math, itertools, json, io, types",
     "import re\nWORD = re.compile('node')", "def f(input): return input + 1",
     "class A:\n    def __len__(self): return 1", "import io\nio.StringIO()", "model.eval()"],
)  # fmt: skip
def test_ordinary_code_is_allowed(source: str) -> None:
    assert find_offence("", source, ["tests/test_main.py", "node.py"]) is None
    assert refused_file("work/new.py", ["tests/test_main.py"]) is None


@pytest.mark.parametrize(
    ("source", "mark"),
    [("def g(eval): pass\neval('1')", "eval"), ("import random\nrandom._os", "_os"),
     ("import sys as s", "sys as s"), ("import sys\ns = sys", "sys"), ("from os import *", "os.*"),
     ("g = getattr", "getattr"), ("getattr(x, 'a' + 'b')", "getattr"), ("type('A', (), {})", "type"),
     ("x = 'a.f_locals'", "f_locals"), ("x = 'tests/test_main.py'", "test_main"),
     ("class A(metaclass=B): pass", "metaclass"), ("from operator import attrgetter", "attrgetter")],
)  # fmt: skip
def test_workarounds_are_found(source: str, mark: str) -> None:
    assert find_offence("", source, ["tests/test_main.py"]) == mark


def test_existing_names_are_allowed() -> None:
    assert find_offence("import gc", "import gc\nx = 1") is None
    assert find_offence("import gc", "import gc\nimport gc") == "gc"


@pytest.mark.parametrize("path", ["work/types.py", "work/node.py", "code/main.py", "README.md"])
def test_ordinary_files_are_not_refused(path: str) -> None:
    assert refused_file(path, ["tests/test_main.py", "node.py"], ["work/main.py", "code/a.py"]) is None


@pytest.mark.parametrize(
    "path", ["node.py", "node/__init__.py", "types.py", "code/__init__.py", "tests/random.py", "tests/node/x.py"]
)
def test_files_that_shadow_modules_are_refused(path: str) -> None:
    assert refused_file(path, ["tests/test_main.py", "node.py"], ["work/main.py"]) is not None
