r"""Apply the diff of a completion to the files in memory, or say why it does not apply.

spec   as in `rewards.verifiers.candidate`; truncated: whether the completion was cut off, None or
       absent if unknown; end: the token at the end of the completion, which is ignored
score  1.0 if the diff applies, else up to 0.5, for the share of its hunks whose place was found

Unified diffs are repaired where models usually get them wrong: line numbers, missing counts, fences
and prose around. A diff that could be read in two ways is refused, so a diff that is applied is the
one that was meant. A hunk is placed by the lines that it shows, never by its numbers alone; `@@ def
f(x):` means below such a line, and several of them narrow it down. Line ends, and whether a file
ends with a newline, stay as they are unless the diff says `\ No newline at end of file`.
"""

import difflib
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rewards.answers import Fenced, fenced
from rewards.verifiers.candidate import Candidate, Refusal, changed_files, files_of, refused_path, unsafe_path
from rewards.verifiers.rubric import VerifierResult, failed, passed

NAME = "patch"
LOCATED_SHARE = 0.5
HINTS = frozenset({"diff", "patch", "udiff"})
MAX_ABOVE = 10
MAX_COMPARED = 4000
MAX_SHOWN = 120
TAB_WIDTHS = (2, 4, 8)

_DELIMITER = re.compile(r"(?:<\|[\w/]+\|?>|<[\w/]+\|>)\s*\Z")
_STARTS = re.compile(r"^(?:@@|diff --git |--- .*\n\+\+\+ )", re.MULTILINE)
_HEADER = re.compile(r"@@\s*-([0-9]{1,9})(?:,([0-9]{1,9}))?\s+\+[0-9]{1,9}(?:,([0-9]{1,9}))?")
_GIT = re.compile(r"index |old mode |new mode |new file mode |deleted file mode |similarity |dissim")
_SIGNATURE = re.compile(r"\d+\.\d+(\.\d+)*\S*$")
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")
_PREFIX = re.compile(r"^[ab]/")


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Tell whether the diff of a completion applies; metrics: `files` changed."""
    try:
        applied = apply_patch(completion, spec)
    except Refusal as refused:
        unreadable = refused.failure in ("no_patch", "malformed", "truncated")
        category = "malformed_output" if unreadable else "patch_apply"
        return failed(NAME, category, str(refused), LOCATED_SHARE * refused.located)
    return passed(NAME, files=float(len(applied.changed)))


def apply_patch(completion: str, spec: Mapping[str, Any]) -> Candidate:
    """Return the files after the diff of a completion; raises Refusal, and BadSpec for a spec without files."""
    before = files_of(spec)
    text = completion.removesuffix(spec.get("end", ""))
    diffs = _combine(_read_diff(text, spec.get("truncated")), spec)
    after, found, problems = dict(before), [], list[Refusal]()
    for diff in diffs:
        file = _File(diff.old or diff.new or "", before.get(diff.old or "", ""))
        for hunk in diff.hunks:
            try:
                found.append(file.locate(hunk))
            except Refusal as refused:
                problems.append(refused)
    try:
        if problems:
            raise problems[0]
        places = iter(found)
        for diff in diffs:
            _write(diff, before.get(diff.old or "", ""), [next(places) for _ in diff.hunks], after)
    except Refusal as refused:
        refused.located = len(found) / max(sum(len(diff.hunks) for diff in diffs), 1)
        raise
    return changed_files(before, after)


@dataclass(slots=True)
class _Hunk:
    """Lines with their tags, and what the header says: the first old line and both counts.

    `above` are lines that stand somewhere above it, the outer ones first; `marked` has the tags of
    the lines marked as being without a newline.
    """

    start: int = 0
    counts: tuple[int, int] | None = None
    lines: list[tuple[str, str]] = field(default_factory=list)
    above: tuple[str, ...] = ()
    marked: set[str] = field(default_factory=set)
    unsure: bool = False

    def count(self) -> tuple[int, int]:
        """Count the old and the new lines."""
        tags = [tag for tag, _ in self.lines]
        return len(tags) - tags.count("+"), len(tags) - tags.count("-")

    def fits(self) -> bool:
        """Tell whether there are the lines that the header promises."""
        return self.counts == self.count()


@dataclass(slots=True)
class _FileDiff:
    """The hunks of one file; a name is None where the diff says nothing, "" for /dev/null."""

    old: str | None = None
    new: str | None = None
    hunks: list[_Hunk] = field(default_factory=list)
    renamed: bool = False


def lines_of(text: str) -> list[str]:
    """Split at line feeds alone, carriage returns before them dropped."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def without_delimiter(text: str) -> str:
    """Drop the special token that ended a turn, where the decoder left it in the text."""
    return _DELIMITER.sub("", text)


