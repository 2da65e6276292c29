"""Outcomes of single tests, expected exceptions, and Python in the sandbox.

Nothing that the sandbox reports about an exception is trusted. Only its own name, the names of its
bases up to the first built-in one, and that built-in one count; the bases of the built-in one are
looked up here. So no answer can raise an exception that is a ValueError and a TypeError at once.
"""

import builtins
import signal
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from pimono_sdpo.text import shorten
from rewards.sandbox import Ran

# Runs `python ARGUMENTS...` as `Server.run` does, also `-m` and a worker: `tests.in_server`.
Python = Callable[..., Ran]
ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

MAX_VALUE = 300


class Outcome(NamedTuple):
    """The outcome of one test: a category when it failed, `unknown` if it was not reached."""

    kind: Literal["passed", "runtime_exception", "timeout", "test_or_assertion", "unknown"]
    message: str = ""


PASSED, UNKNOWN = Outcome("passed"), Outcome("unknown")


VALUE_WORKER, PYTEST_WORKER, RECORDED_WORKER = WORKERS = (
    "rewards.verifiers.value_worker",
    "rewards.verifiers.pytest_worker",
    "rewards.verifiers.recorded.answer",
)


def describe_ending(ran: Ran, call: str) -> Outcome:
    """Return the outcome of the test during which a run ended early."""
    if ran.stopped == "wall":
        return Outcome("timeout", f"{call} waited for something that never came")
    if ran.stopped == "cpu" or ran.signal == signal.SIGPROF:  # by the clock of a case
        return Outcome("timeout", f"{call} did not end in its CPU time")
    how = f"signal {ran.signal}" if ran.signal else f"exit code {ran.exit_code}"
    how = f"ended the process ({how}) instead of returning"
    if ran.stopped:
        how = f"was stopped: too much of {ran.stopped}"
    elif ran.exit_code == 0:
        how = "ended the process or gives more than can be read"
    return Outcome("runtime_exception", f"{call} {how}")


def listed(value: Any) -> str:
    """Return a value for the feedback, its middle cut out when it is long."""
    try:
        return shorten(repr(value), MAX_VALUE) if _can_be_shown(value) else "(a value too large to show)"
    except (RecursionError, ValueError):  # deep, or an integer of thousands of digits
        return "(a value too large to show)"


MAX_SHOWN = 100_000


def _can_be_shown(value: Any) -> bool:
    """Whether a text of it ends: what holds the same list many times is small in memory alone."""
    todo, room = [value], MAX_SHOWN
    while todo and room > 0:
        one = todo.pop()
        held = [*one, *one.values()] if isinstance(one, dict) else one
        if isinstance(held, list | tuple | set | frozenset | deque):
            todo += held
            room -= len(held)
    return not todo


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
