"""What a session knows of one file, all of it or runs of lines, and how an edit of it would end."""

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
    """Join two runs of lines that touch or overlap; None if they contradict each other."""
    if first < start:
        piece, start, lines, first = lines, first, piece, start
    common = start + len(piece) - first
    overlap = piece[first - start :]
    if overlap[: len(lines)] != lines[:common]:
        return None
    return [*piece, *lines[common:]] if len(lines) > common else piece


def replace_text(text: str, old: str, new: str, everywhere: bool) -> str | None:
    """Make one edit; None if the text cannot be what the harness edited."""
    count = text.count(old) if old else 0
    return text.replace(old, new) if count == 1 or (count and everywhere) else None


def replace_in_piece(piece: str, old: str, new: str, everywhere: bool) -> list[str]:
    """Make one edit of a piece, or leave out the lines that it may have changed."""
    if (changed := replace_text(piece, old, new, everywhere)) is not None:
        return [changed] if changed else []
    touched = {line for line in old.split("\n") if len(line.strip()) >= MIN_GONE}
    lines = piece.split("\n")
    # An edit may reach over the ends of what was seen.
    edges = {*old.split("\n")}
    while lines and lines[0] in edges:
        lines.pop(0)
    while lines and lines[-1] in edges:
        lines.pop()
    cuts = [-1, *(at for at, line in enumerate(lines) if line in touched), len(lines)]
    runs = ["\n".join(lines[start + 1 : stop]) for start, stop in pairwise(cuts)]
    return [run for run in runs if run.strip()]


def count_alike(text: str, old: str) -> int:
    """Count a text, ignoring kinds of quotes and dashes and spaces at the ends of lines."""
    core = max((line.strip() for line in old.split("\n")), key=len)
    if core.isascii() and text.isascii():
        count = text.count(core)
        if count < 2 and (count == 0 or old in text):
            return count
    return normalise_loosely(text).count(normalise_loosely(old).strip("\n"))


def normalise_line_ends(text: str) -> str:
    """Replace CRLF by LF, as harnesses do before they compare."""
    return text.replace("\r\n", "\n")


@lru_cache(maxsize=256)
def normalise_loosely(text: str) -> str:
    """Unify quotes, dashes and spaces, and strip the ends of lines."""
    if not text.isascii():
        text = text.translate(_ALIKE)
    return "\n".join(map(str.rstrip, text.split("\n")))


Outcome = Literal["ok", "not_found", "multiple", "no_change", "invalid"]


@lru_cache(maxsize=1024)
def _bare(text: str) -> str:
    """Return the lines without what Codex ignores when it looks for them, each after a newline."""
    text = normalise_line_ends(text)
    text = text if text.isascii() else text.translate(_ALIKE)
    return "".join(f"\n{line.strip()}" for line in text.split("\n")) + "\n"


def _place(bare: str, old: str, start: int) -> tuple[int, int]:
    """Return where lines begin and how many characters they have, as Codex looks for them.

    An empty last line may be missing; (-1, 0) if they do not follow `start`.
    """
    wanted = _bare(old)
    at = bare.find(wanted, start)
    if at < 0 and wanted.endswith("\n\n"):
        wanted = wanted[:-1]
        at = bare.find(wanted, start)
    return at, len(wanted) - 1 if at >= 0 else 0


def _places(bare: str, hunks: Sequence["Edit"]) -> list[tuple[int, int]] | None:
    """Return where the old lines of hunks begin and end, each after the one before, else None.

    Hunks that only add go to the end.
    """
    at, found = 0, []
    for hunk in hunks:
        if hunk.after:
            place, length = _place(bare, hunk.after, at)
            if place < 0:
                return None
            at = place + length
        if hunk.old:
            place, length = _place(bare, hunk.old, at)
            if place < 0:
                return None
            at = place + length
            found.append((place, at))
        else:
            found.append((len(bare) - 1, len(bare) - 1))
    return found


_NOT_FOUND = re.compile(r"(?i)not found|could not find|failed to find")
_AT = re.compile(r"edits\[(\d{1,4})\]")
MIN_IN_PARTS = 10
MIN_ALIKE = 30
# What shows so many characters of a file as they were shows that nothing has changed it.
MIN_SAME = 100
# No text that is looked for has this line.
_GAP = "\n\ufffd\n"
# Older texts beyond these are forgotten.
MOST_OLDER = 50
MIN_GONE = 12


def _stand_apart(old: str, one: str, other: str) -> bool:
    """Whether a text stands among other lines in two runs, and not in what both have shown."""
    (before, _, after), (before2, _, after2) = one.partition(old), other.partition(old)
    ends = (before[::-1], before2[::-1]), (after, after2)
    # What was seen of both ends must agree, and be more than the text itself.
    lengths = [min(map(len, pair)) for pair in ends]
    agree = all(left[:length] == right[:length] for (left, right), length in zip(ends, lengths, strict=True))
    return not agree or (sum(lengths) < MIN_ALIKE and len(old) < MIN_ALIKE)


