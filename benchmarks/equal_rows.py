"""Compare the rows and rejects that two checkouts of this project write, over samples, real traces and rollouts.

    python -m benchmarks.equal_rows OTHER_CHECKOUT [--traces FOLDER] [--only PART_OF_NAME]

OTHER_CHECKOUT is another checkout of this project. Each command runs in both, in processes of their own; what differs
in rows, rejects (with their order) or report is printed, and the exit code is 1. `rollout` and `duel` need a server;
tests/test_golden.py compares them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.samples import SAMPLE_SESSIONS
from tests import shards
from tests.exports import write_samples
from tests.rollout_data import FIXED, OTHER, final, prose, read, rollout, write, write_folder
from tests.test_import import nebius_row, write_atif, write_mini, write_nebius, write_swe_agent

HERE = Path(__file__).parents[1]
# What does not say anything about rows: files, and the options that decide neither.
LEFT_OUT = ("sha256", "pimono_sdpo")
FILTERS = (
    (),
    ("--min-worth", "0"),
    ("--unit", "session", "--reference-terms"),
    ("--min-worth", "0", "--test-fraction", "0.4", "--history-chars", "2000"),
    ("--min-worth", "0", "--max-samples", "7", "--no-dedupe"),
    ("--min-worth", "0", "--max-samples", "9", "--seed", "3", "--workers", "2"),
    ("--unit", "session", "--max-samples", "3", "--split-by", "session"),
)
STEPS = ((), ("--granularity", "trajectory", "--no-require-success"), ("--with-final", "--tool-protocol", "json"))
PAIRS = ((), ("--target", "patch"), ("--target", "step", "--tool-protocol", "json"), ("--format", "together"))


def write_sources(folder: Path, traces: Path | None) -> dict[str, list[Path]]:
    """Write or find the sources: of sessions, of runs to import, and of rollouts."""
    write_samples(folder / "samples")
    shards.write_raw_shards(folder / "raw", 3)
    shards.write_busy_shards(folder / "busy", 3, 6)
    sessions = [folder / "samples", Path(str(SAMPLE_SESSIONS)), folder / "raw", folder / "busy"]
    sessions += sorted(path for path in traces.iterdir() if path.is_dir()) if traces else []
    sessions += [traces] if traces else []
    runs = [nebius_row(n, n % 2, "Process exited with code 1" if n % 3 else "ok") for n in range(40)]
    runs[4]["trajectory"][1] = {"role": "narrator", "content": "x"}
    for number in range(3):
        write_nebius(folder / "runs" / f"nebius{number}", runs[number * 10 :])
    for write_run, name in ((write_mini, "mini"), (write_swe_agent, "swe"), (write_atif, "jobs")):
        write_run(folder / "runs" / name)
    passes = [read(), write(FIXED, True), final("the sign was wrong")]
    fails = [read(), prose(), write(OTHER, False), final("done")]
    rows = [
        rollout(f"t{task}", seed, actions)
        for task in range(9)
        for seed, actions in enumerate((passes, fails, [read("b.py"), *passes]))
    ]
    rows += [rollout("native", seed, [passes, fails][seed], protocol="native") for seed in (0, 1)]
    return {
        "sessions": sessions,
        "runs": [folder / "runs", folder / "runs" / "nebius0"],
        "rollouts": [write_folder(folder / "rollouts", rows), write_folder(folder / "few", rows[:8])],
    }


def list_commands(sources: dict[str, list[Path]]) -> Iterator[list[str]]:
    """Yield the commands without --out."""
    for source in sources["sessions"]:
        yield from (["filter", str(source), *options] for options in FILTERS)
        yield from (["steps", str(source), *options] for options in STEPS)
        yield from (["pairs", str(source), *options] for options in PAIRS[:1])
    yield from (["import", str(source), "--sessions"] for source in sources["runs"])
    for source in sources["rollouts"]:
        yield from (["steps", str(source), *options] for options in STEPS)
        yield from (["pairs", str(source), *options] for options in PAIRS)
        yield ["filter", str(source), "--min-worth", "0"]


def run(checkout: Path, command: list[str], out: Path) -> str:
    """Run a command of a checkout; return what it prints to stderr, without the name of the folder."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "TQDM_DISABLE": "1"}
    line = [sys.executable, "-m", "pimono_sdpo", *command, "--out", str(out)]
    done = subprocess.run(line, cwd=checkout, env=environment, capture_output=True, text=True)
    return f"{done.returncode} {done.stderr.replace(str(out), 'OUT')}"


def read_output(out: Path) -> dict[str, Any]:
    """Return the tables by split, the rejects, the report, and the other files."""
    found: dict[str, Any] = {}
    for path in sorted([*out.glob("data/*.parquet"), *out.glob("rejects/*.parquet")]):
        name = path.name.partition("-")[0] if path.parent.name == "data" else "rejects"
        found.setdefault(name, []).append(pq.read_table(path).replace_schema_metadata())
    found = {name: pa.concat_tables(tables).combine_chunks() for name, tables in found.items()}
    found = {name: table for name, table in found.items() if table.num_rows}
    if (out / "report.json").is_file():
        report = json.loads((out / "report.json").read_text())
        found["report"] = {name: value for name, value in report.items() if name not in LEFT_OUT}
    for folder in ("together", "sessions"):
        for path in sorted(out.glob(f"{folder}/**/*.jsonl")):
            found[path.relative_to(out).as_posix()] = path.read_bytes()
    return found


def find_differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names of what is not equal."""
    return [
        name for name in sorted({*one, *other}) if name not in one or name not in other or one[name] != other[name]
    ]


def main() -> None:
    """Compare, and print what differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("other", type=Path)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    different, rows, rejects, commands = 0, 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="equal-") as name:
        folder = Path(name)
        for number, command in enumerate(list_commands(write_sources(folder / "sources", given.traces))):
            if given.only not in " ".join(command):
                continue
            outs = [folder / str(number) / side / "out" for side in ("one", "other")]
            for out in outs:
                out.parent.mkdir(parents=True)
            said = [run(checkout, command, out) for checkout, out in zip((HERE, given.other), outs, strict=True)]
            found = [read_output(out) for out in outs]
            differences = find_differences(*found) + (["stderr"] if said[0] != said[1] else [])
            commands += 1
            rows += sum(table.num_rows for name, table in found[0].items() if name in ("train", "test"))
            rejects += found[0]["rejects"].num_rows if "rejects" in found[0] else 0
            if differences:
                different += 1
                print(f"{' '.join(command)}: {', '.join(differences)}\n  {said[0].strip()}\n  {said[1].strip()}")
    print(f"{commands} commands, {rows} rows, {rejects} rejects: {different} differ")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
