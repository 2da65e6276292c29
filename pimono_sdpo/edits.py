"""Read the path, the edits and the patches in the arguments of a tool call, of any harness.

A call may make several `edits`, and a patch of Codex names files with hunks, each searched for after the one before.
"""

import re
from typing import Any, NamedTuple

from pimono_sdpo.traces.events import Event, decode_json
from pimono_sdpo.traces.harness import HARNESSES

# The arguments of all harnesses, since a fork may use those of another one; Pi's come first.
_OLD_AND_NEW = tuple(dict.fromkeys(harness.edit for harness in reversed(HARNESSES) if harness.edit))
_HEADER = re.compile(r"\*\*\* (Add|Update|Delete) File: (.+)")


class Edit(NamedTuple):
    """Replace a text that occurs once in a file, every occurrence of it, or the first one `after` a line."""

    old: str
    new: str
    everywhere: bool = False
    after: str = ""


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
        is_for_all = any(item.get(name) in (True, "true") for name in ("replace_all", "replaceAll"))
        edits.append(Edit(old, new, everywhere=is_for_all))
    return edits


def read_patch(arguments: dict[str, Any]) -> list[Patch]:
    r"""Return the files that a call of Codex's `apply_patch` changes; [] for any other call.

    >>> (one,) = read_patch({"input": "*** Update File: a.py\n@@ def f\n x\n-y\n+z\n*** End Patch"})
    >>> one.path, one.hunks
    ('a.py', [Edit(old='x\ny', new='x\nz', everywhere=False, after='def f')])
    """
    files: list[tuple[str, str, list[tuple[str, list[str]]]]] = []
    targets: dict[int, str] = {}
    for line in find_text(arguments, "input", "patch", "patchText").split("\n"):
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
