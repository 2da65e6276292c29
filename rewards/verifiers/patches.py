r"""Apply the diff of a completion to the files in memory, or say why it does not apply.

spec   as in `rewards.verifiers.candidate`; truncated: whether the completion was cut off, None or
       absent if unknown; end: the token at the end of the completion, which is ignored
score  1.0 if the diff applies, else up to 0.5, for the share of its hunks whose place was found

Both unified diffs and Codex's patches are read, and repaired where models usually get them wrong:
line numbers, missing counts, fences and prose around. A diff that could be read in two ways is
refused, so a diff that is applied is the one that was meant. A hunk is placed by the lines that it
shows, never by its numbers alone. Line ends, and whether a file ends with a newline, stay as they
are unless the diff says `\ No newline at end of file`.

| line between `*** Begin Patch` and `*** End Patch` | meaning |
|---|---|
| `*** Add File: path` | a new file; each of its lines begins with `+` |
| `*** Delete File: path` | the file is deleted |
| `*** Update File: path` | hunks follow; `*** Move to: path` also renames the file |
| `@@ def f(x):` | begins a hunk below such a line; several of them narrow it down |
| `*** End of File` | the hunk reaches the end of the file |
"""

import difflib
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from rewards.answers import Fenced, fenced, find_calls
from rewards.verifiers.candidate import (
    Candidate,
    Refusal,
    changed_files,
    files_of,
    refused_path,
    unsafe_path,
)
from rewards.verifiers.rubric import VerifierResult, failed, passed

_DELIMITER = re.compile(r"(?:<\|[\w/]+\|?>|<[\w/]+\|>)\s*\Z")
HINTS = frozenset({"diff", "patch", "udiff"})


class _Refused(Exception):
    """The diff cannot be applied; `args` are those of a Refusal."""


class Block(NamedTuple):
    """Lines without line ends; `fences_follow` when a later fence may belong to it."""

    lines: tuple[str, ...]
    fenced: bool
    ends_with_newline: bool
    fences_follow: bool = False


