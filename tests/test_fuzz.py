"""Test that no damaged session crashes a stage, and that every byte of it is counted.

A mutant is a piece of a real session, changed in one to four ways by a generator with the mutant's number as seed:

    python -m tests.test_fuzz 1234 > mutant.jsonl    writes one of them
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pimono_sdpo.filter_options import At, Unit
from pimono_sdpo.runs.sessions import run_on_table
from pimono_sdpo.samples import SAMPLE_SESSIONS
from pimono_sdpo.schema import DROPPED_RECOVERY, DROPPED_STEP, REJECT, SESSION
from pimono_sdpo.stage import STRICT, Fused
from pimono_sdpo.traces.harness import HARNESSES
from pimono_sdpo.traces.harness.base import Harness
from pimono_sdpo.traces.parse import read_trace
from pimono_sdpo.traces.sources import Shard, Unreadable, read_sessions
from pimono_sdpo.traces.trajectories.openai_messages import split_rows
from processors import pipeline, recovery_rows
from processors.rollouts import sessions, steps

SESSIONS = Path(__file__).with_name("harness") / "sessions"
TRACES = Path(os.environ.get("PIMONO_TRACES") or Path(__file__).parents[2] / "shared" / "traces")
# The fast ones take less than a minute of CPU time, at 9 ms each.
MUTANTS, FAST, EACH_TEST, TOGETHER = 10_000, 4_000, 500, 50
# The size of a piece of a session: enough for several requests.
PIECE_LINES, PIECE_BYTES = 60, 60_000
Json = dict[str, Any]

TEXTS = (
    "", " ", "\ud800", "half \udc80 of a pair", "\0", "a\x1b[31mred\x1b[0m", "\u2028\u2029\x85", "é" * 3000, "x" * 5000, "9" * 400,
    "Command exited with code 99999999999999999999", "Exit code: 99999999999999999999\nOutput:\nno", "<tool_use_error>", "</",
    "<command-name>/x</command-name>", "No, that is wrong, use the other file instead", "*** Begin Patch\n*** Update File: a\n@@",
    '[{"type": [], "text": {}}]', '{"error": [], "status": [500], "url": 7, "fallback": {"reason": 1}, "metadata": {"exit_code": [1]}}',
    '{"output": {}, "content": 7, "success": false, "exitCode": 99999999999999999999}', '{"edits": [{"oldText": 1}, 7], "offset": [1], "limit": {}}',
    '{"command": "ls', '{"file_path": 7, "old_string": null}', "[" * 3000, "Traceback (most recent call last):", "/Users/\0/..//x", "$(`", "::", "~",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**31, 2**63, 2**70, -(2**64), 1.5, 1e308, float("nan"), float("inf"), [], {}, [[]], [None], [{}], {"": None},
    {"type": "text"}, [{"type": "text", "text": None}], [{"type": "tool_use"}], [1, "a", None], {"content": {"content": []}}, "1", "true", "null",
)  # fmt: skip
IDS = {
    "id",
    "uuid",
    "parentUuid",
    "parentId",
    "call_id",
    "tool_use_id",
    "toolCallId",
    "callId",
    "sessionId",
    "upToEventId",
    "$rewindTo",
}


@cache
def originals() -> list[list[list[bytes]]]:
    """The lines of every session that the package has, and of real ones if they are there, in groups."""
    groups = [[harness.sample.encode() for harness in HARNESSES]]
    for folder in (SAMPLE_SESSIONS, SESSIONS, *sorted(path for path in TRACES.glob("*") if path.is_dir())):
        groups.append([file.read_bytes() for file in sorted(folder.glob("*.jsonl"))])
    return [[text.split(b"\n") for text in texts] for texts in groups if texts]


def mutant(number: int) -> bytes:
    """Return a mutant; the same number gives the same one."""
    draw = Random(number)
    lines = cut_piece(draw)
    for _ in range(draw.randint(1, 4)):
        lines = draw.choice(LINE_CHANGES)(lines, draw) or [b""]
    return draw.choice(BYTE_CHANGES)(b"\n".join(lines), draw)


def cut_piece(draw: Random) -> list[bytes]:
    """Return some lines of a session, with its first line."""
    lines = draw.choice(draw.choice(originals()))
    start = draw.randrange(max(len(lines) - PIECE_LINES, 1))
    piece: list[bytes] = []
    for line in [*lines[: min(start, 1)], *lines[start : start + PIECE_LINES]]:
        if sum(map(len, piece)) + len(line) <= PIECE_BYTES:
            piece.append(line)
    return piece or [lines[0][:PIECE_BYTES]]


def change_value(lines: list[bytes], draw: Random) -> list[bytes]:
    """Change some values in some lines."""
    lines = list(lines)
    for _ in range(draw.randint(1, 5)):
        at = draw.randrange(len(lines))
        entry = decode(lines[at])
        if not (places := list(walk(entry))):
            continue
        holder, key = draw.choice(places)
        draw.choice(VALUE_CHANGES)(holder, key, draw)
        lines[at] = json.dumps(entry, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    return lines


def decode(line: bytes) -> Any:
    """Decode a line; None if an earlier change has broken it."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def walk(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in decoded JSON, as the object or list that holds it and the key."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from walk(value[key])


