"""Read the edits of a file tool's call, and the lines that a read has shown.

A call with several `edits` looks each up in the file as it was (Pi), or as those before it left it.
A patch of Codex names files and runs of lines, each looked up after the one before it.
"""

import re
import tomllib
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pimono_sdpo.prefilter import Prefilter
from pimono_sdpo.replay.files import Edit
from pimono_sdpo.traces.events import Event, decode_json
from pimono_sdpo.traces.harness import HARNESSES
from pimono_sdpo.traces.harness.base import FileTools

# A harness may cut a longer line without saying so.
LONGEST_LINE = 2000
# A fork may write the arguments of another harness; Pi's come first.
_OLD_AND_NEW = tuple(dict.fromkeys(h.files.edit for h in reversed(HARNESSES) if h.files.edit))
_NOTICE = re.compile(r"\n\n(?:\[[^\]\n]{0,400}\]|\.\.\. \([^\n]{0,300}\))\s*\Z")
_TABLE = {
    name: "|".join(alternatives)
    for name, alternatives in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}
_NO_TEXT = re.compile(rf"\s*(?:{_TABLE['no_text']})", re.IGNORECASE)
_GAP = re.compile(_TABLE["gap"], re.IGNORECASE | re.MULTILINE)
_VETO = re.compile(rf"\W{{0,8}}(?:{_TABLE['veto']})", re.IGNORECASE)
_PREFILTER = Prefilter([_GAP])
_NUMBERED = re.compile(r" *(\d{1,7})([→\t])(.*)")
_LOOKS_NUMBERED = re.compile(r"\s*\d{1,7}(?:#\w{1,8})?\s?[→\t|:]")
_HEADER = re.compile(r"\*\*\* (Add|Update|Delete) File: (.+)")


def is_veto(text: str) -> bool:
    """Whether an extension, a hook or a queue stopped a call, whatever it would have done."""
    return bool(_VETO.match(text))


class Patch(NamedTuple):
    """One file of a patch: Add, Update, Delete, or Bad where no harness can read it; `target` if it is moved."""

    kind: str
    path: str
    hunks: list[Edit]
    text: str = ""
    target: str = ""


def read_patch(given: dict[str, Any]) -> list[Patch]:
    r"""Return the files that a call of Codex's `apply_patch` changes; [] for another call.

    >>> (one,) = read_patch({"input": "*** Update File: a.py\n@@ def f\n x\n-y\n+z\n*** End Patch"})
    >>> one.path, one.hunks
    ('a.py', [Edit(old='x\ny', new='x\nz', everywhere=False, after='def f')])
    """
    found: list[tuple[str, str, list[tuple[str, list[str]]]]] = []
    targets: dict[int, str] = {}
    for line in find_text(given, "input", "patch").split("\n"):
        if header := _HEADER.match(line):
            found.append((header[1], header[2].strip(), []))
        elif line.startswith("*** Move to: "):
            targets[len(found) - 1] = line[13:].strip()
        elif line.startswith("*** End Patch"):
            break
        elif found and line.startswith("@@"):
            found[-1][2].append((line[2:].strip(), []))
        elif found and not line.startswith("***"):
            if not found[-1][2]:
                found[-1][2].append(("", []))
            found[-1][2][-1][1].append(line)
    return [_build_patch(*one, targets.get(at, "")) for at, one in enumerate(found)]


def _build_patch(kind: str, path: str, hunks: list[tuple[str, list[str]]], target: str) -> Patch:
    texts = [
        Edit(
            "\n".join(line[1:] for line in lines if line[:1] != "+"),
            "\n".join(line[1:] for line in lines if line[:1] != "-"),
            after=after,
        )
        for after, lines in hunks
    ]
    is_bad = any(line[:1] not in {"", " ", "+", "-"} for _, lines in hunks for line in lines)
    if kind == "Update" and (is_bad or not hunks or not all(lines for _, lines in hunks)):
        return Patch("Bad", path, texts)
    return Patch(kind, path, texts, "\n".join([*(one.new for one in texts), ""]) if kind == "Add" else "", target)


class Shown(NamedTuple):
    """Runs of lines that a read has shown.

    `first_line` is the number of the first line, 0 for several runs; `is_end` is True if nothing
    follows the last line.
    """

    runs: list[str]
    first_line: int
    is_end: bool


def decode_arguments(call: Event) -> dict[str, Any]:
    """Decode a call's arguments; {} for anything but an object."""
    given = decode_json(call.arguments)
    return given if isinstance(given, dict) else {}


