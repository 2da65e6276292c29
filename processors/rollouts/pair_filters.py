"""Find what makes a passing run a bad example: churn, stray files, hidden answers.

reads  ROLLOUT rows of one task, and the task
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

CHURN = 3
Json = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """Lines that a patch adds and removes, its hunks, and hunks that change only white space.

    Hunks of only empty lines do not count as white space changes.
    """

    lines: int
    hunks: int
    blank_hunks: int


def measure_patch(patch: str) -> Size:
    r"""Measure a unified diff.

    >>> measure_patch("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+ a\n")
    Size(lines=2, hunks=1, blank_hunks=1)
    """
    lines = hunks = blank = 0
    hunk: list[str] = []
    inside = False
    for line in [*patch.split("\n"), "@@"]:
        if line.startswith(("@@", "diff --git ")):
            hunks += bool(hunk)
            blank += _only_spaces(hunk)
            hunk, inside = [], line.startswith("@@")
        elif inside and line[:1] in {"+", "-"}:
            hunk.append(line)
            lines += 1
    return Size(lines, hunks, blank)


def _only_spaces(hunk: Sequence[str]) -> bool:
    sides = ["".join("".join(one[1:].split()) for one in hunk if one[0] == tag) for tag in "-+"]
    return any(one[1:].strip() for one in hunk) and sides[0] == sides[1]


def find_noise(
    row: Mapping[str, Any], passing: Sequence[Mapping[str, Any]], task: Mapping[str, Any] | None
) -> tuple[str, str] | None:
    """Return reason and detail why a run must not be chosen, None if it may."""
    return (
        find_leak(row, task)
        or _wrong_file(row, passing, task)
        or _non_minimal(row["patch"], [one["patch"] for one in passing])
    )


def find_leak(row: Mapping[str, Any], task: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """Find runs that have seen what their task hides, which may be the answer."""
    globs = list(task["hide"]) if task else []
    for step in row["steps"]:
        if not step["ok"] or not isinstance(step["args"], dict):
            continue
        for name in ("rel_path", "rel_dir"):
            path = step["args"].get(name)
            if isinstance(path, str) and any(_matches(glob, path) for glob in globs):
                return "leaked", f"`{path}` is hidden from agents and was seen"
    return None


def _matches(glob: str, path: str) -> bool:
    """Match a glob without a slash with every part of a path, else with the path's folders."""
    parts = path.removeprefix("./").strip("/").split("/")
    if "/" not in glob.strip("/"):
        return any(fnmatchcase(part, glob.strip("/")) for part in parts)
    heads = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return any(fnmatchcase(head, glob.strip("/")) for head in heads)


def _wrong_file(
    row: Mapping[str, Any], passing: Sequence[Mapping[str, Any]], task: Mapping[str, Any] | None
) -> tuple[str, str] | None:
    """Find a file that is not one of the task's, or that no other passing run has changed."""
    expected = (task["metadata"] or {}).get("files") if task else None
    if isinstance(expected, list) and expected:
        stray = [path for path in row["files_touched"] if path not in expected]
        return ("wrong_file", f"`{stray[0]}` is no file of the task") if stray else None
    others = [set(one["files_touched"]) for one in passing if one["run_id"] != row["run_id"]]
    if not others:
        return None
    stray = [path for path in row["files_touched"] if not any(path in one for one in others)]
    return ("wrong_file", f"no other passing run changes `{stray[0]}`") if stray else None


def _non_minimal(patch: str, passing: Sequence[str]) -> tuple[str, str] | None:
    size = measure_patch(patch)
    smallest = min((measure_patch(one).lines for one in passing if one), default=size.lines)
    if size.lines > CHURN * smallest:
        return "non_minimal", f"{size.lines} lines, the smallest passing patch has {smallest}"
    # If all hunks are such, they are the fix: a line moved out of a loop, a space in a string.
    if 0 < size.blank_hunks < size.hunks:
        return "non_minimal", f"{size.blank_hunks} hunks change nothing but spaces"
    return None