def drop(holder: Any, key: Any, draw: Random) -> None:
    del holder[key]


def set_value(holder: Any, key: Any, draw: Random) -> None:
    holder[key] = draw.choice(VALUES)


def set_text(holder: Any, key: Any, draw: Random) -> None:
    holder[key] = draw.choice(TEXTS)


def extend_text(holder: Any, key: Any, draw: Random) -> None:
    holder[key] = draw.choice([f"{holder[key]}{draw.choice(TEXTS)}", f"{draw.choice(TEXTS)}{holder[key]}"])


def wrap(holder: Any, key: Any, draw: Random) -> None:
    holder[key] = draw.choice([[holder[key]], {"content": holder[key]}, json.dumps(holder[key]), [holder[key]] * 3])


def nest(holder: Any, key: Any, draw: Random) -> None:
    for _ in range(draw.choice([50, 200])):
        holder[key] = [holder[key]] if draw.random() < 0.5 else {"a": holder[key]}


def change_inside(holder: Any, key: Any, draw: Random) -> None:
    """Change a value of JSON that stands in a text, as arguments and results do."""
    inner = decode(holder[key].encode("utf-8", "surrogatepass")) if isinstance(holder[key], str) else None
    if places := list(walk(inner)):
        draw.choice((drop, set_value, set_text, wrap))(*draw.choice(places), draw)
        holder[key] = json.dumps(inner)


def take_other(holder: Any, key: Any, draw: Random) -> None:
    other, name = draw.choice(list(walk(holder)))
    holder[key] = json.loads(json.dumps(other[name]))


VALUE_CHANGES: list[Callable[[Any, Any, Random], None]] = [
    drop, drop, set_value, set_value, set_text, set_text, extend_text, wrap, nest, take_other, change_inside,
]  # fmt: skip


def repeat_ids(lines: list[bytes], draw: Random) -> list[bytes]:
    """Give ids of one kind, or all, the same value."""
    names = draw.choice([IDS, {draw.choice(sorted(IDS))}])
    value = draw.choice(["x", "", None, 7])
    return [rename_ids(line, names, value) for line in lines]


def rename_ids(line: bytes, names: set[str], value: Any) -> bytes:
    entry = decode(line)
    for holder, key in list(walk(entry)):
        if key in names:
            holder[key] = value
    return json.dumps(entry).encode() if entry else line


def shuffle(lines: list[bytes], draw: Random) -> list[bytes]:
    return draw.sample(lines, len(lines))


def swap(lines: list[bytes], draw: Random) -> list[bytes]:
    one, two = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines = list(lines)
    lines[one], lines[two] = lines[two], lines[one]
    return lines


def leave_out(lines: list[bytes], draw: Random) -> list[bytes]:
    share = draw.random()
    return [line for line in lines if draw.random() < share]


