"""Run pytest together with the answer: for tests that cannot be recorded, and only on request.

tests  kind: "pytest"; files: path to text of the tests and what they need; passes: the node ids
       that pass with the reference, all of which must pass; seconds: CPU seconds of the whole run
       (default SECONDS); plugins: names for pytest's `-p`; keep: paths of `files` that are read
       while tests run; allow: names that the tamper check lets pass; `needs` as in
       `rewards.verifiers.tests`: leave out of it what holds the answer

The answer runs in the process of the tests, as for tests that hand mocks to it or inspect its
source. Known ways of cheating are refused by comparing the syntax before and after, so that what
was there already is allowed, and reports carry a nonce. Python can spell any name in a way that no
such check foresees: a determined program can still win. Tests that can be recorded are safe from
this, see `rewards.verifiers.recorded_tests`.
"""

import ast
import importlib.util
import json
import re
import secrets
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from rewards.sandbox import Limits, Ran, SandboxError
from rewards.verifiers.answer import parsed
from rewards.verifiers.candidate import Candidate
from rewards.verifiers.outcomes import Outcome, Python, describe_ending
from rewards.verifiers.rubric import BadSpec

MODULES = frozenset(
    """_pytest atexit bdb builtins code codecs codeop cProfile ctypes dis doctest faulthandler
    fileinput gc hypothesis importlib inspect linecache marshal mmap multiprocessing pdb pickle
    pkgutil pluggy profile pytest runpy shelve signal subprocess timeit tokenize trace tracemalloc
    unittest _thread _ctypes _io _posixsubprocess posix""".split()
)
METHODS = frozenset(
    """open read_bytes read_text attrgetter methodcaller make_dataclass ABCMeta EnumMeta
    EnumType""".split()
)
NAMES = METHODS | frozenset(
    "__import__ breakpoint compile delattr eval exec globals locals setattr vars".split()
)
WORDS = frozenset(
    """__bool__ __builtins__ __class__ __closure__ __code__ __contains__ __defaults__ __del__ __eq__
    __ge__ __getattr__ __getattribute__ __globals__ __gt__ __instancecheck__ __le__ __loader__
    __lt__ __mro__ __ne__ __prepare__ __self__ __set_name__ __spec__ __subclasscheck__
    __subclasses__ __subclasshook__ __traceback__ _current_frames _exit _getframe _os _pytest _sys
    addaudithook ag_frame cr_frame f_back f_builtins f_globals f_locals gi_frame metaclass mro
    setprofile settrace tb_frame tb_next with_traceback""".split()
)
OF_MODULES = {
    "sys": {"modules", "meta_path", "path", "path_hooks", "exc_info", "exception", "excepthook"},
    "os": set(
        """abort close closerange dup dup2 execl execle execlp execv execve execvp fdopen fork
        forkpty kill killpg open popen posix_spawn pread read register_at_fork system write
        unlink remove rename replace symlink link spawnl spawnv""".split()
    ),
    "io": {"open", "open_code", "FileIO"},
    "types": {"CodeType", "FunctionType", "new_class"},
}
MEANT_FOR_PYTHON = {"sitecustomize.py", "usercustomize.py", "conftest.py", "__main__.py"}
MEANT_FOR_PYTEST = {"pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml"}
KINDS = {".pth", ".so", ".pyc", ".pyo", ".pyd", ".egg-link"}
_WORD = re.compile(r"\w+")


def refused_file(path: str, tests: Collection[str], before: Collection[str] = ()) -> str | None:
    """Say why a file may not be part of an answer, None when it may.

    >>> refused_file("json.py", [])
    '`json.py` takes the place of a module that the tests rely on'
    """
    pure = PurePosixPath(path.casefold())
    if pure.name in MEANT_FOR_PYTHON | MEANT_FOR_PYTEST or pure.suffix in KINDS:
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


def offence(
    before: str, after: str, tests: Collection[str] = (), allow: Collection[str] = ()
) -> str | None:
    """Say what a changed Python file reaches for that it did not before, None when nothing.

    >>> offence("", "import gc")
    'gc'
    """
    new = Counter(_marks(after, tests))
    new.subtract(Counter(_marks(before, tests)))
    return next((mark for mark in sorted(new) if new[mark] > 0 and mark not in allow), None)


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
                if isinstance(base, ast.Name) and attribute in OF_MODULES.get(base.id, set()):
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


SECONDS = 30.0
OUTPUT = 8 << 20
Events = list[dict[str, Any]]
WORKER = Path(__file__).with_name("pytest_worker.py").read_text()
STAGES = [("setup", "passed"), ("call", "passed"), ("teardown", "passed")]


