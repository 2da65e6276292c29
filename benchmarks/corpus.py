"""Make a corpus of any size by cutting real sessions, or the samples where there are none.

    python -m benchmarks.corpus OUT [--sessions 600] [--megabytes 80]

reads PIMONO_TRACES/pi / writes OUT/raw/*.jsonl and OUT/export/default/train/NNNN.parquet
"""

import argparse
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pimono_sdpo.samples import SAMPLE_SESSIONS

SHARDS = 4
ROW_GROUP = 50


def source_sessions() -> list[list[str]]:
    """Lines of the sessions to cut, without those that hold broken lines."""
    given = os.environ.get("PIMONO_TRACES")
    folder = Path(given) / "pi" if given else Path(str(SAMPLE_SESSIONS))
    texts = (path.read_text() for path in sorted(folder.glob("*.jsonl")))
    sessions = [[line for line in text.split("\n") if line] for text in texts]
    return [lines for lines in sessions if all(map(_is_entry, lines))]


def _is_entry(line: str) -> bool:
    try:
        return "type" in json.loads(line)
    except ValueError:
        return False


def cut_sessions(count: int, size: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield name and text of `count` sessions of about `size` bytes each, all with their own id."""
    chance = random.Random(seed)
    sources = source_sessions()
    weights = [sum(map(len, lines)) for lines in sources]
    for number in range(count):
        (lines,) = chance.choices(sources, weights)
        header = {"type": "session", "version": 3, "id": f"cut-{number}", "cwd": f"/w/repo{number}"}
        start = chance.randrange(1, max(len(lines), 2))
        text = [json.dumps(header)]
        held = 0
        # Past the end it goes on from the beginning, so that every session has its size.
        while held < size:
            line = lines[start % len(lines)]
            start += 1
            if not line.startswith('{"type":"session"'):
                text.append(line)
                held += len(line) + 1
        yield f"cut-{number:06}.jsonl", "\n".join(text)


def write_corpus(out: Path, count: int, megabytes: int) -> int:
    """Write the same sessions as raw files and as a viewer export; return their bytes."""
    raw = out / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    written = 0
    for name, text in cut_sessions(count, megabytes * 1_000_000 // count):
        (raw / name).write_text(text)
        written += len(text.encode())
    write_export(out)
    return written


def write_export(out: Path) -> None:
    """Write the sessions of OUT/raw as the dataset viewer exports them."""
    export = out / "export" / "default" / "train"
    export.mkdir(parents=True, exist_ok=True)
    files = sorted((out / "raw").glob("*.jsonl"))
    step = -(-len(files) // SHARDS)
    for shard, start in enumerate(range(0, len(files), step)):
        part = files[start : start + step]
        table = pa.table(
            {
                "harness": pa.array(["pi"] * len(part)),
                "session_id": pa.array([""] * len(part)),
                "trace": pa.array(
                    [file.read_text(encoding="utf-8", errors="replace") for file in part], pa.large_string()
                ),
                "file_path": pa.array([file.name for file in part]),
            }
        )
        pq.write_table(table, export / f"{shard:04}.parquet", compression="zstd", row_group_size=ROW_GROUP)


def main() -> None:
    """Write the corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sessions", type=int, default=600)
    parser.add_argument("--megabytes", type=int, default=80)
    given = parser.parse_args()
    size = write_corpus(given.out, given.sessions, given.megabytes)
    print(f"{given.sessions} sessions, {size / 1e6:.1f} MB in {given.out}")


if __name__ == "__main__":
    main()
