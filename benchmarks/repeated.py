"""Write viewer exports of any size by repeating real sessions with other ids and other words.

Nothing is held but one row group. Entry ids get the number of the repetition, and so do some common
words, so that no two repetitions tell the same story and no row is dropped as a duplicate.
"""

import json
import re
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.corpus import source_sessions

SHARD_BYTES = 80_000_000
ROW_GROUP_BYTES = 8_000_000
SCHEMA = pa.schema(
    {"harness": pa.string(), "session_id": pa.string(), "trace": pa.large_string(), "file_path": pa.string()}
)
WORDS = ("the", "to", "a", "of", "in", "is", "and", "it", "that", "for", "with", "error", "we")
_ID = re.compile(r'("(?:id|parentId|toolCallId)":")')
_ROLE, _FAILS = '"role":"user"', '"isError":true'


def changed(line: str, number: int) -> str:
    """Return a line of a session with the ids and words of repetition `number`."""
    line = _ID.sub(rf"\g<1>{number}-", line)
    for word in WORDS:
        line = line.replace(f" {word} ", f" {word}{number} ")
    return line


def repeated_sessions(size: int) -> Iterator[tuple[str, str]]:
    """Yield name and text of whole sessions, over and over, until they have `size` bytes."""
    sources = source_sessions()
    held = number = 0
    while held < size:
        for lines in sources:
            text = changed("\n".join(lines), number)
            yield f"repeated-{number:07}.jsonl", text
            held += len(text)
            number += 1
            if held >= size:
                return


def small_sessions(count: int, size: int) -> Iterator[tuple[str, str]]:
    """Yield `count` sessions of at most `size` bytes, from a request of a user onwards.

    They are cut where a tool fails soon, so that most are kept and meet the step after the filter.
    """
    cuts = [
        cut
        for lines in source_sessions()
        for at, line in enumerate(lines)
        if _ROLE in line and len(line) < size
        for cut in (_up_to(lines[at:], size),)
    ]
    cuts = [cut for cut in cuts if _FAILS in cut] or cuts
    for number in range(count):
        header = {"type": "session", "version": 3, "id": f"small-{number}", "cwd": f"/w/{number}"}
        text = changed(cuts[number % len(cuts)], number)
        yield f"small-{number:07}.jsonl", f"{json.dumps(header, separators=(',', ':'))}\n{text}"


def _up_to(lines: list[str], size: int) -> str:
    held = list(accumulate(map(len, lines)))
    return "\n".join(lines[: sum(total <= size for total in held)])


def one_session(size: int) -> Iterator[tuple[str, str]]:
    """Yield a single session of `size` bytes, in which each entry follows the one before."""
    header = {"type": "session", "version": 3, "id": "long", "cwd": "/w/long"}
    text, held, number = [json.dumps(header)], 0, 0
    while held < size:
        for lines in source_sessions():
            for line in lines:
                entry: dict[str, Any] = json.loads(line)
                if entry.get("type") != "message":
                    continue
                entry |= {"id": f"e{number}", "parentId": f"e{number - 1}" if number else None}
                text.append(json.dumps(entry, ensure_ascii=False, separators=(",", ":")))
                held += len(text[-1])
                number += 1
                if held >= size:
                    yield "long.jsonl", "\n".join(text)
                    return


def write_export(
    sessions: Iterator[tuple[str, str]], out: Path, shard: int = SHARD_BYTES, row_group: int = ROW_GROUP_BYTES
) -> None:
    """Write sessions as parquet files of about `shard` bytes of traces, in row groups."""
    folder = out / "default" / "train"
    folder.mkdir(parents=True)
    number = held = 0
    writer: Any = None
    group: list[tuple[str, str]] = []
    for name, text in sessions:
        group.append((name, text))
        held += len(text)
        if writer is None:
            writer = pq.ParquetWriter(folder / f"{number:04}.parquet", SCHEMA, compression="zstd")
        if sum(len(text) for _, text in group) >= row_group:
            writer.write_table(_table(group))
            group = []
        if held >= shard:
            if group:
                writer.write_table(_table(group))
            writer.close()
            writer, group, held, number = None, [], 0, number + 1
    if writer is not None:
        if group:
            writer.write_table(_table(group))
        writer.close()


def _table(group: list[tuple[str, str]]) -> pa.Table:
    empty = [""] * len(group)
    names, texts = [name for name, _ in group], [text for _, text in group]
    return pa.table([["pi"] * len(group), empty, texts, names], schema=SCHEMA)
