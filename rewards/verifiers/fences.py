"""The part of a completion that is a diff: its fenced blocks, or all of it.

Truncation is told here and in `rewards.verifiers.diffs` when the caller does not know of it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

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
