"""Read JSON lines as they really are: glued, cut, badly escaped, or fine.

Recorders append without locks and redactors rewrite text without knowing JSON, so a broken line
is normal. It costs what cannot be read of it, never the session, and every byte is accounted for.
"""

import json
import re
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

# The group is empty for a backslash that begins no escape of JSON.
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4}|)')
# Half of a pair, which no UTF-8 column can hold; a whole pair and a written-out `\\` stay.
_LONE_SURROGATE = re.compile(
    r"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\\\)|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_ENTRY = '{"type"'
_IN_ENTRIES = {"message", "payload", "timestamp", "uuid", "parentId", "cwd"}
MAX_TRIES = 16
_DECODER = json.JSONDecoder(strict=False)


@dataclass
class Lines:
    """The JSON objects of a trace in order, and what became of its lines and bytes.

    `parsed` lines were valid, `repaired` lines gave at least one object after mending, `skipped`
    lines gave none. `bytes_repaired` and `bytes_skipped` count UTF-8 bytes of broken lines: those
    that were read after all, and those that were lost (all of a skipped line, the unread rest of a
    repaired one). All other bytes were parsed.
    """

    objects: list[dict[str, Any]] = field(default_factory=list)
    parsed: int = 0
    repaired: int = 0
    skipped: int = 0
    bytes_parsed: int = 0
    bytes_repaired: int = 0
    bytes_skipped: int = 0


def read_lines(text: str) -> Lines:
    r"""Split on newlines only and decode every line that can be decoded.

    >>> lines = read_lines('{"a": 1}{"b": 2}\n{"c": "\\*"}\n{"cut')
    >>> lines.objects, lines.parsed, lines.repaired, lines.skipped
    ([{'a': 1}, {'b': 2}, {'c': '\\*'}], 0, 2, 1)
    >>> lines.bytes_parsed, lines.bytes_repaired, lines.bytes_skipped
    (2, 27, 5)
    """
    out = Lines()
    # str.splitlines would also cut at U+2028 and U+0085, which are legal inside JSON strings.
    for raw in text.split("\n"):
        line = raw.strip("\0\ufeff \t\r")
        if not line:
            continue
        if "\\ud" in line or "\\uD" in line:
            line = _LONE_SURROGATE.sub(lambda match: match[1] or "\\ufffd", line)
        try:
            value = _decode(line)
        except (ValueError, RecursionError):
            # Broken input is expected here and counted; RecursionError is JSON nested too deep.
            objects, lost = _repair(line)
            out.objects.extend(objects)
            out.repaired += bool(objects)
            out.skipped += not objects
            out.bytes_repaired += _size(line) - lost
            out.bytes_skipped += lost
            continue
        if isinstance(value, dict):
            out.objects.append(value)
            out.parsed += 1
        else:
            out.skipped += 1
            out.bytes_skipped += _size(line)
    out.bytes_parsed = _size(text) - out.bytes_repaired - out.bytes_skipped
    return out


def _decode(line: str) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        # It refuses what the standard library takes, such as NaN and integers of any size.
        return json.loads(line)


def _repair(line: str) -> tuple[list[dict[str, Any]], int]:
    """Decode one object after the other, with bad escapes doubled.

    Returns the objects and the bytes of the line that are in none of them.
    """
    mended = [match.start() for match in _ESCAPE.finditer(line) if not match[1]]
    spans, objects = _decode_all(_double(line, mended))
    doubled = [place + number for number, place in enumerate(mended)]
    read = (
        line[start - bisect_left(doubled, start) : stop - bisect_left(doubled, stop)]
        for start, stop in spans
    )
    return objects, _size(line) - sum(map(_size, read))


def _decode_all(line: str) -> tuple[list[tuple[int, int]], list[dict[str, Any]]]:
    spans: list[tuple[int, int]] = []
    objects: list[dict[str, Any]] = []
    position = tries = 0
    begins = "{"
    while (start := line.find(begins, position)) >= 0 and tries <= MAX_TRIES:
        try:
            value, position = _DECODER.raw_decode(line, start)
        except (ValueError, RecursionError):
            # A write that was cut and then appended to: the next entry begins inside this one.
            position, begins, tries = start + 1, _ENTRY, tries + 1
            continue
        if begins == _ENTRY and not _IN_ENTRIES & value.keys():
            # A part of the broken object, no entry of its own.
            tries += 1
            continue
        begins = "{"
        spans.append((start, position))
        objects.append(value)
    return spans, objects


def _double(line: str, places: list[int]) -> str:
    cuts = [0, *places, len(line)]
    return "\\".join(line[start:stop] for start, stop in pairwise(cuts)) if places else line


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
