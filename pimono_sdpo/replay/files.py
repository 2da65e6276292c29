"""Track what a session has seen of one file, and predict the outcome of an edit from it."""

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Literal, NamedTuple

_ALIKE = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("\u00a0\u202f\u205f\u3000", " "),
        **dict.fromkeys(map(chr, range(0x2002, 0x200B)), " "),
    }
)


def join_runs(piece: list[str], start: int, lines: list[str], first: int) -> list[str] | None:
    """Join two adjacent or overlapping runs of lines; None if they contradict each other.

    `start` and `first` are the line numbers where `piece` and `lines` begin.
    """
    if first < start:
        piece, start, lines, first = lines, first, piece, start
    common = start + len(piece) - first
    overlap = piece[first - start :]
    if overlap[: len(lines)] != lines[:common]:
        return None
    return [*piece, *lines[common:]] if len(lines) > common else piece


def replace_text(text: str, old: str, new: str, everywhere: bool) -> str | None:
    """Apply one edit; None if the text cannot be the one that the harness edited."""
    count = text.count(old) if old else 0
    return text.replace(old, new) if count == 1 or (count and everywhere) else None


def replace_in_piece(piece: str, old: str, new: str, everywhere: bool) -> list[str]:
    """Apply one edit to a piece, or drop the lines that it may have changed."""
    if (changed := replace_text(piece, old, new, everywhere)) is not None:
        return [changed] if changed else []
    touched = {line for line in old.split("\n") if len(line.strip()) >= MIN_TOUCHED}
    lines = piece.split("\n")
    # An edit may extend beyond the lines that were seen.
    edges = {*old.split("\n")}
    while lines and lines[0] in edges:
        lines.pop(0)
    while lines and lines[-1] in edges:
        lines.pop()
    cuts = [-1, *(at for at, line in enumerate(lines) if line in touched), len(lines)]
    runs = ["\n".join(lines[start + 1 : stop]) for start, stop in pairwise(cuts)]
    return [run for run in runs if run.strip()]


def count_similar(text: str, old: str) -> int:
    """Count how often `old` occurs in a text, ignoring kinds of quotes and dashes, and trailing spaces."""
    core = max((line.strip() for line in old.split("\n")), key=len)
    if core.isascii() and text.isascii():
        count = text.count(core)
        if count < 2 and (count == 0 or old in text):
            return count
    return normalise_loosely(text).count(normalise_loosely(old).strip("\n"))


def normalise_line_ends(text: str) -> str:
    """Replace CRLF by LF, as harnesses do before they compare texts."""
    return text.replace("\r\n", "\n")


@lru_cache(maxsize=256)
def normalise_loosely(text: str) -> str:
    """Unify quotes, dashes and spaces, and strip trailing spaces."""
    if not text.isascii():
        text = text.translate(_ALIKE)
    return "\n".join(map(str.rstrip, text.split("\n")))


Outcome = Literal["ok", "not_found", "multiple", "no_change", "invalid"]


@lru_cache(maxsize=1024)
def _strip_lines(text: str) -> str:
    """Normalise lines as Codex does when it searches for them, and put a newline before each."""
    text = normalise_line_ends(text)
    text = text if text.isascii() else text.translate(_ALIKE)
    return "".join(f"\n{line.strip()}" for line in text.split("\n")) + "\n"


def _find_lines(stripped: str, old: str, start: int) -> tuple[int, int] | None:
    """Return where lines begin and end at or after `start`, as Codex finds them, or None.

    An empty last line may be missing.
    """
    wanted = _strip_lines(old)
    at = stripped.find(wanted, start)
    if at < 0 and wanted.endswith("\n\n"):
        wanted = wanted[:-1]
        at = stripped.find(wanted, start)
    return None if at < 0 else (at, at + len(wanted) - 1)


def _find_hunks(stripped: str, hunks: Sequence["Edit"]) -> list[tuple[int, int]] | None:
    """Return where the old lines of each hunk begin and end, each after the one before it, or None.

    Hunks that only add lines go to the end.
    """
    position, spans = 0, []
    for hunk in hunks:
        if hunk.after:
            if (span := _find_lines(stripped, hunk.after, position)) is None:
                return None
            position = span[1]
        if hunk.old:
            if (span := _find_lines(stripped, hunk.old, position)) is None:
                return None
            position = span[1]
            spans.append(span)
        else:
            spans.append((len(stripped) - 1, len(stripped) - 1))
    return spans


