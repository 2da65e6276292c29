"""Verifications per second: syntax in process, ruff in the sandbox.

    python -m benchmarks.verifiers [--runs 40]

One file of 200 lines is written anew; every second answer adds an undefined name, and is compared
with what was there before. Last, stored answers are scored again by `rescore`, judged by tests in
the sandbox, by 1 thread and by several, which have to write the same bytes.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pimono_sdpo.cli.rescore import Options, score_completions
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


SORT = "def sort(xs):\n    return sorted(xs{})\n"
CASES = [{"args": [[3, 1, number]], "expected": sorted([3, 1, number])} for number in range(5)]


def rescored(runs: int) -> None:
    """Print rows per second of `rescore` by threads."""
    tests = {"kind": "value", "module": "a.py", "entry": "sort", "cases": CASES}
    spec = json.dumps({"files": {"a.py": "def sort(xs): pass\n"}, "tests": tests})
    codes = [f"# {n}\n" + SORT.format(", reverse=True" if n % 2 else "") for n in range(runs)]
    rows = [{"completion": f"```python\n{code}```", "verifier_spec": spec} for code in codes]
    print("| rescore, tests | rows per second | times |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / "rows.jsonl"
        stored.write_text("".join(json.dumps(row) + "\n" for row in rows))
        rates: list[float] = []
        written = set[bytes]()
        for workers in (1, 2, 4):
            begun = time.perf_counter()
            out = Path(folder) / str(workers)
            report = score_completions(Options(source=str(stored), out=out, grade=["tests"], workers=workers))
            rates.append(runs / (time.perf_counter() - begun))
            assert report["passed"] == len(codes[::2]), report
            written.add((out / "data" / "scored-00000.parquet").read_bytes())
            times = rates[-1] / rates[0]
            print(f"| {workers} threads | {rates[-1]:.1f} | {times:.2f} |", flush=True)
        assert len(written) == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    runs = parser.parse_args().runs
    files = {"a.py": PYTHON, "a.ts": SCRIPT}
    spec: dict[str, Any] = {"files": files}
    print("| verifier | file | per second, 1 thread | 2 threads |\n|---|---|---|---|")
    for path in files:
        speed("syntax, in process", syntax.verify, path, spec, runs)
    rescored(runs)


if __name__ == "__main__":
    main()
