"""Describe the outcomes of single tests, and match exceptions with the expected ones.

Reports about exceptions come from the sandbox and are not trusted. Only the name of the exception and
the names of its bases up to the first built-in one count; the bases of the built-in class are looked
up here. So no answer can raise an exception that is both a ValueError and a TypeError.
"""

import builtins
import signal
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from pimono_sdpo.text import shorten
from rewards.sandbox import Ran

# Runs `python ARGUMENTS...` as `Server.run` does, including `-m` with a worker; see `tests.in_server`.
Python = Callable[..., Ran]
ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

MAX_VALUE = 300


class Outcome(NamedTuple):
    """The outcome of one test: `passed`, the category of its failure, or `unknown` if it was not reached."""

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
        return Outcome("timeout", f"{call} waited too long")
    if ran.stopped == "cpu" or ran.signal == signal.SIGPROF:  # the CPU timer of a case
        return Outcome("timeout", f"{call} used up its CPU time")
    if ran.stopped:
        reason = f"was stopped because it used too much of: {ran.stopped}"
    elif ran.signal or ran.exit_code != 0:
        status = f"signal {ran.signal}" if ran.signal else f"exit code {ran.exit_code}"
        reason = f"ended the process ({status}) instead of returning"
    else:
        reason = "ended the process, or returned more than can be read"
    return Outcome("runtime_exception", f"{call} {reason}")


def format_value(value: Any) -> str:
    """Return a value for the feedback, shortened in the middle when it is long."""
    try:
        return shorten(repr(value), MAX_VALUE) if _is_printable(value) else "(a value too large to show)"
    except (RecursionError, ValueError):  # nested too deeply, or an integer of thousands of digits
        return "(a value too large to show)"


MAX_PRINTED_ITEMS = 100_000


def _is_printable(value: Any) -> bool:
    """Whether the repr of a value is short enough: a list that contains another one many times is small in memory."""
    pending, room = [value], MAX_PRINTED_ITEMS
    while pending and room > 0:
        item = pending.pop()
        items = [*item, *item.values()] if isinstance(item, dict) else item
        if isinstance(items, list | tuple | set | frozenset | deque):
            pending += items
            room -= len(items)
    return not pending


MAX_BASES = 8
# Every exception is an instance of these, so they match only by their own name.
_ANY_EXCEPTION = (Exception, BaseException)
# These are subclasses of RuntimeError, but an unfinished program raises them.
_UNFINISHED = (NotImplementedError, RecursionError)


def matches_exception(line: Mapping[str, Any], expected: str) -> bool:
    """Whether a line of the worker, with `error` and `bases`, reports the expected exception.

    >>> matches_exception({"error": "JSONDecodeError", "bases": ["ValueError", "Exception"]}, "ValueError")
    True
    >>> matches_exception({"error": "Any", "bases": ["ValueError", "TypeError"]}, "TypeError")
    False
    """
    if line["error"] == expected:
        return True
    bases = line.get("bases")
    expected_class = builtin_exception(expected)
    for name in [line["error"], *(bases[:MAX_BASES] if isinstance(bases, list) else ())]:
        cls = builtin_exception(name)
        if cls is not None:
            return (
                expected_class is not None
                and expected_class not in _ANY_EXCEPTION
                and issubclass(cls, expected_class)
                and issubclass(cls, _UNFINISHED) <= issubclass(expected_class, _UNFINISHED)
            )
        if name == expected:
            return True
    return False


def builtin_exception(name: object) -> type[BaseException] | None:
    """Return the built-in exception of that name, None if there is none."""
    cls = getattr(builtins, name, None) if isinstance(name, str) else None
    return cls if isinstance(cls, type) and issubclass(cls, BaseException) else None
