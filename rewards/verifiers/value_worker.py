"""Call the candidate on each input and report what it returns. Runs inside the sandbox.

It has the inputs only. It writes one line of JSON per case to the output of the sandbox, to which the
candidate can write as well: so a line holds only a value, and the caller compares it.
"""

import importlib.util
import json
import operator
import os
import signal
import sys
from collections import UserString, deque
from collections.abc import Iterator, KeysView, Mapping, MutableSequence, ValuesView
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rewards.verifiers.channel import format_location, make_writer, redirect_output

MAX_ITEMS = 100_000
MAX_TEXT = 400


def main() -> None:
    """Read a job from standard input and run its cases."""
    job = json.loads(sys.stdin.buffer.read())
    report = make_writer(redirect_output())

    def start_timer() -> None:
        # Restarts the CPU timer; at its end the default action of the signal kills this process.
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, job["seconds"])

    start_timer()
    try:
        entry = _load(job["module"], job["entry"])
    except BaseException as failure:  # SystemExit too: the candidate may raise anything
        report(_describe_exception(failure))
        return
    report({"ready": True})
    for case in job["cases"]:
        start_timer()
        try:
            line = {"value": to_json_value(entry(*case["args"], **case["kwargs"]), [MAX_ITEMS])}
        except BaseException as failure:
            line = _describe_exception(failure)
        try:
            report(line)
        except (ValueError, RecursionError) as failure:  # an integer of thousands of digits
            report(_describe_exception(failure))


def _load(path: str, entry: str) -> Any:
    """Import the module as Python would, after its packages, and return the entry point."""
    root = os.getcwd()
    *folders, last = os.path.normpath(path).split("/")
    # Imports start in the folder that contains the topmost package.
    depth = next(
        (n for n, _ in enumerate(folders) if _find_package(root, folders[: n + 1])), int(folders[:1] == ["src"])
    )
    base = "/".join([root, *folders[:depth]])
    sys.path[:] = [*dict.fromkeys((base, root, "/".join([root, *folders]))), *(p for p in sys.path if p)]
    sys.dont_write_bytecode = True
    parts = [*folders[depth:], os.path.splitext(last)[0]]
    for number in range(1, len(parts)):
        if package := _find_package(base, parts[:number]):
            _import_file(".".join(parts[:number]), package)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts = parts[:-1]
    module = _import_file(".".join(parts), "/".join([root, *folders, last]))
    return operator.attrgetter(entry)(module)


def _find_package(base: str, folders: list[str]) -> str:
    path = "/".join([base, *folders, "__init__.py"])
    return path if os.path.isfile(path) else ""


def _import_file(name: str, path: str) -> Any:
    """Return the module of a file; import it unless it is loaded, and replace another module of that name."""
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == path:
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, module)
    return sys.modules[name]


def to_json_value(value: Any, room: list[int]) -> Any:
    """Return a value as JSON can represent it; iterators become lists, with at most `room[0]` values in total."""
    room[0] -= 1
    if room[0] < 0:
        raise ValueError(f"the result has more than {MAX_ITEMS} items")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__add__(value, 0.0)
    if isinstance(value, dict):
        keys = {_key(key): to_json_value(item, room) for key, item in dict.items(value)}
        if len(keys) != len(value):
            raise TypeError("two keys of a dict are the same in JSON")
        return keys
    if isinstance(value, list | tuple | deque | range | Iterator):
        return [to_json_value(item, room) for item in value]
    return to_json_value(_to_builtin(value), room)


def _to_builtin(value: Any) -> Any:
    """Return the built-in value that is equal to a value of another type."""
    if isinstance(value, UserString):
        return str(value)
    if isinstance(value, Fraction | Decimal):
        return int(value) if value == int(value) else float(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, MutableSequence | KeysView | ValuesView) and not isinstance(value, bytearray):
        return list(value)
    raise TypeError(f"returned a {type(value).__name__}, which JSON cannot represent")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or isinstance(key, bool | int | float):
        return json.dumps(key)
    raise TypeError(f"a dict has a {type(key).__name__} as key, which JSON cannot represent")


def _describe_exception(failure: BaseException) -> dict[str, Any]:
    """Return the type, the message and the candidate's source line of an exception."""
    where = format_location(failure)
    try:
        message = str(failure)
    except Exception:  # the candidate's own exception may not be printable
        message = ""
    # A metaclass of the candidate may define its own `__mro__` or `__name__`.
    mro = type.__dict__["__mro__"].__get__(type(failure))
    name, *bases = [type.__dict__["__name__"].__get__(cls) for cls in mro]
    return {"error": name, "message": message[:MAX_TEXT], "where": where[:MAX_TEXT], "bases": bases}
