"""What a row's spec allows, and the files in memory as an answer would leave them.

spec  files: path to text; allowed: globs of what may be written (default: the files themselves);
      locked: globs of what may not, even if `allowed` matches (default: LOCKED)
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any, Literal

from rewards.verifiers.rubric import BadSpec

Failure = Literal[
    "no_patch",  # nothing that could be applied
    "malformed",  # a diff that cannot be read in one way only
    "truncated",
    "path_not_allowed",
    "file_unknown",
    "context_not_found",
    "ambiguous",
    "nothing_changed",
    "no_code",  # what is left holds none
]

# In a glob `*` stands for `/` too.
LOCKED = (
    *("tests/*", "*/tests/*", "test/*", "*/test/*", "__tests__/*", "*/__tests__/*"),
    *("test_*.py", "*/test_*.py", "*_test.py", "conftest.py", "*/conftest.py"),
    *("*.test.[jt]s", "*.test.[jt]sx", "*.spec.[jt]s", "*.spec.[jt]sx"),
    *("pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "sitecustomize.py"),
    *("*/pytest.ini", "*/tox.ini", "*/setup.cfg", "*/pyproject.toml", "*/sitecustomize.py"),
)
_UNSAFE = re.compile(r"[\\\x00-\x1f\x7f]|^[A-Za-z]:")


class Refusal(Exception):
    """Why nothing is applied: the class of the failure, and a sentence for the model."""

    # The share of a diff's hunks whose place was found.
    located = 0.0

    def __init__(self, failure: Failure, why: str) -> None:
        super().__init__(f"{failure}: {why}")
        self.failure, self.why = failure, why


@dataclass(frozen=True, slots=True)
class Candidate:
    """The files after the change; `changed` names those written, moved or deleted, in order."""

    files: dict[str, str]
    changed: tuple[str, ...]
    before: Mapping[str, str] = field(repr=False)


def files_of(spec: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the files of a spec; raises BadSpec when it has none."""
    files = spec.get("files")
    for name in ("allowed", "locked"):
        given = spec.get(name) or []
        if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
            raise BadSpec(f"`{name}` of the spec is {given!r}; write a list of globs.")
    if not isinstance(spec.get("end", ""), str):
        raise BadSpec(f"`end` of the spec is {spec['end']!r}; write the token as text.")
    if not isinstance(files, Mapping) or not all(isinstance(text, str) for text in files.values()):
        raise BadSpec("The spec has no `files`; give the text of each file by its path.")
    return files


def unsafe_path(path: str) -> Refusal | None:
    """Say why a path may not be written in any workspace, None if it may.

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
    """Say why a path may not be written, None when it may."""
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
    """Return the candidate; raises Refusal when the files are what they were."""
    changed = tuple(path for path in sorted({*before, *after}) if before.get(path) != after.get(path))
    if not changed:
        raise Refusal("nothing_changed", "The answer leaves every file as it was; change what the task asks for.")
    return Candidate(after, changed, before)


def matches(path: str, globs: Sequence[str]) -> bool:
    """Tell whether a path is one of those that globs mean.

    >>> matches("src/A.py", ["src/*"]), matches("a.py", ["src/*"])
    (True, False)
    """
    # Case is ignored in what is locked and what is allowed alike: disks may ignore it, too.
    return bool(_pattern(tuple(globs)).match(path.casefold()))


@functools.lru_cache(maxsize=64)
def _pattern(globs: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(glob.casefold()) for glob in globs) or r"(?!)")
