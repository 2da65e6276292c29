"""Join, replace and compare texts of files as harnesses do."""

import re
import unicodedata
from functools import lru_cache

_ALIKE = {
    **dict.fromkeys("\u2018\u2019\u201a\u201b", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f", '"'),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    **dict.fromkeys("\u00a0\u202f\u205f\u3000", " "),
    **dict.fromkeys(map(chr, range(0x2002, 0x200B)), " "),
}
_OTHERS = re.compile(f"[{''.join(_ALIKE)}]")


def joined(piece: list[str], start: int, lines: list[str], first: int) -> list[str] | None:
    """Join two runs of lines that touch or overlap; None where they are of two versions."""
    if first < start:
        piece, start, lines, first = lines, first, piece, start
    common = start + len(piece) - first
    overlap = piece[first - start :]
    if overlap[: len(lines)] != lines[:common]:
        return None
    return [*piece, *lines[common:]] if len(lines) > common else piece


def replaced(text: str, old: str, new: str, everywhere: bool) -> str | None:
    """Make one edit; None when the text is not what the harness had before it."""
    count = text.count(old) if old else 0
    return text.replace(old, new) if count == 1 or (count and everywhere) else None


def replaced_in_piece(piece: str, old: str, new: str, everywhere: bool) -> str | None:
    """Make one edit; as it was where the edit was elsewhere, None where that is not to be told."""
    if old in piece:
        return replaced(piece, old, new, everywhere)
    if piece in old:
        return None
    lines = old.split("\n")
    ends = piece.rpartition("\n")[2] in old or piece.partition("\n")[0] in old
    if not (ends or piece.endswith(lines[0]) or piece.startswith(lines[-1])):
        return piece
    for at in range(1, len(lines)):
        begin, end = "\n".join(lines[:at]), "\n".join(lines[at:])
        if (begin.strip() and piece.endswith(begin)) or (end.strip() and piece.startswith(end)):
            return None
    return piece


def count_alike(text: str, old: str) -> int:
    """Count a text where quotes, dashes, and spaces at the ends of lines, are taken as one."""
    core = max((line.strip() for line in old.split("\n")), key=len)
    if core.isascii() and text.isascii():
        count = text.count(core)
        if count < 2 and (count == 0 or old in text):
            return count
    return loose(text).count(loose(old).strip("\n"))


def words_of(text: str) -> list[str]:
    """The lines that are not everywhere."""
    return [stripped for line in text.split("\n") if len(stripped := line.strip()) > 2]


def plain(text: str) -> str:
    """Take line ends as the harness compares them."""
    return text.replace("\r\n", "\n")


@lru_cache(maxsize=256)
def loose(text: str) -> str:
    """Take quotes, dashes and spaces as one, and leave out those at the end of a line."""
    if not text.isascii():
        if not unicodedata.is_normalized("NFKC", text):
            text = unicodedata.normalize("NFKC", text)
        for found in set(_OTHERS.findall(text)):
            text = text.replace(found, _ALIKE[found])
    return "\n".join(map(str.rstrip, text.split("\n")))
