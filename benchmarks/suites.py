"""A public bug-fix suite through the test verifier: fixed programs must pass, buggy ones must fail.

    python -m benchmarks.suites --quixbugs FOLDER [--forms]

FOLDER is a checkout of jkoppel/QuixBugs. Tests for pytest are recorded
first; what cannot be recorded is printed with its reason. With --forms the fixed program
is also given as a diff, as calls that write and edit, and as bare code. Every false verdict is
printed with its reason; the exit code is 1 when there is any.
"""

import argparse
import difflib
import functools
import json
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from pimono_sdpo.suites.build import Task, read_quixbugs, record_tests
from rewards.sandbox import Server
from rewards.verifiers import tests
from rewards.verifiers.outcomes import Python
from rewards.verifiers.recorded_tests import NotRecordable
from rewards.verifiers.rubric import VerifierResult

Judge = Callable[[str, dict[str, object]], VerifierResult]


def block(text: str) -> str:
    """As models answer: a sentence, the file in a block, a sentence."""
    return f"This is the whole file:\n\n```python\n{text.rstrip()}\n```\n\nThe bug is gone."


def path_of(task: Task) -> str:
    (path,) = task.fixed
    return path


def solution_of(task: Task) -> str:
    return task.fixed[path_of(task)]


def buggy_of(task: Task) -> str:
    return task.files[path_of(task)]


def diff(task: Task) -> str:
    before, after, path = buggy_of(task), solution_of(task), path_of(task)
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), f"a/{path}", f"b/{path}", lineterm="")
    return "```diff\n" + "\n".join(lines) + "\n```\n"


FORMS: dict[str, Callable[[Task], str]] = {
    "block": lambda task: block(solution_of(task)),
    "diff": diff,
    "write": lambda task: call("write", path=path_of(task), content=solution_of(task)),
    "edit": lambda task: call(
        "edit", path=path_of(task), edits=[{"oldText": buggy_of(task), "newText": solution_of(task)}]
    ),
    "code": lambda task: solution_of(task),
}


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def measure(suite: str, tasks: Iterable[Task], judge: Judge, python: Python, forms: list[str]) -> bool:
    """Print the suite's line of the table, and every false verdict; whether there is none."""
    fixed = failed = hung = number = answers = 0
    took: list[float] = []
    recordable = whole = kept = 0
    for task in tasks:
        whole += 1
        try:
            spec = record_tests(task, python).spec
        except NotRecordable as reason:
            print(f"REFUSED: {suite} {task.name}: {reason}")
            continue
        number += 1
        if spec["tests"]["kind"] == "recorded":
            recordable += 1
            kept += not spec["tests"]["left_out"]
        # A comment changes the file and leaves the bug.
        untouched = block("# looked at\n" + buggy_of(task))
        for form in [*forms, "buggy"]:
            begun = time.perf_counter()
            result = judge(untouched if form == "buggy" else FORMS[form](task), spec)
            took.append(time.perf_counter() - begun)
            right = "failed" if form == "buggy" else "passed"
            if result.status != right:
                print(f"FALSE: {suite} {task.name} {form}: {result.status}. {result.feedback}")
            answers += form != "buggy"
            fixed += form != "buggy" and result.status == "passed"
            failed += form == "buggy" and result.status == "failed"
            hung += result.category == "timeout"
    seconds = f"{sorted(took)[len(took) // 2]:.2f} | {sum(took) / len(took):.2f}"
    print(f"{suite}: {number} of {whole} tasks, {recordable} by recorded calls, {kept} of them whole")
    print(f"| {suite} | {fixed}/{answers} | {failed}/{number} | {hung} | {seconds} |")
    return (fixed, failed) == (answers, number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quixbugs", type=Path, required=True)
    parser.add_argument("--forms", action="store_true", help="fixed programs in every form")
    given = parser.parse_args()
    with ExitStack() as stack:
        python = tests.in_server(stack.enter_context(Server(imports=tests.IMPORTS)))
        judge: Judge = functools.partial(tests.verify, python=python)
        print("| suite | fixed pass | buggy fail | hung | median s | mean s |")
        print("|---|---|---|---|---|---|")
        forms = list(FORMS) if given.forms else ["block"]
        right = measure("QuixBugs", read_quixbugs(given.quixbugs), judge, python, forms)
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
