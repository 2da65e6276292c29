"""Verifications per second: syntax in process, lint and a build in the sandbox, cold and warm.

    python -m tests.benchmarks.verifiers [--runs 40]

One file of 200 lines is written anew; every second answer adds an undefined name, and is compared
with what was there before.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rewards.sandbox.warm import Server
from rewards.verifiers import command, lint, syntax
from rewards.verifiers.result import VerifierResult
from rewards.verifiers.tools import program

PYTHON = "".join(f"def f{n}(x: int) -> int:\n    y = x + {n}\n    return y\n" for n in range(67))
SCRIPT = "".join(
    f"export function f{n}(x: number): number {{\n  const y = x + {n};\n  return y;\n}}\n"
    for n in range(50)
)
BROKEN = {"a.py": "print(nowhere)\n", "a.ts": "const a = 1; a = ;\n"}
Verify = Callable[[str, dict[str, Any]], VerifierResult]


def speed(what: str, verify: Verify, path: str, spec: dict[str, Any], runs: int) -> None:
    """Print verifications per second, by one thread and by two."""
    text = spec["files"][path]
    contents = [
        text + f"// {n}\n".replace("//", "#" if path == "a.py" else "//") for n in range(runs)
    ]
    contents[1::2] = [content + BROKEN[path] for content in contents[1::2]]
    calls = [
        json.dumps({"name": "write", "arguments": {"path": path, "content": content}})
        for content in contents
    ]
    rates = []
    for workers in (1, 2):
        verify(calls[0], spec)
        begun = time.perf_counter()
        with ThreadPoolExecutor(workers) as pool:
            results = list(pool.map(lambda call: verify(call, spec), calls))
        rates.append(runs / (time.perf_counter() - begun))
        assert {result.status for result in results} <= {"passed", "failed"}, results[:2]
    print(f"| {what} | {path} | {rates[0]:.0f} | {rates[1]:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    runs = parser.parse_args().runs
    files = {"a.py": PYTHON, "a.ts": SCRIPT}
    spec: dict[str, Any] = {"files": files, "answer": "write"}
    spec["command"] = {"run": [sys.executable, "-m", "py_compile", "a.py"]}
    print("| verifier | file | per second, 1 thread | 2 threads |\n|---|---|---|---|")
    with Server() as server:
        for path in files:
            speed("syntax, in process", syntax.verify, path, spec, runs)
        linters = ["", *(name for name in ("biome", "esbuild") if program(name))]
        for name in linters:
            path = "a.ts" if name else "a.py"
            chosen = {**spec, "lint": {"javascript": name} if name else {}}
            for way, verify in (("cold", lint.verify), ("warm", lint.warm(server))):
                speed(f"lint, {name or 'ruff'}, {way}", verify, path, chosen, runs)
        for way, verify in (("cold", command.verify), ("warm", command.warm(server))):
            speed(f"command, py_compile, {way}", verify, "a.py", spec, runs)


if __name__ == "__main__":
    main()
