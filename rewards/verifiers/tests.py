"""Run the task's tests on the files as the completion leaves them.

spec   as in `rewards.verifiers.candidate`, and `tests`, an object with `kind`, the entries of its
       kind below, and
       needs: globs of the files that the program needs beside those that were changed (default:
       the Python files below the top folder of the module, or of what may be written); `locked`
       files are never included, so that the answer cannot read expected values there
score  the share of the tests that pass; of an answer that passes all of them 0.9 to 1.0, by the
       share of the generated calls for which it gives the value of the reference

tests  kind: "value"; module: path of the file; entry: name of the function in it, dots allowed;
       cases: [{"args": [...], "kwargs": {...}, "expected": value}], or "raises": name of an
       exception instead of `expected`, a subclass counts as described in
       `rewards.verifiers.outcomes`; seconds: CPU seconds per case (default SECONDS)

tests  kind: "output"; module: path of the program; cases: [{"stdin": text, "args": [text, ...],
       "expected": text}]; seconds: CPU seconds per case (default SECONDS)

tests  kind: "recorded", as in `rewards.verifiers.recorded_tests`

tests  kind: "pytest", as in `rewards.verifiers.pytest_tests`

The answer sees inputs only. Values and output are compared outside the sandbox, by exact JSON type:
`true` is not 1, 2.0 is 2, NaN equals nothing; a float may be off by RELATIVE of it, from 0.0 by
ABSOLUTE. No object of the answer exists there, so none of its `__eq__` is ever called. What needs a
tolerance, any order or arguments that are changed in place is for the kind "recorded". White space
at the ends of printed lines and blank lines at the end do not count; a program that exits with
another code than 0 fails, whatever it printed. Only with the kind "pytest" the tests run beside the
answer; then a determined program can deceive them.
"""

import atexit
import dataclasses
import functools
import json
import math
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, Any

import msgspec

from pimono_sdpo.text import shorten
from rewards.sandbox import Limits, Ran, SandboxError, Server
from rewards.verifiers import pytest_tests, recorded_tests
from rewards.verifiers.answer import candidate_of
from rewards.verifiers.candidate import LOCKED, Candidate, Refusal, matches, refused_path
from rewards.verifiers.outcomes import (
    ENVIRONMENT,
    PASSED,
    UNKNOWN,
    VALUE_WORKER,
    WORKERS,
    Outcome,
    Python,
    counts_as,
    describe_ending,
    listed,
)
from rewards.verifiers.pytest_tests import PytestTests, Seconds
from rewards.verifiers.recorded_tests import RecordedTests
from rewards.verifiers.rubric import BadSpec, VerifierResult, error, failed, passed, skipped

NAME = "tests"
SECONDS = 10.0
OUTPUT = 8 << 20
GENERATED_SHARE = 0.1
# What answers often import, and what is cheap to fork: `threading` and pytest are not.
PLAIN_IMPORTS = tuple(
    "bisect collections copy ctypes dataclasses datetime decimal enum fractions functools heapq itertools "
    "json math operator re string typing".split()
)
IMPORTS = (*WORKERS, "rewards.verifiers.recorded.stubs", *PLAIN_IMPORTS)


class OutputCase(msgspec.Struct):
    """What a program is given, and what it must print."""

    expected: str
    stdin: str = ""
    args: list[str] = []


