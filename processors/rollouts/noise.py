"""Find what a run must not teach: leaks, stray files, overwritten tests, and needless changes.

Pairs never choose a run with such noise; rows of single actions leave out the writes that made it.
A run is compared with the passing runs of its task, and with what its suite knows of the fix.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pimono_sdpo.text import match_globs
from processors.rollouts.conversation import MAY_BE_BLANK, Row, Why, is_test

CHURN = 3
# A file is not needed if fewer than one in RARE of the other passing runs changes it.
RARE = 4
# Arguments of calls that name a file, and those that only calls that change it have.
PATHS = ("rel_path", "path", "file_path", "filePath")
TEXTS = MAY_BE_BLANK | {"file_text", "edits"}


@dataclass
class Passing:
    """What the passing runs of a task change."""

    runs: int = 0
    lines: int | None = None  # of the smallest patch
    paths: Counter[str] = field(default_factory=Counter)

    def add(self, row: Row) -> None:
        """Add a run that passes; needs `patch` and `files_touched`."""
        self.runs += 1
        self.paths.update(set(row["files_touched"]))
        if row["patch"]:
            lines = measure_patch(row["patch"])[0]
            self.lines = lines if self.lines is None else min(self.lines, lines)


def compare_passing(rows: Iterable[Row]) -> Passing:
    """Return what those of the rows that pass change."""
    passing = Passing()
    for row in rows:
        if row["tests_ok"]:
            passing.add(row)
    return passing


def measure_patch(patch: str) -> tuple[int, int, int]:
    r"""Count the lines a patch adds and removes, its hunks, and hunks that change only white space.

    Hunks of only empty lines do not count as white space changes.

    >>> measure_patch("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+ a\n")
    (2, 1, 1)
    """
    hunks: list[list[str]] = [[]]
    inside = False
    for line in patch.split("\n"):
        if line.startswith(("@@", "diff --git ")):
            inside = line.startswith("@@")
            hunks.append([])
        elif inside and line[:1] in {"+", "-"}:
            hunks[-1].append(line)
    filled = list(filter(None, hunks))
    return sum(map(len, filled)), len(filled), sum(map(_only_spaces, filled))


def _only_spaces(hunk: Sequence[str]) -> bool:
    sides = ["".join("".join(one[1:].split()) for one in hunk if one[0] == tag) for tag in "-+"]
    return any(one[1:].strip() for one in hunk) and sides[0] == sides[1]


def find_noise(row: Row, passing: Passing, task: Row | None) -> Why | None:
    """Return reason and detail why a run must not be chosen, None if it may."""
    if not row["files_touched"]:
        return "no_change", "it changed no file"
    stray = find_stray_files(row, passing, task)
    return find_leak(row, task) or next(iter(stray.values()), None) or _find_churn(row, passing, task)


def find_action_noise(row: Row, passing: Passing, task: Row | None) -> list[Why | None]:
    """Return for each action of a run why it must not be learned, None if it may.

    Noise bars the writes that made it, or all actions where no call can be recognized as such a write.
    """
    if leak := find_leak(row, task):
        return [leak] * len(row["steps"])
    written = [(_written_path(step), step["args"]) for step in row["steps"]]
    last = {path: args.get("content") for path, args in written if path}
    # Calls may name a file by its absolute path, so only the ending is compared.
    noise = [(f"/{path}", why) for path, why in find_stray_files(row, passing, task).items()]
    if churn := _find_churn(row, passing, task):
        noise.append(("", churn))
    made = {ending for ending, _ in noise if any(path.endswith(ending) for path in last)}
    limit, found = _limit_lines(passing, task), list[Why | None]()
    for path, args in written:
        barred = (why for ending, why in noise if ending not in made or (path and path.endswith(ending)))
        # What a later write of the same file took back is not in the patch.
        lines = _count_changes(args.get("content"), last[path]) if path else 0
        too_many = (
            ("non_minimal", f"{lines} lines were taken back later") if limit is not None and lines > limit else None
        )
        found.append(next(barred, too_many))
    return found


def _written_path(step: Row) -> str:
    """Return the path of a call that changes a file, after a slash; "" for any other."""
    args = step["args"]
    if step["kind"] not in {"tool_call", "loop"} or not args.keys() & TEXTS:
        return ""
    named = (args[name] for name in PATHS if isinstance(args.get(name), str))
    return next((f"/{path.removeprefix('./')}" for path in named if path), "")


def _count_changes(before: Any, after: Any) -> int:
    """Count the lines that only one of two texts has; 0 for anything but texts."""
    if not isinstance(before, str) or not isinstance(after, str):
        return 0
    one, two = Counter(before.splitlines()), Counter(after.splitlines())
    return (one - two).total() + (two - one).total()


def _limit_lines(passing: Passing, task: Row | None) -> int | None:
    """Return the number of lines that a patch may change, None if nothing is known of the fix."""
    known = (task["metadata"] or {}).get("fix_lines") if task else None
    sizes = [one for one in (known, passing.lines) if isinstance(one, int)]
    return CHURN * min(sizes) if sizes else None


def _find_churn(row: Row, passing: Passing, task: Row | None) -> Why | None:
    lines, hunks, blank = measure_patch(row["patch"] or "")
    limit = _limit_lines(passing, task)
    if limit is not None and lines > limit:
        smallest = limit // CHURN
        return "non_minimal", f"{lines} lines, the smallest patch that passes has {smallest}"
    # If all hunks are such, they are the fix: a line moved out of a loop, a space in a string.
    if 0 < blank < hunks:
        return "non_minimal", f"{blank} hunks change nothing but spaces"
    return None


def find_leak(row: Row, task: Row | None) -> Why | None:
    """Find runs that have seen what their task hides, which may be the answer."""
    hide = task["hide"] if task else ()
    for step in row["steps"]:
        args = step["args"] if step["ok"] and isinstance(step["args"], dict) else {}
        for path in (args.get("rel_path"), args.get("rel_dir")):
            path = path.removeprefix("./").strip("/") if isinstance(path, str) else ""
            if path and match_globs(path, hide):
                return "leaked", f"`{path}` is hidden from agents and was seen"
    return None


def find_stray_files(row: Row, passing: Passing, task: Row | None) -> dict[str, Why]:
    """Return the files that are not the task's, or that few other passing runs have changed."""
    touched = row["files_touched"]
    if expected := (task["metadata"] or {}).get("files") if task else None:
        return {
            path: ("wrong_file", f"`{path}` does not belong to the task") for path in touched if path not in expected
        }
    itself = int(bool(row["tests_ok"]))
    others, stray = passing.runs - itself, dict[str, Why]()
    for path in touched:
        changed = passing.paths[path] - itself
        if is_test(path):
            stray[path] = "overwrites_tests", f"`{path}`"
        elif others > 0 and changed * RARE < others:
            stray[path] = "wrong_file", f"{changed} of {others} other passing runs change `{path}`"
    return stray