def repeat_lines(lines: list[bytes], draw: Random) -> list[bytes]:
    return [line for line in lines for _ in range(draw.choice([1, 1, 1, 2, 3]))]


def single(lines: list[bytes], draw: Random) -> list[bytes]:
    return [draw.choice(lines)]


def begin_or_end(lines: list[bytes], draw: Random) -> list[bytes]:
    at = draw.randrange(len(lines))
    return draw.choice([lines[:at], lines[at:]])


def mix(lines: list[bytes], draw: Random) -> list[bytes]:
    """Insert lines of another session."""
    at = draw.randrange(len(lines) + 1)
    return [*lines[:at], *cut_piece(draw)[: draw.randint(1, 5)], *lines[at:]]


def insert_line(lines: list[bytes], draw: Random) -> list[bytes]:
    at = draw.randrange(len(lines) + 1)
    odd = [
        b"",
        b"null",
        b"{}",
        b"[]",
        b"7",
        b'"text"',
        b"not json",
        b'{"type":',
        b'{"a":' * 3000,
        b"[" * 100_000,
        b"\xff\xfe",
        b'{"a": 1e999}',
    ]
    return [*lines[:at], draw.choice(odd), *lines[at:]]


LINE_CHANGES: list[Callable[[list[bytes], Random], list[bytes]]] = [
    *[change_value] * 8, repeat_ids, shuffle, swap, leave_out, repeat_lines, single, begin_or_end, mix, insert_line,
]  # fmt: skip


def keep(content: bytes, draw: Random) -> bytes:
    return content


