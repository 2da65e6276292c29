"""CPU seconds of whole processes at the start, and of what --workers adds, to `import datasets`.

    python -m benchmarks.start [--sessions 24] [--repeat 5]
    python -m benchmarks.start --whole [--sessions 600] [--repeat 5]

--whole measures the filter of many sessions to `load_dataset("json")` of the same files.

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

from benchmarks.corpus import write_corpus
from benchmarks.table import print_table

LOAD = "import sys, datasets; datasets.load_dataset('json', data_files=sys.argv[1] + '/*.jsonl')"


def measure(command: list[str]) -> float:
    """Return the CPU seconds of a command, in a new cache of `datasets`."""
    # As an installation has it: compiled once.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    quiet = subprocess.DEVNULL
    with tempfile.TemporaryDirectory(prefix="start-cache-") as cache:
        env |= {"HF_DATASETS_CACHE": cache, "HF_HUB_OFFLINE": "1"}
        child = subprocess.Popen([sys.executable, *command], stdout=quiet, stderr=quiet, env=env)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if status:
        sys.exit(f"{' '.join(command)} ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime


def list_commands(folder: str, whole: bool) -> dict[str, list[str]]:
    """Return the commands by name; all are compared with the first."""
    command = ["-m", "pimono_sdpo", "filter", "--out", f"{folder}/rows"]
    if whole:
        load = {'`load_dataset("json")`': ["-c", LOAD, f"{folder}/raw"]}
        filters = {
            f"`filter --unit {unit}`, {kind}": [*command, f"{folder}/{kind}", "--unit", unit]
            for kind in ("raw", "export")
            for unit in ("session", "episode")
        }
        return load | filters
    workers = {f"`filter`, {n} workers": [*command, f"{folder}/export", "--workers", str(n)] for n in (1, 2, 3)}
    small = {"`import datasets`": ["-c", "import datasets"], "`pimono-sdpo --help`": ["-m", "pimono_sdpo", "--help"]}
    return small | workers


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--sessions", type=int)
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    sessions, megabytes = (given.sessions or 600, 80) if given.whole else (given.sessions or 24, 4)
    with tempfile.TemporaryDirectory(prefix="start-") as folder:
        write_corpus(Path(folder), sessions, megabytes)
        commands = list_commands(folder, given.whole)
        turns = [{name: measure(one) for name, one in commands.items()} for _ in range(given.repeat)]
    base = next(iter(commands))
    for spent in turns if not given.whole else ():
        one, two, three = [spent[f"`filter`, {n} workers"] for n in (1, 2, 3)]
        spent |= {"the second worker": two - one, "the third worker": three - two}
    lines = []
    for name in turns[0]:
        ratio = median(spent[name] / spent[base] for spent in turns)
        lines.append([name, f"{min(spent[name] for spent in turns):.2f}", f"{ratio:.2f}"])
    print_table([["process", "CPU s", f"to {base}"], *lines])


if __name__ == "__main__":
    main()
