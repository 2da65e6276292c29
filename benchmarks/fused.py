"""The filter's shards by one fused `Dataset.map` per slice, beside a plain loop over the same stages.

    python -m benchmarks.fused [--corpus FOLDER] [--sessions 600] [--megabytes 80]
                                     [--repeat 7]

Both read the same shards and write the same bytes, which is checked. They take turns in one
process, and the smallest CPU time of each counts, so that other work on the machine weighs little.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import disable_progress_bars

from benchmarks.corpus import write_corpus
from benchmarks.table import print_table
from pimono_sdpo.runs.engine import Part, Piece, run_parts
from pimono_sdpo.runs.sessions import OUTPUTS, session_parts
from pimono_sdpo.schema import PRINT, REJECT, SDPO_ROW, SESSION
from pimono_sdpo.stage import Filter, FlatMap, Row, Stage, iterate_rows, name_of
from pimono_sdpo.traces.sources import Shard, open_source, read_sessions
from processors import pipeline

KINDS = {"rows": SDPO_ROW, "prints": PRINT, "rejects": REJECT}


def loop_shard(shard: Shard, stages: Sequence[Stage]) -> Iterator[Piece]:
    """Run the rows of each table of a shard through the stages, without `datasets`."""
    for table in read_sessions(shard):
        rows: list[Row] = []
        rejects: list[Row] = []
        counts: Counter[tuple[str, str]] = Counter()
        for number, stage in enumerate(stages):
            # A trace is copied when its turn comes, and gone before the next.
            given = rows if number else iterate_rows(table, SESSION)
            rows = list(_run(given, stage, rejects, counts))
        tables = {
            kind: pa.Table.from_pylist(rejects if kind == "rejects" else rows, kind_of.arrow_schema)
            for kind, kind_of in KINDS.items()
        }
        yield Piece(tables, table.num_rows)


def _run(rows: Any, stage: Stage, rejects: list[Row], counts: Counter[tuple[str, str]]) -> Iterator[Row]:
    for row in rows:
        if isinstance(stage, Filter):
            reason = stage.fn(row)
            if reason is None:
                yield row
            else:
                rejects.append(_reject(row, name_of(stage), reason))
            continue
        if isinstance(stage, FlatMap):
            after: list[Mapping[str, Any]] = list(stage.fn(row))
        else:
            kept = {name: value for name, value in row.items() if name not in stage.drops}
            after = [kept | stage.fn(row)]
        for column in stage.tallies:
            for new in after:
                for name in new[column]:
                    counts[column, name] += 1
        yield from after


def _reject(row: Row, stage: str, reason: str) -> Row:
    score = row.get("score")
    return {
        "session_id": row["session_id"],
        "source": row["source"],
        "episode": row["episode"],
        "stage": stage,
        "drop_reason": reason,
        "detail": row["harness"] if score is None else f"{row['harness']}, score {score:g}",
        "counts": row["counts"],
    }


def loop_parts(shards: Mapping[int, Shard], stages: tuple[Stage, ...]) -> list[Part]:
    """Return the parts of a filter run, each with the loop in place of the fused map."""
    return [
        Part(number, shard.path, shard.sessions, {}, {}, partial(loop_shard, shard, stages))
        for number, shard in shards.items()
    ]


def measure(parts: Sequence[Part]) -> tuple[float, dict[str, bytes]]:
    """Return the CPU seconds of a run over all parts, and the bytes of its files."""
    with tempfile.TemporaryDirectory(prefix="fused-") as folder:
        before = time.process_time()
        run_parts(parts, Path(folder), OUTPUTS)
        seconds = time.process_time() - before
        files = sorted(Path(folder).rglob("*.parquet"))
        return seconds, {str(file.relative_to(folder)): file.read_bytes() for file in files}


def compare(corpus: Path, repeat: int) -> None:
    """Let both take turns, and print the table."""
    disable_progress_bars()
    shards = dict(enumerate(open_source(str(corpus / "export")).shards))
    ways = {
        "a plain loop": loop_parts(shards, pipeline()),
        "one fused map per slice": session_parts(shards, pipeline(), {}),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    written = {}
    for turn in range(repeat + 1):
        for name, parts in ways.items():
            took, written[name] = measure(parts)
            if turn:
                seconds[name].append(took)
    first, *others = written.values()
    assert all(first == other for other in others), "the bytes differ"
    best = {name: min(took) for name, took in seconds.items()}
    base = best["a plain loop"]
    print_table(
        [
            ["way", "CPU s", "to the loop"],
            *([name, f"{took:.2f}", f"{took / base:.3f}"] for name, took in best.items()),
        ]
    )


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
