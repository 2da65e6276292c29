"""Fenced blocks of a text, and the file that the answer says a block is.

A block is said to be a file by its fence (```python m.py), by its first line (# m.py) or by the
line before it (**m.py**, `m.py`:, File: m.py). Only paths of known files say anything.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})([^`]*)$")
_TOKEN = re.compile(r"[\s:={}\"',]+")
_PATH = r"[`*_\"']*(?P<path>[\w./-]*\w\.\w+)[`*_\"']*"
_WORD = r"(?:file(?:name)?|path|in|updated|new)\b"
_BEFORE = re.compile(rf"[\s>#*+\d.)-]*(?:\*\*)?(?:{_WORD}[\s:*]*)?{_PATH}[\s:*]*$", re.IGNORECASE)
_FIRST = re.compile(rf"(?:#+|//)\s*(?:{_WORD}[\s:]*)?{_PATH}\s*$", re.IGNORECASE)
MAX_INSIDE = 3  # how much deeper than its opener a fence that closes may stand, as in CommonMark
MAX_LABEL = 200


class Fenced(NamedTuple):
    """What stands between two fences, less the indent of the first; `open` without a last."""

    info: str
    before: str
    lines: tuple[str, ...]
    open: bool

    @property
    def text(self) -> str:
        """The lines, each with its end."""
        return "".join(f"{line}\n" for line in self.lines)


def fenced(lines: Sequence[str]) -> Iterator[Fenced | str]:
    """Yield the blocks of a text, and the lines outside of them, in linear time."""
    at, before = 0, ""
    while at < len(lines):
        opener = _FENCE.match(lines[at])
        at += 1
        if opener is None:
            yield lines[at - 1]
            before = lines[at - 1] if lines[at - 1].strip() else before
            continue
        closer = next((n for n in range(at, len(lines)) if _closes(lines[n], opener)), None)
        inside = [_dedented(line, opener[1]) for line in lines[at:closer]]
        yield Fenced(opener[3].strip(), before, tuple(inside), closer is None)
        at, before = len(lines) if closer is None else closer + 1, ""


def _closes(line: str, opener: re.Match[str]) -> bool:
    fence = _FENCE.match(line)
    if fence is None or not fence[2].startswith(opener[2]) or fence[3].strip():
        return False
    return _width(fence[1]) <= _width(opener[1]) + MAX_INSIDE


def _width(indent: str) -> int:
    return len(indent.expandtabs(4))


def _dedented(line: str, indent: str) -> str:
    if line.startswith(indent):
        return line[len(indent) :]
    return line.lstrip(" \t") if not line[: len(indent)].strip() else line


def label(block: Fenced, known: Collection[str]) -> str | None:
    """Return the path of the file that a block is said to be, None when nothing says it.

    >>> label(Fenced("python", "**m.py**", ("x = 1",), False), ["src/m.py"])
    'src/m.py'
    """
    said = _TOKEN.split(block.info[:MAX_LABEL])
    first = _FIRST.match(_short(block.lines[0])) if block.lines else None
    before = _BEFORE.match(_short(block.before))
    said += [match["path"] for match in (first, before) if match]
    return next((path for name in said if (path := _known(name, known))), None)


def _short(line: str) -> str:
    return line if len(line) <= MAX_LABEL else ""


def _known(name: str, known: Collection[str]) -> str | None:
    name = name.removeprefix("./")
    if name in known:
        return name
    ending = [path for path in known if path.endswith(f"/{name}")]
    return ending[0] if name and len(ending) == 1 else None
