"""What a session knows of one file, all of it or runs of lines, and how an edit of it would end."""

import re
import unicodedata
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
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


def replace_in_piece(piece: str, old: str, new: str, everywhere: bool) -> str | None:
    """Make one edit of a piece; unchanged if the edit was elsewhere, None if that is unclear."""
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
    """Count a text, ignoring kinds of quotes and dashes and spaces at the ends of lines."""
    core = max((line.strip() for line in old.split("\n")), key=len)
    if core.isascii() and text.isascii():
        count = text.count(core)
        if count < 2 and (count == 0 or old in text):
            return count
    return normalise_loosely(text).count(normalise_loosely(old).strip("\n"))


def find_distinctive_lines(text: str) -> list[str]:
    """Return the lines of more than two characters; shorter ones are in many places."""
    return [stripped for line in text.split("\n") if len(stripped := line.strip()) > 2]


def normalise_line_ends(text: str) -> str:
    """Replace CRLF by LF, as harnesses do before they compare."""
    return text.replace("\r\n", "\n")


@lru_cache(maxsize=256)
def normalise_loosely(text: str) -> str:
    """Unify quotes, dashes and spaces, and strip the ends of lines."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_ALIKE)
    return "\n".join(map(str.rstrip, text.split("\n")))


Outcome = Literal["ok", "not_found", "multiple", "no_change", "invalid"]


def _bare_lines(text: str) -> list[str]:
    """Return the lines without what Codex ignores when it looks for them."""
    return [line.strip() for line in normalise_loosely(text).split("\n")]


def _place(lines: list[str], wanted: list[str], start: int) -> int:
    """Return where lines follow each other as wanted, or -1."""
    for at in range(start, len(lines) - len(wanted) + 1):
        if lines[at : at + len(wanted)] == wanted:
            return at
    return -1


def _follow(lines: list[str], wanted: list[list[str]]) -> bool:
    """Whether runs of lines follow each other."""
    at = 0
    for old in wanted:
        # Codex looks again without an empty last line.
        tries = [old, old[:-1]] if old and not old[-1] else [old]
        found = [(place, one) for one in tries if (place := _place(lines, one, at)) >= 0]
        if not found:
            return False
        at = found[0][0] + len(found[0][1])
    return True


MIN_IN_PARTS = 20
MIN_GONE = 12
# A reader, a recorder or a harness may have changed such text when showing it.
_UNSURE = re.compile("[\x1b\ufeff\ufffd\ud800-\udfff]|\r(?!\n)|REDACTED|=\\*{3}")
_PATTERN = re.compile(r"\$[$&`']")


class Edit(NamedTuple):
    """Replace a text that occurs once in the file, or every occurrence."""

    old: str
    new: str
    everywhere: bool = False


@dataclass
class File:
    """What is known of one file.

    whole      the text, if all of it is known
    pieces     otherwise the runs of lines that were seen
    is_stale   it may have changed since, so that nothing follows from it
    edited     texts that no formatter has processed since
    doubtful   lines that a formatter may have changed
    by_tool    the session has read or written it with a file tool
    """

    whole: str | None = None
    pieces: list[str] = field(default_factory=list)
    is_stale: bool = False
    edited: list[str] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)
    by_tool: bool = False
    # For some pieces the number of the first line, and whether the last is the file's last.
    placed: dict[str, tuple[int, bool]] = field(default_factory=dict)

    @property
    def is_known(self) -> bool:
        """Whether anything known of it still holds."""
        return not self.is_stale and (self.whole is not None or bool(self.pieces))

    @property
    def sure(self) -> str | None:
        """The whole text, if nothing can have changed it."""
        return None if self.is_stale or self.doubtful else self.whole

    def see(self, text: str, is_whole: bool) -> None:
        """Learn the text, or some of its lines, from a read."""
        text = normalise_line_ends(text)
        if is_whole:
            self.forget()
            self.whole = text
            return
        if self.is_stale:
            # Older knowledge may contradict it.
            self.forget()
        if self.doubtful:
            self.doubtful -= {line.strip() for line in text.split("\n")}
        if self.whole is not None and text not in self.whole:
            # Something changed the file in between, such as a formatter.
            self.pieces = [self.whole] if self.doubtful else []
            self.whole = None
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
            doubtful, edited = self.doubtful, self.edited
            self.see(joined_text, is_whole=True)
            self.doubtful, self.edited = doubtful, edited
        else:
            self.pieces = [piece for piece in self.pieces if piece not in joined_text]
            self.pieces.append(joined_text)
            self.placed[joined_text] = (first, is_end)

    def write(self, text: str) -> None:
        """Learn the text from a write."""
        self.see(text, is_whole=True)
        self.edited.append(normalise_line_ends(text))

    def format(self) -> None:
        """Note that a formatter may have rewritten what was edited."""
        self.doubtful |= {line.strip() for text in self.edited for line in text.split("\n")}
        self.edited = []

    def lose(self, edits: Sequence[Edit], in_turn: bool = False) -> None:
        """Note edits that were interrupted, and may have been made nevertheless."""
        if self.predict(edits, in_turn) not in {"not_found", "multiple", "no_change"}:
            self.is_stale = True

    def forget(self) -> None:
        """Forget everything."""
        self.whole, self.pieces, self.is_stale = None, [], False
        self.edited, self.doubtful, self.placed = [], set(), {}

    def predict(self, edits: Sequence[Edit], in_turn: bool = False) -> Outcome | None:
        """Predict how edits of the file end; None if what is known does not decide it.

        Each is looked up in the original file, or (`in_turn`) in what those before it left.
        """
        if self.is_stale or not edits or any(_UNSURE.search(edit.old) for edit in edits):
            return None
        if in_turn and len(edits) > 1:
            after = self.copy()
            for edit in edits:
                outcome = after.predict([edit])
                if outcome != "ok":
                    return outcome
                after.apply([edit])
            return "ok"
        found = [self._find(edit.old, edit.everywhere) for edit in edits]
        for outcome in ("not_found", "multiple"):
            if outcome in found:
                return None if self.doubtful else outcome
        if None in found or self._may_overlap(edits):
            return None
        # Blank lines and lone brackets do not count: they occur everywhere.
        if self.doubtful and self.doubtful & {
            w for edit in edits for w in find_distinctive_lines(edit.old)
        }:
            return None
        if all(edit.old == edit.new for edit in edits):
            return "no_change"
        return "ok"

    def copy(self) -> "File":
        """Return a copy that can be changed independently."""
        return deepcopy(self)

    def _find(self, old: str, everywhere: bool) -> Outcome | None:
        """Look up a text exactly, and as harnesses do that ignore kinds of quotes and spaces."""
        old = normalise_line_ends(old)
        if not old.strip():
            return None
        texts = self.pieces if self.whole is None else [self.whole]
        count = max((text.count(old) for text in texts), default=0)
        if count > 1:
            return "ok" if everywhere else "multiple"
        alike = max((count_alike(text, old) for text in texts), default=0)
        if count == 0:
            # The text may be in a part that is not known.
            return "not_found" if self.whole is not None and alike == 0 else None
        # A short text that is in a piece may be elsewhere in the file, too.
        is_once = alike == 1 and (self.whole is not None or len(old.strip()) >= MIN_IN_PARTS)
        return "ok" if is_once else None

    def predict_lines(self, hunks: Sequence[Edit]) -> Outcome | None:
        """Predict how a patch ends whose hunks are whole lines, each looked up after the last."""
        if self.is_stale or self.doubtful:
            return None
        wanted = [_bare_lines(normalise_line_ends(h.old)) if h.old else [] for h in hunks]
        if self.whole is not None:
            return "ok" if _follow(_bare_lines(self.whole), wanted) else "not_found"
        # Where pieces stand to each other is not known.
        return "ok" if any(_follow(_bare_lines(text), wanted) for text in self.pieces) else None

    def apply_lines(self, hunks: Sequence[Edit]) -> None:
        """Apply a patch that the harness has applied."""
        if self.sure is None:
            self.apply([hunk for hunk in hunks if hunk.old])
            return
        lines, at = (self.whole or "").split("\n"), 0
        for hunk in hunks:
            old = hunk.old.split("\n") if hunk.old else []
            at = _place(_bare_lines("\n".join(lines)), _bare_lines(hunk.old) if old else [], at)
            if at < 0 or not old:
                self.is_stale = True  # where it went is unknown
                return
            new = hunk.new.split("\n")
            lines[at : at + len(old)] = new
            at += len(new)
        self.write("\n".join(lines))

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
        """Apply edits that the harness has made."""
        if self.is_stale:
            # Only the new text is certain.
            self.forget()
        if self.doubtful:
            # The edit succeeded, so these lines were there unchanged.
            self.doubtful.difference_update(*(find_distinctive_lines(edit.old) for edit in edits))
        for edit in edits:
            old, new = normalise_line_ends(edit.old), normalise_line_ends(edit.new)
            # A piece with a line that is gone, but not as the edit saw it, was out of date.
            gone = {line for line in old.split("\n") if len(line.strip()) >= MIN_GONE}
            gone -= {*new.split("\n")}
            self.pieces = [
                piece
                for piece in self.pieces
                if old in piece or gone.isdisjoint(piece.split("\n") if gone else ())
            ]
            if self.whole is not None:
                self.whole = replace_text(self.whole, old, new, edit.everywhere)
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
        # Some versions interpret these as JavaScript's `replace` does.
        self.is_stale = any(_PATTERN.search(edit.new) for edit in edits)
