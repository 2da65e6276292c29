"""What each way to run untrusted code stops, and runs per second, cold and warm.

    python -m benchmarks.sandbox [--runs 50] [--only-speed]

A verification here is a sort function judged on one input: its own folder, file and input, one
Python process, JSON out.
"""

import argparse
import functools
import os
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rewards.sandbox import Ran, Server, find_problem, landlock, run
from tests.sandbox.attacks import LIMITED, REFUSED
from tests.sandbox.world import attack, find_breaches, make_world

PROGRAM = """
import json, sys
def sort(a): return a if len(a) < 2 else (
    sort([x for x in a[1:] if x < a[0]]) + [a[0]] + sort([x for x in a[1:] if x >= a[0]]))
print(json.dumps(sort(json.load(sys.stdin))))
"""
FILES = {"main.py": PROGRAM}
INPUT = b"[3, 1, 2]"
COLD = [sys.executable, "-I", "-S", "main.py"]


def table(ways: dict[str, Server | None]) -> None:
    """One line per snippet: ok, or how it broke out."""
    print("| attack |", " | ".join(ways), "|")
    print("|---|", "---|" * len(ways), sep="")
    held = dict.fromkeys(ways, 0)
    for name in [*LIMITED, *REFUSED]:
        cells = []
        for way, server in ways.items():
            with make_world() as world:
                wrong = find_breaches(name, world, attack(name, world, server))
            held[way] += not wrong
            cells.append("; ".join(wrong) or "ok")
        print(f"| {name} |", " | ".join(cells), "|", flush=True)
    print("| held of", len(LIMITED) + len(REFUSED), "|", *(f"{n} |" for n in held.values()))


def speed(what: str, once: Callable[[], Ran], runs: int, workers: int) -> None:
    """Runs per second, and the median milliseconds of one."""
    took: list[float] = []

    def timed(_: int) -> None:
        begun = time.perf_counter()
        assert once().stdout == b"[1, 2, 3]\n"
        took.append(time.perf_counter() - begun)

    timed(0)
    took.clear()
    begun = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(timed, range(runs)))
    rate = runs / (time.perf_counter() - begun)
    print(f"| {what} | {workers} | {rate:.1f} | {sorted(took)[len(took) // 2] * 1000:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--only-speed", action="store_true")
    runs, only_speed = vars(parser.parse_args()).values()
    print(f"kernel {os.uname().release}, {platform.machine()}, Landlock {landlock.abi()}")
    if why := find_problem():
        sys.exit(why)
    with Server(imports=["json"]) as server:
        print("\n| way | at once | runs/s | median ms |\n|---|---|---|---|")
        for workers in (1, 2):
            speed("cold", functools.partial(run, COLD, files=FILES, stdin=INPUT), runs, workers)
            warm = functools.partial(server.run, ["main.py"], files=FILES, stdin=INPUT)
            speed("warm", warm, runs * 4, workers)
        if only_speed:
            return
        print()
        table({"cold": None, "warm": server})


if __name__ == "__main__":
    main()
