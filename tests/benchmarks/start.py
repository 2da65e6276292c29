"""CPU seconds of whole processes at the start, and of what --workers adds, to `import datasets`.

    python -m tests.benchmarks.start [--sessions 24] [--repeat 5]

CPU seconds are those of a process, its threads and the children it has waited for, user and system.
All take turns; the smallest of the repetitions is reported, and the median of the ratios.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.benchmarks.corpus import write_corpus
from tests.benchmarks.table import print_table


def measure(command: list[str]) -> float:
    """Return the CPU seconds of a command."""
    # As an installation has it: compiled once.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    quiet = subprocess.DEVNULL
    child = subprocess.Popen([sys.executable, *command], stdout=quiet, stderr=quiet, env=env)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if status:
        sys.exit(f"{' '.join(command)} ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=24)
    parser.add_argument("--repeat", type=int, default=5)
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
        turns = [{name: measure(one) for name, one in commands.items()} for _ in range(given.repeat)]
    for spent in turns:
        one, two, three = [spent[f"`filter`, {n} workers"] for n in (1, 2, 3)]
        spent |= {"the second worker": two - one, "the third worker": three - two}
    lines = []
    for name in turns[0]:
        ratio = median(spent[name] / spent["`import datasets`"] for spent in turns)
        lines.append([name, f"{min(spent[name] for spent in turns):.2f}", f"{ratio:.2f}"])
    print_table([["process", "CPU s", "to `import datasets`"], *lines])


if __name__ == "__main__":
    main()
