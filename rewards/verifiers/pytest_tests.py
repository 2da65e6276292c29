"""Run pytest in one process with the answer, for tests that cannot be recorded; used only on request.

tests  kind: "pytest"; files: path to text of the tests and the files they need; passes: the node
       ids that pass with the reference, all of which must pass; seconds: CPU seconds of the whole
       run (default 30); `needs` as in `rewards.verifiers.tests`, without files that contain the
       answer

The answer runs in the process of the tests, because these tests pass mocks to it or inspect its
source. Known ways of cheating are refused by comparing the syntax trees before and after the change,
so that existing code stays allowed, and reports carry a nonce. A check of names in Python code is
never complete: a determined program can still deceive these tests. Recorded tests do not have this
weakness, see `rewards.verifiers.recorded_tests`.
"""

import ast
import json
import re
import secrets
import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec

from rewards.sandbox import Limits, Ran
from rewards.verifiers.answer import parse_python
from rewards.verifiers.candidate import Candidate
from rewards.verifiers.outcomes import PASSED, PYTEST_WORKER, UNKNOWN, Outcome, Python, describe_ending
from rewards.verifiers.rubric import BadSpec

OUTPUT = 8 << 20
STAGES = [("setup", "passed"), ("call", "passed"), ("teardown", "passed")]
Events = list[dict[str, Any]]
Seconds = Annotated[float, msgspec.Meta(gt=0, lt=1e6)]


class PytestTests(msgspec.Struct, tag_field="kind", tag="pytest", kw_only=True):
    """Pytest tests that run in one process with the answer, or from which calls are recorded."""

    files: dict[str, str]
    passes: list[str] = []
    seconds: Seconds = 30.0
    roots: list[str] = []
    shared: list[str] = []
    needs: list[str] | msgspec.UnsetType = msgspec.UNSET


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
MODULES, METHODS, WORDS = (set(_TABLE[key].split()) for key in ("modules", "methods", "words"))
NAMES = METHODS | set(_TABLE["names"].split())
MODULE_NAMES = {module: set(names.split()) for module, names in _TABLE["of_modules"].items()}
CONFIG_FILES, SUFFIXES = (set(_TABLE["files"][key].split()) for key in ("names", "kinds"))
_WORD = re.compile(r"\w+")


def refused_file(path: str, tests: Collection[str], before: Collection[str] = ()) -> str | None:
    """Return why a file may not be part of an answer, None if it may.

    >>> refused_file("json.py", [])
    '`json.py` takes the place of a module that the tests rely on'
    """
    pure = PurePosixPath(path.casefold())
    if pure.name in CONFIG_FILES or pure.suffix in SUFFIXES:
        return f"`{path}` would configure Python or pytest"
    if path in tests:
        return f"`{path}` belongs to the tests"
    top = path.partition("/")[0]
    if path in before or any(other.startswith(f"{top}/") for other in before):
        return None
    # Python looks for modules in the root and in the folders of the tests.
    folders = {str(PurePosixPath(test).parent).casefold() for test in tests} - {"."}
    names = {pure.parts[0].partition(".")[0]}
    names |= {
        PurePosixPath(pure.relative_to(folder).parts[0]).stem
        for folder in folders
        if pure.is_relative_to(folder) and str(pure) != folder
    }
    test_modules = {PurePosixPath(test).stem.casefold() for test in tests if test.endswith(".py")}
    installed = {*sys.stdlib_module_names, *MODULES, "iniconfig", "packaging", "pygments"}
    if names & (test_modules | {name.casefold() for name in installed}):
        return f"`{path}` takes the place of a module that the tests rely on"
    return None


def find_offence(before: str, after: str, tests: Collection[str] = ()) -> str | None:
    """Return the first suspicious name that a changed Python file uses and did not use before, None if there is none.

    >>> find_offence("", "import gc")
    'gc'
    """
    new = Counter(_suspicious_names(after, tests)) - Counter(_suspicious_names(before, tests))
    return min(new, default=None)


def _suspicious_names(source: str, tests: Collection[str]) -> Iterator[str]:
    if (tree := parse_python(source)) is None:  # it cannot be imported either
        return
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    bases = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = {PurePosixPath(test).name for test in tests} - {"__init__.py"}
    names |= {name.removesuffix(".py") for name in names if name.startswith("test_")}
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    yield from MODULES & {alias.name.partition(".")[0]}
                    if alias.asname and alias.name in MODULE_NAMES:
                        yield f"{alias.name} as {alias.asname}"
            case ast.ImportFrom(module=str(module)):
                yield from MODULES & {module.partition(".")[0]}
                for alias in node.names:
                    yield from WORDS & {alias.name}
                    yield from METHODS & {alias.name}
                    if alias.name in {"*"} | MODULE_NAMES.get(module, set()) and module in MODULE_NAMES:
                        yield f"{module}.{alias.name}"
            case ast.Attribute(value=base, attr=attribute):
                yield from (WORDS | METHODS | {"sys", "os", "builtins"}) & {attribute}
                if isinstance(base, ast.Name) and (base.id == "type" or attribute in MODULE_NAMES.get(base.id, ())):
                    yield f"{base.id}.{attribute}"
            case ast.Name(id=name):
                yield from (WORDS | NAMES) & {name}
                if name in MODULE_NAMES and id(node) not in bases:
                    yield name
                if name == "getattr" and id(node) not in called:
                    yield name
            case ast.Call(func=ast.Name(id="getattr"), args=[_, second, *_]):
                if not isinstance(second, ast.Constant):
                    yield "getattr"
            case ast.Call(func=ast.Name(id="type"), args=[_, _, *_]):
                yield "type"
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from WORDS & {name}
            case ast.ClassDef(keywords=keywords):
                yield from WORDS & {str(keyword.arg) for keyword in keywords}
            case ast.Constant(value=str(text)):
                yield from WORDS & set(_WORD.findall(text))
                yield from (name for name in names if name in text)
            case _:
                pass


