"""Run the task's tests on the files as the completion leaves them.

spec   as in `rewards.verifiers.candidate`, and `tests`, an object with `kind`, the entries of its
       kind below, and
       needs: globs of the files that the program needs in addition to the changed files (default:
       the Python files below the top folder of the module, or of the files that may be written);
       `locked` files are never included, so that the answer cannot read expected values there
score  the share of the tests that pass; for an answer that passes all of them 0.9 to 1.0, by the
       share of the generated calls for which it returns the same value as the reference

tests  kind: "value"; module: path of the file; entry: name of the function in it, dots allowed;
       cases: [{"args": [...], "kwargs": {...}, "expected": value}], or "raises": name of an
       exception instead of `expected`, a subclass counts as described in
       `rewards.verifiers.outcomes`; seconds: CPU seconds per case (default SECONDS)

tests  kind: "output"; module: path of the program; cases: [{"stdin": text, "args": [text, ...],
       "expected": text}]; seconds: CPU seconds per case (default SECONDS)

tests  kind: "recorded", as in `rewards.verifiers.recorded_tests`

tests  kind: "pytest", as in `rewards.verifiers.pytest_tests`

The answer receives inputs only. Values and output are compared outside the sandbox, by exact JSON
type: `true` is not 1, 2.0 is 2, NaN is equal to nothing. A float may differ by the relative tolerance
RELATIVE, from 0.0 by ABSOLUTE. Objects of the answer stay in the sandbox, so its `__eq__` methods are
never called. Use the kind "recorded" for tolerances, results in any order, or arguments that are
changed in place. Trailing white space in printed lines and blank lines at the end do not count; a
program that does not exit with code 0 fails, whatever it printed. Only with the kind "pytest" do the
tests run in one process with the answer, where a determined program can deceive them.
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
from rewards.verifiers.answer import read_candidate
from rewards.verifiers.candidate import LOCKED, Candidate, Refusal, matches, refused_path
from rewards.verifiers.outcomes import (
    ENVIRONMENT,
    PASSED,
    UNKNOWN,
    VALUE_WORKER,
    WORKERS,
    Outcome,
    Python,
    describe_ending,
    format_value,
    matches_exception,
)
from rewards.verifiers.pytest_tests import PytestTests, Seconds
from rewards.verifiers.recorded_tests import RecordedTests
from rewards.verifiers.rubric import BadSpec, VerifierResult, error, failed, passed, skipped

NAME = "tests"
SECONDS = 10.0
OUTPUT = 8 << 20
GENERATED_SHARE = 0.1
# Modules that answers often import and that are cheap to fork; `threading` and pytest are not.
PLAIN_IMPORTS = tuple(
    "bisect collections copy ctypes dataclasses datetime decimal enum fractions functools heapq itertools "
    "json math operator re string typing".split()
)
IMPORTS = (*WORKERS, "rewards.verifiers.recorded.stubs", *PLAIN_IMPORTS)


class OutputCase(msgspec.Struct):
    """The input of a program, and the output that it must print."""

    expected: str
    stdin: str = ""
    args: list[str] = []


class ModuleTests(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The common entries of tests of one file."""

    module: str
    seconds: Seconds = SECONDS
    needs: list[str] | msgspec.UnsetType = msgspec.UNSET


class OutputTests(ModuleTests, tag_field="kind", tag="output", kw_only=True):
    """Tests of a program by its output."""

    cases: Annotated[list[OutputCase], msgspec.Meta(min_length=1)]


class ValueCase(msgspec.Struct):
    """The arguments of a call, and the value it must return or the exception it must raise."""

    args: list[Any]
    kwargs: dict[str, Any] = {}
    expected: Any = msgspec.UNSET
    raises: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if (self.expected is msgspec.UNSET) == (self.raises is msgspec.UNSET):
            raise ValueError("a case needs either `expected` or `raises`")


class ValueTests(ModuleTests, tag_field="kind", tag="value", kw_only=True):
    """Tests of a function by the values it returns and the exceptions it raises."""

    entry: str
    cases: Annotated[list[ValueCase], msgspec.Meta(min_length=1)]


Tests = ValueTests | OutputTests | RecordedTests | PytestTests


def check_tests(spec: Mapping[str, Any]) -> Tests:
    """Return the tests of a spec; raises BadSpec when they cannot be run."""
    try:
        tests: Tests = msgspec.convert(spec["tests"], Tests)
    except msgspec.ValidationError as error:
        raise BadSpec(f"The `tests` of the spec cannot be run: {error}.") from error
    module = getattr(tests, "module", None)
    if module is not None and module not in spec["files"] and refused_path(module, spec):
        raise BadSpec(f"`module` of the tests is {module!r}, which is not a file and may not be created.")
    return tests


