"""Read the edits and patches in a tool call, and the lines that a read has shown.

With several `edits` in a call, each text is searched for in the original file (Pi) or in the result
of the edits before it. A Codex patch names files and hunks, each searched for after the one before.
"""

import hashlib
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

# A harness may truncate a longer line without saying so.
LONGEST_LINE = 2000
# The arguments of all harnesses, since a fork may use those of another one; Pi's come first.
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
    """Return whether the result says that an extension, a hook or a queue stopped the call."""
    return bool(_VETO.match(text))


class Patch(NamedTuple):
    """One file of a patch.

    `kind` is Add, Update, Delete, or Bad for a patch that no harness accepts; `text` is that of a new
    file, `target` the new path of a moved one.
    """

    kind: str
    path: str
    hunks: list[Edit]
    text: str = ""
    target: str = ""


def read_patch(arguments: dict[str, Any]) -> list[Patch]:
    r"""Return the files that a call of Codex's `apply_patch` changes; [] for any other call.

    >>> (one,) = read_patch({"input": "*** Update File: a.py\n@@ def f\n x\n-y\n+z\n*** End Patch"})
    >>> one.path, one.hunks
    ('a.py', [Edit(old='x\ny', new='x\nz', everywhere=False, after='def f')])
    """
    files: list[tuple[str, str, list[tuple[str, list[str]]]]] = []
    targets: dict[int, str] = {}
    for line in find_text(arguments, "input", "patch").split("\n"):
        if header := _HEADER.match(line):
            files.append((header[1], header[2].strip(), []))
        elif line.startswith("*** Move to: "):
            targets[len(files) - 1] = line[13:].strip()
        elif line.startswith("*** End Patch"):
            break
        elif files and line.startswith("@@"):
            files[-1][2].append((line[2:].strip(), []))
        elif files and not line.startswith("***"):
            hunks = files[-1][2]
            if not hunks:
                hunks.append(("", []))
            hunks[-1][1].append(line)
    return [_build_patch(*file, targets.get(at, "")) for at, file in enumerate(files)]


def list_hunks(arguments: dict[str, Any]) -> list[Edit]:
    """Return the edits of a call, be it a patch or not; [] for any other call."""
    return read_edits(arguments) or [hunk for patch in read_patch(arguments) for hunk in patch.hunks]


def _build_patch(kind: str, path: str, hunks: list[tuple[str, list[str]]], target: str) -> Patch:
    edits = [
        Edit(
            "\n".join(line[1:] for line in lines if line[:1] != "+"),
            "\n".join(line[1:] for line in lines if line[:1] != "-"),
            after=after,
        )
        for after, lines in hunks
    ]
    is_bad = any(line[:1] not in {"", " ", "+", "-"} for _, lines in hunks for line in lines)
    if kind == "Update" and (is_bad or not hunks or not all(lines for _, lines in hunks)):
        return Patch("Bad", path, edits)
    text = "\n".join([*(edit.new for edit in edits), ""]) if kind == "Add" else ""
    return Patch(kind, path, edits, text, target)


class Shown(NamedTuple):
    """Runs of lines that a read has shown.

    `first_line` is the number of the first line, 0 for several runs; `is_end` is True if the last
    line ends the file.
    """

    runs: list[str]
    first_line: int
    is_end: bool


def decode_arguments(call: Event) -> dict[str, Any]:
    """Decode a call's arguments; {} for anything but an object."""
    arguments = decode_json(call.arguments)
    return arguments if isinstance(arguments, dict) else {}


def find_text(arguments: dict[str, Any], *names: str) -> str:
    """Return the first of these arguments that is a text, or ""."""
    return next((arguments[name] for name in names if isinstance(arguments.get(name), str)), "")


def find_path(arguments: dict[str, Any]) -> str:
    """Return the path in a call's arguments, or ""."""
    return find_text(arguments, "path", "file_path", "filePath", "notebook_path", "file")


def hash_call(name: str, arguments: dict[str, Any]) -> str:
    """Return a hash of a call; white space and quotes count only in the text of an edit or a file.

    >>> hash_call("bash", {"command": "cat 'a.ts'"}) == hash_call("bash", {"command": "cat  a.ts", "timeout": 9})
    True
    """
    # Other arguments of a command do not change what it does, such as a description of it.
    keys = {"command", "cmd", "workdir", "cwd"} & arguments.keys() or arguments.keys()
    text = "\n".join([name, *(f"{key}={arguments[key]}" for key in sorted(keys))])
    if not (read_edits(arguments) or read_patch(arguments) or "content" in arguments):
        text = re.sub(r"[\s'\"\\]+", "", text)
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]


