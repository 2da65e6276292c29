"""The corpus of the speed benchmark is fetched as a user would fetch it, here from a local Git."""

import csv
import hashlib
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from pimono_sdpo.samples import SAMPLE_SESSIONS

COLUMNS = ["repository", "commit", "path", "licence", "harness", "sha256"]


def git(*arguments: str, cwd: Path) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def test_sessions_are_fetched_at_their_commits_and_checked(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "ann" / "shop"
    repository.mkdir(parents=True)
    git("init", "-q", cwd=repository)
    git("config", "uploadpack.allowFilter", "true", cwd=repository)
    sessions = sorted(Path(str(SAMPLE_SESSIONS)).glob("*.jsonl"))[:2]
    for path in sessions:
        (repository / path.name).write_bytes(path.read_bytes())
    git("add", ".", cwd=repository)
    git("commit", "-qm", "Sessions", cwd=repository)
    commit = git("rev-parse", "HEAD", cwd=repository).strip()
    git("rm", "-q", sessions[0].name, cwd=repository)
    git("commit", "-qm", "Remove one", cwd=repository)
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sessions]
    with (tmp_path / "manifest.csv").open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(COLUMNS)
        for path, expected in zip(sessions, [hashes[0], "0" * 64], strict=True):
            writer.writerow(["ann/shop", commit, path.name, "MIT", "pi", expected])
    command = [sys.executable, "-m", "benchmarks.fetch_sessions", str(tmp_path / "out")]
    command += ["--manifest", str(tmp_path / "manifest.csv")]
    command += ["--url", f"file://{tmp_path}/hub/{{repository}}"]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("1 of 2 sessions")
    assert f"{commit}:{sessions[1].name} is gone or has changed" in done.stderr
    (raw,) = (tmp_path / "out" / "raw").iterdir()
    assert raw.read_bytes() == sessions[0].read_bytes()
    (shard,) = (tmp_path / "out" / "export").rglob("*.parquet")
    assert pq.read_table(shard)["trace"].to_pylist() == [sessions[0].read_text()]
