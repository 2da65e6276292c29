"""Verifications per second: syntax in process.

    python -m benchmarks.verifiers [--runs 40]

One file of 200 lines is written anew; every second answer adds an undefined name, and is compared
with what was there before.
"""

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rewards.verifiers import syntax
from rewards.verifiers.rubric import VerifierResult

PYTHON = "".join(f"def f{n}(x: int) -> int:\n    y = x + {n}\n    return y\n" for n in range(67))
SCRIPT = "".join(
    f"export function f{n}(x: number): number {{\n  const y = x + {n};\n  return y;\n}}\n" for n in range(50)
)
BROKEN = {"a.py": "print(nowhere)\n", "a.ts": "const a = 1; a = ;\n"}
Verify = Callable[[str, dict[str, Any]], VerifierResult]


def speed(what: str, verify: Verify, path: str, spec: dict[str, Any], runs: int) -> None:
    """Print verifications per second, by one thread and by two."""
    text = spec["files"][path]
    contents = [text + f"// {n}\n".replace("//", "#" if path == "a.py" else "//") for n in range(runs)]
    contents[1::2] = [content + BROKEN[path] for content in contents[1::2]]
    calls = [json.dumps({"name": "write", "arguments": {"path": path, "content": content}}) for content in contents]
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
    spec: dict[str, Any] = {"files": files}
    print("| verifier | file | per second, 1 thread | 2 threads |\n|---|---|---|---|")
    for path in files:
        speed("syntax, in process", syntax.verify, path, spec, runs)


if __name__ == "__main__":
    main()
