"""Read JSON lines, and repair lines that are glued together, cut off or badly escaped.

Recorders append without locks and redactors rewrite text without knowing JSON, so broken lines are
normal. Only the unreadable part of a line is lost, and every byte is counted.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Generic, TypeVar

import msgspec

# The group is empty for a backslash that does not begin an escape of JSON.
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4}|)')
# Half of a surrogate pair, which UTF-8 cannot encode; whole pairs and an escaped `\\` stay.
_LONE_SURROGATE = re.compile(
    r"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\\\)|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_ENTRY = '{"type"'
_IN_ENTRIES = {"message", "payload", "timestamp", "uuid", "parentId", "cwd"}
MAX_TRIES = 16
# A line holds at most what an agent sends to a model at once. The largest request that a provider documents has 50 MB
# (images for OpenAI's API); reading a line takes several times its size in memory.
MAX_LINE = 64_000_000
_LENIENT = json.JSONDecoder(strict=False)

T = TypeVar("T")
Json = dict[str, Any]
OBJECT = msgspec.json.Decoder(Json)


@dataclass
class Lines(Generic[T]):
    """The JSON objects of a trace in order, and how many of its lines and bytes could be read.

    `parsed` lines were valid, `repaired` lines yielded at least one object after a repair,
    `skipped` lines none. `bytes_repaired` counts the bytes of broken lines that were read, in
    UTF-8, `bytes_skipped` those that were lost: all of a skipped line, and the unread part of a
    repaired one.
    """

    objects: list[T] = field(default_factory=list)
    parsed: int = 0
    repaired: int = 0
    skipped: int = 0
    bytes_parsed: int = 0
    bytes_repaired: int = 0
    bytes_skipped: int = 0


def read_objects(trace: bytes) -> Lines[Json]:
    r"""Read all JSON objects as dicts.

    >>> lines = read_objects(b'{"a": 1}{"b": 2}\n{"c": "\\*"}\n{"cut')
    >>> lines.objects, lines.parsed, lines.repaired, lines.skipped
    ([{'a': 1}, {'b': 2}, {'c': '\\*'}], 0, 2, 1)
    >>> lines.bytes_parsed, lines.bytes_repaired, lines.bytes_skipped
    (2, 27, 5)
    """
    return read_lines(trace, OBJECT, dict)


def read_lines(trace: bytes, decoder: msgspec.json.Decoder[T], build: Callable[[Json], T]) -> Lines[T]:
    """Split UTF-8 at newlines and decode every line.

    If `decoder` refuses a line that is valid or can be repaired, `build` converts it from a dict. Lines of
    more than MAX_LINE bytes are skipped.
    """
    if len(trace) > MAX_LINE and max(map(len, _split(trace))) > MAX_LINE:
        return _read_each(trace, decoder, build)
    try:
        objects = list(map(decoder.decode, _split(trace)))
    except (msgspec.MsgspecError, RecursionError):
        return _read_each(trace, decoder, build)
    return Lines(objects, parsed=len(objects), bytes_parsed=len(trace))


def _split(trace: bytes) -> Iterator[memoryview]:
    """Yield the lines without copying them, which would cost as much as decoding."""
    view = memoryview(trace)
    start = 0
    # bytes.splitlines would also cut at a carriage return, str.splitlines at U+2028 and U+0085.
    while (stop := trace.find(b"\n", start)) >= 0:
        yield view[start:stop]
        start = stop + 1
    if start < len(trace):
        yield view[start:]


def is_document(trace: bytes) -> bool:
    """Return whether a trace begins like one indented JSON object instead of lines."""
    return trace[:3].rstrip() == b"{"


def _read_each(trace: bytes, decoder: msgspec.json.Decoder[T], build: Callable[[Json], T]) -> Lines[T]:
    if is_document(trace):
        with suppress(msgspec.MsgspecError, RecursionError):
            return Lines([decoder.decode(trace)], parsed=1, bytes_parsed=len(trace))
    out: Lines[T] = Lines()
    for raw in _split(trace):
        if len(raw) > MAX_LINE:
            out.skipped += 1
            out.bytes_skipped += len(raw)
            continue
        try:
            out.objects.append(decoder.decode(raw))
        except (msgspec.MsgspecError, RecursionError):
            _read_line(bytes(raw).decode("utf-8", "replace"), build, out)
        else:
            out.parsed += 1
    out.bytes_parsed = len(trace) - out.bytes_repaired - out.bytes_skipped
    return out


def _read_line(line: str, build: Callable[[Json], T], out: Lines[T]) -> None:
    """Read a line that the decoder refused: empty, broken, or of another shape."""
    line = line.strip("\0\ufeff \t\r")
    if not line:
        return
    if "\\ud" in line or "\\uD" in line:
        line = _LONE_SURROGATE.sub(lambda match: match[1] or "\\ufffd", line)
    try:
        # Unlike msgspec, the standard library also accepts NaN and integers of any size.
        value = json.loads(line)
    except (ValueError, RecursionError):
        # Broken input is expected and counted; RecursionError means JSON nested too deeply.
        objects, lost = _repair(line)
        out.repaired += bool(objects)
        out.bytes_repaired += _count_bytes(line) - lost
    else:
        objects = [value] if isinstance(value, dict) else []
        lost = 0 if objects else _count_bytes(line)
        out.parsed += bool(objects)
    out.objects.extend(map(build, objects))
    out.skipped += not objects
    out.bytes_skipped += lost


def _repair(line: str) -> tuple[list[Json], int]:
    """Decode one object after the other after doubling the backslashes of invalid escapes.

    Returns the objects, and how many bytes of the line are outside all of them.
    """
    wrong = [match.start() for match in _ESCAPE.finditer(line) if not match[1]]
    cuts = pairwise([0, *wrong, len(line)])
    spans, objects = _decode_all("\\".join(line[start:stop] for start, stop in cuts))
    doubled = [place + number for number, place in enumerate(wrong)]
    read = (line[start - bisect_left(doubled, start) : stop - bisect_left(doubled, stop)] for start, stop in spans)
    return objects, _count_bytes(line) - sum(map(_count_bytes, read))


def _decode_all(line: str) -> tuple[list[tuple[int, int]], list[Json]]:
    spans: list[tuple[int, int]] = []
    objects: list[Json] = []
    position = tries = 0
    opening = "{"
    while (start := line.find(opening, position)) >= 0 and tries <= MAX_TRIES:
        try:
            value, position = _LENIENT.raw_decode(line, start)
        except (ValueError, RecursionError):
            # This object was cut off; the next one may begin inside it.
            position, opening, tries = start + 1, _ENTRY, tries + 1
            continue
        if opening == _ENTRY and not _IN_ENTRIES & value.keys():
            # A nested part of the broken object rather than an entry.
            tries += 1
            continue
        opening = "{"
        spans.append((start, position))
        objects.append(value)
    return spans, objects


def _count_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
