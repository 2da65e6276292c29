"""Bug-fixing tasks from public suites, with what the verifier `tests` needs to judge an answer.

    quixbugs.py     a checkout in the layout of QuixBugs
    functions.py    JSON lines in the layout of HumanEvalFix, and lists of asserts

The fixed program is in `solution` alone: neither the files an agent sees nor the spec hold it.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Task:
    """One bug: the file `path` of `files` has it, `solution` is that file without it.

    `spec` is the row's `verifier_spec`; `prompt` says what the program should do.
    """

    name: str
    prompt: str
    path: str
    files: dict[str, str]
    solution: str
    spec: dict[str, Any]