def lines_of(text: str) -> list[str]:
    """Split at line feeds alone, carriage returns before them dropped."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def without_delimiter(text: str) -> str:
    """Drop the special token that ended a turn, where the decoder left it in the text."""
    return _DELIMITER.sub("", text)


def starts_diff(lines: Sequence[str], at: int) -> bool:
    """Tell whether a diff or a hunk begins at a line."""
    line = lines[at]
    if line.startswith(("@@", "diff --git ")):
        return True
    after = lines[at + 1] if at + 1 < len(lines) else ""
    return line.startswith("--- ") and after.startswith("+++ ")


def diff_blocks(text: str, truncated: bool | None) -> list[Block]:
    """Return the blocks that hold a diff, empty without any.

    `truncated` is None if unknown; then a fence that never closes means that it is.
    """
    lines = lines_of(without_delimiter(text))
    parts = list(fenced(lines, indented=False))
    fences = [part for part in parts if isinstance(part, Fenced)]
    found = [part for part in fences if _is_diff(part.lines, part.info)]
    if not found:
        ends = lines[-1] == ""
        unfenced = Block(tuple(lines[: len(lines) - ends]), False, ends)
        return [unfenced] if _is_diff(lines, "") else []
    if fences[-1].open and truncated is not False:
        why = "The answer ends inside a fenced block; write it shorter and close the fence."
        raise _Refused("truncated", why)
    if _is_diff([part for part in parts if isinstance(part, str)], ""):
        why = "A diff is inside a fenced block, another outside; put all into one ```diff block."
        raise _Refused("malformed", why)
    return [Block(part.lines, True, True, len(fences) > 1) for part in found]


def _is_diff(lines: Sequence[str], info: str) -> bool:
    hinted = info.strip().lower() in HINTS
    return hinted or any(starts_diff(lines, at) for at in range(len(lines)))


_HEADER = re.compile(r"@@\s*-([0-9]{1,9})(?:,([0-9]{1,9}))?\s+\+[0-9]{1,9}(?:,([0-9]{1,9}))?")
_GIT = re.compile(r"index |old mode |new mode |new file mode |deleted file mode |similarity |dissim")
_SIGNATURE = re.compile(r"\d+\.\d+(\.\d+)*\S*$")
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")
_TAGS = (" ", "+", "-")

_WHERE_IT_ENDS = "It is unclear where the diff ends; put it into a ```diff block."


@dataclass(slots=True)
class Line:
    """A line of a hunk: its tag and its text; `marked` as one without a newline."""

    tag: str
    text: str
    marked: bool = False


@dataclass(slots=True)
class Hunk:
    """Lines, and what the header says of them: the first old line and both counts, or nothing.

    `above` are lines that stand somewhere above it, the outer ones first; `at_end` tells that it
    reaches the end of the file.
    """

    start: int | None
    counts: tuple[int, int] | None
    lines: list[Line] = field(default_factory=list)
    unsure: bool = False
    above: tuple[str, ...] = ()
    at_end: bool = False

    def actual(self) -> tuple[int, int]:
        """Count the old and the new lines."""
        old = sum(1 for line in self.lines if line.tag != "+")
        return old, sum(1 for line in self.lines if line.tag != "-")

    def fits(self) -> bool:
        """Tell whether there are the lines that the header promises."""
        return self.counts is not None and self.counts == self.actual()


@dataclass(slots=True)
class FileDiff:
    """The hunks of one file; a name is None where the diff says nothing, "" for /dev/null.

    `deleted` says that the file goes without its lines being shown.
    """

    old: str | None = None
    new: str | None = None
    hunks: list[Hunk] = field(default_factory=list)
    renamed: bool = False
    deleted: bool = False


def read_diff(text: str, truncated: bool | None) -> list[FileDiff]:
    """Return the diffs of a completion, or why there are none that can be trusted.

    `truncated` says whether the completion was cut off; None if unknown, then a fence left open or
    fewer lines than the last header promises mean that it was.
    """
    if truncated:
        why = "The answer was cut off at its maximum length; write a smaller diff, to its end."
        raise _Refused("truncated", why)
    blocks = diff_blocks(text, truncated)
    files = [file for block in blocks for file in _Reader(block).read([])]
    hunks = [hunk for file in files for hunk in file.hunks]
    if not hunks and not any(file.renamed for file in files):
        why = "The answer holds no unified diff; write `---`, `+++` and `@@` in a ```diff block."
        raise _Refused("no_patch", why)
    if truncated is None and hunks and _looks_cut(hunks[-1], blocks[-1]):
        why = "The diff ends before its last hunk is complete; write a smaller one, to its end."
        raise _Refused("truncated", why)
    return files


def _looks_cut(last: Hunk, block: Block) -> bool:
    if block.fenced and not block.fences_follow:
        return False
    actual = last.actual()
    if last.counts and (actual[0] < last.counts[0] or actual[1] < last.counts[1]):
        return True
    whole = last.fits() and bool(last.lines) and last.lines[-1].tag != "+"
    return not block.ends_with_newline and not whole


class _Reader:
    """One block, line by line."""

    def __init__(self, block: Block) -> None:
        self.lines = block.lines
        self.fenced = block.fenced
        self.at = 0
        self.filled = [len(self.lines)] * (len(self.lines) + 1)
        for number in range(len(self.lines) - 1, -1, -1):
            self.filled[number] = number if self.lines[number] else self.filled[number + 1]

    def read(self, files: list[FileDiff]) -> list[FileDiff]:
        """Return the block's diffs behind `files`; hunks without a header belong to the last."""
        loose = False
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("diff --git ") or self._names():
                files.append(self._header())
                loose = True
            elif line.startswith("@@"):
                hunk = self._hunk()
                if not files:
                    files.append(FileDiff())
                files[-1].hunks.append(hunk)
                loose = not hunk.fits()
            elif line.startswith(("GIT binary patch", "Binary files ")):
                raise _Refused("malformed", "The diff is binary; write a text diff.")
            elif loose and line.startswith(("+", "-")) and not line.startswith("-- "):
                raise _Refused("malformed", _WHERE_IT_ENDS)
            else:
                self.at += 1
        return files

    def _names(self) -> bool:
        return self.lines[self.at].startswith("--- ") and starts_diff(self.lines, self.at)

    def _header(self) -> FileDiff:
        file = FileDiff()
        self.at += self.lines[self.at].startswith("diff --git ")
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("rename from "):
                file.old, file.renamed = line[12:].strip(), True
            elif line.startswith("rename to "):
                file.new, file.renamed = line[10:].strip(), True
            elif self._names():
                old, new = _name(line[4:]), _name(self.lines[self.at + 1][4:])
                if not file.renamed:
                    file.old, file.new = old, new
                self.at += 2
                break
            elif not _GIT.match(line):
                break
            self.at += 1
        return file

    def _hunk(self) -> Hunk:
        hunk = Hunk(None, None)
        if numbers := _HEADER.match(self.lines[self.at]):
            counts = (int(numbers[2] or 1), int(numbers[3] or 1))
            hunk = Hunk(int(numbers[1]), counts)
            self.at += 1
        while not numbers and self._begins_without_numbers():
            # Several of them narrow the place down.
            above = self.lines[self.at][2:].strip().removesuffix("@@").strip()
            hunk.above = (*hunk.above, *([above] if above else []))[-MAX_ABOVE:]
            self.at += 1
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if self._ends(line, hunk):
                break
            if line.rstrip() == _AT_END:
                hunk.at_end = True
            elif line == "":
                if not self._blank_belongs(hunk):
                    break
                hunk.lines.append(Line(" ", ""))
            elif line.startswith("\\"):
                if hunk.lines:
                    hunk.lines[-1].marked = True
            elif line[0] in _TAGS:
                hunk.lines.append(Line(line[0], line[1:]))
            elif not self.fenced and hunk.fits():
                break
            else:
                why = f"The line `{line[:120]}` of a hunk begins with none of space, `+` and `-`."
                raise _Refused("malformed", why)
            self.at += 1
        while hunk.lines and not hunk.fits() and hunk.lines[-1] == Line(" ", ""):
            hunk.lines.pop()
        if hunk.unsure and not hunk.fits():
            raise _Refused("malformed", _WHERE_IT_ENDS)
        return hunk

    def _begins_without_numbers(self) -> bool:
        line = self.lines[self.at] if self.at < len(self.lines) else ""
        return line.startswith("@@") and not _HEADER.match(line)

    def _ends(self, line: str, hunk: Hunk) -> bool:
        if line.startswith(("@@", "diff --git ")):
            return True
        if self._names() and not self._is_content(hunk):
            return True
        after = self.lines[self.at + 1] if self.at + 1 < len(self.lines) else ""
        return line.rstrip() == "--" and bool(_SIGNATURE.match(after))

    def _is_content(self, hunk: Hunk) -> bool:
        """Tell whether `--- x`, `+++ y` are lines that begin with dashes and pluses themselves."""
        third = self.lines[self.at + 2] if self.at + 2 < len(self.lines) else ""
        if third.startswith("@@"):
            return False
        return hunk.counts is not None and not hunk.fits()

    def _blank_belongs(self, hunk: Hunk) -> bool:
        """Tell whether an empty line is context that lost its space, or prose follows."""
        if self.fenced:
            return True
        at = self.filled[self.at]
        if at == len(self.lines) or starts_diff(self.lines, at):
            return hunk.counts is not None and hunk.actual()[0] < hunk.counts[0]
        if self.lines[at].startswith((" ", "\\")):
            return True
        if self.lines[at].startswith(("+", "-")):
            hunk.unsure = True
            return True
        return False