class ModuleTests(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What tests of one file have in common."""

    module: str
    seconds: Seconds = SECONDS
    needs: list[str] | msgspec.UnsetType = msgspec.UNSET


class OutputTests(ModuleTests, tag_field="kind", tag="output", kw_only=True):
    """Tests of a program by what it prints."""

    cases: Annotated[list[OutputCase], msgspec.Meta(min_length=1)]


class ValueCase(msgspec.Struct):
    """The arguments of a call, and the value that it must return or the exception it must raise."""

    args: list[Any]
    kwargs: dict[str, Any] = {}
    expected: Any = msgspec.UNSET
    raises: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if (self.expected is msgspec.UNSET) == (self.raises is msgspec.UNSET):
            raise ValueError("a case needs either `expected` or `raises`")


class ValueTests(ModuleTests, tag_field="kind", tag="value", kw_only=True):
    """Tests of a function by what it returns or raises."""

    entry: str
    cases: Annotated[list[ValueCase], msgspec.Meta(min_length=1)]


Tests = ValueTests | OutputTests | RecordedTests | PytestTests


def check_tests(spec: Mapping[str, Any]) -> Tests:
    """Return the tests of a spec; raises BadSpec when they cannot be run."""
    try:
        tests: Tests = msgspec.convert(spec["tests"], Tests)
    except msgspec.ValidationError as wrong:
        raise BadSpec(f"The `tests` of the spec cannot be run: {wrong}.") from wrong
    module = getattr(tests, "module", None)
    if module is not None and module not in spec["files"] and refused_path(module, spec):
        raise BadSpec(f"`module` of the tests is {module!r}, which is not a file and may not be created.")
    return tests


def verify(completion: str, spec: dict[str, Any], python: Python | None = None) -> VerifierResult:
    """Run the tests, without `python` in an interpreter that is started with the first call of this process.

    Partial credit is the share that passed. Raises BadSpec for a spec whose tests cannot be run.
    """
    if "tests" not in spec:
        return skipped(NAME, "The row has no tests.")
    try:
        return verify_candidate(candidate_of(completion, spec), spec, python)
    except Refusal as refused:
        check_tests(spec)
        return failed(NAME, "malformed_output", f"There is nothing to test. {refused}")
    except SandboxError as trouble:
        if python is None:
            _warm.cache_clear()  # the next call starts another one
        return error(NAME, str(trouble))


def verify_candidate(candidate: Candidate, spec: Mapping[str, Any], python: Python | None = None) -> VerifierResult:
    """Run the tests on a candidate, as `verify` does; raises SandboxError when nothing could be run."""
    tests = check_tests(spec)
    if python is None:
        with _ONE_SERVER:
            python = _warm((VALUE_WORKER, *PLAIN_IMPORTS) if isinstance(tests, ModuleTests) else IMPORTS)
    if why := unwritable(candidate, getattr(tests, "files", {})):
        return failed(NAME, "malformed_output", why)
    files = _visible(candidate, spec, tests)
    match tests:
        case ValueTests():
            return verdict(verify_values(files, tests, python))
        case OutputTests():
            return verdict(verify_outputs(files, tests, python))
        case PytestTests():
            if why := pytest_tests.refusal(candidate, tests):
                return failed(NAME, "policy_block", why)
            return verdict(pytest_tests.verify_pytest(files, tests, python))
    found = verdict(recorded_tests.verify_recorded(files, tests, python))
    replies = recorded_tests.replies_to_generated(files, tests, python) if found.status == "passed" else []
    if not replies:
        return found
    alike = sum(
        same([one.get("refs"), one.get("table")], [other["refs"], other["table"]])
        for one, other in replies
        if "raised" not in one
    )
    counts = {"generated": float(len(replies)), "generated_alike": float(alike)}
    score = 1.0 - GENERATED_SHARE * (1.0 - alike / len(replies))
    return dataclasses.replace(found, score=score, metrics={**found.metrics, **counts})


def in_server(server: Server) -> Python:
    """Return what runs Python for many short runs in one warm interpreter, which has IMPORTS."""
    return functools.partial(server.run, env=ENVIRONMENT)


_ONE_SERVER = threading.Lock()


@functools.cache
def _warm(imports: tuple[str, ...]) -> Python:
    server = Server(imports)
    atexit.register(server.close)
    return in_server(server)


def _visible(candidate: Candidate, spec: Mapping[str, Any], tests: Tests) -> dict[str, str]:
    """Return the files that the program is given."""
    module = getattr(tests, "module", None)
    writable = [path for path in spec["files"] if refused_path(path, spec) is None]
    tops = {path.partition("/") for path in ([module] if module else writable)}
    needs = tests.needs
    if needs is msgspec.UNSET:
        needs = [f"{folder}/*.py" if sep else "*.py" for folder, sep, _ in tops]
    locked = spec.get("locked", LOCKED)
    return {
        path: text
        for path, text in candidate.files.items()
        if not matches(path, locked) and (path in candidate.changed or path == module or matches(path, needs))
    }


MAX_NAME, MAX_PATH = 255, 1000


def unwritable(candidate: Candidate, beside: Mapping[str, str]) -> str | None:
    """Say why the changed files cannot lie on a disk with those beside, None when they can."""
    parents = {str(parent) for path in (*candidate.files, *beside) for parent in PurePosixPath(path).parents}
    for path in filter(candidate.files.__contains__, candidate.changed):
        if re.search(r"[\ud800-\udfff]", path + candidate.files[path]):
            return f"The file {path!r} has half a character, which no file can hold."
        if len(path) > MAX_PATH or any(len(p.encode()) > MAX_NAME for p in path.split("/")):
            return "The path of a file is too long; choose a shorter one."
        above = map(str, PurePosixPath(path).parents)
        if str(PurePosixPath(path)) in parents or not candidate.files.keys().isdisjoint(above):
            return f"The file `{path}` has the name of a folder, or lies in what is a file; choose another name."
    return None


MAX_FEEDBACK = 1200
CASES_SHOWN = 3


def verdict(outcomes: Sequence[Outcome]) -> VerifierResult:
    """Sum up: the first runtime error, else the timeout, else the shortest failing cases."""
    good = sum(outcome == PASSED for outcome in outcomes)
    counts = {"tests": float(len(outcomes)), "passed": float(good)}
    if good == len(outcomes) > 0:
        return passed(NAME, **counts)
    for category in ("runtime_exception", "timeout", "test_or_assertion"):
        messages = [one.message for one in outcomes if one.kind == category and one.message]
        if messages:
            break
    shown = messages[:1] if category != "test_or_assertion" else sorted(messages, key=len)
    text = "\n".join(shown[:CASES_SHOWN])
    text = shorten(f"{good} of {len(outcomes)} tests pass. {text}", MAX_FEEDBACK)
    return failed(NAME, category, text, good / max(len(outcomes), 1), **counts)


def verify_outputs(files: Mapping[str, str], tests: OutputTests, python: Python) -> list[Outcome]:
    """Run the cases; one outcome each, unknown after one that hung, which does not count as passed."""
    limits = Limits(cpu_seconds=tests.seconds, output=OUTPUT)
    outcomes: list[Outcome] = []
    for case in tests.cases:
        ran = python([tests.module, *case.args], files=files, stdin=case.stdin.encode(), limits=limits)
        outcomes.append(_output_outcome(case, ran))
        if outcomes[-1].kind == "timeout":
            break
    return outcomes + [UNKNOWN] * (len(tests.cases) - len(outcomes))


def _output_outcome(case: OutputCase, ran: Ran) -> Outcome:
    given = f"With the input {listed(case.stdin)} the program"
    if case.args:
        given = f"With the arguments {json.dumps(case.args)} the program"
    if ran.stopped or ran.signal:
        return describe_ending(ran, given)
    if ran.exit_code != 0:
        last = ran.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return Outcome("runtime_exception", f"{given} ends with exit code {ran.exit_code}. {''.join(last)}")
    printed, expected = (
        [line.rstrip() for line in text.rstrip().splitlines()]
        for text in (ran.stdout.decode(errors="replace"), case.expected)
    )
    if printed == expected:
        return PASSED
    got, wanted = listed("\n".join(printed)), listed("\n".join(expected))
    return Outcome("test_or_assertion", f"{given} prints {got}, expected {wanted}")


CASES_AT_FULL_TIME = 6
RELATIVE = 1e-9
ABSOLUTE = 1e-9  # of 0.0 only: it would make 0.0 as good as any expected number below it


def verify_values(files: Mapping[str, str], tests: ValueTests, python: Python) -> list[Outcome]:
    """Run the cases; one outcome each, unknown after one that hung or ended the process."""
    cases = tests.cases
    job = {name: getattr(tests, name) for name in ("module", "entry", "seconds")}
    job["cases"] = [{"args": case.args, "kwargs": case.kwargs} for case in cases]
    limits = Limits(cpu_seconds=tests.seconds * min(len(cases) + 1, CASES_AT_FULL_TIME), output=OUTPUT)
    ran = python(["-m", VALUE_WORKER], files=files, stdin=json.dumps(job).encode(), limits=limits)
    first, *lines = _read_lines(ran.stdout) or [{}]
    if "ready" not in first:
        call = f"importing {tests.module}"
        outcomes = [_raised(first, call) if first else describe_ending(ran, call)]
    elif len(lines) > len(cases):
        outcomes = [Outcome("runtime_exception", "more results were written than there are cases")]
    else:
        outcomes = [_value_outcome(case, line, tests) for case, line in zip(cases, lines, strict=False)]
        if len(outcomes) < len(cases):
            outcomes.append(describe_ending(ran, _call(cases[len(outcomes)], tests)))
    return outcomes + [UNKNOWN] * (len(cases) - len(outcomes))


def same(value: Any, expected: Any) -> bool:
    """Whether two decoded JSON values are the same, type by type.

    >>> same([1, 2.0], [1.0, 2]), same(True, 1), same(math.nan, math.nan)
    (True, False, False)
    """
    if type(value) in (int, float) and type(expected) in (int, float):
        return _close(value, expected)
    if type(value) is not type(expected):
        return False
    if type(value) is list:
        return len(value) == len(expected) and all(map(same, value, expected))
    if type(value) is dict:
        return value.keys() == expected.keys() and all(same(value[key], expected[key]) for key in expected)
    return bool(value == expected)


def _close(value: float, expected: float) -> bool:
    near = 0.0 if expected else ABSOLUTE
    try:
        is_near = type(expected) is float and math.isclose(value, expected, rel_tol=RELATIVE, abs_tol=near)
    except OverflowError:  # an integer that no float holds
        is_near = False
    return value == expected or is_near


def _read_lines(stdout: bytes) -> list[dict[str, Any]]:
    """Decode the complete lines, up to the first that the worker cannot have written."""
    lines: list[dict[str, Any]] = []
    for text in stdout.split(b"\n")[:-1]:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):  # the candidate may have written it
            break
        if type(line) is not dict or len(line.keys() & {"ready", "value", "error"}) != 1:
            break
        lines.append(line)
    return lines


def _value_outcome(case: ValueCase, line: dict[str, Any], tests: ValueTests) -> Outcome:
    call = _call(case, tests)
    if "error" in line:
        if case.raises is not msgspec.UNSET and counts_as(line, case.raises):
            return PASSED
        return _raised(line, call)
    if "value" not in line:
        return Outcome("runtime_exception", f"{call} wrote no value")
    got = listed(line["value"])
    if case.raises is not msgspec.UNSET:
        return Outcome("test_or_assertion", f"{call} gives {got}, not {case.raises}")
    if same(line["value"], case.expected):
        return PASSED
    return Outcome("test_or_assertion", f"{call} gives {got}, expected {listed(case.expected)}")


def _raised(line: Mapping[str, Any], call: str) -> Outcome:
    where = f"\n  {line['where']}" if line.get("where") else ""
    return Outcome("runtime_exception", f"{call} raises {line.get('error')}: {line.get('message', '')}{where}")


def _call(case: ValueCase, tests: ValueTests) -> str:
    given = [listed(one) for one in case.args]
    given += [f"{name}={listed(one)}" for name, one in case.kwargs.items()]
    return f"{tests.entry}({', '.join(given)})"