_NOT_FOUND = re.compile(r"(?i)not found|could not find|failed to find")
_EDIT_NUMBER = re.compile(r"edits\[(\d{1,4})\]")
MIN_IN_PARTS = 10
MIN_SIMILAR = 30
# A read that shows at least so many unchanged characters of a file shows that nothing has changed it.
MIN_SAME = 100
# Joins pieces; no text that is searched for contains this line.
_GAP = "\n\ufffd\n"
# Only the newest of the older texts are kept.
MOST_OLDER = 50
# A shorter line may occur anywhere, so it does not count as changed by an edit.
MIN_TOUCHED = 12


def _differ_around(old: str, one: str, other: str) -> bool:
    """Return whether a text has different surroundings in two pieces, so that it occurs twice in the file."""
    (before, _, after), (before2, _, after2) = one.partition(old), other.partition(old)
    ends = (before[::-1], before2[::-1]), (after, after2)
    # The lines seen by both pieces must agree, and be more than the text itself.
    lengths = [min(map(len, pair)) for pair in ends]
    agree = all(left[:length] == right[:length] for (left, right), length in zip(ends, lengths, strict=True))
    return not agree or (sum(lengths) < MIN_SIMILAR and len(old) < MIN_SIMILAR)


class Edit(NamedTuple):
    """Replace a text that occurs once in a file, every occurrence of it, or the first one `after` a line."""

    old: str
    new: str
    everywhere: bool = False
    after: str = ""


