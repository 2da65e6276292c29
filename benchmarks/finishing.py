"""CPU milliseconds a row of the finishing pass of `filter`: duplicates, order and files, as rows grow in number.

    python -m benchmarks.finishing [--rows 4000 16000 66000] [--repeat 3] [--copies 0]

The parts are made up: rows of 60 messages and a request of 100 words each, which have nothing in common but with
--copies, the share of rows that repeat another one. The numbers of rows take turns; the smallest time counts.
"""

import argparse
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import disable_progress_bars

from benchmarks.table import print_table
from pimono_sdpo.runs.duplicates import add_prints, choose_rows
from pimono_sdpo.runs.engine import Made, Part, Piece, run_shards
from pimono_sdpo.runs.finish import write_files
from pimono_sdpo.runs.folders import make_output
from pimono_sdpo.runs.sessions import FILTERED
from pimono_sdpo.schema import COUNTS, REJECT, SDPO_ROW

PART_ROWS = 400
MESSAGES = 60
WORDS = ["".join(random.Random(number).choices("abcdefghijklmnopqrstuvwxyz", k=7)) for number in range(20_000)]
Json = dict[str, Any]


def make_row(number: int) -> Json:
    """Return a row of the filter; equal numbers give equal requests and messages."""
    chance = random.Random(number)
    return {
        "prompt": [{"role": "user", "content": " ".join(chance.choices(WORDS, k=100))}],
        "privileged_context": " ".join(chance.choices(WORDS, k=200)),
        "reward_terms": chance.choices(WORDS, k=8),
        "score": chance.choice((6.5, 9.0, 11.5, 14.0)),
        "score_terms": [{"term": "tool_error", "value": 6.5}],
        "categories": ["command_error"],
        "corrections": [],
        "episode": 0,
        "split": "train",
        "harness": "pi",
        "verifier_spec": " ".join(chance.choices(WORDS, k=50)),
        "counts": dict.fromkeys(COUNTS, 1),
        "detail": "pi",
        "kept": True,
        "evidence": chance.randrange(1, 5),
        "fingerprints": [chance.getrandbits(62) for _ in range(MESSAGES)],
    }


def make_part(start: int, rows: int, distinct: int) -> Iterator[Piece]:
    """Yield the rows of a part."""
    names = [{"session_id": f"s-{n}", "source": f"folder/{n}.jsonl"} for n in range(start, start + rows)]
    made = [{**make_row((start + at) % distinct), **name} for at, name in enumerate(names)]
    given = pa.table({name: [row.get(name) for row in made] for name in {**FILTERED, "fingerprints": 0}})
    table, prints = add_prints(given.drop_columns(["messages", "bands", "minhash"]))
    yield Piece(pa.table([table[name] for name in FILTERED], FILTERED.arrow_schema), rows, {"prints": prints})


def make_parts(folder: Path, rows: int, copies: float) -> list[Made]:
    """Write the parts of so many rows."""
    distinct, schema = max(int(rows * (1 - copies)), 1), FILTERED.arrow_schema
    parts = [
        Part(f"{start:06}", str(start), 1, {}, {}, partial(make_part, start, PART_ROWS, distinct), schema)
        for start in range(0, rows, PART_ROWS)
    ]
    return run_shards(parts, folder, desc="parts")


def measure(parts: list[Made], work: Path) -> tuple[float, float, int]:
    """Return the CPU seconds of finding duplicates and of writing files, and the number of duplicates."""
    begun = time.process_time()
    drops = choose_rows(parts, work, None, 0, True)
    found = time.process_time()
    write_files(parts, make_output(work), SDPO_ROW, REJECT, drops)
    written = time.process_time()
    shutil.rmtree(work / "out")
    return found - begun, written - found, len(drops)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[4_000, 16_000, 66_000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--copies", type=float, default=0.0)
    given = parser.parse_args()
    disable_progress_bars()
    with tempfile.TemporaryDirectory(prefix="finishing-") as name:
        made = {rows: make_parts(Path(name) / str(rows), rows, given.copies) for rows in given.rows}
        turns = [{rows: measure(parts, Path(name)) for rows, parts in made.items()} for _ in range(given.repeat)]
    lines = [["rows", "duplicates", "finding, ms a row", "writing, ms a row", "in all"]]
    for rows in made:
        found, written, dropped = min((turn[rows] for turn in turns), key=lambda spent: spent[0] + spent[1])
        spent = [f"{1000 * seconds / rows:.3f}" for seconds in (found, written, found + written)]
        lines.append([f"{rows:,}", f"{dropped:,}", *spent])
    print_table(lines)


if __name__ == "__main__":
    main()
