"""Run pytest together with the answer: for tests that cannot be recorded, and only on request.

tests  kind: "pytest"; files: path to text of the tests and what they need; passes: the node ids
       that pass with the reference, all of which must pass; seconds: CPU seconds of the whole run
       (default SECONDS); `needs` as in `rewards.verifiers.tests`: leave out of it what holds the
       answer

The answer runs in the process of the tests, as for tests that hand mocks to it or inspect its
source. Known ways of cheating are refused by comparing the syntax before and after, so that what
was there already is allowed, and reports carry a nonce. Python can spell any name in a way that no
such check foresees: a determined program can still win. Tests that can be recorded are safe from
this, see `rewards.verifiers.recorded_tests`.
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
from typing import Annotated, Any

import msgspec

from rewards.sandbox import Limits, Ran
from rewards.verifiers.answer import parsed
from rewards.verifiers.candidate import Candidate
from rewards.verifiers.outcomes import PASSED, PYTEST_WORKER, UNKNOWN, Outcome, Python, describe_ending
from rewards.verifiers.rubric import BadSpec

OUTPUT = 8 << 20
STAGES = [("setup", "passed"), ("call", "passed"), ("teardown", "passed")]
Events = list[dict[str, Any]]
Seconds = Annotated[float, msgspec.Meta(gt=0, lt=1e6)]


class PytestTests(msgspec.Struct, tag_field="kind", tag="pytest", kw_only=True):
    """Tests of a spec that run beside the answer, or of which calls are recorded."""

    files: dict[str, str]
    passes: list[str] = []
    seconds: Seconds = 30.0
    roots: list[str] = []
    shared: list[str] = []
    needs: list[str] | msgspec.UnsetType = msgspec.UNSET


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
MODULES, METHODS, WORDS = (set(_TABLE[key].split()) for key in ("modules", "methods", "words"))
NAMES = METHODS | set(_TABLE["names"].split())
OF_MODULES = {module: set(names.split()) for module, names in _TABLE["of_modules"].items()}
STEERING, KINDS = (set(_TABLE["files"][key].split()) for key in ("names", "kinds"))
_WORD = re.compile(r"\w+")


def refused_file(path: str, tests: Collection[str], before: Collection[str] = ()) -> str | None:
    """Say why a file may not be part of an answer, None when it may.

    >>> refused_file("json.py", [])
    '`json.py` takes the place of a module that the tests rely on'
    """
    pure = PurePosixPath(path.casefold())
    if pure.name in STEERING or pure.suffix in KINDS:
        return f"`{path}` would steer Python or pytest"
    if path in tests:
        return f"`{path}` belongs to the tests"
    top = path.partition("/")[0]
    if path in before or any(other.startswith(f"{top}/") for other in before):
        return None
    # Python looks for modules in the root and in the folders of the tests.
    folders = {str(PurePosixPath(test).parent).casefold() for test in tests} - {"."}
    found = {pure.parts[0].partition(".")[0]}
    found |= {
        PurePosixPath(pure.relative_to(folder).parts[0]).stem
        for folder in folders
        if pure.is_relative_to(folder) and str(pure) != folder
    }
    theirs = {PurePosixPath(test).stem.casefold() for test in tests if test.endswith(".py")}
    standard = {*sys.stdlib_module_names, *MODULES, "iniconfig", "packaging", "pygments"}
    if found & (theirs | {name.casefold() for name in standard}):
        return f"`{path}` takes the place of a module that the tests rely on"
    return None


def offence(before: str, after: str, tests: Collection[str] = ()) -> str | None:
    """Say what a changed Python file reaches for that it did not before, None when nothing.

    >>> offence("", "import gc")
    'gc'
    """
    new = Counter(_marks(after, tests))
    new.subtract(Counter(_marks(before, tests)))
    return next((mark for mark in sorted(new) if new[mark] > 0), None)


def _marks(source: str, tests: Collection[str]) -> Iterator[str]:
    if (tree := parsed(source)) is None:  # it will not be imported either
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
                    if alias.asname and alias.name in OF_MODULES:
                        yield f"{alias.name} as {alias.asname}"
            case ast.ImportFrom(module=str(module)):
                yield from MODULES & {module.partition(".")[0]}
                for alias in node.names:
                    yield from WORDS & {alias.name}
                    yield from METHODS & {alias.name}
                    if alias.name in {"*"} | OF_MODULES.get(module, set()) and module in OF_MODULES:
                        yield f"{module}.{alias.name}"
            case ast.Attribute(value=base, attr=attribute):
                yield from (WORDS | METHODS | {"sys", "os", "builtins"}) & {attribute}
                if isinstance(base, ast.Name) and (base.id == "type" or attribute in OF_MODULES.get(base.id, ())):
                    yield f"{base.id}.{attribute}"
            case ast.Name(id=name):
                yield from (WORDS | NAMES) & {name}
                if name in OF_MODULES and id(node) not in bases:
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


def refusal(candidate: Candidate, tests: PytestTests) -> str | None:
    """Say what in the change may deceive the tests, None if nothing does."""
    for path in candidate.changed:
        if why := refused_file(path, tests.files, candidate.before):
            return f"{why}; leave it out and change the code under test."
        before, after = candidate.before.get(path, ""), candidate.files.get(path, "")
        if PurePosixPath(path).suffix == ".py" and (found := offence(before, after, tests.files)):
            return f"`{path}` now uses `{found}`, by which tests can be deceived; do without it."
    return None


def verify_pytest(files: Mapping[str, str], tests: PytestTests, python: Python) -> list[Outcome]:
    """Run the tests on the files; one outcome for each that must pass, and one for what else fails.

    Raises SandboxError when nothing could be run.
    """
    if not tests.passes:
        raise BadSpec("Tests by pytest need `passes`: the node ids that pass with the reference, one or more.")
    ran, events = run_together(files, tests, python)
    outcomes = [_outcome(name, [e for e in events if e.get("id") == name]) for name in tests.passes]
    collected = [name for event in events for name in event.get("collected", ())]
    if collected and (missing := [name for name in tests.passes if name not in collected]):
        outcomes.append(Outcome("runtime_exception", f"{missing[0]} is no longer collected"))
    ended = [event["end"] for event in events if "end" in event]
    befell = None
    if broken := [event for event in events if "broken" in event]:
        befell = Outcome("runtime_exception", f"{broken[0]['broken']}: {broken[0]['text']}")
    elif not ended:
        running = [event["start"] for event in events if "start" in event]
        befell = describe_ending(ran, (running or ["importing the tests"])[-1])
    elif ended != [0] and all(outcome == PASSED for outcome in outcomes):
        outcomes.append(Outcome("runtime_exception", f"pytest ended with exit code {ended[0]}"))
    if befell:  # the first test that was not reached, unless a test failed with it
        at = outcomes.index(UNKNOWN) if UNKNOWN in outcomes else len(outcomes)
        if at < len(outcomes) or all(one == PASSED for one in outcomes):
            outcomes[at : at + 1] = [befell]
    return outcomes


def run_together(files: Mapping[str, str], tests: PytestTests, python: Python) -> tuple[Ran, Events]:
    """Run tests and answer in one process; return what became of it, and what pytest reported.

    Raises BadSpec without a file of tests, SandboxError when nothing could be run.
    """
    modules = [path for path in tests.files if is_test(path)]
    if not modules:
        raise BadSpec("Tests by pytest need `files`, one of them named test_*.py or *_test.py.")
    nonce = secrets.token_hex(16)
    job = {"nonce": nonce, "arguments": modules, "remove": [*tests.files]}
    limits = Limits(cpu_seconds=tests.seconds, output=OUTPUT)
    given, beside = json.dumps(job).encode(), {**files, **tests.files}
    ran = python(["-m", PYTEST_WORKER], files=beside, stdin=given, limits=limits)
    start = f"{nonce} ".encode()
    lines = [line for line in ran.stdout.split(b"\n")[:-1] if line.startswith(start)]
    return ran, [json.loads(line.removeprefix(start)) for line in lines]


def _outcome(name: str, reports: Events) -> Outcome:
    if [(report["when"], report["outcome"]) for report in reports] == STAGES:
        return PASSED
    bad = next((report for report in reports if report["outcome"] != "passed"), None)
    if bad is None:
        return UNKNOWN
    asserted = bad["text"].startswith(("assert ", "AssertionError", "Failed: DID NOT"))
    wrong = asserted or bad["outcome"] != "failed"
    message = f"{name}: {bad['text'] or bad['outcome']}{bad['where']}"
    return Outcome("test_or_assertion" if wrong else "runtime_exception", message)


def is_test(path: str) -> bool:
    """Whether pytest takes a file for one of tests, by its name."""
    name = PurePosixPath(path).name
    return name.endswith("_test.py") or (name.startswith("test_") and name.endswith(".py"))