def _name(text: str) -> str:
    """Return the path of a `---` or `+++` line, "" for /dev/null."""
    name = text.split("\t")[0].strip()
    if len(name) > 2 and name[0] == name[-1] == '"':
        name = _unquoted(name[1:-1])
    name = name.strip('"`')
    return "" if name == "/dev/null" else name


def _unquoted(name: str) -> str:
    """Read the octal bytes and escaped characters of a path as git quotes it."""
    try:
        raw = _ESCAPED.sub(lambda m: bytes([int(m[1], 8) & 255]), name.encode())
        return raw.decode().replace('\\"', '"')
    except UnicodeError:  # no text, or half a character: the path is looked for as it stands
        return name


MAX_ABOVE = 10
TAB_WIDTHS = (2, 4, 8)
MAX_COMPARED = 4000
MAX_SHOWN = 120


class Looked(NamedTuple):
    """The lines of a file, and where each stands, regardless of spacing."""

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


def locate(hunk: Hunk, file: Looked, path: str) -> int:
    """Return the index of the first line of the hunk.

    The old lines must occur once, regardless of spacing. If they occur several times, the first
    below the lines that the header names is meant, or the one at the end of the file if the hunk
    says so; else the one with the same spacing, unless the model may have turned the tabs of
    another into spaces; else the one at the line that a header with right counts names.
    """
    lines = file.lines
    old = [line.text for line in hunk.lines if line.tag != "+"]
    if not any(line.strip() for line in old):
        if not lines and not old:
            return 0
        why = f"A hunk for {path} has no lines of the file around it; give three before and after."
        raise _Refused("context_not_found", why)
    alike = _places(old, file)
    if len(alike) > 1 and hunk.at_end:
        alike = [place for place in alike if place + len(old) == len(lines)] or alike
    if len(alike) > 1 and hunk.above:
        alike = _below(hunk.above, file, alike) or alike
    if len(alike) == 1:
        return _indented(hunk, old, lines, alike[0], path)
    if not alike:
        _missing(old, lines, path)
    exact = [place for place in alike if list(lines[place : place + len(old)]) == old]
    to_the_letter = set(exact)
    others = [lines[at : at + len(old)] for at in alike if at not in to_the_letter]
    if len(exact) == 1 and not any(_expands_to(other, old) for other in others):
        return exact[0]
    if hunk.fits() and hunk.start is not None and hunk.start - 1 in exact:
        return hunk.start - 1
    shown = " and ".join(str(place + 1) for place in alike[:3])
    why = f"The lines of a hunk are in {path} {len(alike)} times, at lines {shown}; give more of it."
    raise _Refused("ambiguous", why)


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


