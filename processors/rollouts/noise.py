"""Find noise in a run: leaks, stray files, overwritten tests, and needless changes.

Pairs never choose a run with noise; rows of single actions leave out the writes that caused it.
A run is compared with the passing runs of its task, and with what its suite knows about the fix.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pimono_sdpo.text import match_globs
from processors.rollouts.conversation import MAY_BE_BLANK, Row, Why, is_test

CHURN = 3
# A file is stray if fewer than one in RARE of the other passing runs change it.
RARE = 4
# Arguments that name a file, and arguments that only calls which change a file have.
PATHS = ("rel_path", "path", "file_path", "filePath")
TEXTS = MAY_BE_BLANK | {"file_text", "edits"}


@dataclass
class Passing:
    """What the passing runs of a task change."""

    runs: int = 0
    lines: int | None = None  # of the smallest patch
    paths: Counter[str] = field(default_factory=Counter)

    def add(self, row: Row) -> None:
        """Add a passing run; it needs `patch` and `files_touched`."""
        self.runs += 1
        self.paths.update(set(row["files_touched"]))
        if row["patch"]:
            lines = measure_patch(row["patch"])[0]
            self.lines = lines if self.lines is None else min(self.lines, lines)


def compare_passing(rows: Iterable[Row]) -> Passing:
    """Return what the passing runs among the rows change."""
    passing = Passing()
    for row in rows:
        if row["tests_ok"]:
            passing.add(row)
    return passing


def measure_patch(patch: str) -> tuple[int, int, int]:
    r"""Return the lines a patch adds and removes, its hunks, and its hunks that change only white space.

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
    before, after = ("".join("".join(line[1:].split()) for line in hunk if line[0] == sign) for sign in "-+")
    return before == after and before != ""


def find_noise(row: Row, passing: Passing, task: Row | None) -> Why | None:
    """Return why a run must not be chosen, as reason and detail; None if it may be."""
    if not row["files_touched"]:
        return "no_change", "it changed no file"
    stray = find_stray_files(row, passing, task)
    return find_leak(row, task) or next(iter(stray.values()), None) or _find_churn(row, passing, task)


def find_action_noise(row: Row, passing: Passing, task: Row | None) -> list[Why | None]:
    """Return for each action of a run why it must not be learned, None if it may be.

    Noise excludes the writes that caused it, or all actions if no call can be recognized as such a write.
    """
    if leak := find_leak(row, task):
        return [leak] * len(row["steps"])
    writes = [(_find_written_path(step), step["args"]) for step in row["steps"]]
    last = {path: args.get("content") for path, args in writes if path}
    # Calls may name a file by its absolute path, so only the end of the path is compared.
    noise = [(f"/{path}", why) for path, why in find_stray_files(row, passing, task).items()]
    if churn := _find_churn(row, passing, task):
        noise.append(("", churn))
    attributed = {ending for ending, _ in noise if any(path.endswith(ending) for path in last)}
    limit, reasons = _limit_lines(passing, task), list[Why | None]()
    for path, args in writes:
        why = next((why for end, why in noise if end not in attributed or (path and path.endswith(end))), None)
        if why is None and path and limit is not None:
            # The patch does not show what a later write of the same file took back.
            lines = _count_changes(args.get("content"), last[path])
            why = ("non_minimal", f"{lines} lines were taken back later") if lines > limit else None
        reasons.append(why)
    return reasons


def _find_written_path(step: Row) -> str:
    """Return the path of a call that changes a file, after a slash; "" for any other step."""
    args = step["args"]
    if step["kind"] not in {"tool_call", "loop"} or not args.keys() & TEXTS:
        return ""
    paths = (args[name] for name in PATHS if isinstance(args.get(name), str))
    return next((f"/{path.removeprefix('./')}" for path in paths if path), "")


def _count_changes(before: Any, after: Any) -> int:
    """Return the number of lines that only one of two texts has; 0 for values that are not texts."""
    if not isinstance(before, str) or not isinstance(after, str):
        return 0
    one, two = Counter(before.splitlines()), Counter(after.splitlines())
    return (one - two).total() + (two - one).total()


def _limit_lines(passing: Passing, task: Row | None) -> int | None:
    """Return the number of lines that a patch may change, None if nothing is known about the fix."""
    fix_lines = (task["metadata"] or {}).get("fix_lines") if task else None
    sizes = [size for size in (fix_lines, passing.lines) if isinstance(size, int)]
    return CHURN * min(sizes) if sizes else None


def _find_churn(row: Row, passing: Passing, task: Row | None) -> Why | None:
    lines, hunks, blank = measure_patch(row["patch"] or "")
    limit = _limit_lines(passing, task)
    if limit is not None and lines > limit:
        smallest = limit // CHURN
        return "non_minimal", f"{lines} lines, the smallest patch that passes has {smallest}"
    # If all hunks change only white space, that is the fix: a line moved out of a loop, a space in a string.
    if 0 < blank < hunks:
        return "non_minimal", f"{blank} hunks change nothing but spaces"
    return None


def find_leak(row: Row, task: Row | None) -> Why | None:
    """Return the first access to a file that the task hides, which may contain the answer; None without one."""
    hide = task["hide"] if task else ()
    for step in row["steps"]:
        args = step["args"] if step["ok"] and isinstance(step["args"], dict) else {}
        for path in (args.get("rel_path"), args.get("rel_dir")):
            path = path.removeprefix("./").strip("/") if isinstance(path, str) else ""
            if path and match_globs(path, hide):
                return "leaked", f"`{path}` is hidden from agents and was seen"
    return None


def find_stray_files(row: Row, passing: Passing, task: Row | None) -> dict[str, Why]:
    """Return the changed files that do not belong to the task, or that few other passing runs change."""
    touched = row["files_touched"]
    if expected := (task["metadata"] or {}).get("files") if task else None:
        return {
            path: ("wrong_file", f"`{path}` does not belong to the task") for path in touched if path not in expected
        }
    # A passing run is not compared with itself.
    own = int(bool(row["tests_ok"]))
    others, stray = passing.runs - own, dict[str, Why]()
    for path in touched:
        changed = passing.paths[path] - own
        if is_test(path):
            stray[path] = "overwrites_tests", f"`{path}`"
        elif others > 0 and changed * RARE < others:
            stray[path] = "wrong_file", f"{changed} of {others} other passing runs change `{path}`"
    return stray
