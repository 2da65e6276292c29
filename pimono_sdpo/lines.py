"""Read JSON lines as they really are: glued, cut, badly escaped, or fine.

Recorders append without locks and redactors rewrite text without knowing JSON, so a broken line
is normal. It costs that line at most, never the session.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

_BAD_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_DECODER = json.JSONDecoder(strict=False)


@dataclass
class Lines:
    """The JSON objects of a trace in order, and how many lines gave them.

    `parsed` lines were valid, `repaired` lines gave at least one object after mending, `skipped`
    lines gave none.
    """

    objects: list[dict[str, Any]] = field(default_factory=list)
    parsed: int = 0
    repaired: int = 0
    skipped: int = 0


def read_lines(text: str) -> Lines:
    r"""Split on newlines only and decode every line that can be decoded.

    >>> lines = read_lines('{"a": 1}{"b": 2}\n{"c": "\\*"}\n{"cut')
    >>> lines.objects, lines.parsed, lines.repaired, lines.skipped
    ([{'a': 1}, {'b': 2}, {'c': '\\*'}], 0, 2, 1)
    """
    out = Lines()
    # str.splitlines would also cut at U+2028 and U+0085, which are legal inside JSON strings.
    for raw in text.lstrip("\ufeff").split("\n"):
        line = raw.strip("\0 \t\r")
        if not line:
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            # Broken input is expected here and counted; RecursionError is JSON nested too deep.
            objects = _repair(line)
            out.objects.extend(objects)
            out.repaired += bool(objects)
            out.skipped += not objects
            continue
        if isinstance(value, dict):
            out.objects.append(value)
            out.parsed += 1
        else:
            out.skipped += 1
    return out


def _repair(line: str) -> list[dict[str, Any]]:
    """Decode one object after the other, first as written, then with bad escapes doubled."""
    for candidate in (line, _BAD_ESCAPE.sub(_double, line)):
        objects: list[dict[str, Any]] = []
        position = 0
        while (position := candidate.find("{", position)) >= 0:
            try:
                value, position = _DECODER.raw_decode(candidate, position)
            except (ValueError, RecursionError):
                # The rest of the line is lost; what came before it is kept.
                break
            if isinstance(value, dict):
                objects.append(value)
        if objects:
            return objects
    return []


def _double(match: re.Match[str]) -> str:
    return match.group(0) if match.group(1) else "\\\\"
