"""Outcomes of single tests, expected exceptions, and Python in the sandbox.

Nothing that the sandbox reports about an exception is trusted. Only its own name, the names of its
bases up to the first built-in one, and that built-in one count; the bases of the built-in one are
looked up here. So no answer can raise an exception that is a ValueError and a TypeError at once.
"""

import base64
import builtins
import marshal
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pimono_sdpo.text import shorten
from rewards import sandbox
from rewards.sandbox import Ran

# Runs `python ARGUMENTS...` as `Sandbox.run` does, also `-m` and a worker: `cold`, or `in_server`.
Python = Callable[..., Ran]
ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

MAX_VALUE = 300


class Outcome(NamedTuple):
    """The outcome of one test: a category when it failed, `unknown` if it was not reached."""

    kind: Literal["passed", "runtime_exception", "timeout", "test_or_assertion", "unknown"]
    message: str = ""


PASSED, UNKNOWN = Outcome("passed"), Outcome("unknown")


def cold(arguments: Sequence[str], **options: Any) -> Ran:
    """Run Python in a sandbox of its own."""
    if arguments[0] == "-m":  # a worker, which the sandbox could not read
        arguments = ["-c", _shipped(), *arguments[1:]]
    return sandbox.run([sys.executable, "-I", "-B", *arguments], env=ENVIRONMENT, **options)


VALUE_WORKER, PYTEST_WORKER, RECORDED_WORKER = WORKERS = (
    "rewards.verifiers.value_worker",
    "rewards.verifiers.pytest_worker",
    "rewards.verifiers.recorded.worker",
)
BOOT = """
import base64, importlib.util, marshal, sys, zlib
CODE = marshal.loads(zlib.decompress(base64.b64decode({0!r})))
class Shipped:
    def find_spec(self, name, path=None, target=None):
        if name in CODE:
            return importlib.util.spec_from_loader(name, self, is_package=not CODE[name])
    def create_module(self, spec):
        pass
    def exec_module(self, module):
        if code := CODE[module.__name__]: exec(code, module.__dict__)
sys.meta_path.insert(0, Shipped())
importlib.import_module(sys.argv.pop(1)).main()
"""


@cache
def _shipped() -> str:
    """Return a program that runs `main` of a worker; whole files are handed to the sandbox."""
    here = Path(__file__).parent
    packages = ("rewards", "rewards.verifiers", "rewards.verifiers.recorded")
    code: dict[str, Any] = dict.fromkeys(packages)
    for path in (here / "channel.py", *here.glob("*_worker.py"), *here.glob("recorded/*.py")):
        name = ".".join(("rewards", "verifiers", *path.relative_to(here).with_suffix("").parts))
        code[name] = compile(path.read_text(), f"<{path.stem}>", "exec")
    return BOOT.format(base64.b64encode(zlib.compress(marshal.dumps(code))))


def describe_ending(ran: Ran, call: str) -> Outcome:
    """Return the outcome of the test during which a run ended early."""
    if ran.stopped == "wall":
        return Outcome("timeout", f"{call} waited for something that never came")
    if ran.stopped == "cpu":
        return Outcome("timeout", f"{call} did not end in its CPU time")
    if ran.stopped:
        how = f"was stopped: too much of {ran.stopped}"
    elif ran.exit_code == 0:
        how = "ended the process or gives more than can be read"
    else:
        how = f"signal {ran.signal}" if ran.signal else f"exit code {ran.exit_code}"
        how = f"ended the process ({how}) instead of returning"
    return Outcome("runtime_exception", f"{call} {how}")


def listed(value: Any) -> str:
    """Return a value for the feedback, its middle cut out when it is long."""
    try:
        return shorten(repr(value), MAX_VALUE)
    except (RecursionError, ValueError):  # deep, or an integer of thousands of digits
        return "(a value too large to show)"


MAX_BASES = 8
# Every failure is one of these, so only these themselves count.
_ANYTHING = (Exception, BaseException)
# What an unfinished program raises is a RuntimeError by name alone.
_UNFINISHED = (NotImplementedError, RecursionError)


def counts_as(line: Mapping[str, Any], expected: str) -> bool:
    """Tell whether a line of the worker, `error` and `bases`, reports the expected exception.

    >>> counts_as({"error": "JSONDecodeError", "bases": ["ValueError", "Exception"]}, "ValueError")
    True
    >>> counts_as({"error": "Any", "bases": ["ValueError", "TypeError"]}, "TypeError")
    False
    """
    if line["error"] == expected:
        return True
    bases = line.get("bases")
    wanted = built_in(expected)
    for name in [line["error"], *(bases[:MAX_BASES] if isinstance(bases, list) else ())]:
        found = built_in(name)
        if found is not None:
            return (
                wanted is not None
                and wanted not in _ANYTHING
                and issubclass(found, wanted)
                and issubclass(found, _UNFINISHED) <= issubclass(wanted, _UNFINISHED)
            )
        if name == expected:
            return True
    return False


def built_in(name: object) -> type[BaseException] | None:
    """Return the built-in exception of that name."""
    found = getattr(builtins, name, None) if isinstance(name, str) else None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