def find_text(given: dict[str, Any], *names: str) -> str:
    """Return the first text among the arguments of these names, or ""."""
    return next((given[name] for name in names if isinstance(given.get(name), str)), "")


def find_path(given: dict[str, Any]) -> str:
    """Return the path of the file that a call names, or ""."""
    return find_text(given, "path", "file_path", "filePath", "notebook_path", "file")


def read_edits(given: dict[str, Any]) -> list[Edit]:
    """Return the edits of a call of any harness, [] if one of them is malformed.

    >>> read_edits({"path": "a.ts", "oldText": "x", "newText": "y"})
    [Edit(old='x', new='y', everywhere=False, after='')]
    """
    several = given.get("edits")
    if isinstance(several, str):
        several = decode_json(several)
    several = several if isinstance(several, list) else [given]
    edits = []
    for one in several:
        if not isinstance(one, dict):
            return []
        old, new = (
            next((one[name] for name in names if isinstance(one.get(name), str)), None)
            for names in zip(*_OLD_AND_NEW, strict=True)
        )
        if old is None or new is None:
            return []
        everywhere = one.get("replace_all") in (True, "true")
        edits.append(Edit(old, new, everywhere))
    return edits


def apply_in_turn(given: dict[str, Any]) -> bool:
    """Return whether the edits of a call are applied one after the other."""
    several = given.get("edits")
    return isinstance(several, list) and any(isinstance(one, dict) and "oldText" not in one for one in several)


def parse_read(given: dict[str, Any], text: str, files: FileTools) -> Shown | None:
    """Return what a read has shown; None for anything but text, or text cut in unknown ways."""
    if _NO_TEXT.match(text):
        return None
    offset, limit = given.get("offset"), given.get("limit")
    first = 1 if offset in {None, 0, 1} else offset
    if not isinstance(first, int) or not isinstance(limit, int | None):
        return None
    cut = False
    while notice := _NOTICE.search(text):
        text, cut = text[: notice.start()], True
    if files.numbers_lines:
        numbered = list(map(_NUMBERED.fullmatch, text.split("\n")))
        lines = [match[3] for at, match in enumerate(numbered) if match and int(match[1]) == first + at]
        if len(lines) < len(numbered):
            return None
    else:
        lines = text.split("\n")
        if all(map(_LOOKS_NUMBERED.match, lines[:3])):
            return None
    # Text as long as the limit may go on, whatever the harness says.
    most = limit or files.max_lines
    ends = not cut and (most is None or len(lines) < most)
    runs = _split_runs(lines)
    is_gapless = runs == ["\n".join(lines)]
    return Shown(runs, first if is_gapless else 0, ends and is_gapless)


def _split_runs(lines: list[str]) -> list[str]:
    """Split at the lines that a harness or a publisher may have shortened or redacted."""
    text = "\n".join(lines)
    gaps = {at for at, line in enumerate(lines) if len(line) >= LONGEST_LINE}
    line = start = 0
    for found in _GAP.finditer(text) if _PREFILTER.candidates(text) else ():
        line, start = line + text.count("\n", start, found.start()), found.start()
        gaps.add(line)
    if not gaps:
        return [text]
    cuts = [-1, *sorted(gaps), len(lines)]
    runs = [lines[start + 1 : stop] for start, stop in pairwise(cuts)]
    return ["\n".join(run) for run in runs if any(run)]


_WORD = re.compile(r"\w+|[^\w\s]")
Words = Counter[str]


def changed_words(given: dict[str, Any]) -> Words:
    """Return the words that a call takes out (-) and puts in (+), or those of its arguments."""
    edits = read_edits(given) or [hunk for patch in read_patch(given) for hunk in patch.hunks]
    if not edits:
        return count_words(" ".join(map(str, given.values())))
    words: Words = Counter()
    for edit in edits:
        old, new = count_words(edit.old), count_words(edit.new)
        words.update({f"-{word}": count for word, count in (old - new).items()})
        words.update({f"+{word}": count for word, count in (new - old).items()})
    return words or count_words("\n".join(edit.new for edit in edits))


def count_words(text: object) -> Words:
    """Count the words and signs of a text."""
    return Counter(_WORD.findall(str(text)))


def overlap(one: Words, other: Words) -> float:
    """Return the F1 of two bags of words."""
    total = one.total() + other.total()
    return 2 * (one & other).total() / total if total else 0.0