class Edit(NamedTuple):
    """Replace a text that occurs once in the file, every occurrence, or the first `after` a line."""

    old: str
    new: str
    everywhere: bool = False
    after: str = ""


@dataclass
class File:
    """What is known of one file.

    whole     the text, if all of it is known
    pieces    otherwise the runs of lines that were seen
    hints     lines among others that something has shown since; where they stand is unknown
    older     texts and runs of lines seen before something happened that may have changed the file
    held      what held for sure before, until something shows that the file is as it was
    """

    whole: str | None = None
    pieces: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    older: list[str] = field(default_factory=list)
    held: "File | None" = None
    # The user has spoken since it was seen, who may have changed it.
    is_past: bool = False
    # What the harness did not find in it.
    missing: set[str] = field(default_factory=set)
    # For some pieces the number of the first line, and whether the last is the file's last.
    placed: dict[str, tuple[int, bool]] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether anything known of it still holds for sure."""
        return self.whole is not None or bool(self.pieces)

    @property
    def texts(self) -> list[str]:
        """The whole text, or the runs of lines that hold for sure."""
        return self.pieces if self.whole is None else [self.whole]

    def see(self, text: str, is_whole: bool) -> None:
        """Learn the text, or some of its lines, from a read."""
        text = normalise_line_ends(text)
        self.is_past = False
        if self.holds([text]):
            self.confirm()
        elif self.held and self.held.whole is not None and text not in self.held.whole:
            self.held = None
        if is_whole:
            self.forget()
            self.whole = text
        elif self.whole is not None and text not in self.whole:
            # Something changed the file in between.
            self.age(certainly=True)
        if self.whole is None and text not in self.pieces:
            self.pieces.append(text)

    def see_lines(self, text: str, first: int, is_end: bool) -> None:
        """Learn lines whose position is known, and join them to adjacent ones."""
        self.see(text, is_whole=first == 1 and is_end)
        if self.whole is not None:
            return
        lines = normalise_line_ends(text).split("\n")
        for piece, (start, was_end) in list(self.placed.items()):
            seen = piece.split("\n")
            if start > first + len(lines) or first > start + len(seen):
                continue
            self.placed.pop(piece)
            self.pieces = [other for other in self.pieces if other != piece]
            both = join_runs(seen, start, lines, first)
            if both is not None:
                lines, first, is_end = both, min(start, first), is_end or was_end
        joined_text = "\n".join(lines)
        if first == 1 and is_end and lines:
            self.see(joined_text, is_whole=True)
        else:
            self.pieces = [piece for piece in self.pieces if piece not in joined_text]
            self.pieces.append(joined_text)
            self.placed[joined_text] = (first, is_end)

    def write(self, text: str) -> None:
        """Learn the text from a write."""
        self.see(text, is_whole=True)

    def hint(self, text: str) -> None:
        """Learn lines among others that something has shown; where they stand is unknown."""
        text = normalise_line_ends(text)
        if text.strip() and text not in self.hints:
            self.hints.append(text)

    def age(self, certainly: bool = False) -> None:
        """Note that something may have changed the file, or has `certainly` changed it."""
        self.missing = set()
        if certainly:
            self.held = None
        elif self.held is None and self.is_known:
            self.held = File(self.whole, self.pieces, self.hints)
        if not self.is_known and not self.hints:
            return
        self.older = list(dict.fromkeys([*self.texts, *self.hints, *self.older]))[:MOST_OLDER]
        self.whole, self.pieces, self.hints, self.placed = None, [], [], {}

    def holds(self, texts: Sequence[str]) -> bool:
        """Whether texts are long enough, and all in what held before, to show that nothing has changed."""
        known = self.held.texts if self.held else []
        return sum(map(len, texts)) >= MIN_SAME and all(any(text in one for one in known) for text in texts)

    def confirm(self) -> None:
        """Note that the file is as it was before something that may have changed it."""
        if self.held and self.whole is None:
            self.whole = self.held.whole
            self.pieces = list(dict.fromkeys([*self.held.pieces, *self.pieces]))
            self.hints = list(dict.fromkeys([*self.held.hints, *self.hints]))
        self.held = None

    def forget(self) -> None:
        """Forget everything."""
        self.whole, self.pieces, self.hints, self.older, self.placed = None, [], [], [], {}
        self.held = None

    def predict(self, edits: Sequence[Edit], in_turn: bool = False) -> Outcome | None:
        """Predict how edits of the file end; None if what is known does not decide it.

        Each is looked up in the original file, or (`in_turn`) in what those before it left.
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
        found = [self._find(edit) for edit in edits]
        for outcome in ("not_found", "multiple"):
            if outcome in found:
                return outcome
        if None in found or self._may_overlap(edits):
            return None
        return "no_change" if all(edit.old == edit.new for edit in edits) else "ok"

    def copy(self) -> "File":
        """Return a copy that can be changed independently."""
        return deepcopy(self)

    def _find(self, edit: Edit) -> Outcome | None:
        """Look up a text exactly, and as harnesses do that ignore kinds of quotes and spaces."""
        old = normalise_line_ends(edit.old)
        if not old.strip() or "\ufffd" in old:
            return None
        count = max((text.count(old) for text in self.texts), default=0)
        if count == 0 and not self.is_past and any(text in old for text in self.missing):
            return "not_found"
        if count > 1:
            return "ok" if edit.everywhere else "multiple"
        if count == 0:
            if self.whole is None:
                return None
            # Some harnesses take it for done where the new text is there.
            is_done = bool(edit.new.strip()) and normalise_line_ends(edit.new) in self.whole
            is_open = is_done or self._may_have_changed(old) or count_alike(self.whole, old)
            return None if is_open else "not_found"
        if self.whole is None:
            # A short text may also be in a part that is not known, and any in several.
            holding = [piece for piece in self.pieces if old in piece]
            is_twice = any(_stand_apart(old, *pair) for pair in combinations(holding, 2))
            is_twice |= any(text.count(old) > 1 for text in (*self.hints, *self.older))
            if is_twice or len(old.strip()) < MIN_IN_PARTS:
                return None
        return "ok" if max(count_alike(text, old) for text in self.texts if old in text) == 1 else None

    def _may_have_changed(self, old: str) -> bool:
        """Whether somebody spoke since the file was seen, or its missing lines were seen elsewhere."""
        there = set(map(str.strip, (self.whole or "").split("\n")))
        missing = [line for line in map(str.strip, old.split("\n")) if line not in there]
        others = (*self.hints, *self.older)
        return self.is_past or any(all(line in text for line in missing or [old]) for text in others)

    def note_missing(self, edits: Sequence[Edit], error: str) -> None:
        """Remember the text that the harness says not to have found: it is not there until the file changes."""
        at = _AT.search(error[:200])
        named = [edit for edit in edits if edit.old.strip() and edit.old in error] or edits
        if _NOT_FOUND.search(error[:200]) and (at or len(named) == 1):
            edit = edits[int(at[1])] if at and int(at[1]) < len(edits) else named[0]
            self.missing.add(normalise_line_ends(edit.old))

    def predict_lines(self, hunks: Sequence[Edit]) -> Outcome | None:
        """Predict how a patch ends whose hunks are whole lines, each looked up after the last."""
        if self.whole is not None:
            if _places(_bare(self.whole), hunks) is not None and not any("\ufffd" in hunk.old for hunk in hunks):
                return "ok"
            return None if self._may_have_changed("\n".join(hunk.old for hunk in hunks)) else "not_found"
        if any("\ufffd" in hunk.old for hunk in hunks):
            return None
        placed = _GAP.join(sorted(self.placed, key=self.placed.__getitem__))
        texts = (placed, *self.pieces, *self.hints)
        if any(_places(_bare(text), hunks) is not None for text in texts):
            return "ok"
        is_missing = any(text in hunk.old for text in self.missing for hunk in hunks)
        return "not_found" if is_missing and not self.is_past else None

    def apply_lines(self, hunks: Sequence[Edit]) -> None:
        """Apply a patch that the harness has applied."""
        if self.whole is None:
            self.apply([hunk for hunk in hunks if hunk.old])
            return
        lines = self.whole.split("\n")
        bare = _bare(self.whole)
        places = _places(bare, hunks)
        if places is None:
            self.age()  # where they went is unknown
            return
        for (start, stop), hunk in sorted(zip(places, hunks, strict=True), reverse=True):
            first, last = bare.count("\n", 0, start), bare.count("\n", 0, stop)
            if not hunk.old and lines[-1:] == [""]:
                first = last = len(lines) - 1
            lines[first:last] = hunk.new.split("\n")
        self.write("\n".join(lines))

    def _may_overlap(self, edits: Sequence[Edit]) -> bool:
        for text in (*self.texts, *self.hints, *self.older):
            found = ((text.find(normalise_line_ends(edit.old)), len(edit.old)) for edit in edits)
            spans = sorted((at, at + length) for at, length in found if at >= 0)
            if any(start < stop for (_, stop), (start, _) in pairwise(spans)):
                return True
        return False

    def apply(self, edits: Sequence[Edit]) -> None:
        """Apply edits that the harness has made."""
        self.is_past, self.missing = False, set()
        for edit in edits:
            old, new = normalise_line_ends(edit.old), normalise_line_ends(edit.new)
            if self.whole is not None:
                self.whole = replace_text(self.whole, old, new, edit.everywhere)
            is_found = any(old in text for text in (*self.pieces, *self.hints, *self.older))
            self.pieces, self.hints, self.older = (
                [
                    run
                    for text in texts
                    for run in (
                        [text]
                        if texts is self.pieces and is_found and old not in text
                        else replace_in_piece(text, old, new, edit.everywhere)
                    )
                ]
                for texts in (self.pieces, self.hints, self.older)
            )
            is_shown = any(new in piece for piece in self.pieces)
            if self.whole is None and new.strip() and not is_shown:
                self.pieces.append(new)
        self.placed = {}