def read_edits(arguments: dict[str, Any]) -> list[Edit]:
    """Return the edits of a call of any harness, [] if one of them is malformed.

    >>> read_edits({"path": "a.ts", "oldText": "x", "newText": "y"})
    [Edit(old='x', new='y', everywhere=False, after='')]
    """
    items = arguments.get("edits")
    if isinstance(items, str):
        items = decode_json(items)
    edits = []
    for item in items if isinstance(items, list) else [arguments]:
        if not isinstance(item, dict):
            return []
        old, new = (
            next((item[name] for name in names if isinstance(item.get(name), str)), None)
            for names in zip(*_OLD_AND_NEW, strict=True)
        )
        if old is None or new is None:
            return []
        edits.append(Edit(old, new, everywhere=item.get("replace_all") in (True, "true")))
    return edits


def apply_in_turn(arguments: dict[str, Any]) -> bool:
    """Return whether the edits of a call are applied one after the other."""
    edits = arguments.get("edits")
    return isinstance(edits, list) and any(isinstance(edit, dict) and "oldText" not in edit for edit in edits)


def parse_read(arguments: dict[str, Any], text: str, files: FileTools) -> Shown | None:
    """Return the lines that a read has shown; None for other content, or text that was cut in an unknown way."""
    if _NO_TEXT.match(text):
        return None
    offset, limit = arguments.get("offset"), arguments.get("limit")
    first = 1 if offset in (None, 0, 1) else offset
    if not isinstance(first, int) or not isinstance(limit, int | None):
        return None
    is_truncated = False
    while notice := _NOTICE.search(text):
        text, is_truncated = text[: notice.start()], True
    if files.numbers_lines:
        numbered = list(map(_NUMBERED.fullmatch, text.split("\n")))
        lines = [match[3] for at, match in enumerate(numbered) if match and int(match[1]) == first + at]
        if len(lines) < len(numbered):
            return None
    else:
        lines = text.split("\n")
        if all(map(_LOOKS_NUMBERED.match, lines[:3])):
            return None
    # A file may continue after a text as long as the limit, even without a notice.
    max_lines = limit or files.max_lines
    is_end = not is_truncated and (max_lines is None or len(lines) < max_lines)
    runs = _split_runs(lines)
    is_gapless = runs == ["\n".join(lines)]
    return Shown(runs, first if is_gapless else 0, is_end and is_gapless)


def _split_runs(lines: list[str]) -> list[str]:
    """Split at the lines that a harness or a publisher may have shortened or redacted."""
    text = "\n".join(lines)
    gaps = {at for at, line in enumerate(lines) if len(line) >= LONGEST_LINE}
    line = start = 0
    for match in _GAP.finditer(text) if _PREFILTER.candidates(text) else ():
        line, start = line + text.count("\n", start, match.start()), match.start()
        gaps.add(line)
    if not gaps:
        return [text]
    cuts = [-1, *sorted(gaps), len(lines)]
    runs = [lines[start + 1 : stop] for start, stop in pairwise(cuts)]
    return ["\n".join(run) for run in runs if any(run)]


_WORD = re.compile(r"\w+|[^\w\s]")
Words = Counter[str]


def changed_words(arguments: dict[str, Any]) -> Words:
    """Return the words that a call removes (-) and adds (+), or for other calls those of its arguments."""
    edits = read_edits(arguments) or [hunk for patch in read_patch(arguments) for hunk in patch.hunks]
    if not edits:
        return count_words(" ".join(map(str, arguments.values())))
    words: Words = Counter()
    for edit in edits:
        old, new = count_words(edit.old), count_words(edit.new)
        words.update({f"-{word}": count for word, count in (old - new).items()})
        words.update({f"+{word}": count for word, count in (new - old).items()})
    return words or count_words("\n".join(edit.new for edit in edits))


def count_words(text: object) -> Words:
    """Count the words and punctuation marks of a text."""
    return Counter(_WORD.findall(str(text)))


def overlap(one: Words, other: Words) -> float:
    """Return the F1 score of two bags of words."""
    total = one.total() + other.total()
    return 2 * (one & other).total() / total if total else 0.0
