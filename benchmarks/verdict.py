"""CPU of a warm verdict beside a bare fork that imports the answer and calls it.

    python -m benchmarks.verdict [--runs 300] [--rounds 5]

The verdict judges a sort function by the values of five calls. Its CPU is that of all processes
together, from their counters in /proc; the fork is one of this process, which has imported what
the warm interpreter has, and more. Both are taken in turns; the median of the rounds counts.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rewards.sandbox import processes
from rewards.verifiers import tests

SORT = "def sort(xs):\n    return sorted(xs)\n"
CASES: list[dict[str, Any]] = [{"args": [[3, 1, number]], "expected": sorted([3, 1, number])} for number in range(5)]
SPEC: dict[str, Any] = {
    "files": {"a.py": "def sort(xs): pass\n"},
    "tests": {"kind": "value", "module": "a.py", "entry": "sort", "cases": CASES},
}


def cpu_seconds() -> float:
    """CPU seconds of this process and of all below it, ended ones included."""
    pids = [os.getpid(), *processes.list_descendants(os.getpid())]
    return processes.measure_usage(pids, {})[0]


def verdict(number: int) -> None:
    found = tests.verify(f"```python\n# {number}\n{SORT}```", SPEC)
    assert found.status == "passed", found


def fork(_: int) -> None:
    if (pid := os.fork()) == 0:
        import answer  # type: ignore[import-not-found]

        for case in CASES:
            answer.sort(*case["args"])
        os._exit(0)
    os.waitpid(pid, 0)


def milliseconds(once: Callable[[int], None], runs: int) -> tuple[float, float]:
    """CPU and wall milliseconds of one."""
    once(0)
    cpu, wall = cpu_seconds(), time.perf_counter()
    for number in range(runs):
        once(number)
    wall = time.perf_counter() - wall
    time.sleep(0.1)  # what the last one ends may be late
    return (cpu_seconds() - cpu) / runs * 1000, wall / runs * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    runs, rounds = vars(parser.parse_args()).values()
    for name in tests.IMPORTS:
        __import__(name)
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "answer.py").write_text(SORT)
        sys.path.insert(0, folder)
        took = [(milliseconds(verdict, runs), milliseconds(fork, runs)) for _ in range(rounds)]
    print("| | CPU ms | wall ms |\n|---|---|---|")
    for name, column in zip(("verdict", "fork and import"), zip(*took, strict=True), strict=True):
        cpu, wall = (statistics.median(one) for one in zip(*column, strict=True))
        print(f"| {name} | {cpu:.2f} | {wall:.2f} |")
    times = [one[0] / other[0] for one, other in took]
    print(f"times: {statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})")


if __name__ == "__main__":
    main()