@dataclass
class File:
    """What is known of one file.

    whole       the text, if all of it is known
    pieces      otherwise the runs of lines that were seen
    hints       lines that were shown among others; their position in the file is unknown
    older       texts and runs of lines that were seen before something may have changed the file
    last_known  what was certain at that time; it is restored if the file turns out to be unchanged
    """

    whole: str | None = None
    pieces: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    older: list[str] = field(default_factory=list)
    last_known: "File | None" = None
    # The user may have changed the file since it was seen.
    is_doubtful: bool = False
    # Texts that the harness did not find in the file.
    not_found: set[str] = field(default_factory=set)
    # For some pieces, the number of the first line and whether the last line ends the file.
    positions: dict[str, tuple[int, bool]] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether anything is certain about the file."""
        return self.whole is not None or bool(self.pieces)

    @property
    def texts(self) -> list[str]:
        """The whole text, or the runs of lines that are certain."""
        return self.pieces if self.whole is None else [self.whole]

    def see(self, text: str, is_whole: bool) -> None:
        """Learn the text, or some of its lines, from a read."""
        text = normalise_line_ends(text)
        self.is_doubtful = False
        if self.is_unchanged([text]):
            self.restore()
        elif self.last_known and self.last_known.whole is not None and text not in self.last_known.whole:
            self.last_known = None
        if is_whole:
            self.forget()
            self.whole = text
        elif self.whole is not None and text not in self.whole:
            # Something has changed the file since.
            self.mark_stale(certainly=True)
        if self.whole is None and text not in self.pieces:
            self.pieces.append(text)

    def see_lines(self, text: str, first: int, is_end: bool) -> None:
        """Learn lines whose position is known, and join them with adjacent ones."""
        self.see(text, is_whole=first == 1 and is_end)
        if self.whole is not None:
            return
        lines = normalise_line_ends(text).split("\n")
        for piece, (start, was_end) in list(self.positions.items()):
            piece_lines = piece.split("\n")
            if start > first + len(lines) or first > start + len(piece_lines):
                continue
            self.positions.pop(piece)
            self.pieces = [other for other in self.pieces if other != piece]
            joined = join_runs(piece_lines, start, lines, first)
            if joined is not None:
                lines, first, is_end = joined, min(start, first), is_end or was_end
        joined_text = "\n".join(lines)
        if first == 1 and is_end and lines:
            self.see(joined_text, is_whole=True)
        else:
            self.pieces = [piece for piece in self.pieces if piece not in joined_text]
            self.pieces.append(joined_text)
            self.positions[joined_text] = (first, is_end)

    def write(self, text: str) -> None:
        """Learn the text from a write."""
        self.see(text, is_whole=True)

    def hint(self, text: str) -> None:
        """Learn lines that were shown among others, so that their position is unknown."""
        text = normalise_line_ends(text)
        if text.strip() and text not in self.hints:
            self.hints.append(text)

    def mark_stale(self, certainly: bool = False) -> None:
        """Record that something may have changed the file, or has `certainly` changed it."""
        self.not_found = set()
        if certainly:
            self.last_known = None
        elif self.last_known is None and self.is_known:
            self.last_known = File(self.whole, self.pieces, self.hints)
        if not self.is_known and not self.hints:
            return
        self.older = list(dict.fromkeys([*self.texts, *self.hints, *self.older]))[:MOST_OLDER]
        self.whole, self.pieces, self.hints, self.positions = None, [], [], {}

    def is_unchanged(self, texts: Sequence[str]) -> bool:
        """Return whether texts are long enough and all occur in the last known state, so that it is still valid."""
        known = self.last_known.texts if self.last_known else []
        return sum(map(len, texts)) >= MIN_SAME and all(any(text in one for one in known) for text in texts)

    def restore(self) -> None:
        """Restore the last known state: nothing has changed the file."""
        if self.last_known and self.whole is None:
            self.whole = self.last_known.whole
            self.pieces = list(dict.fromkeys([*self.last_known.pieces, *self.pieces]))
            self.hints = list(dict.fromkeys([*self.last_known.hints, *self.hints]))
        self.last_known = None

    def forget(self) -> None:
        """Forget everything."""
        self.whole, self.pieces, self.hints, self.older, self.positions = None, [], [], [], {}
        self.last_known = None

    def predict(self, edits: Sequence[Edit], in_turn: bool = False) -> Outcome | None:
        """Predict the outcome of edits; None if what is known does not decide it.

        Each text is searched for in the original file, or with `in_turn` in the result of the edits before.
        """
        if not edits:
            return None
        if in_turn and len(edits) > 1:
            after = self.copy()
            for edit in edits:
                outcome = after.predict([edit])
                if outcome != "ok":
                    return outcome
                after.apply([edit])
            return "ok"
        outcomes = [self._find(edit) for edit in edits]
        for outcome in ("not_found", "multiple"):
            if outcome in outcomes:
                return outcome
        if None in outcomes or self._may_overlap(edits):
            return None
        return "no_change" if all(edit.old == edit.new for edit in edits) else "ok"

    def copy(self) -> "File":
        """Return a copy that can be changed independently."""
        return deepcopy(self)

    def _find(self, edit: Edit) -> Outcome | None:
        """Search for a text exactly, and as harnesses do that ignore kinds of quotes and spaces."""
        old = normalise_line_ends(edit.old)
        if not old.strip() or "\ufffd" in old:
            return None
        count = max((text.count(old) for text in self.texts), default=0)
        if count == 0 and not self.is_doubtful and any(text in old for text in self.not_found):
            return "not_found"
        if count > 1:
            return "ok" if edit.everywhere else "multiple"
        if count == 0:
            if self.whole is None:
                return None
            # Some harnesses treat the edit as done if the new text is already there.
            is_done = bool(edit.new.strip()) and normalise_line_ends(edit.new) in self.whole
            is_open = is_done or self._may_have_changed(old) or count_similar(self.whole, old)
            return None if is_open else "not_found"
        if self.whole is None:
            # A short text may also occur in an unknown part, and any text in several pieces.
            matching = [piece for piece in self.pieces if old in piece]
            is_repeated = any(_differ_around(old, *pair) for pair in combinations(matching, 2))
            is_repeated |= any(text.count(old) > 1 for text in (*self.hints, *self.older))
            if is_repeated or len(old.strip()) < MIN_IN_PARTS:
                return None
        return "ok" if max(count_similar(text, old) for text in self.texts if old in text) == 1 else None

    def _may_have_changed(self, old: str) -> bool:
        """Return whether the user may have changed the file, or its missing lines were seen elsewhere."""
        present = set(map(str.strip, (self.whole or "").split("\n")))
        missing = [line for line in map(str.strip, old.split("\n")) if line not in present]
        others = (*self.hints, *self.older)
        return self.is_doubtful or any(all(line in text for line in missing or [old]) for text in others)

    def note_not_found(self, edits: Sequence[Edit], error: str) -> None:
        """Record the text that the harness did not find; it stays missing until the file changes."""
        number = _EDIT_NUMBER.search(error[:200])
        named = [edit for edit in edits if edit.old.strip() and edit.old in error] or edits
        if _NOT_FOUND.search(error[:200]) and (number or len(named) == 1):
            edit = edits[int(number[1])] if number and int(number[1]) < len(edits) else named[0]
            self.not_found.add(normalise_line_ends(edit.old))

    def predict_lines(self, hunks: Sequence[Edit]) -> Outcome | None:
        """Predict the outcome of a patch; its hunks are whole lines, each searched for after the one before."""
        is_unclear = any("\ufffd" in hunk.old for hunk in hunks)
        if self.whole is not None:
            if not is_unclear and _find_hunks(_strip_lines(self.whole), hunks) is not None:
                return "ok"
            return None if self._may_have_changed("\n".join(hunk.old for hunk in hunks)) else "not_found"
        if is_unclear:
            return None
        in_order = _GAP.join(sorted(self.positions, key=self.positions.__getitem__))
        texts = (in_order, *self.pieces, *self.hints)
        if any(_find_hunks(_strip_lines(text), hunks) is not None for text in texts):
            return "ok"
        is_missing = any(text in hunk.old for text in self.not_found for hunk in hunks)
        return "not_found" if is_missing and not self.is_doubtful else None

    def apply_lines(self, hunks: Sequence[Edit]) -> None:
        """Apply a patch that the harness has applied."""
        if self.whole is None:
            self.apply([hunk for hunk in hunks if hunk.old])
            return
        lines = self.whole.split("\n")
        stripped = _strip_lines(self.whole)
        spans = _find_hunks(stripped, hunks)
        if spans is None:
            self.mark_stale()  # where the hunks were applied is unknown
            return
        for (start, stop), hunk in sorted(zip(spans, hunks, strict=True), reverse=True):
            first, last = stripped.count("\n", 0, start), stripped.count("\n", 0, stop)
            if not hunk.old and lines[-1:] == [""]:
                first = last = len(lines) - 1
            lines[first:last] = hunk.new.split("\n")
        self.write("\n".join(lines))

    def _may_overlap(self, edits: Sequence[Edit]) -> bool:
        for text in (*self.texts, *self.hints, *self.older):
            positions = ((text.find(normalise_line_ends(edit.old)), len(edit.old)) for edit in edits)
            spans = sorted((at, at + length) for at, length in positions if at >= 0)
            if any(start < stop for (_, stop), (start, _) in pairwise(spans)):
                return True
        return False

    def apply(self, edits: Sequence[Edit]) -> None:
        """Apply edits that the harness has made."""
        self.is_doubtful, self.not_found = False, set()
        for edit in edits:
            old, new = normalise_line_ends(edit.old), normalise_line_ends(edit.new)
            if self.whole is not None:
                self.whole = replace_text(self.whole, old, new, edit.everywhere)
            is_found = any(old in text for text in (*self.pieces, *self.hints, *self.older))
            pieces = []
            for piece in self.pieces:
                # If the text was seen, the edit did not change pieces without it.
                is_unchanged = is_found and old not in piece
                pieces += [piece] if is_unchanged else replace_in_piece(piece, old, new, edit.everywhere)
            self.pieces = pieces
            self.hints, self.older = (
                [run for text in texts for run in replace_in_piece(text, old, new, edit.everywhere)]
                for texts in (self.hints, self.older)
            )
            if self.whole is None and new.strip() and not any(new in piece for piece in self.pieces):
                self.pieces.append(new)
        self.positions = {}