def has_diff(lines: Sequence[str]) -> bool:
    """Tell whether a diff or a hunk begins at one of the lines."""
    return bool(_STARTS.search("\n".join(lines)))


def _read_diff(text: str, truncated: bool | None) -> list[_FileDiff]:
    """Return the diffs of a text; without `truncated`, an open fence or missing lines mean that it is."""
    if truncated:
        raise Refusal("truncated", "The answer was cut off at its maximum length; write a smaller diff, to its end.")
    lines = lines_of(without_delimiter(text))
    parts = list(fenced(lines, indented=False))
    fences = [part for part in parts if isinstance(part, Fenced)]
    blocks = [part.lines for part in fences if part.info.lower() in HINTS or has_diff(part.lines)]
    if blocks and fences[-1].open and truncated is None:
        raise Refusal("truncated", "The answer ends inside a fenced block; write it shorter and close the fence.")
    if blocks and has_diff([part for part in parts if isinstance(part, str)]):
        why = "A diff is inside a fenced block, another outside; put all into one ```diff block."
        raise Refusal("malformed", why)
    whole = tuple(lines if lines[-1] else lines[:-1])
    files = [file for block in blocks or [whole] for file in _Reader(block, bool(blocks)).read()]
    hunks = [hunk for file in files for hunk in file.hunks]
    if not hunks and not any(file.renamed for file in files):
        why = "The answer holds no unified diff; write `---`, `+++` and `@@` in a ```diff block."
        raise Refusal("no_patch", why)
    may_be_cut = truncated is None and (not blocks or len(fences) > 1)
    if hunks and may_be_cut and _looks_cut(hunks[-1], not blocks and lines[-1] != ""):
        why = "The diff ends before its last hunk is complete; write a smaller one, to its end."
        raise Refusal("truncated", why)
    return files


def _looks_cut(last: _Hunk, stops_in_line: bool) -> bool:
    (old, new), (wanted_old, wanted_new) = last.count(), last.counts or (0, 0)
    whole = last.fits() and last.lines and last.lines[-1][0] != "+"
    return old < wanted_old or new < wanted_new or (stops_in_line and not whole)