def verify(completion: str, spec: dict[str, Any], python: Python | None = None) -> VerifierResult:
    """Run the tests. Without `python`, an interpreter is started once per process.

    Partial credit is the share of tests that pass. Raises BadSpec for a spec whose tests cannot be run.
    """
    if "tests" not in spec:
        return skipped(NAME, "The row has no tests.")
    try:
        return verify_candidate(read_candidate(completion, spec), spec, python)
    except Refusal as refused:
        check_tests(spec)
        return failed(NAME, "malformed_output", f"There is nothing to test. {refused}")
    except SandboxError as failure:
        if python is None:
            _start_server.cache_clear()  # the next call starts another one
        return error(NAME, str(failure))


def verify_candidate(candidate: Candidate, spec: Mapping[str, Any], python: Python | None = None) -> VerifierResult:
    """Run the tests on a candidate, as `verify` does; raises SandboxError when nothing could be run."""
    tests = check_tests(spec)
    if python is None:
        with _SERVER_LOCK:
            python = _start_server((VALUE_WORKER, *PLAIN_IMPORTS) if isinstance(tests, ModuleTests) else IMPORTS)
    if why := find_write_error(candidate, getattr(tests, "files", {})):
        return failed(NAME, "malformed_output", why)
    files = _select_files(candidate, spec, tests)
    match tests:
        case ValueTests():
            return summarize_outcomes(verify_values(files, tests, python))
        case OutputTests():
            return summarize_outcomes(verify_outputs(files, tests, python))
        case PytestTests():
            if why := pytest_tests.find_refusal(candidate, tests):
                return failed(NAME, "policy_block", why)
            return summarize_outcomes(pytest_tests.verify_pytest(files, tests, python))
    result = summarize_outcomes(recorded_tests.verify_recorded(files, tests, python))
    replies = recorded_tests.run_generated(files, tests, python) if result.status == "passed" else []
    if not replies:
        return result
    alike = sum(
        is_same([reply.get("refs"), reply.get("table")], [expected["refs"], expected["table"]])
        for reply, expected in replies
        if "raised" not in reply
    )
    counts = {"generated": float(len(replies)), "generated_alike": float(alike)}
    score = 1.0 - GENERATED_SHARE * (1.0 - alike / len(replies))
    return dataclasses.replace(result, score=score, metrics={**result.metrics, **counts})


def in_server(server: Server) -> Python:
    """Return a function that runs Python in a warm server, which should have imported IMPORTS."""
    return functools.partial(server.run, env=ENVIRONMENT)


_SERVER_LOCK = threading.Lock()


@functools.cache
def _start_server(imports: tuple[str, ...]) -> Python:
    server = Server(imports)
    atexit.register(server.close)
    return in_server(server)


def _select_files(candidate: Candidate, spec: Mapping[str, Any], tests: Tests) -> dict[str, str]:
    """Return the files that are copied into the sandbox."""
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


def find_write_error(candidate: Candidate, test_files: Mapping[str, str]) -> str | None:
    """Return why the changed files cannot be written to a disk with the tests' files, None if they can."""
    folders = {str(parent) for path in (*candidate.files, *test_files) for parent in PurePosixPath(path).parents}
    for path in filter(candidate.files.__contains__, candidate.changed):
        if re.search(r"[\ud800-\udfff]", path + candidate.files[path]):
            return f"The file {path!r} contains half of a surrogate pair, which cannot be written."
        if len(path) > MAX_PATH or any(len(p.encode()) > MAX_NAME for p in path.split("/")):
            return "The path of a file is too long; choose a shorter one."
        parents = map(str, PurePosixPath(path).parents)
        if str(PurePosixPath(path)) in folders or not candidate.files.keys().isdisjoint(parents):
            return f"The file `{path}` has the name of a folder, or its folder is a file; choose another name."
    return None


MAX_FEEDBACK = 1200
CASES_SHOWN = 3


def summarize_outcomes(outcomes: Sequence[Outcome]) -> VerifierResult:
    """Summarize outcomes; feedback is the first runtime error, else the first timeout, else the shortest failures."""
    passing = sum(outcome == PASSED for outcome in outcomes)
    counts = {"tests": float(len(outcomes)), "passed": float(passing)}
    if passing == len(outcomes) > 0:
        return passed(NAME, **counts)
    for category in ("runtime_exception", "timeout", "test_or_assertion"):
        messages = [outcome.message for outcome in outcomes if outcome.kind == category and outcome.message]
        if messages:
            break
    shown = messages[:1] if category != "test_or_assertion" else sorted(messages, key=len)[:CASES_SHOWN]
    text = shorten(f"{passing} of {len(outcomes)} tests pass. " + "\n".join(shown), MAX_FEEDBACK)
    return failed(NAME, category, text, passing / max(len(outcomes), 1), **counts)


