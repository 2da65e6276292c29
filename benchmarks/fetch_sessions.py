"""Fetch distinct real sessions of public repositories from GitHub, as a corpus for `speed`.

    python -m benchmarks.fetch_sessions OUT [--url https://github.com/{repository}]
    python -m benchmarks.speed --corpus OUT

tests/data/benchmark_sessions.csv names each session by repository, commit and path, with the licence
of its repository and the SHA-256 of the file; the files stay with their authors. Each repository is
cloned without files, of which only the named ones are then fetched. What is gone or has changed is
reported and left out; what is already in OUT/raw is kept.

writes  OUT/raw/*.jsonl and OUT/export/default/train/NNNN.parquet
"""

import argparse
import csv
import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from benchmarks.corpus import write_export

MANIFEST = Path(__file__).parents[1] / "tests" / "data" / "benchmark_sessions.csv"


def fetch(url: str, sessions: list[dict[str, str]], raw: Path) -> Iterator[str]:
    """Write the sessions of one repository to a folder; yield why one is missing."""
    with tempfile.TemporaryDirectory(prefix="clone-") as clone:
        clone_only = ("clone", "--quiet", "--bare", "--filter=blob:none", url, clone)
        if subprocess.run(["git", *clone_only]).returncode:
            yield f"{url} cannot be cloned"
            return
        for session in sessions:
            named = f"{session['commit']}:{session['path']}"
            git = ["git", "-C", clone, "cat-file", "blob", named]
            found = subprocess.run(git, capture_output=True)
            if found.returncode:
                # No branch holds this commit any more; GitHub may still have it.
                ask = ["git", "-C", clone, "fetch", "--quiet", "origin", session["commit"]]
                subprocess.run(ask, capture_output=True)
                found = subprocess.run(git, capture_output=True)
            if hashlib.sha256(found.stdout).hexdigest() == session["sha256"]:
                place(raw, session).write_bytes(found.stdout)
            else:
                yield f"{url} {named} is gone or has changed"


def place(raw: Path, session: dict[str, str]) -> Path:
    """Return the file that a session is written to."""
    return raw / f"{session['repository'].replace('/', '__')}-{session['sha256'][:12]}.jsonl"


def main() -> int:
    """Fetch what is not there yet, and write the export."""
    parser = argparse.ArgumentParser(description="Fetch real sessions of public repositories.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--manifest", type=Path, default=MANIFEST)
    parser.add_argument("--url", default="https://github.com/{repository}")
    given = parser.parse_args()
    raw = given.out / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    with given.manifest.open(encoding="utf-8", newline="") as lines:
        sessions = list(csv.DictReader(lines))
    missing = [session for session in sessions if not place(raw, session).exists()]
    for repository, of_it in groupby(missing, key=lambda session: session["repository"]):
        for problem in fetch(given.url.format(repository=repository), list(of_it), raw):
            sys.stderr.write(f"{problem}\n")
    if not any(raw.iterdir()):
        sys.stderr.write("no session could be fetched\n")
        return 1
    write_export(given.out)
    size = sum(file.stat().st_size for file in raw.iterdir())
    print(f"{len(list(raw.iterdir()))} of {len(sessions)} sessions, {size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