class _Reader:
    """One block, line by line."""

    def __init__(self, lines: Sequence[str], is_fenced: bool) -> None:
        self.lines, self.fenced, self.at = lines, is_fenced, 0
        # The first line from each on that is not blank.
        self.filled = [len(lines)] * (len(lines) + 1)
        for number in reversed(range(len(lines))):
            self.filled[number] = number if lines[number] else self.filled[number + 1]

    def read(self) -> list[_FileDiff]:
        """Return the block's diffs; hunks without a header belong to the last."""
        files: list[_FileDiff] = []
        loose = False
        while self.at < len(self.lines):
            line = self._line()
            if line.startswith("diff --git ") or self._names():
                files.append(self._header())
                loose = True
            elif line.startswith("@@"):
                files += [] if files else [_FileDiff()]
                files[-1].hunks.append(hunk := self._hunk())
                loose = not hunk.fits()
            elif line.startswith(("GIT binary patch", "Binary files ")):
                raise Refusal("malformed", "The diff is binary; write a text diff.")
            elif loose and line.startswith(("+", "-")) and not line.startswith("-- "):
                raise Refusal("malformed", "It is unclear where the diff ends; put it into a ```diff block.")
            else:
                self.at += 1
        return files

    def _line(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.lines[at] if at < len(self.lines) else ""

    def _names(self) -> bool:
        return self._line().startswith("--- ") and self._line(1).startswith("+++ ")

    def _header(self) -> _FileDiff:
        file = _FileDiff()
        self.at += self._line().startswith("diff --git ")
        while self.at < len(self.lines):
            line = self._line()
            if line.startswith("rename from "):
                file.old, file.renamed = line[12:].strip(), True
            elif line.startswith("rename to "):
                file.new, file.renamed = line[10:].strip(), True
            elif self._names():
                if not file.renamed:
                    file.old, file.new = _name(line[4:]), _name(self._line(1)[4:])
                self.at += 2
                break
            elif not _GIT.match(line):
                break
            elif line.endswith((" mode 120000", " mode 160000")):
                raise Refusal("malformed", "The diff makes a symlink or a submodule; write a file.")
            self.at += 1
        return file

    def _hunk(self) -> _Hunk:
        hunk = _Hunk()
        if numbers := _HEADER.match(self._line()):
            hunk = _Hunk(int(numbers[1]), (int(numbers[2] or 1), int(numbers[3] or 1)))
            self.at += 1
        while not numbers and self._line().startswith("@@") and not _HEADER.match(self._line()):
            # Several of them narrow the place down.
            above = self._line()[2:].strip().removesuffix("@@").strip()
            hunk.above = (*hunk.above, *([above] if above else []))[-MAX_ABOVE:]
            self.at += 1
        while self.at < len(self.lines) and not self._ends(hunk):
            line = self._line()
            if not line:
                if not self._blank_belongs(hunk):
                    break
                hunk.lines.append((" ", ""))
            elif line[0] == "\\":
                hunk.marked.update(tag for tag, _ in hunk.lines[-1:])
            elif line[0] in " +-":
                hunk.lines.append((line[0], line[1:]))
            elif not self.fenced and hunk.fits():
                break
            else:
                why = f"The line `{line[:MAX_SHOWN]}` of a hunk begins with none of space, `+` and `-`."
                raise Refusal("malformed", why)
            self.at += 1
        while not hunk.fits() and hunk.lines[-1:] == [(" ", "")]:
            hunk.lines.pop()
        if hunk.unsure and not hunk.fits():
            raise Refusal("malformed", "It is unclear where the diff ends; put it into a ```diff block.")
        return hunk

    def _ends(self, hunk: _Hunk) -> bool:
        line = self._line()
        # `--- x`, `+++ y` may be lines of the file that begin with dashes and pluses themselves.
        is_content = hunk.counts and not hunk.fits() and not self._line(2).startswith("@@")
        is_signature = line.rstrip() == "--" and _SIGNATURE.match(self._line(1))
        return line.startswith(("@@", "diff --git ")) or (self._names() and not is_content) or bool(is_signature)

    def _blank_belongs(self, hunk: _Hunk) -> bool:
        """Tell whether an empty line is context that lost its space, or prose follows."""
        at = self.filled[self.at]
        if self.fenced:
            return True
        if at == len(self.lines) or has_diff(self.lines[at : at + 2][: 1 + self.lines[at].startswith("--- ")]):
            return hunk.counts is not None and hunk.count()[0] < hunk.counts[0]
        hunk.unsure = hunk.unsure or self.lines[at][0] in "+-"
        return self.lines[at][0] in " \\+-"


def _name(text: str) -> str:
    """Return the path of a `---` or `+++` line, "" for /dev/null."""
    name = text.split("\t")[0].strip()
    if len(name) > 2 and name[0] == name[-1] == '"':
        # Octal bytes and escaped characters, as git quotes a path.
        raw = _ESCAPED.sub(lambda m: bytes([int(m[1], 8) & 255]), name[1:-1].encode(errors="replace"))
        name = raw.decode(errors="replace").replace('\\"', '"')
    name = name.strip('"`')
    return "" if name == "/dev/null" else name


class _File:
    """The lines of a file, and where each stands, regardless of spacing."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.lines = [line for line, _ in _split(text)]
        self.spaced = list(map(_spaced, self.lines))
        self.places: dict[str, list[int]] = defaultdict(list)
        for at, line in enumerate(self.spaced):
            self.places[line].append(at)

    def locate(self, hunk: _Hunk) -> int:
        """Return the index of the first line of the hunk.

        The old lines must occur once, regardless of spacing. If they occur several times, the first
        below the lines that the header names is meant; else the one with the same spacing, unless the
        model may have turned the tabs of another into spaces; else the one at the line that a header
        with right counts names.
        """
        old = [text for tag, text in hunk.lines if tag != "+"]
        if not self.lines and not old:
            return 0
        if not any(map(str.strip, old)):
            why = f"A hunk for {self.path} has no lines of the file around it; give three before and after."
            raise Refusal("context_not_found", why)
        alike = self._find(list(map(_spaced, old)))
        if not alike:
            raise Refusal("context_not_found", self._describe_missing(old))
        if len(alike) > 1 and hunk.above:
            alike = self._below(hunk.above, alike) or alike
        if len(alike) == 1:
            return self._check_indent(hunk, old, alike[0])
        texts = {place: self.lines[place : place + len(old)] for place in alike}
        exact = [place for place in alike if texts[place] == old]
        others = [text for text in texts.values() if text != old]
        expanded = ([line.expandtabs(width) for line in text] for text in others for width in TAB_WIDTHS)
        if len(exact) == 1 and old not in expanded:
            return exact[0]
        if hunk.fits() and hunk.start - 1 in exact:
            return hunk.start - 1
        shown = " and ".join(str(place + 1) for place in alike[:3])
        why = f"The lines of a hunk are in {self.path} {len(alike)} times, at lines {shown}; give more of it."
        raise Refusal("ambiguous", why)

    def _find(self, wanted: list[str]) -> list[int]:
        rarest = min(range(len(wanted)), key=lambda number: len(self.places.get(wanted[number], ())))
        starts = (at - rarest for at in self.places.get(wanted[rarest], ()) if at >= rarest)
        return [at for at in starts if self.spaced[at : at + len(wanted)] == wanted]

    def _below(self, above: Sequence[str], places: list[int]) -> list[int]:
        """Return of some places the first below each place of the lines above; it may begin there."""
        starts = list(range(len(self.lines)))
        for there in (*(self.places.get(_spaced(line), []) for line in above), places):
            starts = [there[n] for at in starts if (n := bisect_left(there, at)) < len(there)]
        return sorted(set(starts))

    def _check_indent(self, hunk: _Hunk, old: list[str], place: int) -> int:
        """Return the place, unless the hunk's indentation leaves open how new lines are indented."""
        pairs = {
            at: (_indent(mine), _indent(self.lines[at]))
            for at, mine in enumerate(old, place)
            if mine.strip() and _indent(mine) != _indent(self.lines[at])
        }
        added = [_indent(text) for tag, text in hunk.lines if tag == "+" and text.strip()]
        expanded = any(
            all("\t" in its and its.expandtabs(width) == mine for mine, its in pairs.values()) for width in TAB_WIDTHS
        )
        if not pairs or not added or (expanded and all("\t" in indent or not indent for indent in added)):
            return place
        at = min(pairs)
        raise Refusal(
            "context_not_found",
            f"A hunk for {self.path} is indented otherwise than line {at + 1} of the file, "
            f"`{self.lines[at][:MAX_SHOWN]}`; copy tabs and spaces as they are.",
        )

    def _describe_missing(self, old: list[str]) -> str:
        absent = next((line for line in map(_spaced, old) if line and line not in self.places), "")[:MAX_SHOWN]
        if not absent:
            return (
                f"The lines of a hunk are in {self.path}, but not one after the other; copy them as they stand there."
            )
        shown = [line[:MAX_SHOWN] for line in self.spaced[:MAX_COMPARED]]
        near = difflib.get_close_matches(absent, dict.fromkeys(shown), n=1, cutoff=0.5)
        hint = f"; the nearest is line {shown.index(near[0]) + 1}: `{near[0]}`" if near else ""
        return f"The line `{absent}` of a hunk is not in {self.path}{hint}. Copy its lines."


def _spaced(line: str) -> str:
    return " ".join(line.split())


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _combine(diffs: Sequence[_FileDiff], spec: Mapping[str, Any]) -> list[_FileDiff]:
    """Bring the diffs of one file together; `old` is "" when it is new, `new` when it goes."""
    combined: dict[str, _FileDiff] = {}
    for diff in diffs:
        if not (diff.hunks or diff.renamed):
            continue
        source, target = _find_names(diff, spec["files"])
        if source and source not in spec["files"]:
            if unsafe := unsafe_path(source):
                raise unsafe
            near = difflib.get_close_matches(source, list(spec["files"]), n=1, cutoff=0.3)
            hint = f"; did you mean `{near[0]}`?" if near else "."
            raise Refusal("file_unknown", f"There is no file `{source}` in the workspace{hint}")
        for name in filter(None, (source, target)):
            if refused := refused_path(name, spec):
                raise refused
        there = combined.setdefault(source or target, _FileDiff(source, target))
        is_taken = target and any(other.new == target for other in combined.values() if other is not there)
        if (there.old, there.new) != (source, target) or is_taken:
            why = f"The diff does two different things to {source or target}; write one diff per file."
            raise Refusal("ambiguous", why)
        there.hunks += diff.hunks
    return list(combined.values())


def _find_names(diff: _FileDiff, files: Mapping[str, str]) -> tuple[str, str]:
    old, new = diff.old, diff.new
    if old is None or new is None:
        if len(files) != 1:
            why = "The diff names no file; begin it with `--- a/path` and `+++ b/path`."
            raise Refusal("file_unknown", why)
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


def _write(diff: _FileDiff, text: str, places: Sequence[int], after: dict[str, str]) -> None:
    name = diff.old or diff.new
    if not diff.old and diff.new in after:
        raise Refusal("context_not_found", f"The file {name} exists already; write a diff of what is there.")
    if diff.new != diff.old and diff.new in after:
        raise Refusal("ambiguous", f"The diff moves a file onto {diff.new}, which exists.")
    result = _edit(text, sorted(zip(places, diff.hunks, strict=True), key=lambda piece: piece[0]))
    if result is None:
        raise Refusal("ambiguous", f"Two hunks change the same lines of {name}; write each change once.")
    if not diff.new and result:
        why = f"The diff deletes {name} but does not show all of its lines; show them all."
        raise Refusal("context_not_found", why)
    after.pop(diff.old or "", None)
    if diff.new:
        after[diff.new] = result


def _split(text: str) -> list[tuple[str, str]]:
    """Return lines and their ends, "" for a last line without newline."""
    parts = text.split("\n")
    lines = [(part[:-1], "\r\n") if part.endswith("\r") else (part, "\n") for part in parts[:-1]]
    return [*lines, (parts[-1], "")] if parts[-1] else lines


def _edit(text: str, pieces: Sequence[tuple[int, _Hunk]]) -> str | None:
    """Return the text after the hunks, in order of their places; None when they overlap."""
    lines = _split(text)
    usual = "\r\n" if sum(end == "\r\n" for _, end in lines) * 2 > len(lines) else "\n"
    out: list[tuple[str, str]] = []
    at = 0
    ends_open = bool(lines) and not lines[-1][1]
    for place, hunk in pieces:
        if place < at:
            return None
        out += lines[at:place]
        at = place
        for tag, added in hunk.lines:
            if tag == "+":
                out.append((added, usual))
            else:
                out += lines[at : at + 1] if tag == " " else []
                at += 1
            if tag != " " and at == len(lines) and hunk.marked:
                ends_open = bool(hunk.marked & {"+", " "})
    closed = [(line, end or usual) for line, end in out + lines[at:]]
    joined = "".join(line + end for line, end in closed)
    return joined[: -len(closed[-1][1])] if ends_open and closed else joined