def cut(content: bytes, draw: Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def spoil(content: bytes, draw: Random) -> bytes:
    """Overwrite some bytes."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 20) if changed else 0):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def insert_bytes(content: bytes, draw: Random) -> bytes:
    at = draw.randrange(len(content) + 1)
    odd = [
        b"\xff",
        b"\xc3",
        b"\xed\xa0\x80",
        b"\0" * draw.randint(1, 5000),
        b"\r",
        b"\n\n",
        b"\xef\xbb\xbf",
        b'"',
        b"\\",
        b"}{",
    ]
    return content[:at] + draw.choice(odd) + content[at:]


def glue(content: bytes, draw: Random) -> bytes:
    return content.replace(b"\n", draw.choice([b"", b"\r\n", b"\0\n", b" "]), draw.randint(1, 5))


def encode_utf16(content: bytes, draw: Random) -> bytes:
    return content.decode(errors="replace").encode(draw.choice(["utf-16", "utf-16-le", "utf-16-be"]))


BYTE_CHANGES: list[Callable[[bytes, Random], bytes]] = [
    *[keep] * 8,
    cut,
    cut,
    spoil,
    spoil,
    insert_bytes,
    insert_bytes,
    glue,
    encode_utf16,
]


@cache
def commands() -> dict[str, Fused]:
    """The stages of every command that reads sessions."""
    made = {
        unit: Fused(pipeline(unit=unit, history_chars=2000, min_worth=0.0), SESSION, REJECT) for unit in get_args(Unit)
    }
    cutting = (
        sessions.build_stage(),
        *steps.build_stages(steps.StepRules(require_valid_tool_ok=False, with_final=True)),
    )
    json_rules = steps.StepRules(granularity="trajectory", tool_protocol="json", tool_chars=200)
    made["steps"] = Fused(cutting, SESSION, DROPPED_STEP)
    made["trajectories"] = Fused((sessions.build_stage(), *steps.build_stages(json_rules)), SESSION, DROPPED_STEP)
    for at in get_args(At):
        made[f"recoveries {at}"] = Fused(recovery_rows.build_stages(at, 1000), SESSION, DROPPED_RECOVERY)
    return made


def check(numbers: range, folder: Path) -> None:
    """Run every command over mutants and compare what is counted with the size of the files."""
    files = []
    for number in numbers:
        files.append(folder / f"{number}.jsonl")
        files[-1].write_bytes(mutant(number))
    size = sum(file.stat().st_size for file in files)
    unreadable: Unreadable = {}
    tables = list(read_sessions(Shard("jsonl", "", "jsonl", len(files), size, tuple(files), folder), unreadable))
    assert not unreadable
    table = pa.concat_tables(tables).combine_chunks()
    sizes, lost = dict[str, int](), dict[str, int]()
    for row in table.select(["source", "trace", "bytes_not_utf8"]).to_pylist():
        # An export of several sessions becomes a row for each.
        name = row["source"].partition("#")[0]
        sizes[name] = sizes.get(name, 0) + len(row["trace"])
        lost[name] = lost.get(name, 0) + row["bytes_not_utf8"]
        lines = read_trace(row["trace"]).lines
        assert lines.bytes_parsed + lines.bytes_repaired + lines.bytes_skipped == len(row["trace"]), row["source"]
    for file in files:
        content = file.read_bytes()
        if split_rows(content):
            # A row of messages is encoded as a session, which has other bytes.
            continue
        if not {content[:2], content[:4]} & {b"\xff\xfe", b"\xfe\xff", b'{\0"\0', b'\0{\0"'}:
            # An invalid byte becomes the three of U+FFFD.
            assert sizes[file.name] == len(content) + 2 * lost[file.name], file.name
    for name, fused in commands().items():
        try:
            done = run_on_table(table, fused)
        except Exception:
            for row in range(table.num_rows):
                try:
                    run_on_table(table.slice(row, 1), fused)
                except Exception as error:
                    raise AssertionError(f"`{name}` crashed on mutant {numbers[row]}") from error
            raise
        if name in get_args(Unit):
            parsed = pc.sum(pc.struct_field(done["tally_volume"], "bytes_parsed")).as_py()
            others = (
                pc.sum(pc.struct_field(done["tally_counts"], f"bytes_{one}")).as_py()
                for one in ("repaired", "skipped")
            )
            assert parsed + sum(others) == pc.sum(pc.binary_length(table["trace"])).as_py(), numbers


def test_a_mutant_is_the_same_every_time() -> None:
    assert [mutant(n) for n in range(50)] == [mutant(n) for n in range(50)]
    assert len({mutant(n) for n in range(50)}) > 45


@pytest.mark.parametrize("start", range(0, FAST, EACH_TEST))
def test_no_mutant_crashes(start: int, tmp_path: Path) -> None:
    assert os.environ[STRICT] == "1"
    for first in range(start, start + EACH_TEST, TOGETHER):
        check(range(first, first + TOGETHER), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(FAST, MUTANTS, EACH_TEST))
def test_none_of_the_other_mutants_crashes(start: int, tmp_path: Path) -> None:
    test_no_mutant_crashes(start, tmp_path)


@pytest.mark.parametrize("harness", HARNESSES, ids=lambda one: one.name)
@pytest.mark.parametrize("depth", [600, 900])
def test_deep_arguments_crash_no_command(harness: Harness, depth: int) -> None:
    """Each place of a sample holds them once, as Python decodes them but does not walk through them by recursion."""
    lines = [line for line in harness.sample.split("\n") if line]
    traces = []
    for at, line in enumerate(lines):
        for number in range(len(list(walk(json.loads(line))))):
            entry = json.loads(line)
            holder, key = list(walk(entry))[number]
            holder[key] = "deep"
            deep = '{"a":[' * (depth // 2) + "]}" * (depth // 2)
            changed = [json.dumps(entry).replace('"deep"', value) for value in (deep, json.dumps(deep))]
            traces += ["\n".join([*lines[:at], one, *lines[at + 1 :]]).encode() for one in changed]
    rows = [dict.fromkeys(SESSION, "") | {"trace": trace, "bytes_not_utf8": 0} for trace in traces]
    table = pa.Table.from_pylist(rows, SESSION.arrow_schema)
    for fused in commands().values():
        run_on_table(table, fused)


if __name__ == "__main__":
    sys.stdout.buffer.write(mutant(int(sys.argv[1])))
