"""Small programs with and without a bug, in the style of QuixBugs, and their cases."""

import json
from typing import Any, NamedTuple


class Program(NamedTuple):
    correct: str
    buggy: str
    cases: list[dict[str, Any]]
    more: dict[str, Any] = {}  # noqa: RUF012 # read only


def case(*args: Any, gives: Any) -> dict[str, Any]:
    return {"args": list(args), "expected": gives}


# The buggy program never ends; only then is the time short, so that a slow machine changes nothing.
HANGS = {"seconds": 1}

PROGRAMS = {
    "hanging": Program(
        "def f(n):\n    count = 0\n    while n:\n        n &= n - 1\n        count += 1\n    return count\n",
        "def f(n):\n    count = 0\n    while n:\n        n ^= n - 1\n        count += 1\n    return count\n",
        [case(0, gives=0), case(127, gives=7), case(128, gives=1)],
        HANGS,
    ),
    "sleeping": Program(
        "def f(x):\n    return -x\n",
        "import threading\ndef f(x):\n    threading.Event().wait()\n",
        [case(1, gives=-1)],
        HANGS,
    ),
    "recursing": Program(
        "def f(a, b):\n    return a if b == 0 else f(b, a % b)\n",
        "def f(a, b):\n    return a if b == 0 else f(a % b, b)\n",
        [case(17, 0, gives=17), case(13, 13, gives=13), case(37, 600, gives=1)],
    ),
    "generator": Program(
        "def f(x):\n    for y in x:\n        if isinstance(y, list):\n            yield from f(y)\n        else:\n            yield y\n",
        "def f(x):\n    for y in x:\n        if isinstance(y, list):\n            yield from f(y)\n        else:\n            yield f(y)\n",
        [case([[1, [2]], 3], gives=[1, 2, 3]), case([], gives=[])],
    ),
    "generator_without_end": Program(
        "def f(n):\n    yield from range(n)\n",
        "import itertools\ndef f(n):\n    return itertools.count()\n",
        [case(3, gives=[0, 1, 2])],
    ),
    "floats": Program(
        "def f(x, eps):\n    g = x / 2\n    while abs(x - g * g) > eps:\n        g = (g + x / g) / 2\n    return g\n",
        "def f(x, eps):\n    g = x / 2\n    while abs(x - g) > eps:\n        g = (g + x / g) / 2\n    return g\n",
        [case(2, 0.01, gives=1.4166666666666665), case(4, 0.2, gives=2)],
        HANGS,
    ),
    "raising": Program(
        "def f(xs):\n    return xs[0]\n",
        "def f(xs):\n    return xs[0] if xs else None\n",
        [case([1], gives=1), {"args": [[]], "raises": "IndexError"}],
    ),
    "tuples_and_keys": Program(
        "def f(xs):\n    return {x: (x, x * x) for x in xs}\n",
        "def f(xs):\n    return {x: (x, x + x) for x in xs}\n",
        [case([3, 4], gives={"3": [3, 9], "4": [4, 16]})],
    ),
}


def spec_of(program: Program, **more: Any) -> dict[str, Any]:
    tests = {"kind": "value", "module": "work/main.py", "entry": "f", "cases": program.cases, "seconds": 10}
    files = {"work/main.py": "def f(*_):\n    raise NotImplementedError\n"}
    return {"files": files, "tests": {**tests, **program.more}, **more}


def writing(content: str, path: str = "work/main.py") -> str:
    return json.dumps({"name": "write", "arguments": {"path": path, "content": content}})
