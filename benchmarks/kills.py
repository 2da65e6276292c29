"""Kill the filter with SIGKILL at random moments, then compare every byte of what it writes.

    python -m benchmarks.kills [--kills 50] [--seed 0] [--workers 1] [--shards 40]
                                     [--parent-only]

A corpus of many small shards is filtered once undisturbed. Then runs are killed after a random
time, each going on where the one before was killed; one that finishes first is compared, and the
next starts anew. At the end one run is left alone. Exits with 1 when any byte differs, a finished
shard is done again, or a run left behind more than its output. A kill takes the workers too, unless
--parent-only says that they have to notice by themselves.
"""

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.repeated import small_sessions, write_export
from benchmarks.table import print_table

SESSION = 20_000
FIRST_MOMENT = 0.2  # of an undisturbed run's time: before, it only imports


class State(NamedTuple):
    """Inode and time of every finished part."""

    files: dict[Path, tuple[int, int]]

    @property
    def shards(self) -> int:
        """Finished shards."""
        return len(self.files)


def finished(work: Path) -> State:
    """What is finished in a work folder at this moment."""
    files = {}
    for path in sorted((work / "parts").glob("*.parquet")):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue  # the run that is over removes its folder
        files[path] = (stat.st_ino, stat.st_mtime_ns)
    return State(files)


def bytes_of(out: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of an output."""
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


def kill_group(group: int) -> bool:
    """Kill all processes of a group; return whether there were any."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


class Trial:
    """An output folder and the runs that write it."""

    def __init__(self, source: Path, out: Path, workers: int, parent_only: bool) -> None:
        self.out, self.work = out, out.with_name(f".{out.name}.partial")
        self.command = [sys.executable, "-m", "pimono_sdpo", "filter", str(source)]
        self.command += ["--out", str(out), "--workers", str(workers)]
        self.parent_only = parent_only
        self.groups: list[int] = []
        self.problems: list[str] = []

    def run(self, kill_after: float | None = None) -> bool:
        """Run once; return whether it finished. Watches that no finished shard changes."""
        before = finished(self.work)
        deadline = None if kill_after is None else time.monotonic() + kill_after
        # A group of its own, so that its workers can be killed with it.
        child = subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        while child.poll() is None:
            if deadline is not None and time.monotonic() >= deadline:
                if not self.parent_only:
                    kill_group(child.pid)
                child.kill()
                child.wait()
                break
            self._compare(before)
            time.sleep(0.005)
        if self.parent_only and child.returncode:
            # Workers that live on hold the pipe: what is told ends never.
            self.groups.append(child.pid)
            told = ""
        else:
            _, told = child.communicate()
        self._compare(before)
        if child.returncode not in (0, -signal.SIGKILL):
            self.problems.append(f"exit code {child.returncode}: {told.strip()[-300:]}")
        return child.returncode == 0

    def _compare(self, before: State) -> None:
        now = finished(self.work)
        again = {path.name for path in now.files if before.files.get(path, now.files[path]) != now.files[path]}
        if again:
            self.problems.append(f"done again: {sorted(again)}")

    def check(self, expected: dict[str, str]) -> None:
        """Compare the output with that of the undisturbed run, and look for what was left."""
        written = bytes_of(self.out)
        names = {name for name in {*expected, *written} if expected.get(name) != written.get(name)}
        if names:
            self.problems.append(f"other bytes: {sorted(names)}")
        left = [path.name for path in self.out.parent.iterdir() if path != self.out]
        if left:
            self.problems.append(f"left behind: {left}")

    def end(self) -> int:
        """Kill what is left of the killed runs; return how many there were."""
        return sum(kill_group(group) for group in self.groups)

    def clear(self) -> None:
        """Remove the output, to start anew."""
        for path in sorted(self.out.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        self.out.rmdir()


def main() -> None:
    """Kill, rerun, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--parent-only", action="store_true", help="leave the workers alone")
    parser.add_argument("--sessions", type=int, default=1200)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        total = sum(len(text) for _, text in small_sessions(given.sessions, SESSION))
        source = folder / "export"
        write_export(small_sessions(given.sessions, SESSION), source, shard=total // given.shards)
        shards = len(list(source.rglob("*.parquet")))
        undisturbed = Trial(source, folder / "one" / "rows", given.workers, False)
        trial = Trial(source, folder / "two" / "rows", given.workers, given.parent_only)
        for out in (undisturbed.out, trial.out):
            out.parent.mkdir()
        start = time.monotonic()
        undisturbed.run()
        duration = time.monotonic() - start
        expected = bytes_of(undisturbed.out)
        kills, early, seen = 0, 0, []
        try:
            while kills < given.kills:
                if trial.run(kill_after=chance.uniform(FIRST_MOMENT, 1.0) * duration):
                    early += 1
                    trial.check(expected)
                    trial.clear()
                    continue
                kills += 1
                seen.append(finished(trial.work).shards)
            trial.run()
            trial.check(expected)
        finally:
            living = trial.end()
        if living:
            trial.problems.append(f"workers of {living} killed runs were still there")
    print(f"{shards} shards, {len(expected)} files, undisturbed {duration:.1f} s")
    print(f"finished shards at each kill: {' '.join(map(str, seen))}")
    rows = [["kills", "with shards open", "after the last shard", "finished first", "problems"]]
    whole = sum(count == shards for count in seen)
    rows.append([str(n) for n in (kills, kills - whole, whole, early, len(set(trial.problems)))])
    print_table(rows)
    for problem in dict.fromkeys(undisturbed.problems + trial.problems):
        print(problem)
    if undisturbed.problems or trial.problems or not expected:
        sys.exit(1)


if __name__ == "__main__":
    main()