def refusal(candidate: Candidate, tests: Mapping[str, Any]) -> str | None:
    """Say what in the change may deceive the tests, None if nothing does."""
    theirs = tests["files"]
    for path in candidate.changed:
        if why := refused_file(path, theirs, candidate.before):
            return f"{why}; leave it out and change the code under test."
        before, after = candidate.before.get(path, ""), candidate.files.get(path, "")
        if PurePosixPath(path).suffix == ".py" and (
            found := offence(before, after, theirs, tests.get("allow", ()))
        ):
            return f"`{path}` now uses `{found}`, by which tests can be deceived; do without it."
    return None


def verify_pytest(
    files: Mapping[str, str], tests: Mapping[str, Any], python: Python
) -> list[Outcome]:
    """Run the tests on the files; one outcome for each that must pass, and one for what else fails.

    Raises SandboxError when nothing could be run.
    """
    passes = tests.get("passes")
    if not isinstance(passes, list) or not passes:
        raise BadSpec(
            "Tests by pytest need `passes`: the node ids that pass with the reference, one or more."
        )
    ran, events = run_together(files, tests, python)
    outcomes = _outcomes(events, passes)
    broken = [event for event in events if "broken" in event]
    ended = [event["end"] for event in events if "end" in event]
    if broken:
        _put(outcomes, Outcome("error", f"{broken[0]['broken']}: {broken[0]['text']}"))
    elif not ended:
        running = [event["start"] for event in events if "start" in event]
        _put(outcomes, describe_ending(ran, (running or ["importing the tests"])[-1]))
    elif ended != [0] and all(outcome.kind == "passed" for outcome in outcomes):
        outcomes.append(Outcome("error", f"pytest ended with exit code {ended[0]}"))
    return outcomes


def run_together(
    files: Mapping[str, str], tests: Mapping[str, Any], python: Python
) -> tuple[Ran, Events]:
    """Run tests and answer in one process; return what became of it, and what pytest reported.

    Raises BadSpec without a file of tests, SandboxError when nothing could be run.
    """
    modules = [path for path in tests["files"] if is_test(path)]
    if not modules:
        raise BadSpec("Tests by pytest need `files`, one of them named test_*.py or *_test.py.")
    if importlib.util.find_spec("pytest") is None:
        raise SandboxError("pytest is not installed beside this package; install it")
    seconds = float(tests.get("seconds", SECONDS))
    arguments = [part for name in tests.get("plugins", ()) for part in ("-p", name)] + modules
    nonce = secrets.token_hex(16)
    remove = [path for path in tests["files"] if path not in tests.get("keep", ())]
    job = {"nonce": nonce, "arguments": arguments, "remove": remove}
    limits = Limits(cpu_seconds=seconds, wall_seconds=max(30, 5 * seconds), output=OUTPUT)
    ran = python(["-c", WORKER], {**files, **tests["files"]}, json.dumps(job).encode(), limits)
    return ran, _events(ran.stdout, nonce)


def _put(outcomes: list[Outcome], befell: Outcome) -> None:
    """Put the outcome of the run at the first test not reached, unless a test failed with it."""
    at = next((i for i, one in enumerate(outcomes) if one.kind == "unknown"), len(outcomes))
    if at < len(outcomes) or all(one.kind == "passed" for one in outcomes):
        outcomes[at : at + 1] = [befell]


def _outcomes(events: Events, passes: list[str]) -> list[Outcome]:
    """Return what came of every test that must pass, and whether others were collected."""
    outcomes = [_outcome(name, [e for e in events if e.get("id") == name]) for name in passes]
    collected = [name for event in events for name in event.get("collected", ())]
    if collected and (missing := [name for name in passes if name not in collected]):
        outcomes.append(Outcome("error", f"{missing[0]} is no longer collected"))
    return outcomes


def _outcome(name: str, reports: Events) -> Outcome:
    if [(report["when"], report["outcome"]) for report in reports] == STAGES:
        return Outcome("passed")
    bad = [report for report in reports if report["outcome"] != "passed"]
    if not bad:
        return Outcome("unknown")
    message = f"{name}: {bad[0]['text'] or bad[0]['outcome']}"
    asserted = bad[0]["text"].startswith(("assert ", "AssertionError", "Failed: DID NOT"))
    return Outcome("wrong" if asserted or bad[0]["outcome"] != "failed" else "error", message)


def _events(stdout: bytes, nonce: str) -> Events:
    """Decode the lines that carry the nonce."""
    start = f"{nonce} ".encode()
    return [
        json.loads(line.removeprefix(start))
        for line in stdout.split(b"\n")[:-1]
        if line.startswith(start)
    ]


def is_test(path: str) -> bool:
    """Whether pytest takes a file for one of tests, by its name."""
    name = PurePosixPath(path).name
    return name.endswith("_test.py") or (name.startswith("test_") and name.endswith(".py"))
