"""The project's own small programs with bugs, one TOML file each in programs/.

    category     the kind of bug
    goal         what a user would write in an issue; it does not say where the bug is
    [files]      path to text of the program, with its bug
    [tests]      path to text of its tests by pytest; without them
    [judged]     the `tests` of a spec, kind `value` or `output`: tests that nobody sees
    [[fix]]      file, before, after: what mends it; an agent never gets it

The name of the file is the task's.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
# CPU seconds of a test run; no program needs half a second, and some hang.
SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Program:
    """One program; `fixed` has the files that change, without the bug, `spec` what judges it."""

    name: str
    category: str
    goal: str
    files: dict[str, str]
    tests: dict[str, str]
    fixed: dict[str, str]
    spec: dict[str, Any]


def programs() -> Iterator[Program]:
    """Yield the programs in order of their names."""
    for path in sorted(PROGRAMS.glob("*.toml")):
        given = tomllib.loads(path.read_text(encoding="utf-8"))
        files, tests = given["files"], given.get("tests", {})
        fixed: dict[str, str] = {}
        for fix in given["fix"]:
            text = fixed.get(fix["file"], files[fix["file"]])
            assert text.count(fix["before"]) == 1, (path.name, fix["before"])
            fixed[fix["file"]] = text.replace(fix["before"], fix["after"])
        judged = given.get("judged") or {"kind": "pytest", "files": tests}
        yield Program(
            name=path.stem,
            category=given["category"],
            goal=given["goal"].strip(),
            files=files,
            tests=tests,
            fixed=fixed,
            spec={"files": files, "answer": "any", "tests": {"seconds": SECONDS, **judged}},
        )
