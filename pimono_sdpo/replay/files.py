"""What a session has seen of one file: all of it, or runs of its lines."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Outcome = Literal["ok", "not_found", "multiple", "no_change"]


class Edit(NamedTuple):
    """Replace a text that stands in the file once."""

    old: str
    new: str


@dataclass
class File:
    """`whole` is the text when all of it is known; `pieces` are runs of lines seen elsewhere.

    A stale file may have changed since: nothing follows from it. `edited` are texts that no
    formatter has seen yet, `doubtful` lines that one may have changed: it leaves alone what it has
    formatted before.
    """

    whole: str | None = None
    pieces: list[str] = field(default_factory=list)
    is_stale: bool = False
    edited: list[str] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)

    def see(self, text: str, is_whole: bool) -> None:
        """Take in what was read just now."""
        if is_whole:
            self._forget()
            self.whole = text
            return
        if self.is_stale:
            # What was seen before may contradict it.
            self._forget()
        self.doubtful -= {line.strip() for line in text.split("\n")}
        if self.whole is not None and text not in self.whole:
            # A formatter was there, or somebody else.
            self.pieces = [self.whole] if self.doubtful else []
            self.whole = None
        if self.whole is None and text not in self.pieces:
            self.pieces.append(text)

    def write(self, text: str) -> None:
        """Take in what was written, all of it."""
        self.see(text, is_whole=True)
        self.edited.append(text)

    def format(self) -> None:
        """Note that a formatter may have rewritten what was edited."""
        self.doubtful |= {line.strip() for text in self.edited for line in text.split("\n")}
        self.edited = []

    def _forget(self) -> None:
        self.whole, self.pieces, self.is_stale = None, [], False
        self.edited, self.doubtful = [], set()

    def predict(self, edits: Sequence[Edit]) -> Outcome | None:
        """Say how edits to the file end; None where what is known does not decide it.

        Each is looked up in the file as it is before all of them.
        """
        if self.is_stale or not edits:
            return None
        found = [self._find(edit.old) for edit in edits]
        for outcome in ("not_found", "multiple"):
            if outcome in found:
                return None if self.doubtful else outcome
        if None in found:
            return None
        # Blank lines and lone brackets are everywhere.
        words = {
            line.strip() for edit in edits for line in edit.old.split("\n") if len(line.strip()) > 2
        }
        if self.doubtful & words:
            return None
        if all(edit.old == edit.new for edit in edits):
            return "no_change"
        return "ok"

    def _find(self, old: str) -> Outcome | None:
        old = plain(old)
        if not old:
            return None
        if self.whole is not None:
            count = plain(self.whole).count(old)
            return "not_found" if count == 0 else "ok" if count == 1 else "multiple"
        counts = [plain(piece).count(old) for piece in self.pieces]
        if max(counts, default=0) > 1:
            return "multiple"
        # Pieces may overlap; what is seen in one of them stands in the file.
        return "ok" if any(counts) else None

    def apply(self, edits: Sequence[Edit]) -> None:
        """Follow edits that the harness has made."""
        if self.is_stale:
            # Nothing else is sure of it but what was put there now.
            self._forget()
        self.edited += [edit.new for edit in edits]
        for edit in edits:
            if self.whole is not None:
                self.whole = _replaced(self.whole, edit)
            self.pieces = [
                changed for piece in self.pieces if (changed := _replaced(piece, edit, True))
            ]
            if self.whole is None and not any(edit.new in piece for piece in self.pieces):
                self.pieces.append(edit.new)


def _replaced(text: str, edit: Edit, may_lack: bool = False) -> str | None:
    """Make one edit; None when the text is not what the harness had before it."""
    count = text.count(edit.old)
    if count == 1:
        return text.replace(edit.old, edit.new)
    if count > 1:
        return None
    if not may_lack:
        return None
    # The edit was elsewhere, unless it touched the end or the beginning of this piece.
    return text if not _touches(text, edit.old) else None


def _touches(piece: str, old: str) -> bool:
    """Tell whether a text may begin or end within a piece and go on outside of it."""
    first, last = old.partition("\n")[0], old.rpartition("\n")[2]
    lines = piece.split("\n")
    return bool(
        "\n" in old
        and (
            (first.strip() and lines[-1].endswith(first))
            or (last.strip() and lines[0].startswith(last))
        )
    )


def plain(text: str) -> str:
    """Take line ends as the harness compares them."""
    return text.replace("\r\n", "\n")