def _indented(hunk: Hunk, old: Sequence[str], lines: Sequence[str], place: int, path: str) -> int:
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
        all("\t" in theirs and theirs.expandtabs(width) == mine for mine, theirs in pairs) for width in TAB_WIDTHS
    )
    if expanded and all("\t" in _indent(line) or not _indent(line) for line in added):
        return place
    differing = (
        place + number
        for number, mine in enumerate(old)
        if mine.strip() and _indent(mine) != _indent(lines[place + number])
    )
    at = next(differing, place)
    raise _Refused(
        "context_not_found",
        f"A hunk for {path} is indented otherwise than line {at + 1} of the file, "
        f"`{lines[at][:MAX_SHOWN]}`; copy tabs and spaces as they are.",
    )


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _missing(old: Sequence[str], lines: Sequence[str], path: str) -> NoReturn:
    numbers: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        numbers.setdefault(_spaced(line), number)
    absent = next((line for line in old if line.strip() and _spaced(line) not in numbers), None)
    if absent is None:
        first = next(line for line in old if line.strip())
        raise _Refused(
            "context_not_found",
            f"The lines of a hunk are in {path}, but not one after the other; copy them as they "
            f"stand there. `{_shown(first)}` is line {numbers[_spaced(first)]}.",
        )
    wanted = _spaced(absent)[:MAX_SHOWN]
    shortened = {line[:MAX_SHOWN]: number for line, number in reversed(numbers.items()) if line}
    near = difflib.get_close_matches(wanted, list(shortened)[-MAX_COMPARED:], n=1, cutoff=0.5)
    hint = f"; the nearest is line {shortened[near[0]]}: `{near[0]}`" if near else ""
    why = f"The line `{_shown(absent)}` of a hunk is not in {path}{hint}. Copy its lines."
    raise _Refused("context_not_found", why)


def _shown(line: str) -> str:
    return line.strip()[:MAX_SHOWN]


BEGIN, END = "*** Begin Patch", "*** End Patch"
TOOLS = ("apply_patch", "applypatch")
_INPUTS = ("input", "patch", "patchText", "command")
_FILE = re.compile(r"\*\*\* (Add|Delete|Update) File: ?(.+)")
_MOVE = "*** Move to: "
_AT_END = "*** End of File"


def has_envelope(text: str) -> bool:
    """Tell whether a text has a patch of this kind, its own or in a call."""
    return BEGIN in text and next(_patches(text), None) is not None


def read_envelopes(text: str, truncated: bool | None) -> list[FileDiff]:
    """Return the changes of every patch of a text; `truncated` as for `read_diff`."""
    files: list[FileDiff] = []
    for patch in _patches(text):
        if truncated or patch[-1].strip() != END:
            why = f"The patch ends before `{END}`; write a smaller patch, to its end."
            raise _Refused("truncated", why)
        headers = [(n, m) for n, line in enumerate(patch) if (m := _FILE.fullmatch(line.rstrip()))]
        stops = [*(n for n, _ in headers), len(patch) - 1]
        if stray := next((line for line in patch[1 : stops[0]] if line.strip()), None):
            raise _Refused(
                "malformed",
                f"The line `{stray[:MAX_SHOWN]}` belongs to no file; begin each with "
                "`*** Update File: path`, `*** Add File: path` or `*** Delete File: path`.",
            )
        for (begin, header), stop in zip(headers, stops[1:], strict=True):
            files.append(_file(header[1], header[2].strip(), patch[begin + 1 : stop]))
    if not files:
        why = "The patch changes no file; begin with `*** Update File: path`."
        raise _Refused("malformed", why)
    return files


