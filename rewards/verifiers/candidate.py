"""What a row's spec allows, and the files in memory as an answer would leave them.

spec  files: path to text; allowed: globs of what may be written (default: the files themselves);
      locked: globs of what may not, even if `allowed` matches (default: LOCKED);
      answer: "patch" (default), "write" for the last file written, "edit" for calls of an edit
      tool, "code" for a block of code, or "any" of them
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
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


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing is applied: the class of the failure, and a sentence for the model.

    `located` is the share of a diff's hunks whose place was found.
    """

    failure: Failure
    why: str
    located: float = 0.0


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


def changed_files(before: Mapping[str, str], after: dict[str, str]) -> Candidate | Refusal:
    """Return the candidate, or a refusal when the files are what they were."""
    changed = tuple(
        path for path in sorted({*before, *after}) if before.get(path) != after.get(path)
    )
    if not changed:
        return Refusal(
            "nothing_changed",
            "The answer leaves every file as it was; change what the task asks for.",
        )
    return Candidate(after, changed, before)


def matches(path: str, globs: Sequence[str]) -> bool:
    """Tell whether a path is one of those that globs mean.

    >>> matches("src/A.py", ["src/*"]), matches("a.py", ["src/*"])
    (True, False)
    """
    # Case is ignored in what is locked and what is allowed alike: disks may ignore it, too.
    return any(fnmatchcase(path.casefold(), glob.casefold()) for glob in globs)


def check_tests(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tests of a spec; raises BadSpec when they cannot be run."""
    tests = spec["tests"]
    if not isinstance(tests, Mapping):
        raise BadSpec(f"`tests` of the spec is {_show(tests)}; write an object with `kind`.")
    kind = tests.get("kind")
    if kind not in ("value", "output", "recorded", "pytest"):
        raise BadSpec(
            f"`kind` of the tests is {kind!r}; write 'value', 'output', 'recorded' or 'pytest'."
        )
    seconds = tests.get("seconds", 1)
    if type(seconds) not in (int, float) or not 0 < seconds < math.inf:
        raise BadSpec(f"`seconds` of the tests is {_show(seconds)}; write a number above 0.")
    for name in ("needs", "plugins", "shared", "roots", "allow"):
        listed = tests.get(name, [])
        if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
            raise BadSpec(f"`{name}` of the tests is {_show(listed)}; write a list of texts.")
    if kind in ("recorded", "pytest"):
        files = tests.get("files")
        if not isinstance(files, Mapping) or not all(isinstance(t, str) for t in files.values()):
            raise BadSpec(f"`files` of the tests is {_show(files)}; give texts by their paths.")
    else:
        _check_module(tests.get("module"), spec)
        _check_cases(tests.get("cases"), kind)
    if kind == "value" and not isinstance(tests.get("entry"), str):
        raise BadSpec(f"`entry` of the tests is {_show(tests.get('entry'))}; name a function.")
    return tests


def _check_module(module: Any, spec: Mapping[str, Any]) -> None:
    if not isinstance(module, str):
        raise BadSpec(f"`module` of the tests is {_show(module)}; write the path of a file.")
    if module not in spec["files"] and refused_path(module, spec):
        raise BadSpec(
            f"`module` of the tests is {module!r}, which is not a file and may not be created."
        )


def _check_cases(cases: Any, kind: str) -> None:
    wanted = "`expected` or `raises`" if kind == "value" else "`expected`, a text"
    if not isinstance(cases, list) or not cases:
        raise BadSpec(
            f"Every test needs cases, but `cases` is {_show(cases)}; write a list of them."
        )
    for case in cases:
        if not isinstance(case, Mapping):
            raise BadSpec(f"A case of the tests is {_show(case)}; write an object.")
        args = case.get("args", None if kind == "value" else [])
        if not isinstance(args, list) or not isinstance(case.get("kwargs", {}), Mapping):
            raise BadSpec(f"`args` of a case is {_show(args)}; write a list, `kwargs` an object.")
        if kind == "value" and ("expected" in case) == ("raises" in case):
            raise BadSpec(f"Every test needs cases, and each of them either {wanted}.")
        texts = [case.get("stdin", ""), case.get("expected"), *args] if kind == "output" else []
        if not all(isinstance(text, str) for text in texts):
            raise BadSpec(f"Every test needs cases, and each of them {wanted}, `stdin`, `args` so.")


def _show(value: Any) -> str:
    return "missing" if value is None else repr(value)[:80]
