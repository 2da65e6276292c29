"""Peak memory and CPU time of the filter as traces grow in bytes, in number, or in one session.

    python -m benchmarks.memory [--sizes 100 1000 5000] [--one 50] [--growth]
                                      [--row-group 8] [--workers 1]

--sizes   MB of parquet export: real sessions over and over, with other ids and words
--one     MB of a single session
--growth  600, 6,000 and 60,000 sessions of about 10 kB, instead of both

Each line is one `python -m pimono_sdpo filter` in a process of its own; peak memory is its
`ru_maxrss` (that of its workers is not in it). CPU time is without that of a run over 20 small
sessions, which is printed first. Exports are written to a temporary folder and removed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from benchmarks.table import print_table

GROWTH = (600, 6_000, 60_000)
SMALL = 10_000
HEADER = ["traces", "MB", "sessions", "kept", "peak RSS MB", "CPU s", "ms / session", "MB / CPU s"]


class Measured(NamedTuple):
    """What one run of the filter cost."""

    megabytes: float
    sessions: int
    kept: int
    peak: float
    cpu: float


def make(kind: str, size: int, out: Path, row_group: int) -> None:
    """Write an export; runs in a process of its own, so that its memory is not counted."""
    from benchmarks import repeated

    sessions: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
        "size": lambda: repeated.repeated_sessions(size * 1_000_000),
        "one": lambda: repeated.one_session(size * 1_000_000),
        "growth": lambda: repeated.small_sessions(size, SMALL),
    }
    repeated.write_export(sessions[kind](), out, row_group * 10, row_group)


def measure(kind: str, size: int, given: argparse.Namespace) -> Measured:
    """Make an export, filter it in a child, and remove both."""
    with tempfile.TemporaryDirectory(prefix="memory-", dir=given.where) as name:
        folder = Path(name)
        task = (kind, size, folder / "export", int(given.row_group * 1_000_000))
        maker = get_context("spawn").Process(target=make, args=task)
        maker.start()
        maker.join()
        if maker.exitcode:
            sys.exit(f"the export could not be written: exit code {maker.exitcode}")
        command = [sys.executable, "-m", "pimono_sdpo", "filter", str(folder / "export")]
        command += ["--out", str(folder / "rows"), "--workers", str(given.workers)]
        with (folder / "log").open("w") as log:
            child = subprocess.Popen(command, stdout=log, stderr=log)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            sys.exit((folder / "log").read_text()[-2000:])
        report = json.loads((folder / "rows" / "report.json").read_text())
        cpu = usage.ru_utime + usage.ru_stime
        size_read = sum(report["bytes"][name] for name in ("parsed", "repaired", "skipped"))
        return Measured(size_read / 1e6, report["sessions"], report["kept"], usage.ru_maxrss / 1024, cpu)


def line(name: str, one: Measured) -> list[str]:
    """Lay out one line of the table."""
    return [
        name,
        f"{one.megabytes:.0f}",
        str(one.sessions),
        str(one.kept),
        f"{one.peak:.0f}",
        f"{one.cpu:.1f}",
        f"{one.cpu * 1000 / one.sessions:.2f}",
        f"{one.megabytes / one.cpu:.1f}",
    ]


def main() -> None:
    """Measure what was asked for, the small ones first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[100, 1000, 5000])
    parser.add_argument("--one", type=int, default=50)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--counts", type=int, nargs="*", default=list(GROWTH))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--row-group", type=float, default=8, help="MB; a shard has ten of them")
    parser.add_argument("--where", type=Path, help="folder for what is written meanwhile")
    given = parser.parse_args()
    runs = [("size", f"repeated, {size:,} MB", size) for size in given.sizes]
    runs += [("one", f"one session of {given.one} MB", given.one)] if given.one else []
    if given.growth:
        runs = [("growth", f"{count:,} sessions of 10 kB", count) for count in given.counts]
    needed = max((size * 1e6 if kind != "growth" else size * SMALL for kind, _, size in runs))
    free = shutil.disk_usage(given.where or tempfile.gettempdir()).free
    if free < needed + 2e9:
        sys.exit(f"{free / 1e9:.0f} GB are free, {needed / 1e9 + 2:.0f} GB may be needed")
    start = measure("growth", 20, given)
    print(f"start and imports: {start.cpu:.2f} CPU s, {start.peak:.0f} MB")
    rows, first = [], 0.0
    for kind, name, size in runs:
        one = measure(kind, size, given)
        one = one._replace(cpu=one.cpu - start.cpu)
        first = first or one.cpu / one.sessions
        rows.append([*line(name, one), f"{one.cpu / one.sessions / first:.2f}"])
        print(" ".join(rows[-1]), file=sys.stderr)
    print_table([[*HEADER, "to first"], *rows])


if __name__ == "__main__":
    main()
