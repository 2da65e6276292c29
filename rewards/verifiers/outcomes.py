"""Outcomes of single tests, expected exceptions, and Python in the sandbox.

Nothing that the sandbox reports about an exception is trusted. Only its own name, the names of its
bases up to the first built-in one, and that built-in one count; the bases of the built-in one are
looked up here. So no answer can raise an exception that is a ValueError and a TypeError at once.
"""

import builtins
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pimono_sdpo.text import shorten
from rewards import sandbox
from rewards.sandbox import Limits, Ran

# Runs `python ARGUMENTS...` on files, input and limits: `cold`, or `in_server` of a warm one.
Python = Callable[[Sequence[str], Mapping[str, str], bytes, Limits], Ran]
ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

MAX_VALUE = 300


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one test; `unknown` if it was not reached."""

    kind: Literal["passed", "error", "timeout", "wrong", "unknown"]
    message: str = ""


def cold(arguments: Sequence[str], files: Mapping[str, str], stdin: bytes, limits: Limits) -> Ran:
    """Run Python in a sandbox of its own."""
    command = [sys.executable, "-I", "-B", *arguments]
    return sandbox.run(command, files=files, stdin=stdin, limits=limits, env=ENVIRONMENT)


def describe_ending(ran: Ran, call: str) -> Outcome:
    """Return the outcome of the test during which a run ended early."""
    if ran.stopped == "wall":
        return Outcome("timeout", f"{call} waited for something that never came")
    if ran.stopped == "cpu":
        return Outcome("timeout", f"{call} did not end in its CPU time")
    if ran.stopped:
        return Outcome("error", f"{call} was stopped: too much of {ran.stopped}")
    if ran.exit_code == 0:
        return Outcome("error", f"{call} ended the process or gives more than can be read")
    how = f"signal {ran.signal}" if ran.signal else f"exit code {ran.exit_code}"
    return Outcome("error", f"{call} ended the process ({how}) instead of returning")


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
    names = [line["error"], *(bases[:MAX_BASES] if isinstance(bases, list) else ())]
    wanted = _built_in(expected)
    for name in names:
        found = _built_in(name)
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


def _built_in(name: object) -> type[BaseException] | None:
    found = getattr(builtins, name, None) if isinstance(name, str) else None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None
