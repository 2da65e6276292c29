"""Measure the stages of the filter in one fused `Dataset.map` per table, beside the same function called directly.

    python -m benchmarks.fused [--corpus FOLDER] [--sessions 600] [--megabytes 80]
                                     [--repeat 7]

Both give the same tables, which is checked. They take turns in one process, and the smallest CPU time of each counts,
so that other work on the machine weighs little.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from datasets import disable_progress_bars

from benchmarks.corpus import write_corpus
from benchmarks.table import print_table
from pimono_sdpo.runs.sessions import REJECTED, run_on_table
from pimono_sdpo.schema import SESSION
from pimono_sdpo.stage import Fused
from pimono_sdpo.traces.sources import open_source, read_sessions
from processors import pipeline


def measure(corpus: Path, run: Callable[[pa.Table, Fused], pa.Table]) -> tuple[float, list[pa.Table]]:
    """Return the CPU seconds of running the stages over all shards, and the tables they make."""
    fused = Fused(pipeline(), SESSION, REJECTED)
    before = time.process_time()
    shards = open_source(str(corpus / "export")).shards
    made = [run(table, fused) for shard in shards for table in read_sessions(shard)]
    return time.process_time() - before, made


def compare(corpus: Path, repeat: int) -> None:
    """Let both take turns, and print the table."""
    disable_progress_bars()
    ways = {"called directly": lambda table, fused: fused(table), "one `Dataset.map` per table": run_on_table}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeat + 1):
        made = {}
        for name, run in ways.items():
            took, made[name] = measure(corpus, run)
            if turn:
                seconds[name].append(took)
        first, second = made.values()
        assert all(one.equals(other) for one, other in zip(first, second, strict=True)), "the tables differ"
    best = {name: min(took) for name, took in seconds.items()}
    base = best["called directly"]
    lines = [[name, f"{took:.2f}", f"{took / base:.3f}"] for name, took in best.items()]
    print_table([["way", "CPU s", "to a call"], *lines])


def main() -> None:
    """Make a corpus unless one is given, and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--sessions", type=int, default=600)
    parser.add_argument("--megabytes", type=int, default=80)
    parser.add_argument("--repeat", type=int, default=7)
    given = parser.parse_args()
    if given.corpus:
        compare(given.corpus, given.repeat)
        return
    with tempfile.TemporaryDirectory(prefix="fused-") as folder:
        write_corpus(Path(folder), given.sessions, given.megabytes)
        compare(Path(folder), given.repeat)


if __name__ == "__main__":
    main()
