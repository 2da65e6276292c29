"""Correct programs pass, buggy ones fail, hanging ones are stopped, and the feedback has the reason."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rewards.sandbox import Limits, Ran, Server
from rewards.verifiers import tests
from rewards.verifiers.outcomes import matches_exception
from rewards.verifiers.tests import in_server, is_same, verify
from tests.verifiers.programs import PROGRAMS, Program, case, spec_of, writing


def run_tests(content: str, cases: list[dict[str, Any]], **more: Any) -> Any:
    return verify(writing(content), spec_of(Program("", "", cases, more)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_correct_program_passes(name: str) -> None:
    program = PROGRAMS[name]
    spec = spec_of(program)
    spec["tests"]["seconds"] = 10
    result = verify(writing(program.correct), spec)
    assert (result.status, result.score) == ("passed", 1.0), result
    assert result.metrics == {"tests": len(program.cases), "passed": len(program.cases)}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(imports=tests.IMPORTS) as running:
        yield running


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_buggy_program_fails(name: str, server: Server) -> None:
    def python(*given: Any, limits: Limits, **more: Any) -> Ran:
        # 0 is 15 seconds, which one program would wait for.
        limits = replace(limits, wall_seconds=2 if name == "sleeping" else 0)
        return in_server(server)(*given, limits=limits, **more)

    program = PROGRAMS[name]
    result = verify(writing(program.buggy), spec_of(program), python)
    assert result.status == "failed", result
    assert result.score is not None
    assert result.score < 1
    expected = {
        "hanging": "timeout", "sleeping": "timeout", "recursing": "runtime_exception",
        "generator": "runtime_exception", "generator_without_end": "runtime_exception",
        "floats": "timeout",
    }  # fmt: skip
    assert result.category == expected.get(name, "test_or_assertion")


def test_a_hang_ends_the_run_and_keeps_the_credit_of_earlier_cases() -> None:
    result = run_tests(
        "def f(x):\n    while x == 2: pass\n    return x\n", [case(n, gives=n) for n in range(4)], seconds=1
    )
    assert (result.category, result.score) == ("timeout", 0.5)
    assert result.feedback == "2 of 4 tests pass. f(2) used up its CPU time"


def test_feedback_is_the_first_error_with_its_line() -> None:
    source = "def f(x):\n    if x > 1:\n        return [][x]\n    return 0\n"
    result = run_tests(source, [case(1, gives=9), case(2, gives=2), case(3, gives=3)])
    assert result.feedback == (
        "0 of 3 tests pass. f(2) raises IndexError: list index out of range\n  work/main.py:3: return [][x]"
    )


def test_feedback_is_the_shortest_failing_cases_and_capped() -> None:
    cases = [case("x" * n, gives=n) for n in (9000, 3, 500, 1, 2)]
    result = run_tests("def f(x):\n    return x * 2\n", cases)
    assert result.feedback.startswith("0 of 5 tests pass. f('x') returns 'xx', expected 1\nf('xx') returns")
    assert "x" * 400 not in result.feedback
    assert len(run_tests("def f(x):\n    raise ValueError('y' * 10**6)\n", cases).feedback) <= 1200


def test_a_module_that_does_not_load_fails_every_case() -> None:
    result = run_tests("import nothing_like_it\n", [case(1, gives=1), case(2, gives=2)])
    assert (result.status, result.score, result.category) == ("failed", 0.0, "runtime_exception")
    assert "importing work/main.py raises ModuleNotFoundError" in result.feedback


def test_modules_of_the_package_can_be_imported() -> None:
    spec = spec_of(PROGRAMS["sleeping"])
    spec["files"] |= {"work/__init__.py": "", "work/sign.py": "def minus(x):\n    return -x\n"}
    for line in ("from . import sign", "from work import sign", "import sign"):
        result = verify(writing(f"{line}\ndef f(x):\n    return sign.minus(x)\n"), spec)
        assert result.status == "passed", result


IN = "def f(x):\n    return g(x)\n"
OUT = "def g(x):\n    return x + 1\n"


@pytest.mark.parametrize("root", ["", "src/"])
@pytest.mark.parametrize("package", ["from .core import f\n", "", None])
@pytest.mark.parametrize("line", ["from .util import g", "from pkg.util import g", "import pkg.util; g = pkg.util.g"])
def test_a_package_is_imported_as_python_would(root: str, package: str | None, line: str) -> None:
    files = {f"{root}pkg/core.py": f"{line}\n{IN}", f"{root}pkg/util.py": "def g(x): pass\n"}
    files |= {} if package is None else {f"{root}pkg/__init__.py": package}
    spec = spec_of(Program("", "", [case(1, gives=2)], {"module": f"{root}pkg/core.py"}))
    result = verify(writing(OUT, f"{root}pkg/util.py"), {**spec, "files": files})
    assert result.status == "passed", result
    result = verify(writing(OUT.replace("1", "2"), f"{root}pkg/util.py"), {**spec, "files": files})
    assert result.status == "failed", result


@pytest.mark.parametrize("module", ["json.py", "string.py", "src/re.py", "email/__init__.py"])
def test_a_module_may_have_the_name_of_a_standard_one(module: str) -> None:
    spec = spec_of(Program("", "", [case(1, gives=2)], {"module": module}))
    source = OUT.replace("g(", "f(")
    assert verify(writing(source, module), {**spec, "files": {module: ""}}).status == "passed"


RAISES = "class A(Exception): pass\nclass B(A, ValueError): pass\nclass M(type):\n    __mro__ = __name__ = 'KeyError'\nclass Both(ValueError, KeyError, TypeError): pass\n"


@pytest.mark.parametrize(
    ("expected", "source", "status"),
    [("ValueError", "import json\ndef f(x): json.loads('{')\n", "passed"),
     ("LookupError", "def f(x): return {}[x]\n", "passed"), ("OSError", "def f(x): open('/no')\n", "passed"),
     ("A", f"{RAISES}def f(x): raise B\n", "passed"), ("B", f"{RAISES}def f(x): raise B\n", "passed"),
     ("ValueError", f"{RAISES}def f(x): raise B\n", "passed"), ("B", f"{RAISES}def f(x): raise A\n", "failed"),
     ("ValueError", "def f(x): raise Exception\n", "failed"), ("KeyError", "def f(x): raise LookupError\n", "failed"),
     ("Exception", "def f(x): return y\n", "failed"), ("RuntimeError", "def f(x): raise NotImplementedError\n", "failed"),
     ("RuntimeError", "def f(x): return f(x)\n", "failed"), ("TypeError", f"{RAISES}def f(x): raise Both\n", "failed"),
     ("NotImplementedError", "class N(NotImplementedError): pass\ndef f(x): raise N\n", "passed")],
)  # fmt: skip
def test_an_exception_counts_as_its_bases(expected: str, source: str, status: str) -> None:
    result = run_tests(source, [{"args": [1], "raises": expected}])
    assert result.status == status, result


@pytest.mark.parametrize(
    ("error", "bases", "expected"),
    [("X", ["ValueError", "KeyError"], "KeyError"), ("X", "KeyError", "KeyError"), ("X", [["KeyError"]], "KeyError"),
     (["KeyError"], None, "KeyError"), ("X", ["Y"] * 9 + ["KeyError"], "KeyError")],
)  # fmt: skip
def test_bases_reported_by_the_sandbox_are_not_trusted(error: Any, bases: Any, expected: str) -> None:
    assert not matches_exception({"error": error, "bases": bases}, expected)


@pytest.mark.parametrize("value", [5.6e-17, -1e-10, 0, 0.0])
def test_values_near_zero_equal_zero(value: float) -> None:
    assert is_same([value], [0.0])


@pytest.mark.parametrize(
    ("value", "expected"),
    [(True, 1), (1, True), (0, False), (None, 0), ("1", 1), ([1], 1), ([], {}), (math.nan, math.nan),
     ([1, 2], [1]), ({"a": 1}, {"a": 1, "b": 1}), (1.1, 1), (1e-8, 0.0),
     (1e-17, 0), (0.0, 6.6e-34), (False, 0.0), (10**400, 1.0), (1e300, 10**400)],
)  # fmt: skip
def test_other_values_are_not_the_same(value: Any, expected: Any) -> None:
    assert not is_same(value, expected)


@pytest.mark.parametrize("value", [1, 2.0, True, None, "a", [1, [2.5]], {"a": [None]}, math.inf, 10**400])
def test_equal_values_are_the_same(value: Any) -> None:
    assert is_same(value, value)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("collections.UserList([1, 2])", [1, 2]), ("collections.OrderedDict.fromkeys([1, 2]).keys()", [1, 2]),
        ("array.array('i', [1, 2])", [1, 2]), ("collections.ChainMap({'a': 1})", {"a": 1}),
        ("types.MappingProxyType({'a': (1, 2)})", {"a": [1, 2]}), ("collections.UserString('ab')", "ab"),
        ("fractions.Fraction(6, 2)", 3), ("fractions.Fraction(1, 2)", 0.5), ("decimal.Decimal('0.5')", 0.5),
    ],
)  # fmt: skip
def test_a_value_may_have_any_type_that_is_equal_in_python(line: str, expected: Any) -> None:
    source = f"import array, collections, decimal, fractions, types\ndef f(x):\n    return {line}\n"
    result = run_tests(source, [case(1, gives=expected), case(1, gives=[expected, 1])])
    assert result.metrics == {"tests": 2, "passed": 1}


@pytest.mark.parametrize("tests_", [{"kind": "value"}, {"kind": "other"}, {}])
def test_invalid_tests_are_refused(tests_: dict[str, Any]) -> None:
    spec = {**spec_of(PROGRAMS["floats"]), "tests": {"module": "work/main.py", "entry": "f", "cases": [], **tests_}}
    with pytest.raises(ValueError, match=r"cases|kind"):
        verify(writing("def f(x): pass\n"), spec)


def test_no_tests_are_skipped_and_no_candidate_fails() -> None:
    spec = spec_of(PROGRAMS["floats"])
    assert verify("I would sort it.", spec).category == "malformed_output"
    assert verify(writing("x = 1\n"), {"files": spec["files"]}).status == "skipped"


def test_a_machine_without_sandbox_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewards.sandbox.find_problem", lambda: "no Landlock")
    tests._start_server.cache_clear()  # a running interpreter would be used again
    result = verify(writing("def f(x):\n    return x\n"), spec_of(PROGRAMS["floats"]))
    assert (result.status, result.score) == ("error", None)
    assert "the sandbox does not work on this machine" in result.feedback
