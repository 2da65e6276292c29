"""Run pytest and report its events as lines of JSON. Runs inside the sandbox.

`main` runs the original tests in one process with a candidate. The nonce that starts each line is
read from standard input, which is closed before the candidate is imported, and only a closure holds
it. The files of the tests are deleted once they are collected.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rewards.verifiers.channel import MAX_TEXT, make_writer, redirect_output


class Reporter:
    """A pytest plugin that reports collection errors, the collected tests, and each stage of each test."""

    def __init__(self, report_event: Callable[[dict[str, Any]], None], remove: Sequence[str] = ()) -> None:
        self.report_event, self.root, self.remove = report_event, Path.cwd(), remove

    def pytest_collectreport(self, report: Any) -> None:
        """Report a test file that cannot be imported."""
        if report.outcome != "passed":
            self.report_event({"broken": report.nodeid, "text": report.longreprtext[-MAX_TEXT:]})

    def pytest_collection_finish(self, session: Any) -> None:
        """Report the collected tests."""
        self.report_event({"collected": [item.nodeid for item in session.items]})
        for path in self.remove:
            (self.root / path).unlink(missing_ok=True)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Report the start of a test."""
        self.report_event({"start": nodeid})

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Report a stage of a test."""
        if hasattr(report, "context") and report.outcome != "failed":
            return  # a subtest; the report of its test follows
        crash = getattr(report.longrepr, "reprcrash", None)
        text, where = report.longreprtext, ""
        if crash is not None:
            text = crash.message
            where = f"\n  {crash.path.removeprefix(f'{self.root}/')}:{crash.lineno}"
        outcome = "xfail" if hasattr(report, "wasxfail") else report.outcome
        event = {"id": report.nodeid, "when": report.when, "outcome": outcome}
        self.report_event({**event, "text": text[:MAX_TEXT], "where": where})


def run_pytest(arguments: Sequence[str], reporter: Reporter) -> int:
    """Run pytest in this folder, without its configuration files."""
    root = Path.cwd()
    options = ["-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={root}", "-q", "--tb=short"]
    return int(pytest.main([*options, f"--confcutdir={root}", *arguments], plugins=[reporter]))


def main() -> None:
    """Read a job from standard input, run pytest, and report its exit code."""
    job = json.loads(sys.stdin.buffer.read())
    report_event = make_writer(redirect_output(), f"\n{job.pop('nonce')} ".encode())
    sys.path[:] = [str(Path.cwd()), *(path for path in sys.path if path)]
    report_event({"end": run_pytest(job["arguments"], Reporter(report_event, job["remove"]))})