def find_refusal(candidate: Candidate, tests: PytestTests) -> str | None:
    """Return which part of the change could deceive the tests, None if there is none."""
    for path in candidate.changed:
        if why := refused_file(path, tests.files, candidate.before):
            return f"{why}; leave it out and change the code under test."
        before, after = candidate.before.get(path, ""), candidate.files.get(path, "")
        if PurePosixPath(path).suffix == ".py" and (name := find_offence(before, after, tests.files)):
            return f"`{path}` now uses `{name}`, which can deceive the tests; do without it."
    return None


def verify_pytest(files: Mapping[str, str], tests: PytestTests, python: Python) -> list[Outcome]:
    """Run the tests on the files; one outcome for each test that must pass, and one for any other failure.

    Raises SandboxError when nothing could be run.
    """
    if not tests.passes:
        raise BadSpec("Tests of kind `pytest` need `passes`: the node ids that pass with the reference, one or more.")
    ran, events = run_together(files, tests, python)
    outcomes = [_to_outcome(name, events) for name in tests.passes]
    collected = [name for event in events for name in event.get("collected", ())]
    if collected and (missing := [name for name in tests.passes if name not in collected]):
        outcomes.append(Outcome("runtime_exception", f"{missing[0]} is no longer collected"))
    ended = [event["end"] for event in events if "end" in event]
    interruption = None
    if broken := [event for event in events if "broken" in event]:
        interruption = Outcome("runtime_exception", f"{broken[0]['broken']}: {broken[0]['text']}")
    elif not ended:
        running = [event["start"] for event in events if "start" in event]
        interruption = describe_ending(ran, (running or ["importing the tests"])[-1])
    elif ended != [0] and all(outcome == PASSED for outcome in outcomes):
        outcomes.append(Outcome("runtime_exception", f"pytest ended with exit code {ended[0]}"))
    if interruption and UNKNOWN in outcomes:  # it counts for the first test that was not reached
        outcomes[outcomes.index(UNKNOWN)] = interruption
    elif interruption and all(outcome == PASSED for outcome in outcomes):
        outcomes.append(interruption)
    return outcomes


def run_together(files: Mapping[str, str], tests: PytestTests, python: Python) -> tuple[Ran, Events]:
    """Run the tests and the answer in one process; return the run, and the events that pytest reported.

    Raises BadSpec when no file is a test module, SandboxError when nothing could be run.
    """
    modules = [path for path in tests.files if is_test(path)]
    if not modules:
        raise BadSpec("Tests of kind `pytest` need `files`, one of them named test_*.py or *_test.py.")
    nonce = secrets.token_hex(16)
    job = {"nonce": nonce, "arguments": modules, "remove": [*tests.files]}
    limits = Limits(cpu_seconds=tests.seconds, output=OUTPUT)
    ran = python(["-m", PYTEST_WORKER], files={**files, **tests.files}, stdin=json.dumps(job).encode(), limits=limits)
    prefix = f"{nonce} ".encode()
    lines = [line for line in ran.stdout.split(b"\n")[:-1] if line.startswith(prefix)]
    return ran, [json.loads(line.removeprefix(prefix)) for line in lines]


def has_passed(name: str, events: Events) -> bool:
    """Whether all stages of a test passed."""
    return [(event["when"], event["outcome"]) for event in events if event.get("id") == name] == STAGES


def _to_outcome(name: str, events: Events) -> Outcome:
    if has_passed(name, events):
        return PASSED
    bad = next((event for event in events if event.get("id") == name and event["outcome"] != "passed"), None)
    if bad is None:
        return UNKNOWN
    is_assertion = bad["text"].startswith(("assert ", "AssertionError", "Failed: DID NOT"))
    category: Literal["test_or_assertion", "runtime_exception"] = "runtime_exception"
    if is_assertion or bad["outcome"] != "failed":
        category = "test_or_assertion"
    return Outcome(category, f"{name}: {bad['text'] or bad['outcome']}{bad['where']}")


def is_test(path: str) -> bool:
    """Whether pytest collects a file as a test module, by its name."""
    name = PurePosixPath(path).name
    return name.endswith("_test.py") or (name.startswith("test_") and name.endswith(".py"))