def _patches(text: str) -> Iterator[list[str]]:
    """Yield the lines of each patch, with its first and, when there is one, its last."""
    inputs = [
        value
        for call in find_calls(text)
        if call.name in TOOLS
        for given in map(call.arguments.get, _INPUTS)
        for value in (given if isinstance(given, list) else [given])
        if isinstance(value, str) and BEGIN in value
    ]
    for one in inputs or [text]:
        patch: list[str] = []
        indent = ""
        for line in lines_of(one):
            if not patch and line.strip() == BEGIN:
                # A fence in a list is indented.
                indent = line[: line.index("*")]
                patch.append(BEGIN)
            elif patch:
                patch.append(line.removeprefix(indent))
            if patch and line.strip() == END:
                yield patch
                patch = []
        if patch:
            yield patch


def _file(what: str, path: str, lines: list[str]) -> FileDiff:
    if what == "Delete":
        if any(map(str.strip, lines)):
            why = f"What follows `*** Delete File: {path}` is not part of it."
            raise _Refused("malformed", why)
        return FileDiff(path, "", deleted=True)
    if what == "Add":
        added = [line for line in lines if line.strip()]
        odd = next((line for line in added if not line.startswith("+")), None)
        if odd is not None:
            why = f"The line `{odd[:MAX_SHOWN]}` of the new file {path} does not begin with `+`."
            raise _Refused("malformed", why)
        return FileDiff("", path, [Hunk(None, None, [Line("+", line[1:]) for line in added])])
    file = FileDiff(path, path)
    if lines and lines[0].startswith(_MOVE):
        file.new, file.renamed = lines.pop(0)[len(_MOVE) :].strip(), True
    first = [] if lines and lines[0].startswith("@@") else ["@@"]
    read = _Reader(Block((*first, *lines), True, True)).read([file])
    file.hunks = [hunk for hunk in file.hunks if hunk.lines]
    if len(read) > 1 or not (file.hunks or file.renamed):
        why = f"The patch changes nothing in {path}; write the lines that change."
        raise _Refused("malformed", why)
    return file


