"""Read unified diffs as models write them: wrong or missing numbers, fences, prose around.

What can be read in two ways is refused: a diff that is applied is the one that was meant.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rewards.verifiers.candidate import Refusal

_OPENS = re.compile(r"(`{3,}|~{3,})([^`]*)$")
_DELIMITER = re.compile(r"(?:<\|[\w/]+\|?>|<[\w/]+\|>)\s*\Z")
HINTS = frozenset({"diff", "patch", "udiff"})


@dataclass(frozen=True, slots=True)
class Block:
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


def diff_blocks(text: str, truncated: bool | None) -> list[Block] | Refusal:
    """Return the blocks that hold a diff, empty without any.

    `truncated` is None when nobody knows: then a fence that never closes tells it.
    """
    lines = lines_of(without_delimiter(text))
    found: list[Block] = []
    outside: list[str] = []
    opener, info, start = "", "", 0
    for number, line in enumerate(lines):
        fence = _OPENS.match(line)
        if not opener and fence:
            opener, info, start = fence[1], fence[2], number + 1
        elif opener and fence and fence[1].startswith(opener) and not fence[2].strip():
            if _is_diff(lines[start:number], info):
                found.append(Block(tuple(lines[start:number]), True, True))
            opener = ""
        elif not opener:
            outside.append(line)
    open_diff = bool(opener) and _is_diff(lines[start:], info)
    if opener and (open_diff or found):
        if truncated is not False:
            return Refusal(
                "truncated",
                "The answer ends inside a fenced block; write it shorter and close the fence.",
            )
        if open_diff:
            found.append(Block(tuple(lines[start:]), True, True))
    if not found:
        ends = lines[-1] == ""
        return (
            [Block(tuple(lines[: len(lines) - ends]), False, ends)] if _is_diff(lines, "") else []
        )
    if _is_diff(outside, ""):
        return Refusal(
            "malformed",
            "The answer has a diff inside a fenced block and another outside; put all of it into "
            "one ```diff block.",
        )
    fences = sum(1 for line in lines if _OPENS.match(line))
    follow = fences > 2
    return [Block(block.lines, True, True, follow) for block in found]


def _is_diff(lines: Sequence[str], info: str) -> bool:
    hinted = info.strip().lower() in HINTS
    return hinted or any(starts_diff(lines, at) for at in range(len(lines)))


_HEADER = re.compile(r"@@\s*-([0-9]{1,9})(?:,([0-9]{1,9}))?\s+\+[0-9]{1,9}(?:,([0-9]{1,9}))?")
_GIT = re.compile(
    r"index |old mode |new mode |new file mode |deleted file mode |similarity |dissim"
)
_SIGNATURE = re.compile(r"\d+\.\d+(\.\d+)*\S*$")
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")
_TAGS = (" ", "+", "-")

_WHERE_IT_ENDS = Refusal(
    "malformed",
    "It cannot be told where the diff ends and the text goes on; put the diff into a ```diff "
    "block.",
)
_CUT = Refusal(
    "truncated",
    "The diff ends before its last hunk is complete; write a smaller diff, to its end.",
)


@dataclass(slots=True)
class Line:
    """A line of a hunk: its tag and its text; `ends` is False for a last line without newline."""

    tag: str
    text: str
    ends: bool = True
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


def read_diff(text: str, truncated: bool | None) -> list[FileDiff] | Refusal:
    """Return the diffs of a completion, or why there are none that can be trusted.

    `truncated` says whether the completion was cut; None when nobody knows, then the text tells it
    where it can: a fence left open, fewer lines than the last header promises.
    """
    if truncated:
        return Refusal(
            "truncated",
            "The answer was cut off at its maximum length; write a smaller diff, to its end.",
        )
    blocks = diff_blocks(text, truncated)
    if isinstance(blocks, Refusal):
        return blocks
    files: list[FileDiff] = []
    for block in blocks:
        problem = _Reader(block).read(files)
        if problem:
            return problem
    hunks = [hunk for file in files for hunk in file.hunks]
    if not hunks and not any(file.renamed for file in files):
        return Refusal(
            "no_patch",
            "The answer holds no unified diff; write one with `--- a/path`, `+++ b/path` and "
            "`@@` lines in a ```diff block.",
        )
    if truncated is None and hunks and _looks_cut(hunks[-1], blocks[-1]):
        return _CUT
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

    def read(self, files: list[FileDiff]) -> Refusal | None:
        """Add the block's diffs to `files`."""
        begun = len(files)
        loose = False
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("diff --git ") or self._names():
                files.append(self._header())
                loose = True
            elif line.startswith("@@"):
                if len(files) == begun:
                    files.append(FileDiff())
                hunk = self._hunk()
                if isinstance(hunk, Refusal):
                    return hunk
                files[-1].hunks.append(hunk)
                loose = not hunk.fits()
            elif line.startswith(("GIT binary patch", "Binary files ")):
                return Refusal("malformed", "The diff is binary; write a text diff.")
            elif loose and line.startswith(("+", "-")) and not line.startswith("-- "):
                return _WHERE_IT_ENDS
            else:
                self.at += 1
        return None

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

    def _hunk(self) -> Hunk | Refusal:
        numbers = _HEADER.match(self.lines[self.at])
        hunk = Hunk(None, None)
        if numbers:
            counts = (int(numbers[2] or 1), int(numbers[3] or 1))
            hunk = Hunk(int(numbers[1]), counts)
        elif above := self.lines[self.at].strip("@ \t"):
            hunk.above = (above,)
        self.at += 1
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if self._ends(line, hunk):
                break
            if line == "":
                if not self._blank_belongs(hunk):
                    break
                hunk.lines.append(Line(" ", ""))
            elif line.startswith("\\"):
                if hunk.lines:
                    hunk.lines[-1].ends, hunk.lines[-1].marked = False, True
            elif line[0] in _TAGS:
                hunk.lines.append(Line(line[0], line[1:]))
            elif not self.fenced and hunk.fits():
                break
            else:
                return Refusal(
                    "malformed",
                    f"The line `{line[:120]}` inside a hunk begins with none of space, `+`, `-`; "
                    "begin each line of a hunk with one of them.",
                )
            self.at += 1
        while hunk.lines and not hunk.fits() and hunk.lines[-1] == Line(" ", ""):
            hunk.lines.pop()
        return _WHERE_IT_ENDS if hunk.unsure and not hunk.fits() else hunk

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
            short = hunk.counts is not None and hunk.actual()[0] < hunk.counts[0]
            return short
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
