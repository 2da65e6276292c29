"""CPU seconds of the filter beside what else reads traces, each in a process of its own.

    python -m benchmarks.speed [--corpus FOLDER] [--sessions 600] [--megabytes 80]
                                     [--repeat 3] [--only PART_OF_NAME]

Without --corpus it makes one as `corpus.py` does, from the sessions under PIMONO_TRACES/pi.
CPU seconds are those of the process, its threads and its children, user and system. What is timed
begins after the same work was done on a tiny corpus, so that all imports are over; caches and
outputs are in a new folder each time; the smallest of the repetitions is reported.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.corpus import write_corpus
from benchmarks.table import print_table


def cpu_seconds() -> float:
    """User and system time of this process, its threads and the children it has waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure_here(contender: Contender, corpus: Path, small: Path, out: Path) -> dict[str, Any]:
    """Run a contender in this process, first on the small corpus to have all imports behind it."""
    for folder in ("small", "full"):
        (out / folder).mkdir()
    contender.run(small, out / "small")
    before = cpu_seconds()
    kept = contender.run(corpus, out / "full")
    return {"cpu": cpu_seconds() - before, "kept": kept}


def measure(number: int, corpus: Path, small: Path) -> dict[str, Any]:
    """Run a contender in a new process and a new folder, without any cache of an earlier run."""
    with tempfile.TemporaryDirectory(prefix="speed-") as folder:
        result, caches = Path(folder) / "result.json", Path(folder) / "caches"
        environment = {
            **os.environ,
            "HF_HOME": str(caches),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            "TQDM_DISABLE": "1",
        }
        command = [sys.executable, "-m", "benchmarks.speed", "--child", str(number)]
        command += ["--corpus", str(corpus), "--small", str(small), "--out", folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            return {"cpu": None, "kept": None, "error": done.stderr.strip().splitlines()[-1]}
        measured: dict[str, Any] = json.loads(result.read_text())
        return measured


def row(number: int, corpus: Path, small: Path, repeat: int) -> dict[str, Any]:
    """Measure one contender; the smallest of the repetitions counts."""
    contender = CONTENDERS[number]
    if not all(find_spec(module) for module in contender.needs):
        return {"cpu": None, "error": f"not installed: pip install {contender.install}"}
    runs = [measure(number, corpus, small) for _ in range(repeat)]
    return min(runs, key=lambda run: run["cpu"] or 0.0)


def compare(corpus: Path, repeat: int, only: str) -> None:
    """Measure all contenders and print the table."""
    size = sum(path.stat().st_size for path in (corpus / "raw").iterdir()) / 1e6
    measured = {}
    with tempfile.TemporaryDirectory(prefix="speed-") as folder:
        small = Path(folder)
        write_corpus(small, 6, 1)
        for number, contender in enumerate(CONTENDERS):
            if only in contender.name:
                print(f"{contender.name} from {contender.reads} ...", file=sys.stderr)
                measured[number] = row(number, corpus, small, repeat)
    base = measured.get(0, {}).get("cpu")
    lines = [["contender", "input", "CPU s", "MB/s", "to ours", "kept"]]
    for number, one in measured.items():
        name, reads, cpu = CONTENDERS[number].name, CONTENDERS[number].reads, one["cpu"]
        if cpu is None:
            lines.append([name, reads, one["error"]])
            continue
        ratio = f"{cpu / base:.2f}" if base else ""
        kept = "" if one["kept"] is None else str(one["kept"])
        lines.append([name, reads, f"{cpu:.2f}", f"{size / cpu:.1f}", ratio, kept])
    print_table(lines)


def main() -> None:
    """Measure all, or one in this process when called by itself."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--sessions", type=int, default=600)
    parser.add_argument("--megabytes", type=int, default=80)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--small", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        one = measure_here(CONTENDERS[given.child], given.corpus, given.small, given.out)
        (given.out / "result.json").write_text(json.dumps(one))
    elif given.corpus:
        compare(given.corpus, given.repeat, given.only)
    else:
        with tempfile.TemporaryDirectory(prefix="speed-") as folder:
            size = write_corpus(Path(folder), given.sessions, given.megabytes)
            print(f"{given.sessions} sessions, {size / 1e6:.1f} MB")
            compare(Path(folder), given.repeat, given.only)


if __name__ == "__main__":
    main()
