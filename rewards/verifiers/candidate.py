"""Check which files an answer may write, and hold the files as they are after its changes.

spec  files: path to text; allowed: globs of the files that may be written (default: `files`);
      locked: globs of the files that may not, even if `allowed` matches (default: LOCKED)
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any, Literal

from rewards.verifiers.rubric import BadSpec

Failure = Literal[
    "no_patch",  # there is nothing to apply
    "malformed",  # the diff is invalid or ambiguous
    "truncated",
    "path_not_allowed",
    "file_unknown",
    "context_not_found",
    "ambiguous",
    "nothing_changed",
    "no_code",  # the changed files contain no code
]

# In these globs `*` matches `/` too.
LOCKED = (
    *("tests/*", "*/tests/*", "test/*", "*/test/*", "__tests__/*", "*/__tests__/*"),
    *("test_*.py", "*/test_*.py", "*_test.py", "conftest.py", "*/conftest.py"),
    *("*.test.[jt]s", "*.test.[jt]sx", "*.spec.[jt]s", "*.spec.[jt]sx"),
    *("pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "sitecustomize.py"),
    *("*/pytest.ini", "*/tox.ini", "*/setup.cfg", "*/pyproject.toml", "*/sitecustomize.py"),
)
_UNSAFE = re.compile(r"[\\\x00-\x1f\x7f]|^[A-Za-z]:")


class Refusal(Exception):
    """An answer cannot be applied; has the kind of failure and a sentence for the model."""

    # The share of the diff's hunks whose position was found.
    located = 0.0

    def __init__(self, failure: Failure, why: str) -> None:
        super().__init__(f"{failure}: {why}")
        self.failure, self.why = failure, why


@dataclass(frozen=True, slots=True)
class Candidate:
    """The files after the change; `changed` lists the paths written, moved or deleted, in order."""

    files: dict[str, str]
    changed: tuple[str, ...]
    before: Mapping[str, str] = field(repr=False)


def get_files(spec: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the files of a spec; raises BadSpec when it has none, or an invalid `allowed`, `locked` or `end`."""
    files = spec.get("files")
    for name in ("allowed", "locked"):
        globs = spec.get(name) or []
        if not isinstance(globs, list | tuple) or not all(isinstance(glob, str) for glob in globs):
            raise BadSpec(f"`{name}` of the spec is {globs!r}; write a list of globs.")
    if not isinstance(spec.get("end", ""), str):
        raise BadSpec(f"`end` of the spec is {spec['end']!r}; write the token as text.")
    if not isinstance(files, Mapping) or not all(isinstance(text, str) for text in files.values()):
        raise BadSpec("The spec has no `files`; give the text of each file by its path.")
    return files


def unsafe_path(path: str) -> Refusal | None:
    """Return why a path may not be written in any workspace, None if it may.

    >>> unsafe_path("../x.py").why
    'The path `../x.py` leaves the workspace; name a file by its path from the root.'
    """
    if not path or path.startswith(("/", "~")) or _UNSAFE.search(path):
        why = "is not a relative path with forward slashes; name a file by its path from the root."
    elif ".." in path.split("/"):
        why = "leaves the workspace; name a file by its path from the root."
    elif any(part.casefold().rstrip(" .") in (".git", "") for part in path.split("/")):
        why = "may not be written; leave it alone."
    else:
        return None
    return Refusal("path_not_allowed", f"The path `{path}` {why}")


def refused_path(path: str, spec: Mapping[str, Any]) -> Refusal | None:
    """Return why a path may not be written, None if it may."""
    if unsafe := unsafe_path(path):
        return unsafe
    if matches(path, spec.get("locked", LOCKED)):
        return Refusal(
            "path_not_allowed",
            f"The path `{path}` belongs to the tests or their settings, which stay as they are; "
            "change the code under test.",
        )
    allowed = spec.get("allowed")
    if path in spec["files"] if allowed is None else matches(path, allowed):
        return None
    may = ", ".join(f"`{name}`" for name in list(spec["files"] if allowed is None else allowed)[:5])
    return Refusal("path_not_allowed", f"The path `{path}` may not be written; these may: {may}.")


def changed_files(before: Mapping[str, str], after: dict[str, str]) -> Candidate:
    """Return the candidate; raises Refusal when no file changed."""
    changed = tuple(path for path in sorted({*before, *after}) if before.get(path) != after.get(path))
    if not changed:
        raise Refusal("nothing_changed", "The answer leaves every file as it was; change what the task asks for.")
    return Candidate(after, changed, before)


def matches(path: str, globs: Sequence[str]) -> bool:
    """Whether a path matches one of the globs.

    >>> matches("src/A.py", ["src/*"]), matches("a.py", ["src/*"])
    (True, False)
    """
    # Case is ignored in `locked` and `allowed` alike, because file systems may ignore it, too.
    return bool(_pattern(tuple(globs)).match(path.casefold()))


@functools.lru_cache(maxsize=64)
def _pattern(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(glob.casefold()) for glob in globs) or r"(?!)")