def verify_outputs(files: Mapping[str, str], tests: OutputTests, python: Python) -> list[Outcome]:
    """Run the cases; one outcome each. After a timeout the remaining cases are unknown, so they do not pass."""
    limits = Limits(cpu_seconds=tests.seconds, output=OUTPUT)
    outcomes: list[Outcome] = []
    for case in tests.cases:
        ran = python([tests.module, *case.args], files=files, stdin=case.stdin.encode(), limits=limits)
        outcomes.append(_output_outcome(case, ran))
        if outcomes[-1].kind == "timeout":
            break
    return outcomes + [UNKNOWN] * (len(tests.cases) - len(outcomes))


def _output_outcome(case: OutputCase, ran: Ran) -> Outcome:
    program = f"With the input {format_value(case.stdin)} the program"
    if case.args:
        program = f"With the arguments {json.dumps(case.args)} the program"
    if ran.stopped or ran.signal:
        return describe_ending(ran, program)
    if ran.exit_code != 0:
        last = ran.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return Outcome("runtime_exception", f"{program} ends with exit code {ran.exit_code}. {''.join(last)}")
    printed, expected = (
        [line.rstrip() for line in text.rstrip().splitlines()]
        for text in (ran.stdout.decode(errors="replace"), case.expected)
    )
    if printed == expected:
        return PASSED
    actual, wanted = format_value("\n".join(printed)), format_value("\n".join(expected))
    return Outcome("test_or_assertion", f"{program} prints {actual}, expected {wanted}")


CASES_AT_FULL_TIME = 6
RELATIVE = 1e-9
ABSOLUTE = 1e-9  # only if 0.0 is expected; otherwise 0.0 would pass for any smaller expected number


def verify_values(files: Mapping[str, str], tests: ValueTests, python: Python) -> list[Outcome]:
    """Run the cases; one outcome each. After a timeout or a crash the remaining cases are unknown."""
    cases = tests.cases
    job = {name: getattr(tests, name) for name in ("module", "entry", "seconds")}
    job["cases"] = [{"args": case.args, "kwargs": case.kwargs} for case in cases]
    limits = Limits(cpu_seconds=tests.seconds * min(len(cases) + 1, CASES_AT_FULL_TIME), output=OUTPUT)
    ran = python(["-m", VALUE_WORKER], files=files, stdin=json.dumps(job).encode(), limits=limits)
    first, *lines = _read_lines(ran.stdout) or [{}]
    if "ready" not in first:
        call = f"importing {tests.module}"
        outcomes = [_exception_outcome(first, call) if first else describe_ending(ran, call)]
    elif len(lines) > len(cases):
        outcomes = [Outcome("runtime_exception", "more results were written than there are cases")]
    else:
        outcomes = [_value_outcome(case, line, tests) for case, line in zip(cases, lines, strict=False)]
        if len(outcomes) < len(cases):
            outcomes.append(describe_ending(ran, _format_call(cases[len(outcomes)], tests)))
    return outcomes + [UNKNOWN] * (len(cases) - len(outcomes))


def is_same(value: Any, expected: Any) -> bool:
    """Whether two decoded JSON values are equal, including their types.

    >>> is_same([1, 2.0], [1.0, 2]), is_same(True, 1), is_same(math.nan, math.nan)
    (True, False, False)
    """
    if type(value) in (int, float) and type(expected) in (int, float):
        if value == expected or type(expected) is not float:
            return bool(value == expected)
        try:
            return math.isclose(value, expected, rel_tol=RELATIVE, abs_tol=0.0 if expected else ABSOLUTE)
        except OverflowError:  # an integer too large for a float
            return False
    if type(value) is not type(expected):
        return False
    if type(value) is list:
        return len(value) == len(expected) and all(map(is_same, value, expected))
    if type(value) is dict:
        return value.keys() == expected.keys() and all(is_same(value[key], expected[key]) for key in expected)
    return bool(value == expected)


def _read_lines(stdout: bytes) -> list[dict[str, Any]]:
    """Decode the complete lines, up to the first one that is not from the worker."""
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
    call = _format_call(case, tests)
    if "error" in line:
        if case.raises is not msgspec.UNSET and matches_exception(line, case.raises):
            return PASSED
        return _exception_outcome(line, call)
    if "value" not in line:
        return Outcome("runtime_exception", f"{call} wrote no value")
    value = format_value(line["value"])
    if case.raises is not msgspec.UNSET:
        return Outcome("test_or_assertion", f"{call} returns {value}, expected {case.raises}")
    if is_same(line["value"], case.expected):
        return PASSED
    return Outcome("test_or_assertion", f"{call} returns {value}, expected {format_value(case.expected)}")


def _exception_outcome(line: Mapping[str, Any], call: str) -> Outcome:
    where = f"\n  {line['where']}" if line.get("where") else ""
    return Outcome("runtime_exception", f"{call} raises {line.get('error')}: {line.get('message', '')}{where}")


def _format_call(case: ValueCase, tests: ValueTests) -> str:
    arguments = [format_value(value) for value in case.args]
    arguments += [f"{name}={format_value(value)}" for name, value in case.kwargs.items()]
    return f"{tests.entry}({', '.join(arguments)})"
