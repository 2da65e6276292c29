"""CPU and memory of `import` on parquet, against decoding parquet and the JSON of the same bytes.

python -m benchmarks.imports FOLDER
"""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from pimono_sdpo.agent.imported_runs import ImportOptions, import_runs

RUNS = 5


def decode(folder: Path) -> None:
    """Decode the rows to Python, 16 at a time, and the arguments of calls."""
    for file in sorted(folder.rglob("*.parquet")):
        with pq.ParquetFile(file) as opened:
            for batch in opened.iter_batches(16):
                for row in batch.to_pylist():
                    said = row.get("trajectory") or row.get("messages") or row["conversations"]
                    for message in json.loads(said) if isinstance(said, str) else said:
                        for call in message.get("tool_calls") or ():
                            given = call["function"]["arguments"]
                            json.loads(given) if isinstance(given, str) else given


def measure(what: str, folder: Path) -> None:
    """Print CPU seconds without imports, and the peak memory in MB."""
    with tempfile.TemporaryDirectory() as out:
        before = resource.getrusage(resource.RUSAGE_SELF)
        if what == "decode":
            decode(folder)
        else:
            sessions = what == "sessions"
            import_runs(ImportOptions(source=str(folder), out=Path(out) / "o", sessions=sessions))
        after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(cpu, after.ru_maxrss / 1024)


def main() -> None:
    """Measure each in its own process, in turn, and print the minima and their ratios."""
    if len(sys.argv) == 3:
        measure(sys.argv[1], Path(sys.argv[2]))
        return
    found: dict[str, list[tuple[float, float]]] = {"decode": [], "import": [], "sessions": []}
    for _ in range(RUNS):
        for what, measured in found.items():
            command = [sys.executable, "-m", "benchmarks.imports", what, sys.argv[1]]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            cpu, memory = map(float, said.split())
            measured.append((cpu, memory))
    floor = min(cpu for cpu, _ in found["decode"])
    for what, measured in found.items():
        cpu, memory = min(cpu for cpu, _ in measured), max(memory for _, memory in measured)
        print(f"{what:8} {cpu:6.2f} CPU s  {cpu / floor:4.1f} times  {memory:5.0f} MB")


if __name__ == "__main__":
    main()
