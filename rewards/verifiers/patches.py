r"""Apply the unified diff of a completion to files in memory, or report why it does not apply.

spec   as in `rewards.verifiers.candidate`; truncated: whether the completion was cut off, None or
       absent if unknown; end: the token at the end of the completion, which is ignored
score  1.0 if the diff applies, else up to 0.5, for the share of its hunks whose position was found

Common mistakes of models are repaired: wrong line numbers, missing counts, fences and prose around
the diff. An ambiguous diff is refused. A hunk is located by its lines, never by its numbers alone;
`@@ def f(x):` means below such a line, and several of them narrow the position down. Line endings, and
whether a file ends with a newline, do not change unless the diff has `\ No newline at end of file`.
"""

import difflib
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rewards.answers import Fenced, fenced
from rewards.verifiers.candidate import Candidate, Refusal, changed_files, get_files, refused_path, unsafe_path
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
    """Check whether the diff of a completion applies; metrics: `files` changed."""
    try:
        candidate = apply_patch(completion, spec)
    except Refusal as refusal:
        is_unreadable = refusal.failure in ("no_patch", "malformed", "truncated")
        category = "malformed_output" if is_unreadable else "patch_apply"
        return failed(NAME, category, str(refusal), LOCATED_SHARE * refusal.located)
    return passed(NAME, files=float(len(candidate.changed)))


def apply_patch(completion: str, spec: Mapping[str, Any]) -> Candidate:
    """Return the files after the diff of a completion; raises Refusal, and BadSpec for a spec without files."""
    before = get_files(spec)
    diffs = _combine(_read_diff(completion, spec.get("truncated")), spec)
    after, positions, refusals = dict(before), list[int](), list[Refusal]()
    for diff in diffs:
        file = _File(diff.old or diff.new or "", before.get(diff.old or "", ""))
        for hunk in diff.hunks:
            try:
                positions.append(file.locate(hunk))
            except Refusal as refusal:
                refusals.append(refusal)
    try:
        if refusals:
            raise refusals[0]
        remaining = iter(positions)
        for diff in diffs:
            _write(diff, before.get(diff.old or "", ""), [next(remaining) for _ in diff.hunks], after)
    except Refusal as refusal:
        refusal.located = len(positions) / max(sum(len(diff.hunks) for diff in diffs), 1)
        raise
    return changed_files(before, after)


@dataclass(slots=True)
class _Hunk:
    """Lines with their tags, and the numbers of the header: the first old line and both counts.

    `above` are lines somewhere above the hunk, the outermost first; `no_newline` has the tags of the
    lines that are marked as having no newline.
    """

    start: int = 0
    counts: tuple[int, int] | None = None
    lines: list[tuple[str, str]] = field(default_factory=list)
    above: tuple[str, ...] = ()
    no_newline: set[str] = field(default_factory=set)
    is_unclear: bool = False

    def count(self) -> tuple[int, int]:
        """Count the old and the new lines."""
        tags = [tag for tag, _ in self.lines]
        return len(tags) - tags.count("+"), len(tags) - tags.count("-")

    def fits(self) -> bool:
        """Whether the hunk has as many lines as its header says."""
        return self.counts == self.count()


@dataclass(slots=True)
class _FileDiff:
    """The hunks of one file; a name is None if the diff does not have it, "" for /dev/null."""

    old: str | None = None
    new: str | None = None
    hunks: list[_Hunk] = field(default_factory=list)
    renamed: bool = False


def split_lines(text: str) -> list[str]:
    """Split at line feeds only, and drop carriage returns before them."""
    return [line.removesuffix("\r") for line in text.split("\n")]


def drop_delimiter(text: str) -> str:
    """Drop the special token at the end of the turn, if the decoder left it in the text."""
    return _DELIMITER.sub("", text)


def has_diff(lines: Sequence[str]) -> bool:
    """Whether a diff or a hunk begins at one of the lines."""
    return bool(_STARTS.search("\n".join(lines)))


