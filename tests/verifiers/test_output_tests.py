"""Programs are tested by their output."""

from typing import Any

import pytest

from rewards.verifiers.rubric import VerifierResult
from rewards.verifiers.tests import verify
from tests.verifiers.programs import writing

SUMS = "import sys\nfor line in sys.stdin:\n    print(sum(map(int, line.split())))\n"
CASES = [{"stdin": "1 2\n3\n", "expected": "3\n3"}, {"stdin": "", "expected": ""}]


def run_tests(program: str, cases: list[dict[str, Any]], **more: Any) -> VerifierResult:
    tests = {"kind": "output", "module": "work/main.py", "cases": cases, "seconds": 2, **more}
    files = {"work/main.py": "", "work/beside.py": "ONE = 1\n"}
    return verify(writing(program), {"files": files, "tests": tests})


def test_the_right_program_passes() -> None:
    assert run_tests(SUMS, CASES).status == "passed"
    assert (
        run_tests(
            "import sys, beside\nprint(sys.argv[1:], beside.ONE)\n",
            [{"args": ["a", "b c"], "expected": "['a', 'b c'] 1"}],
        ).status
        == "passed"
    )
    assert run_tests("print('3 \\n\\n')\n", [{"expected": "3"}]).status == "passed"


@pytest.mark.parametrize(
    ("program", "category", "feedback"),
    [(SUMS.replace("sum", "max"), "test_or_assertion", "prints '2\\n3', expected '3\\n3'"),
     ("print(input()\n", "runtime_exception", "SyntaxError"),
     ("input()\n", "runtime_exception", "ends with exit code 1. EOFError"),
     ("print('3\\n3')\nraise SystemExit(2)\n", "runtime_exception", "exit code 2"),
     ("import os\nprint('3\\n3', flush=True)\nos.kill(os.getpid(), 9)\n", "runtime_exception", "signal 9"),
     ("while True: pass\n", "timeout", "used up its CPU time")],
)  # fmt: skip
def test_other_programs_fail_with_feedback(program: str, category: str, feedback: str) -> None:
    result = run_tests(program, CASES)
    assert (result.status, result.category) == ("failed", category), result
    assert feedback in result.feedback


def test_invalid_tests_are_refused() -> None:
    for cases in ([], [{"stdin": "x"}]):
        with pytest.raises(ValueError, match=r"at `\$\.cases|missing required field `expected`"):
            run_tests(SUMS, cases)