NAME = "patch"
LOCATED_SHARE = 0.5
_PREFIX = re.compile(r"^[ab]/")


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Tell whether the diff of a completion applies; metrics: `files` changed."""
    applied = apply_patch(completion, spec)
    if isinstance(applied, Candidate):
        return passed(NAME, files=float(len(applied.changed)))
    unreadable = applied.failure in ("no_patch", "malformed", "truncated")
    return failed(
        NAME,
        "malformed_output" if unreadable else "patch_apply",
        f"{applied.failure}: {applied.why}",
        LOCATED_SHARE * applied.located,
    )


def apply_patch(completion: str, spec: Mapping[str, Any]) -> Candidate | Refusal:
    """Return the files after the diff of a completion; raises ValueError for a spec without."""
    before = files_of(spec)
    text = completion.removesuffix(spec.get("end", ""))
    read = read_envelopes if has_envelope(text) else read_diff
    after = dict(before)
    problems: list[_Refused] = []
    located = total = 0
    try:
        changes = _changes(read(text, spec.get("truncated")), spec)
    except _Refused as refused:
        return Refusal(*refused.args)
    for change in changes:
        text = before.get(change.source, "")
        lines = looked([line for line, _ in _split(text)])
        places = []
        for hunk in change.hunks:
            try:
                places.append(locate(hunk, lines, change.source or change.target))
            except _Refused as refused:
                problems.append(refused)
        located, total = located + len(places), total + len(change.hunks)
        try:
            if not problems:
                _write(change, text, places, after)
        except _Refused as refused:
            problems.append(refused)
    if problems:
        failure, why = problems[0].args
        return Refusal(failure, why, located / total if total else 0.0)
    return changed_files(before, after)


class _Change(NamedTuple):
    """What the diffs want of a file; `source` is "" when it is new, `target` when it goes."""

    source: str
    target: str
    hunks: list[Hunk]
    deleted: bool


def _changes(diffs: Sequence[FileDiff], spec: Mapping[str, Any]) -> list[_Change]:
    """Bring the diffs of one file together, under names that may be written."""
    changes: dict[str, _Change] = {}
    for diff in diffs:
        if not (diff.hunks or diff.renamed or diff.deleted):
            continue
        names = source, target = _names(diff, spec["files"])
        if source and source not in spec["files"]:
            near = difflib.get_close_matches(source, list(spec["files"]), n=1, cutoff=0.3)
            hint = f"; did you mean `{near[0]}`?" if near else "."
            unsafe = unsafe_path(source)
            why = unsafe.why if unsafe else f"There is no file `{source}` in the workspace{hint}"
            raise _Refused(unsafe.failure if unsafe else "file_unknown", why)
        for name in filter(None, names):
            if refused := refused_path(name, spec):
                raise _Refused(refused.failure, refused.why)
        there = changes.get(source or target, _Change(source, target, [], False))
        written = [other.target for key, other in changes.items() if key != (source or target)]
        if (there.source, there.target) != names or (target and target in written):
            why = f"The diff does two different things to {source or target}"
            raise _Refused("ambiguous", f"{why}; write one diff per file.")
        hunks, deleted = [*there.hunks, *diff.hunks], there.deleted or diff.deleted
        changes[source or target] = _Change(source, target, hunks, deleted)
    return list(changes.values())


def _names(diff: FileDiff, files: Mapping[str, str]) -> tuple[str, str]:
    old, new = diff.old, diff.new
    if old is None or new is None:
        if len(files) != 1:
            why = "The diff names no file; begin it with `--- a/path` and `+++ b/path`."
            raise _Refused("file_unknown", why)
        (only,) = files
        return only, only
    if diff.renamed:
        return old, new
    if old.startswith("a/") and new.startswith("b/"):
        old, new = old[2:], new[2:]
    else:
        names = (name.removeprefix("./") for name in (old, new))
        old, new = (name if name in files else _PREFIX.sub("", name) for name in names)
    if old and new and old != new:
        # `--- x.py.orig`, `+++ x.py`: what is written is what the second name says.
        return (new, new) if new in files or old not in files else (old, old)
    return old, new


def _write(change: _Change, text: str, places: Sequence[int], after: dict[str, str]) -> None:
    name = change.source or change.target
    if not change.source and change.target in after:
        why = f"The file {name} exists already; write a diff of what is there."
        raise _Refused("context_not_found", why)
    if change.target != change.source and change.target in after:
        raise _Refused("ambiguous", f"The diff moves a file onto {change.target}, which exists.")
    pieces = sorted(zip(places, change.hunks, strict=True), key=lambda piece: piece[0])
    result = _edited(text, pieces)
    if result is None:
        why = f"Two hunks change the same lines of {name}; write each change once."
        raise _Refused("ambiguous", why)
    if not change.target and result and not change.deleted:
        why = f"The diff deletes {name} but does not show all of its lines; show them all."
        raise _Refused("context_not_found", why)
    after.pop(change.source, None)
    if change.target:
        after[change.target] = result
    return None


def _split(text: str) -> list[tuple[str, str]]:
    """Return lines and their ends, "" for a last line without newline."""
    parts = text.split("\n")
    lines = [(part[:-1], "\r\n") if part.endswith("\r") else (part, "\n") for part in parts[:-1]]
    return [*lines, (parts[-1], "")] if parts[-1] else lines


def _edited(text: str, pieces: Sequence[tuple[int, Hunk]]) -> str | None:
    """Return the text after the hunks, in order of their places; None when they overlap."""
    lines = _split(text)
    crlf = sum(1 for _, end in lines if end == "\r\n")
    usual = "\r\n" if crlf * 2 > len(lines) else "\n"
    out: list[tuple[str, str]] = []
    at = 0
    ends_open = bool(lines) and not lines[-1][1]
    for place, hunk in pieces:
        if place < at:
            return None
        out += lines[at:place]
        at = place
        for line in hunk.lines:
            if line.tag == "+":
                out.append((line.text, usual))
            else:
                if line.tag == " ":
                    out.append(lines[at])
                at += 1
            if line.tag != " " and at == len(lines):
                marked = {one.tag for one in hunk.lines if one.marked}
                ends_open = bool(marked & {"+", " "}) if marked else ends_open
    out += lines[at:]
    closed = [(line, end or usual) for line, end in out]
    joined = "".join(line + end for line, end in closed)
    return joined[: -len(closed[-1][1])] if ends_open and closed else joined