def _read_diff(text: str, truncated: bool | None) -> list[_FileDiff]:
    """Return the diffs of a text; if `truncated` is unknown, an open fence or missing lines count as truncated."""
    if truncated:
        raise Refusal("truncated", "The answer was cut off at its maximum length; write a smaller diff.")
    lines = split_lines(drop_delimiter(text))
    parts = list(fenced(lines, indented=False))
    fences = [part for part in parts if isinstance(part, Fenced)]
    blocks = [part.lines for part in fences if part.info.lower() in HINTS or has_diff(part.lines)]
    if blocks and fences[-1].open and truncated is None:
        raise Refusal("truncated", "The answer ends inside a fenced block; write a shorter one and close the fence.")
    if blocks and has_diff([part for part in parts if isinstance(part, str)]):
        raise Refusal(
            "malformed", "One diff is inside a fenced block, another outside; put all into one ```diff block."
        )
    unfenced = tuple(lines if lines[-1] else lines[:-1])
    files = [file for block in blocks or [unfenced] for file in _Reader(block, bool(blocks)).read()]
    hunks = [hunk for file in files for hunk in file.hunks]
    if not hunks and not any(file.renamed for file in files):
        raise Refusal("no_patch", "The answer has no unified diff; write `---`, `+++` and `@@` in a ```diff block.")
    may_be_cut = truncated is None and (not blocks or len(fences) > 1)
    if hunks and may_be_cut and _looks_cut(hunks[-1], not blocks and lines[-1] != ""):
        raise Refusal("truncated", "The diff ends before its last hunk is complete; write a smaller diff.")
    return files


def _looks_cut(last: _Hunk, stops_in_line: bool) -> bool:
    (old, new), (expected_old, expected_new) = last.count(), last.counts or (0, 0)
    is_complete = last.fits() and last.lines and last.lines[-1][0] != "+"
    return old < expected_old or new < expected_new or (stops_in_line and not is_complete)


