"""Judge a program by what it prints: each case is a run on an input, compared out here.

tests  kind: "output"; module: path of the program; cases: [{"stdin": text, "args": [text, ...],
       "expected": text}]; seconds: CPU seconds per case (default SECONDS); tolerance: how far a
       printed number may be from an expected one (default: printed alike)

White space at the ends of lines and blank lines at the end do not count. A program that ends with
another exit code than 0 fails, whatever it printed.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rewards.sandbox import Limits, Ran
from rewards.verifiers.judged import Outcome, Python, died, listed

SECONDS = 10.0
OUTPUT = 8 << 20
RUN = """
import pathlib, runpy, sys
sys.path[:] = [str(pathlib.Path({0!r}).parent.resolve()), *(path for path in sys.path if path)]
sys.argv = {1!r}
runpy.run_path({0!r}, run_name="__main__")
"""


def judge(files: Mapping[str, str], tests: Mapping[str, Any], python: Python) -> list[Outcome]:
    """Run the cases on the files; one outcome each, in order.

    Cases after one that hung are unknown, which is no pass.
    Raises ValueError for tests that are none, SandboxError when nothing could be run, and
    Overloaded when the machine was too busy to tell.
    """
    cases: Sequence[Mapping[str, Any]] = tests["cases"]
    seconds = float(tests.get("seconds", SECONDS))
    limits = Limits(cpu_seconds=seconds, wall_seconds=max(15, 5 * seconds), output=OUTPUT)
    outcomes: list[Outcome] = []
    for case in cases:
        program = RUN.format(tests["module"], [tests["module"], *case.get("args", ())])
        ran = python(["-c", program], files, case.get("stdin", "").encode(), limits)
        outcomes.append(_outcome(case, ran, tests.get("tolerance"), python))
        if outcomes[-1].kind == "timeout":
            break
    return outcomes + [Outcome("unknown")] * (len(cases) - len(outcomes))


def _outcome(case: Mapping[str, Any], ran: Ran, tolerance: float | None, python: Python) -> Outcome:
    given = f"With the input {listed(case.get('stdin', ''))} the program"
    if case.get("args"):
        given = f"With the arguments {json.dumps(case['args'])} the program"
    if ran.stopped or ran.signal:
        return died(ran, python, given)
    if ran.exit_code != 0:
        last = ran.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return Outcome("error", f"{given} ends with exit code {ran.exit_code}. {''.join(last)}")
    printed, expected = _lines(ran.stdout.decode(errors="replace")), _lines(case["expected"])
    if len(printed) == len(expected) and all(
        _same(one, other, tolerance) for one, other in zip(printed, expected, strict=True)
    ):
        return Outcome("passed")
    got, wanted = listed("\n".join(printed)), listed("\n".join(expected))
    return Outcome("wrong", f"{given} prints {got}, expected {wanted}")


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _same(line: str, expected: str, tolerance: float | None) -> bool:
    if line == expected or tolerance is None:
        return line == expected
    words, wanted = line.split(), expected.split()
    return len(words) == len(wanted) and all(
        word == other or _near(word, other, tolerance)
        for word, other in zip(words, wanted, strict=True)
    )


def _near(word: str, expected: str, tolerance: float) -> bool:
    try:
        return abs(float(word) - float(expected)) <= tolerance
    except ValueError:  # not both are numbers
        return False
