"""What a session has seen of one file: all of it, or runs of its lines."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

_ALIKE = {
    **dict.fromkeys("\u2018\u2019\u201a\u201b", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u201f", '"'),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
    **dict.fromkeys("\u00a0\u202f\u205f\u3000", " "),
    **dict.fromkeys(map(chr, range(0x2002, 0x200B)), " "),
}
_OTHERS = re.compile(f"[{''.join(_ALIKE)}]")


def join_runs(piece: list[str], start: int, lines: list[str], first: int) -> list[str] | None:
    """Join two runs of lines that touch or overlap; None where they are of two versions."""
    if first < start:
        piece, start, lines, first = lines, first, piece, start
    common = start + len(piece) - first
    overlap = piece[first - start :]
    if overlap[: len(lines)] != lines[:common]:
        return None
    return [*piece, *lines[common:]] if len(lines) > common else piece


def replace_text(text: str, old: str, new: str, everywhere: bool) -> str | None:
    """Make one edit; None when the text is not what the harness had before it."""
    count = text.count(old) if old else 0
    return text.replace(old, new) if count == 1 or (count and everywhere) else None


def replace_in_piece(piece: str, old: str, new: str, everywhere: bool) -> str | None:
    """Make one edit; as it was where the edit was elsewhere, None where that is not to be told."""
    if old in piece:
        return replace_text(piece, old, new, everywhere)
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
    return normalise_loosely(text).count(normalise_loosely(old).strip("\n"))


def find_distinctive_lines(text: str) -> list[str]:
    """The lines that are not everywhere."""
    return [stripped for line in text.split("\n") if len(stripped := line.strip()) > 2]


def normalise_line_ends(text: str) -> str:
    """Take line ends as the harness compares them."""
    return text.replace("\r\n", "\n")


@lru_cache(maxsize=256)
def normalise_loosely(text: str) -> str:
    """Take quotes, dashes and spaces as one, and leave out those at the end of a line."""
    if not text.isascii():
        if not unicodedata.is_normalized("NFKC", text):
            text = unicodedata.normalize("NFKC", text)
        for found in set(_OTHERS.findall(text)):
            text = text.replace(found, _ALIKE[found])
    return "\n".join(map(str.rstrip, text.split("\n")))


Outcome = Literal["ok", "not_found", "multiple", "no_change"]

MIN_IN_PARTS = 20
# What a reader, a recorder or a harness may have changed in what it has shown.
_UNSURE = re.compile("[\x1b\ufeff\ufffd\ud800-\udfff]|\r(?!\n)|REDACTED")
_PATTERN = re.compile(r"\$[$&`']")


class Edit(NamedTuple):
    """Replace a text that stands in the file once, or wherever it stands."""

    old: str
    new: str
    everywhere: bool = False


@dataclass
class File:
    """`whole` is the text when all of it is known; `pieces` are runs of lines seen elsewhere.

    A stale file may have changed since: nothing follows from it. `edited` are texts that no
    formatter has seen yet, `doubtful` lines that one may have changed: it leaves alone what it has
    formatted before. `by_tool` says that the session has read or written it with a file tool.
    `otherwise` is the whole text if a formatter or an edit was at work of which nobody knows
    whether it was: what follows has to follow from both.
    """

    whole: str | None = None
    pieces: list[str] = field(default_factory=list)
    is_stale: bool = False
    edited: list[str] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)
    by_tool: bool = False
    # Of some pieces: the number of the first line, and whether the last is the file's.
    placed: dict[str, tuple[int, bool]] = field(default_factory=dict)
    otherwise: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether anything is known of it that still holds."""
        return not self.is_stale and (self.whole is not None or bool(self.pieces))

    @property
    def sure(self) -> str | None:
        """The whole text, where nothing may have changed it."""
        return None if self.is_stale or self.doubtful or self.otherwise is not None else self.whole

    def see(self, text: str, is_whole: bool) -> None:
        """Take in what was read just now, all of it or some of its lines."""
        text = normalise_line_ends(text)
        if is_whole:
            self.forget()
            self.whole = text
            return
        if self.is_stale:
            # What was seen before may contradict it.
            self.forget()
        if self.otherwise is not None and self.whole is not None:
            self._keep(text in self.whole, text in self.otherwise)
        if self.doubtful:
            self.doubtful -= {line.strip() for line in text.split("\n")}
        if self.whole is not None and text not in self.whole:
            # A formatter was there, or somebody else.
            self.pieces = [self.whole] if self.doubtful else []
            self.whole = None
        if self.whole is None and text not in self.pieces:
            self.pieces.append(text)

    def see_lines(self, text: str, first: int, is_end: bool) -> None:
        """Take in lines whose place is known, joined to those before or after them."""
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
            doubtful, edited = self.doubtful, self.edited
            self.see(joined_text, is_whole=True)
            self.doubtful, self.edited = doubtful, edited
        else:
            self.pieces = [piece for piece in self.pieces if piece not in joined_text]
            self.pieces.append(joined_text)
            self.placed[joined_text] = (first, is_end)

    def write(self, text: str) -> None:
        """Take in what was written, all of it."""
        self.see(text, is_whole=True)
        self.edited.append(normalise_line_ends(text))

    def format(self) -> None:
        """Note that a formatter may have rewritten what was edited."""
        texts = self.edited
        if self.otherwise is not None and self.whole is not None:
            texts = [*texts, *(set(self.whole.split("\n")) ^ set(self.otherwise.split("\n")))]
        self.doubtful |= {line.strip() for text in texts for line in text.split("\n")}
        self.edited, self.otherwise = [], None

    def lose(self, edits: Sequence[Edit], in_turn: bool = False) -> None:
        """Note edits that were broken off, and may have been made all the same."""
        outcome = self.predict(edits, in_turn)
        if outcome in {"not_found", "multiple", "no_change"}:
            return
        after = self.copy()
        if outcome == "ok" and self.sure is not None:
            after.apply(edits)
        self.otherwise, self.edited = after.sure, after.edited
        self.is_stale |= self.otherwise is None or outcome is None

    def _keep(self, is_whole: bool, is_otherwise: bool) -> None:
        """Keep of two possible texts that which was seen to hold."""
        if is_otherwise and not is_whole:
            self.whole = self.otherwise
        if not (is_whole and is_otherwise):
            self.otherwise = None

    def forget(self) -> None:
        """Know nothing of it any more."""
        self.whole, self.pieces, self.is_stale = None, [], False
        self.edited, self.doubtful, self.placed, self.otherwise = [], set(), {}, None

    def predict(self, edits: Sequence[Edit], in_turn: bool = False) -> Outcome | None:
        """Say how edits to the file end; None where what is known does not decide it.

        Each is looked up in the file as it is before all of them, or one after the other.
        """
        if self.is_stale or not edits or any(_UNSURE.search(edit.old) for edit in edits):
            return None
        if self.otherwise is not None:
            outcomes = {
                File(text, by_tool=self.by_tool).predict(edits, in_turn)
                for text in (self.whole, self.otherwise)
            }
            return outcomes.pop() if len(outcomes) == 1 else None
        if in_turn and len(edits) > 1:
            return self._predict_in_turn(edits)
        found = [self._find(edit.old, edit.everywhere) for edit in edits]
        for outcome in ("not_found", "multiple"):
            if outcome in found:
                return None if self.doubtful else outcome
        if None in found or self._may_overlap(edits):
            return None
        # Blank lines and lone brackets are everywhere.
        if self.doubtful and self.doubtful & {
            w for edit in edits for w in find_distinctive_lines(edit.old)
        }:
            return None
        if all(edit.old == edit.new for edit in edits):
            return "no_change"
        return "ok"

    def _predict_in_turn(self, edits: Sequence[Edit]) -> Outcome | None:
        after = self.copy()
        for edit in edits:
            outcome = after.predict([edit])
            if outcome != "ok":
                return outcome
            after.apply([edit])
        return "ok"

    def copy(self) -> "File":
        """Return one that can be changed alone."""
        return File(
            self.whole,
            list(self.pieces),
            self.is_stale,
            list(self.edited),
            set(self.doubtful),
            self.by_tool,
            dict(self.placed),
            self.otherwise,
        )

    def _find(self, old: str, everywhere: bool) -> Outcome | None:
        """Look a text up, exactly and as harnesses do that forgive quotes and spaces."""
        old = normalise_line_ends(old)
        if not old.strip():
            return None
        texts = self.pieces if self.whole is None else [self.whole]
        count = max((text.count(old) for text in texts), default=0)
        if count > 1:
            return "ok" if everywhere else "multiple"
        alike = max((count_alike(text, old) for text in texts), default=0)
        if count == 0:
            # Where the text is known in parts, it may stand in another.
            return "not_found" if self.whole is not None and alike == 0 else None
        # What is seen in a piece stands in the file; if it is short, perhaps elsewhere, too.
        is_once = alike == 1 and (self.whole is not None or len(old.strip()) >= MIN_IN_PARTS)
        return "ok" if is_once else None

    def _may_overlap(self, edits: Sequence[Edit]) -> bool:
        if len(edits) == 1:
            return False
        for text in self.pieces if self.whole is None else [self.whole]:
            spans = sorted(
                (at, at + len(edit.old))
                for edit in edits
                if (at := text.find(normalise_line_ends(edit.old))) >= 0
            )
            if any(start < stop for (_, stop), (start, _) in pairwise(spans)):
                return True
        if self.whole is not None:
            return False
        words = [word for edit in edits for word in set(find_distinctive_lines(edit.old))]
        return len(words) > len(set(words))

    def apply(self, edits: Sequence[Edit]) -> None:
        """Follow edits that the harness has made."""
        if self.is_stale:
            # Nothing else is sure of it but what was put there now.
            self.forget()
        if self.doubtful:
            # It was there as it stands in the call.
            self.doubtful.difference_update(*(find_distinctive_lines(edit.old) for edit in edits))
        for edit in edits:
            old, new = normalise_line_ends(edit.old), normalise_line_ends(edit.new)
            if self.otherwise is not None and self.whole is not None:
                self._keep(count_alike(self.whole, old) > 0, count_alike(self.otherwise, old) > 0)
            if self.otherwise is not None:
                self.otherwise = replace_text(self.otherwise, old, new, edit.everywhere)
                if self.otherwise is None:
                    self.whole = None
            if self.whole is not None:
                self.whole = replace_text(self.whole, old, new, edit.everywhere)
            if self.whole is None:
                self.otherwise = None
            self.pieces = [
                changed
                for piece in self.pieces
                if (changed := replace_in_piece(piece, old, new, edit.everywhere))
            ]
            is_shown = any(new in piece for piece in self.pieces)
            if self.whole is None and new.strip() and not is_shown:
                self.pieces.append(new)
            self.edited.append(new)
        self.placed = {}
        # Some versions take these as JavaScript's `replace` does.
        self.is_stale = any(_PATTERN.search(edit.new) for edit in edits)