class _Reader:
    """Reads the diffs of one block, line by line."""

    def __init__(self, lines: Sequence[str], is_fenced: bool) -> None:
        self.lines, self.fenced, self.at = lines, is_fenced, 0
        # For each line, the next one that is not blank, itself included.
        self.next_filled = [len(lines)] * (len(lines) + 1)
        for number in reversed(range(len(lines))):
            self.next_filled[number] = number if lines[number] else self.next_filled[number + 1]

    def read(self) -> list[_FileDiff]:
        """Return the diffs of the block; hunks without a header belong to the last file."""
        files: list[_FileDiff] = []
        is_open = False
        while self.at < len(self.lines):
            line = self._line()
            if line.startswith("diff --git ") or self._has_names():
                files.append(self._read_header())
                is_open = True
            elif line.startswith("@@"):
                files += [] if files else [_FileDiff()]
                files[-1].hunks.append(hunk := self._read_hunk())
                is_open = not hunk.fits()
            elif line.startswith(("GIT binary patch", "Binary files ")):
                raise Refusal("malformed", "The diff is binary; write a text diff.")
            elif is_open and line.startswith(("+", "-")) and not line.startswith("-- "):
                raise Refusal("malformed", "It is unclear where the diff ends; put it into a ```diff block.")
            else:
                self.at += 1
        return files

    def _line(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.lines[at] if at < len(self.lines) else ""

    def _has_names(self) -> bool:
        return self._line().startswith("--- ") and self._line(1).startswith("+++ ")

    def _read_header(self) -> _FileDiff:
        file = _FileDiff()
        self.at += self._line().startswith("diff --git ")
        while self.at < len(self.lines):
            line = self._line()
            if line.startswith("rename from "):
                file.old, file.renamed = line[12:].strip(), True
            elif line.startswith("rename to "):
                file.new, file.renamed = line[10:].strip(), True
            elif self._has_names():
                if not file.renamed:
                    file.old, file.new = _parse_name(line[4:]), _parse_name(self._line(1)[4:])
                self.at += 2
                break
            elif not _GIT.match(line):
                break
            elif line.endswith((" mode 120000", " mode 160000")):
                raise Refusal("malformed", "The diff creates a symlink or a submodule; write a file.")
            self.at += 1
        return file

    def _read_hunk(self) -> _Hunk:
        hunk = _Hunk()
        if numbers := _HEADER.match(self._line()):
            hunk = _Hunk(int(numbers[1]), (int(numbers[2] or 1), int(numbers[3] or 1)))
            self.at += 1
        while not numbers and self._line().startswith("@@") and not _HEADER.match(self._line()):
            # Several of them narrow the position down.
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
                hunk.no_newline.update(tag for tag, _ in hunk.lines[-1:])
            elif line[0] in " +-":
                hunk.lines.append((line[0], line[1:]))
            elif not self.fenced and hunk.fits():
                break
            else:
                raise Refusal(
                    "malformed", f"The line `{line[:MAX_SHOWN]}` of a hunk does not begin with a space, `+` or `-`."
                )
            self.at += 1
        while not hunk.fits() and hunk.lines[-1:] == [(" ", "")]:
            hunk.lines.pop()
        if hunk.is_unclear and not hunk.fits():
            raise Refusal("malformed", "It is unclear where the diff ends; put it into a ```diff block.")
        return hunk

    def _ends(self, hunk: _Hunk) -> bool:
        line = self._line()
        # `--- x` and `+++ y` may be changed lines that begin with dashes and pluses themselves.
        is_content = hunk.counts and not hunk.fits() and not self._line(2).startswith("@@")
        is_signature = line.rstrip() == "--" and _SIGNATURE.match(self._line(1))
        return line.startswith(("@@", "diff --git ")) or (self._has_names() and not is_content) or bool(is_signature)

    def _blank_belongs(self, hunk: _Hunk) -> bool:
        """Whether an empty line is context whose space was lost, rather than the end of the hunk before prose."""
        if self.fenced:
            return True
        at = self.next_filled[self.at]
        if at == len(self.lines) or has_diff(self.lines[at : at + 2][: 1 + self.lines[at].startswith("--- ")]):
            return hunk.counts is not None and hunk.count()[0] < hunk.counts[0]
        hunk.is_unclear = hunk.is_unclear or self.lines[at][0] in "+-"
        return self.lines[at][0] in " \\+-"


def _parse_name(text: str) -> str:
    """Return the path of a `---` or `+++` line, "" for /dev/null."""
    name = text.split("\t")[0].strip()
    if len(name) > 2 and name[0] == name[-1] == '"':
        # Octal bytes and escaped characters, as git quotes a path.
        raw = _ESCAPED.sub(lambda m: bytes([int(m[1], 8) & 255]), name[1:-1].encode(errors="replace"))
        name = raw.decode(errors="replace").replace('\\"', '"')
    name = name.strip('"`')
    return "" if name == "/dev/null" else name


class _File:
    """The lines of a file, and their positions regardless of spacing."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.lines = [line for line, _ in _split_ends(text)]
        self.collapsed = list(map(_collapse_spaces, self.lines))
        self.positions: dict[str, list[int]] = defaultdict(list)
        for at, line in enumerate(self.collapsed):
            self.positions[line].append(at)

    def locate(self, hunk: _Hunk) -> int:
        """Return the index of the first line of the hunk.

        The old lines must occur once, regardless of spacing. If they occur several times, the hunk
        belongs to the first occurrence below the lines that its header quotes; else to the one with the
        same spacing, unless the model may have converted tabs of another one to spaces; else to the one
        at the line number of a header with correct counts.
        """
        old = [text for tag, text in hunk.lines if tag != "+"]
        if not self.lines and not old:
            return 0
        if not any(map(str.strip, old)):
            raise Refusal(
                "context_not_found",
                f"A hunk for {self.path} has no lines of the file around it; give three before and after.",
            )
        matches = self._find(list(map(_collapse_spaces, old)))
        if not matches:
            raise Refusal("context_not_found", self._describe_missing(old))
        if len(matches) > 1 and hunk.above:
            matches = self._find_below(hunk.above, matches) or matches
        if len(matches) == 1:
            self._check_indent(hunk, old, matches[0])
            return matches[0]
        texts = {at: self.lines[at : at + len(old)] for at in matches}
        exact = [at for at in matches if texts[at] == old]
        others = [text for text in texts.values() if text != old]
        expanded = ([line.expandtabs(width) for line in text] for text in others for width in TAB_WIDTHS)
        if len(exact) == 1 and old not in expanded:
            return exact[0]
        if hunk.fits() and hunk.start - 1 in exact:
            return hunk.start - 1
        numbers = " and ".join(str(at + 1) for at in matches[:3])
        raise Refusal(
            "ambiguous",
            f"The lines of a hunk occur {len(matches)} times in {self.path}, at lines {numbers}; include more lines.",
        )

    def _find(self, lines: list[str]) -> list[int]:
        rarest = min(range(len(lines)), key=lambda number: len(self.positions.get(lines[number], ())))
        starts = (at - rarest for at in self.positions.get(lines[rarest], ()) if at >= rarest)
        return [at for at in starts if self.collapsed[at : at + len(lines)] == lines]

    def _find_below(self, above: Sequence[str], matches: list[int]) -> list[int]:
        """Return the first match at or below each position of the lines above."""
        starts = list(range(len(self.lines)))
        for positions in (*(self.positions.get(_collapse_spaces(line), []) for line in above), matches):
            starts = [positions[n] for at in starts if (n := bisect_left(positions, at)) < len(positions)]
        return sorted(set(starts))

    def _check_indent(self, hunk: _Hunk, old: list[str], start: int) -> None:
        """Refuse a hunk whose indentation differs so that the indentation of its new lines is unclear."""
        differing = {
            at: (_get_indent(line), _get_indent(self.lines[at]))
            for at, line in enumerate(old, start)
            if line.strip() and _get_indent(line) != _get_indent(self.lines[at])
        }
        added = [_get_indent(text) for tag, text in hunk.lines if tag == "+" and text.strip()]
        if not differing or not added:
            return
        is_expanded = any(
            all("\t" in of_file and of_file.expandtabs(width) == of_hunk for of_hunk, of_file in differing.values())
            for width in TAB_WIDTHS
        )
        if is_expanded and all("\t" in indent or not indent for indent in added):
            return
        at = min(differing)
        raise Refusal(
            "context_not_found",
            f"A hunk for {self.path} is indented differently from line {at + 1} of the file, "
            f"`{self.lines[at][:MAX_SHOWN]}`; copy tabs and spaces as they are.",
        )

    def _describe_missing(self, old: list[str]) -> str:
        absent = next((line for line in map(_collapse_spaces, old) if line and line not in self.positions), "")[
            :MAX_SHOWN
        ]
        if not absent:
            return f"The lines of a hunk are in {self.path}, but not next to each other; copy them from the file."
        shown = [line[:MAX_SHOWN] for line in self.collapsed[:MAX_COMPARED]]
        near = difflib.get_close_matches(absent, dict.fromkeys(shown), n=1, cutoff=0.5)
        hint = f"; the nearest is line {shown.index(near[0]) + 1}: `{near[0]}`" if near else ""
        return f"The line `{absent}` of a hunk is not in {self.path}{hint}. Copy its lines."


def _collapse_spaces(line: str) -> str:
    return " ".join(line.split())


def _get_indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _combine(diffs: Sequence[_FileDiff], spec: Mapping[str, Any]) -> list[_FileDiff]:
    """Merge the diffs of each file; `old` is "" for a new file, `new` for a deleted one."""
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
        merged = combined.setdefault(source or target, _FileDiff(source, target))
        is_taken = target and any(other.new == target for other in combined.values() if other is not merged)
        if (merged.old, merged.new) != (source, target) or is_taken:
            raise Refusal(
                "ambiguous", f"The diff does two different things to {source or target}; write one diff per file."
            )
        merged.hunks += diff.hunks
    return list(combined.values())


def _find_names(diff: _FileDiff, files: Mapping[str, str]) -> tuple[str, str]:
    old, new = diff.old, diff.new
    if old is None or new is None:
        if len(files) != 1:
            raise Refusal("file_unknown", "The diff names no file; begin it with `--- a/path` and `+++ b/path`.")
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
        # `--- x.py.orig`, `+++ x.py`: the second name is the file to write.
        return (new, new) if new in files or old not in files else (old, old)
    return old, new


def _write(diff: _FileDiff, text: str, positions: Sequence[int], after: dict[str, str]) -> None:
    name = diff.old or diff.new
    if not diff.old and diff.new in after:
        raise Refusal("context_not_found", f"The file {name} already exists; write a diff of its content.")
    if diff.new != diff.old and diff.new in after:
        raise Refusal("ambiguous", f"The diff moves a file to {diff.new}, which already exists.")
    result = _apply_hunks(text, sorted(zip(positions, diff.hunks, strict=True), key=lambda pair: pair[0]))
    if result is None:
        raise Refusal("ambiguous", f"Two hunks change the same lines of {name}; write each change once.")
    if not diff.new and result:
        raise Refusal(
            "context_not_found", f"The diff deletes {name} but does not show all of its lines; show them all."
        )
    after.pop(diff.old or "", None)
    if diff.new:
        after[diff.new] = result


def _split_ends(text: str) -> list[tuple[str, str]]:
    """Return lines with their endings, "" for a last line without a newline."""
    parts = text.split("\n")
    lines = [(part[:-1], "\r\n") if part.endswith("\r") else (part, "\n") for part in parts[:-1]]
    return [*lines, (parts[-1], "")] if parts[-1] else lines


def _apply_hunks(text: str, hunks: Sequence[tuple[int, _Hunk]]) -> str | None:
    """Return the text after the hunks, which are sorted by position; None when they overlap."""
    lines = _split_ends(text)
    usual = "\r\n" if sum(end == "\r\n" for _, end in lines) * 2 > len(lines) else "\n"
    out: list[tuple[str, str]] = []
    at = 0
    lacks_newline = bool(lines) and not lines[-1][1]
    for position, hunk in hunks:
        if position < at:
            return None
        out += lines[at:position]
        at = position
        for tag, line in hunk.lines:
            if tag == "+":
                out.append((line, usual))
            else:
                out += lines[at : at + 1] if tag == " " else []
                at += 1
            if tag != " " and at == len(lines) and hunk.no_newline:
                lacks_newline = bool(hunk.no_newline & {"+", " "})
    ended = [(line, end or usual) for line, end in out + lines[at:]]
    result = "".join(line + end for line, end in ended)
    return result.removesuffix(ended[-1][1]) if lacks_newline and ended else result
