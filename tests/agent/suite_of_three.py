"""A suite of three small bugs, and models for it that a scripted server plays."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chat_server import tool_call

BUGGY = {
    "gcd": "def gcd(a, b):\n    return a if b == 0 else gcd(a % b, b)\n",
    "flat": "def flat(xs):\n    return [x for x in xs]\n",
    "last": "def last(xs):\n    return xs[0]\n",
}
FIXED = {
    "gcd": "def gcd(a, b):\n    return a if b == 0 else gcd(b, a % b)\n",
    "flat": "def flat(xs):\n    return [y for x in xs for y in x]\n",
    "last": "def last(xs):\n    return xs[-1]\n",
}
CASES = {"gcd": ([4, 6], 2), "flat": ([[[1], [2]]], [1, 2]), "last": ([[1, 2, 3]], 3)}
Json = dict[str, Any]
Policy = Callable[[Json], "str | Json"]


def write_suite(folder: Path) -> Path:
    """Write the suite and its repo; the answers lie in it, hidden."""
    repo = folder / "repo"
    tasks = []
    for name, text in BUGGY.items():
        (repo / "programs").mkdir(parents=True, exist_ok=True)
        (repo / "answers").mkdir(exist_ok=True)
        (repo / "programs" / f"{name}.py").write_text(text)
        (repo / "answers" / f"{name}.py").write_text(FIXED[name])
        args, expected = CASES[name]
        spec = {
            "tests": {
                "kind": "value",
                "module": f"programs/{name}.py",
                "entry": name,
                "cases": [{"args": args, "expected": expected}],
                "seconds": 2,
            }
        }
        tasks.append({"task_id": f"fix_{name}", "goal": f"Mend programs/{name}.py.", "verifier_spec": spec})
    defaults = {"repo": "repo", "hide": ["answers"]}
    path = folder / "suite.json"
    path.write_text(json.dumps({"name": "three", "defaults": defaults, "tasks": tasks}))
    return path


def about(body: Json) -> tuple[str, int, int]:
    """Which program, which seed, and how many turns the model has taken."""
    found = re.search(r"programs/(\w+)\.py", body["messages"][1]["content"])
    assert found
    turns = sum(message["role"] == "assistant" for message in body["messages"])
    return found[1], body["seed"], turns


def call(body: Json, tool: str, **args: object) -> str | Json:
    """Call a tool in the protocol that the request speaks."""
    if body.get("tools"):
        return tool_call(tool, **args)
    return json.dumps({"type": "tool_call", "name": tool, "args": args})


def final(body: Json, summary: str) -> str:
    return summary if body.get("tools") else json.dumps({"type": "final", "summary": summary})


def knows_some(body: Json) -> str | Json:
    """Reads and writes; knows the fix of gcd always, that of flat with even seeds, else spoils."""
    name, seed, turns = about(body)
    path = f"programs/{name}.py"
    knows = name == "gcd" or (name == "flat" and seed % 2 == 0)
    if turns == 0:
        return call(body, "read_file", rel_path=path)
    if turns == 1:
        return call(body, "write_file", rel_path=path, content=FIXED[name] if knows else "x = (\n")
    return final(body, f"{name} with seed {seed}")
