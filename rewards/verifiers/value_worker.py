"""Runs inside the sandbox: call the candidate on each input, write down what it returns.

It knows inputs only. One line of JSON per case goes to the sandbox's output, which the candidate
can write to as well: a line says nothing but a value, and whoever reads it compares.
"""

import importlib.util
import json
import os
import signal
import sys
from collections import UserString, deque
from collections.abc import Iterator, KeysView, Mapping, MutableSequence, ValuesView
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rewards.verifiers.channel import place_of, take_output, writer

MAX_ITEMS = 100_000
MAX_TEXT = 400


def main() -> None:
    """Read the job, take the output away from the candidate's prints, run case after case."""
    job = json.loads(sys.stdin.buffer.read())
    say = writer(take_output())

    def clock() -> None:
        # Counts CPU seconds anew; the signal at their end kills, nothing handles it.
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, job["seconds"])

    clock()
    try:
        entry = _load(job["module"], job["entry"])
    except BaseException as failure:  # SystemExit too: the candidate may raise anything
        say(_described(failure))
        return
    say({"ready": True})
    for case in job["cases"]:
        clock()
        try:
            line = {"value": plain(entry(*case["args"], **case["kwargs"]), [MAX_ITEMS])}
        except BaseException as failure:
            line = _described(failure)
        try:
            say(line)
        except (ValueError, RecursionError) as failure:  # an integer of thousands of digits
            say(_described(failure))


def _load(path: str, entry: str) -> Any:
    """Import the module as Python would, its packages first, and find the entry in it."""
    root = os.getcwd()
    *folders, last = os.path.normpath(path).split("/")
    # The folder above the top-most package is what `import` starts from.
    above = next((n for n, _ in enumerate(folders) if _package(root, folders[: n + 1])), int(folders[:1] == ["src"]))
    base = "/".join([root, *folders[:above]])
    sys.path[:] = [*dict.fromkeys((base, root, "/".join([root, *folders]))), *(p for p in sys.path if p)]
    sys.dont_write_bytecode = True
    parts = [*folders[above:], os.path.splitext(last)[0]]
    for number in range(1, len(parts)):
        if package := _package(base, parts[:number]):
            _imported(".".join(parts[:number]), package)
    if parts[-1] == "__init__" and len(parts) > 1:
        parts = parts[:-1]
    found: Any = _imported(".".join(parts), "/".join([root, *folders, last]))
    for part in entry.split("."):
        found = getattr(found, part)
    return found


def _package(base: str, folders: list[str]) -> str:
    path = "/".join([base, *folders, "__init__.py"])
    return path if os.path.isfile(path) else ""


def _imported(name: str, path: str) -> Any:
    """Return the module of a file, imported unless it is already; one of that name gives way."""
    there = sys.modules.get(name)
    if there is not None and getattr(there, "__file__", None) == path:
        return there
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    above, _, last = name.rpartition(".")
    if above in sys.modules:
        setattr(sys.modules[above], last, module)
    return sys.modules[name]


def plain(value: Any, room: list[int]) -> Any:
    """Return a value as what JSON has; iterators are listed, at most `room[0]` items in all."""
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
        keys = {_key(key): plain(item, room) for key, item in dict.items(value)}
        if len(keys) != len(value):
            raise TypeError("two keys of a dict are the same in JSON")
        return keys
    if isinstance(value, list | tuple | deque | range | Iterator):
        return [plain(item, room) for item in value]
    return plain(_built_in(value), room)


def _built_in(value: Any) -> Any:
    """Return the built-in value that equals one of another type."""
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
    raise TypeError(f"a dict has a {type(key).__name__} as key, which JSON has not")


def _described(failure: BaseException) -> dict[str, Any]:
    """Return the type, the message and the candidate's line of what was raised."""
    where = place_of(failure)
    try:
        message = str(failure)
    except Exception:  # the candidate's own exception may fail to be shown
        message = ""
    # A metaclass of the candidate may have a `__mro__` or a `__name__` of its own.
    line = type.__dict__["__mro__"].__get__(type(failure))
    name, *bases = [type.__dict__["__name__"].__get__(one) for one in line]
    said = {"error": name, "message": message[:MAX_TEXT], "where": where[:MAX_TEXT]}
    return {**said, "bases": bases}
