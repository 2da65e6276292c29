"""Task suites: bugs to fix, with what judges an answer; built, divided, shown to agents.

    suite.py         the file: read, checked, written; its tasks as a `Dataset`
    workspace.py     what an agent may see of a task's repo
    build.py         a suite from a checkout, JSON lines, or the project's own programs
    quixbugs.py      a checkout in the layout of QuixBugs
    functions.py     JSON lines in the layout of HumanEvalFix, and lists of asserts
    own.py           the project's own programs, in programs/
    near.py          which programs are nearly the same
    split.py         a suite for training and one for testing
    leakage.py       whether training rows hold tasks of a test suite

The fixed program is in `solution` alone: neither the files an agent sees nor the spec hold it.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """One bug: the file `path` of `files` has it, `solution` is that file without it.

    `spec` is the row's `verifier_spec`; `prompt` says what the program should do; `kind` is the
    kind of bug, where it is known.
    """

    name: str
    prompt: str
    path: str
    files: dict[str, str]
    solution: str
    spec: dict[str, Any]
    kind: str | None = None
