"""Tests of a task: by spec, else by command, with the original test files."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pimono_sdpo.agent.task_tests import TaskTests, run_tests, stabilize
from rewards.verifiers import tests

BUGGY, FIXED = "def double(n):\n    return n + n + 1\n", "def double(n):\n    return 2 * n\n"
TEST = "from double import double\n\ndef test_double():\n    assert double(2) == 4\n"
COMMAND = "python -m pytest -q tests/test_double.py"
SPEC = {
    "files": {"double.py": BUGGY},
    "tests": {"kind": "value", "module": "double.py", "entry": "double", "seconds": 2,
              "cases": [{"args": [2], "expected": 4}, {"args": [0], "expected": 0}]},
}  # fmt: skip


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    files = {
        "double.py": BUGGY, "tests/test_double.py": TEST, "tests/helper.py": "",
        "answers/double.py": FIXED, "conftest.py": "import sys\nsys.path.insert(0, '.')\n",
    }  # fmt: skip
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def task_of(repo: Path, **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"task_id": "t", "repo": str(repo), "hide": ["answers"], "metadata": {},
             "test_cmd": None, "verifier_spec": None}  # fmt: skip
    return {**given, **more}


def left(**written: str) -> dict[str, bytes]:
    """What an agent wrote, by path with `__` for a slash and `_py` for its ending."""
    paths = {name: name.replace("__", "/").replace("_py", ".py") for name in written}
    return {paths[name]: text.encode() for name, text in written.items()}


@pytest.mark.parametrize("how", ["spec", "command"])
def test_the_fix_passes_the_bug_fails_and_tests_stay_as_they_are(repo: Path, how: str) -> None:
    more = {"verifier_spec": json.dumps(SPEC)} if how == "spec" else {"test_cmd": COMMAND}
    task = task_of(repo, **more)
    fixed = run_tests(task, left(double_py=FIXED))
    assert (fixed.ok, fixed.error) == (True, None), fixed
    assert fixed.output.endswith("2 of 2 tests pass." if how == "spec" else "1 passed in 0.00s")
    untouched = run_tests(task, left())
    assert untouched.ok is False
    assert "5" in untouched.output
    assert run_tests(task, {}) == untouched
    cheated = left(conftest_py="import os\nos._exit(0)\n",
        **{"tests__test_double_py": "def test_double():\n    pass\n",
           "tests__helper_py": "import os\nos._exit(0)\n", "sitecustomize_py": "import os\nos._exit(0)\n"},
    )  # fmt: skip
    assert run_tests(task, cheated).ok is False
    helper = "from parts import two\ndef double(n):\n    return two() * n\n"
    split = left(double_py=helper, parts_py="def two():\n    return 2\n")
    assert run_tests(task, split).ok is True


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"verifier_spec": json.dumps(SPEC)}, "def double(n):\n    while n: pass\n    return 0\n"),
        ({"test_cmd": "python double.py", "metadata": {"seconds": 0.5}}, "while True: pass\n"),
    ],
)
def test_a_program_that_hangs_is_stopped_by_cpu_time(repo: Path, more: dict[str, Any], text: str) -> None:
    ran = run_tests(task_of(repo, **more), left(double_py=text))
    assert (ran.ok, ran.error) == (False, None)
    assert "used up its CPU time" in ran.output


def test_the_answer_cannot_read_what_is_hidden(repo: Path) -> None:
    steals = "from answers.double import double\n"
    for more in ({"verifier_spec": json.dumps(SPEC)}, {"test_cmd": COMMAND}):
        task = task_of(repo, **more)
        ran = run_tests(task, left(double_py=steals))
        assert ran.ok is False
        assert "No module named 'answers'" in ran.output


def test_hidden_tests_are_there_when_they_run(repo: Path) -> None:
    for metadata in ({}, {"test_files": ["/tests", "conftest.py"]}):
        task = task_of(repo, test_cmd=COMMAND, hide=["answers", "tests"], metadata=metadata)
        assert run_tests(task, left(double_py=FIXED)).ok is True


def test_what_is_removed_is_missing_and_what_is_not_allowed_does_not_count(repo: Path) -> None:
    assert run_tests(task_of(repo, verifier_spec=json.dumps(SPEC)), {"double.py": None}).ok is False
    task = task_of(repo, verifier_spec=json.dumps({**SPEC, "allowed": ["other.py"]}))
    assert run_tests(task, left(double_py=FIXED)).ok is False


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, "the task has no tests"),
        ({"verifier_spec": '{"files": {}}'}, "has no `tests`"),
        ({"verifier_spec": '{"tests": {"kind": "odd"}}'}, "Invalid value 'odd' - at `$.kind`"),
        ({"test_cmd": "no-such-program --test"}, "the sandbox has no no-such-program"),
        ({"test_cmd": "true", "metadata": {"test_files": "tests"}}, "got `str` - at `$.test_files`"),
    ],
)
def test_a_failure_that_is_not_the_agents_is_an_error(repo: Path, more: dict[str, Any], why: str) -> None:
    task = task_of(repo, **more)
    ran = run_tests(task, left())
    assert ran.ok is None
    assert ran.error is not None
    assert why in ran.error


def test_an_answer_cannot_pass_for_a_missing_program(repo: Path) -> None:
    task = task_of(repo, test_cmd="python double.py")
    for code in (126, 127):
        ends = f"print('No module named pytest')\nraise SystemExit({code})\n"
        assert run_tests(task, left(double_py=ends)).ok is False


def test_an_answer_cannot_take_the_place_of_hidden_tests(repo: Path) -> None:
    task = task_of(repo, test_cmd=COMMAND, hide=["answers", "tests"])
    assert run_tests(task, left(double_py=FIXED, tests="a file")).ok is True


def test_output_is_the_same_every_time() -> None:
    said = "FAILED /tmp/sandbox-ab12/work/t.py <C object at 0x7fdeadbeef00>\n1 failed in 63.20s (0:01:03)"
    assert stabilize(said) == "FAILED /work/t.py <C object at 0x0>\n1 failed in 0.00s"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("pytest_py", "raise SystemExit(0)\n", "`pytest.py` would be imported"),
        ("json_py", "import os\nos._exit(0)\n", "`json.py` would be imported"),
        ("double_py", "import os\nos._exit(0)\n", "pytest ended before"),
    ],
)
def test_a_cheap_trick_does_not_pass_a_command(repo: Path, name: str, text: str, said: str) -> None:
    task = task_of(repo, test_cmd=COMMAND)
    judged = run_tests(task, left(**{name: text}))
    assert judged.ok is False
    assert judged.output.startswith(said)


def test_a_module_that_the_repo_had_may_be_mended(repo: Path) -> None:
    (repo / "types.py").write_text("x = 1\n")
    task = task_of(repo, test_cmd="python double.py")
    assert run_tests(task, left(types_py="x = 2\n")).ok is not None


def test_whatever_a_test_run_raises_is_the_error_of_one_rollout(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise SystemError("AST constructor recursion depth mismatch")

    task = task_of(repo, verifier_spec=json.dumps(SPEC))
    monkeypatch.setattr(tests, "verify_candidate", broken)
    result = asyncio.run(TaskTests(None).test(task, left(double_py=FIXED)))
    assert result.ok is None
    assert result.error == "SystemError: AST constructor recursion depth mismatch"
