"""Runs inside the sandbox: call the candidate on each input, write down what it returns.

It knows inputs only. One line of JSON per case goes to the sandbox's output, which the candidate
can write to as well: a line says nothing but a value, and whoever reads it compares.
"""

import importlib.util
import json
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_ITEMS = 100_000
MAX_TEXT = 400


def main() -> None:
    """Read the job, take the output away from the candidate's prints, run case after case."""
    job = json.loads(sys.stdin.buffer.read())
    channel = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    _clock(job["seconds"])
    try:
        entry = _load(job["module"], job["entry"])
    except BaseException as failure:  # SystemExit too: the candidate may raise anything
        _write(channel, _described(failure))
        return
    _write(channel, {"ready": True})
    for case in job["cases"]:
        _clock(job["seconds"])
        _write(channel, _called(entry, case, job["judged"]))


def _clock(seconds: float) -> None:
    """Count CPU seconds anew; the signal at their end kills, nothing handles it."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _load(path: str, entry: str) -> Any:
    """Import the module from its path, as part of its package, and find the entry in it."""
    root = Path.cwd()
    sys.path[:] = [str(root), str((root / path).parent), *(p for p in sys.path if p)]
    name = ".".join(Path(path).with_suffix("").parts)
    spec = importlib.util.spec_from_file_location(name, root / path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    found: Any = module
    for part in entry.split("."):
        found = getattr(found, part)
    return found


def _called(entry: Any, case: dict[str, Any], judged: str) -> dict[str, Any]:
    arguments = case["args"]
    try:
        returned = entry(*arguments, **case.get("kwargs", {}))
        return {"value": plain(arguments if judged == "arguments" else returned, [MAX_ITEMS])}
    except BaseException as failure:  # SystemExit too: the candidate may raise anything
        return _described(failure)


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
    if isinstance(value, set | frozenset):
        return {"<set>": [plain(item, room) for item in value]}
    raise TypeError(f"returned a {type(value).__name__}, which is no value of JSON")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or isinstance(key, bool | int | float):
        return json.dumps(key)
    raise TypeError(f"a dict has a {type(key).__name__} as key, which JSON has not")


def _described(failure: BaseException) -> dict[str, Any]:
    """Return the type, the message and the candidate's line of what was raised."""
    root = f"{Path.cwd()}/"
    where = ""
    for frame in traceback.extract_tb(failure.__traceback__):
        if frame.filename.startswith(root):
            where = f"{frame.filename.removeprefix(root)}:{frame.lineno}: {frame.line}"
    try:
        message = str(failure)
    except Exception:  # the candidate's own exception may fail to be shown
        message = ""
    name = type(failure).__name__
    return {"error": name, "message": message[:MAX_TEXT], "where": where[:MAX_TEXT]}


def _write(channel: int, line: dict[str, Any]) -> None:
    """Write one line, whole."""
    try:
        text = json.dumps(line)
    except (ValueError, RecursionError) as failure:  # an integer of thousands of digits
        text = json.dumps(_described(failure))
    left = memoryview(text.encode() + b"\n")
    while left:
        left = left[os.write(channel, left) :]


if __name__ == "__main__":
    main()
