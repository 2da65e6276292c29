"""Find the place of a hunk in a file by what it says, never by its numbers alone."""

import difflib
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from rewards.verifiers.candidate import Refusal
from rewards.verifiers.diffs import Hunk

TAB_WIDTHS = (2, 4, 8)
MAX_COMPARED = 4000
MAX_SHOWN = 120


class Looked(NamedTuple):
    """The lines of a file, and where each stands, spacing apart."""

    lines: Sequence[str]
    spaced: list[str]
    places: dict[str, list[int]]


def looked(lines: Sequence[str]) -> Looked:
    """Look at the lines of a file once for all of its hunks."""
    spaced = [_spaced(line) for line in lines]
    places: dict[str, list[int]] = {}
    for at, line in enumerate(spaced):
        places.setdefault(line, []).append(at)
    return Looked(lines, spaced, places)


def locate(hunk: Hunk, file: Looked, path: str) -> int | Refusal:
    """Return the index of the first line the hunk speaks of.

    The old lines must occur once, spacing apart. When they occur several times, the first below the
    lines that the header names is meant, or the one at the file's end if the hunk says so; else the
    one that is alike to the letter, unless the model may have turned the tabs of another into
    spaces; else the one at the line that a header with right counts names.
    """
    lines = file.lines
    old = [line.text for line in hunk.lines if line.tag != "+"]
    if not any(line.strip() for line in old):
        if not lines and not old:
            return 0
        return Refusal(
            "context_not_found",
            f"A hunk for {path} has no lines of the file around what it adds; give three lines "
            "before and after.",
        )
    alike = _places(old, file)
    if len(alike) > 1 and hunk.at_end:
        alike = [place for place in alike if place + len(old) == len(lines)] or alike
    if len(alike) > 1 and hunk.above:
        alike = _below(hunk.above, file, alike) or alike
    if len(alike) == 1:
        return _indented(hunk, old, lines, alike[0], path)
    if not alike:
        return _missing(old, lines, path)
    exact = [place for place in alike if list(lines[place : place + len(old)]) == old]
    to_the_letter = set(exact)
    others = [lines[at : at + len(old)] for at in alike if at not in to_the_letter]
    if len(exact) == 1 and not any(_expands_to(other, old) for other in others):
        return exact[0]
    if hunk.fits() and hunk.start is not None and hunk.start - 1 in exact:
        return hunk.start - 1
    shown = " and ".join(str(place + 1) for place in alike[:3])
    return Refusal(
        "ambiguous",
        f"The lines of a hunk are in {path} {len(alike)} times, at lines {shown}; give more lines "
        "around the change.",
    )


def _expands_to(lines: Sequence[str], old: Sequence[str]) -> bool:
    return any([line.expandtabs(width) for line in lines] == list(old) for width in TAB_WIDTHS)


def _spaced(line: str) -> str:
    return " ".join(line.split())


def _places(old: Sequence[str], file: Looked) -> list[int]:
    wanted = [_spaced(line) for line in old]
    counts = [len(file.places.get(line, ())) for line in wanted]
    rarest = counts.index(min(counts))
    return [
        at - rarest
        for at in file.places.get(wanted[rarest], ())
        if at >= rarest and file.spaced[at - rarest : at - rarest + len(wanted)] == wanted
    ]


def _below(above: Sequence[str], file: Looked, places: Sequence[int]) -> list[int]:
    """Return of some places the first below each place of the lines above; it may begin there."""
    starts: list[int] | None = None
    for wanted in map(_spaced, above):
        there = file.places.get(wanted, [])
        begun = there if starts is None else starts
        starts = [there[n] for s in begun if (n := bisect_left(there, s)) < len(there)]
    first = [places[n] for s in starts or () if (n := bisect_left(places, s)) < len(places)]
    return sorted(set(first))


def _indented(
    hunk: Hunk, old: Sequence[str], lines: Sequence[str], place: int, path: str
) -> int | Refusal:
    """Return the place, unless the hunk's indentation leaves open how new lines are indented."""
    pairs = [
        (_indent(mine), _indent(theirs))
        for mine, theirs in zip(old, lines[place : place + len(old)], strict=True)
        if mine.strip() and _indent(mine) != _indent(theirs)
    ]
    added = [line.text for line in hunk.lines if line.tag == "+" and line.text.strip()]
    if not pairs or not added:
        return place
    expanded = any(
        all("\t" in theirs and theirs.expandtabs(width) == mine for mine, theirs in pairs)
        for width in TAB_WIDTHS
    )
    if expanded and all("\t" in _indent(line) or not _indent(line) for line in added):
        return place
    differing = (
        place + number
        for number, mine in enumerate(old)
        if mine.strip() and _indent(mine) != _indent(lines[place + number])
    )
    at = next(differing, place)
    return Refusal(
        "context_not_found",
        f"A hunk for {path} is indented otherwise than line {at + 1} of the file, "
        f"`{lines[at][:MAX_SHOWN]}`; copy tabs and spaces as they are.",
    )


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _missing(old: Sequence[str], lines: Sequence[str], path: str) -> Refusal:
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        numbers.setdefault(_spaced(line), number)
    absent = next((line for line in old if line.strip() and _spaced(line) not in numbers), None)
    if absent is None:
        first = next(line for line in old if line.strip())
        return Refusal(
            "context_not_found",
            f"The lines of a hunk are in {path}, but not one after the other; "
            f"`{_shown(first)}` is line {numbers[_spaced(first)]}. Copy the lines as they follow "
            "each other.",
        )
    wanted = _spaced(absent)[:MAX_SHOWN]
    shortened = {line[:MAX_SHOWN]: number for line, number in reversed(numbers.items()) if line}
    near = difflib.get_close_matches(wanted, list(shortened)[-MAX_COMPARED:], n=1, cutoff=0.5)
    told = f"; the nearest is line {shortened[near[0]]}: `{near[0]}`" if near else ""
    return Refusal(
        "context_not_found",
        f"The line `{_shown(absent)}` of a hunk is not in {path}{told}. Read the file again and "
        "copy its lines.",
    )


def _shown(line: str) -> str:
    return line.strip()[:MAX_SHOWN]
