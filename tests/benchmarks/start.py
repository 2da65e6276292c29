"""CPU seconds of whole processes at the start, and of what --workers adds, to `import datasets`.

    python -m tests.benchmarks.start [--sessions 24] [--repeat 3]

The children of a server of forks are nobody's in `getrusage`, so the times of all descendants are
read from /proc every 10 ms; the smallest of the repetitions is reported.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.corpus import write_corpus
from tests.benchmarks.table import print_table

TICKS = os.sysconf("SC_CLK_TCK")


def read_times() -> dict[int, tuple[int, float]]:
    """Return the parent and the CPU seconds of each process of the machine."""
    times = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            # It has ended.
            continue
        times[int(path.parent.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS
    return times


def measure(command: list[str]) -> float:
    """Return the CPU seconds of a command and all its descendants."""
    # As an installation has it: compiled once.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(command, stdout=quiet, stderr=quiet, env=env)
    spent: dict[int, float] = {}
    while child.poll() is None:
        times = read_times()
        ours, found = {child.pid}, 0
        while len(ours) > found:
            found = len(ours)
            ours |= {pid for pid, (parent, _) in times.items() if parent in ours}
        spent |= {pid: times[pid][1] for pid in ours if pid in times}
        time.sleep(0.01)
    if child.returncode:
        sys.exit(f"{' '.join(command)} ended with {child.returncode}")
    return sum(spent.values())


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=24)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="start-") as folder:
        write_corpus(Path(folder), given.sessions, 4)
        out, source = f"{folder}/rows", f"{folder}/export"
        command = ["-m", "pimono_sdpo", "filter", source, "--out", out, "--workers"]
        commands = {
            "`import datasets`": ["-c", "import datasets"],
            "`pimono-sdpo --help`": ["-m", "pimono_sdpo", "--help"],
            **{f"`filter`, {n} workers": [*command, str(n)] for n in (1, 2, 3)},
        }
        spent = {
            name: min(measure([sys.executable, *one]) for _ in range(given.repeat))
            for name, one in commands.items()
        }
    one, two, three = [spent[f"`filter`, {n} workers"] for n in (1, 2, 3)]
    spent |= {"the second worker and the server": two - one, "the third worker": three - two}
    base = spent["`import datasets`"]
    lines = [[name, f"{cpu:.2f}", f"{cpu / base:.2f}"] for name, cpu in spent.items()]
    print_table([["process", "CPU s", "to `import datasets`"], *lines])


if __name__ == "__main__":
    main()
