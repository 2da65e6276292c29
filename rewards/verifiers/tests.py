"""Run the task's tests on the files as the completion leaves them.

spec  as in `rewards.verifiers.candidate`, and
      tests: {"kind": "value", ...} of `value_tests`, {"kind": "output", ...} of `value_tests`, or
      {"kind": "pytest", ...} of `pytest_tests`; all take
      needs: globs of the files that the program needs beside those that were changed
      (default: the Python files below the top folder of the module, or of what may be written);
      `locked` files are never given, so that no answer lies where the candidate could read it

The candidate sees inputs only: values and output are compared out here, and pytest runs in another
process than the candidate, which gets arguments and gives values. Only tests that say `together`
share their process with it; then a determined program can do anything.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from pimono_sdpo.text import shorten
from rewards.sandbox import SandboxError
from rewards.sandbox.warm import Server
from rewards.verifiers import pytest_tests, value_tests
from rewards.verifiers.answer import candidate_of
from rewards.verifiers.candidate import LOCKED, Candidate, Refusal, matches, refused_path
from rewards.verifiers.outcomes import ENVIRONMENT, Outcome, Overloaded, Python, Unjudged, cold
from rewards.verifiers.rubric import VerifierResult, error, failed, passed, skipped
from rewards.verifiers.spec import check_tests

NAME = "tests"
IMPORTS = ("pytest", "json", "ctypes", "decimal", "fractions", "datetime", "collections", "runpy")
MAX_FEEDBACK = 1200
CASES_TOLD = 3
MAX_NAME, MAX_PATH = 255, 1000
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def verify(completion: str, spec: dict[str, Any], python: Python = cold) -> VerifierResult:
    """Run the tests; partial credit is the share that passed, metrics `tests` and `passed`.

    Raises BadSpec for a spec whose tests cannot be run.
    """
    if "tests" not in spec:
        return skipped(NAME, "The row has no tests.")
    candidate = candidate_of(completion, spec)
    check_tests(spec)
    if isinstance(candidate, Refusal):
        why = f"There is nothing to test. {candidate.failure}: {candidate.why}"
        return failed(NAME, "malformed_output", why)
    try:
        return judge(candidate, spec, python)
    except (SandboxError, Overloaded, Unjudged) as trouble:
        return error(NAME, str(trouble))


def judge(candidate: Candidate, spec: Mapping[str, Any], python: Python = cold) -> VerifierResult:
    """Run the tests on a candidate.

    Raises SandboxError, Overloaded and Unjudged when nothing can be said.
    """
    tests = check_tests(spec)
    kind = tests["kind"]
    if why := unwritable(candidate, tests):
        return failed(NAME, "malformed_output", why)
    files = visible(candidate, spec)
    if kind == "value":
        return verdict(value_tests.verify_values(files, tests, python))
    if kind == "output":
        return verdict(value_tests.verify_outputs(files, tests, python))
    if why := pytest_tests.refusal(candidate, tests):
        return failed(NAME, "policy_block", why)
    return verdict(pytest_tests.judge(files, candidate.before, tests, python))


def warm(server: Server) -> Callable[[str, dict[str, Any]], VerifierResult]:
    """Return `verify` for many short runs in one warm interpreter, best with IMPORTS."""
    return functools.partial(verify, python=in_server(server))


def in_server(server: Server) -> Python:
    """Return what runs Python in a warm interpreter."""

    def python(arguments: Any, files: Any, stdin: Any, limits: Any) -> Any:
        return server.run(arguments, files=files, stdin=stdin, limits=limits, env=ENVIRONMENT)

    return python


def visible(candidate: Candidate, spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the files that the program is given."""
    tests = spec["tests"]
    writable = [path for path in spec["files"] if refused_path(path, spec) is None]
    roots = {path.partition("/") for path in ([tests["module"]] if "module" in tests else writable)}
    needs = tests.get("needs", [f"{folder}/*.py" if sep else "*.py" for folder, sep, _ in roots])
    locked = spec.get("locked", LOCKED)
    return {
        path: text
        for path, text in candidate.files.items()
        if not matches(path, locked)
        and (path in candidate.changed or path == tests.get("module") or matches(path, needs))
    }


def unwritable(candidate: Candidate, tests: Mapping[str, Any]) -> str | None:
    """Say why the changed files cannot lie on a disk, None when they can."""
    parents = {
        str(parent)
        for path in (*candidate.files, *tests.get("files", ()))
        for parent in PurePosixPath(path).parents
    }
    for path in candidate.changed:
        if path not in candidate.files:
            continue
        if _SURROGATE.search(path + candidate.files[path]):
            return f"The file {path!r} has half a character, which no file can hold."
        if len(path) > MAX_PATH or any(len(p.encode()) > MAX_NAME for p in path.split("/")):
            return "The path of a file is too long; choose a shorter one."
        if str(PurePosixPath(path)) in parents:
            return f"The file `{path}` has the name of a folder; choose another one."
        if any(str(parent) in candidate.files for parent in PurePosixPath(path).parents):
            return f"The file `{path}` lies in what is a file; choose another name."
    return None


def verdict(outcomes: Sequence[Outcome]) -> VerifierResult:
    """Sum up: the first runtime error, else the timeout, else the shortest failing cases."""
    good = sum(outcome.kind == "passed" for outcome in outcomes)
    counts = {"tests": float(len(outcomes)), "passed": float(good)}
    if good == len(outcomes) > 0:
        return passed(NAME, **counts)
    told = {
        kind: [one.told for one in outcomes if one.kind == kind and one.told]
        for kind in ("error", "timeout", "wrong")
    }
    if told["error"]:
        category, text = "runtime_exception", told["error"][0]
    elif told["timeout"]:
        category, text = "timeout", told["timeout"][0]
    else:
        category, text = "test_or_assertion", "\n".join(sorted(told["wrong"], key=len)[:CASES_TOLD])
    head = f"{good} of {len(outcomes)} tests pass."
    text = shorten(f"{head} {text}", MAX_FEEDBACK)
    return failed(NAME, category, text, good / max(len(outcomes), 1), **counts)
