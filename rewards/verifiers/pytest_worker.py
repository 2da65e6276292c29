"""Runs inside the sandbox: run pytest on pristine tests and report what it says, under a nonce.

The candidate runs in this process, too. The nonce is held by a closure and comes by an input that
is closed before the candidate is imported; the tests' files are gone once they were collected.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

MAX_TEXT = 2000


def main() -> None:
    """Read the job, take the output away from the candidate's prints, run, report the end."""
    job = json.loads(sys.stdin.buffer.read())
    channel = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    nonce, arguments, remove = job["nonce"], job["arguments"], job["remove"]
    del job
    root = str(Path.cwd())
    sys.path[:] = [root, *(path for path in sys.path if path)]
    say = _reporter(channel, nonce, remove)
    options = ["-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={root}"]
    code = pytest.main(
        [*options, f"--confcutdir={root}", "--tb=short", "-q", *arguments], plugins=[say]
    )
    say.end(int(code))


def _reporter(channel: int, nonce: str, remove: list[str]) -> Any:
    write, dumps, root = os.write, json.dumps, Path.cwd()

    def say(**event: Any) -> None:
        left = memoryview(f"\n{nonce} {dumps(event)}\n".encode())
        while left:
            left = left[write(channel, left) :]

    class Reporter:
        def pytest_collectreport(self, report: Any) -> None:
            if report.outcome != "passed":
                say(broken=report.nodeid, text=report.longreprtext[-MAX_TEXT:])

        def pytest_collection_finish(self, session: Any) -> None:
            say(collected=[item.nodeid for item in session.items])
            for path in remove:
                (root / path).unlink(missing_ok=True)

        def pytest_runtest_logstart(self, nodeid: str) -> None:
            say(start=nodeid)

        def pytest_runtest_logreport(self, report: Any) -> None:
            crash = getattr(report.longrepr, "reprcrash", None)
            where = ""
            if crash is not None:
                path = crash.path.removeprefix(f"{root}/")
                where = f"\n  {path}:{crash.lineno}"
            text = (crash.message if crash is not None else report.longreprtext)[:MAX_TEXT] + where
            if hasattr(report, "context") and report.outcome != "failed":
                return  # a part of a test, whose own report follows
            outcome = "xfail" if hasattr(report, "wasxfail") else report.outcome
            say(id=report.nodeid, when=report.when, outcome=outcome, text=text)

        def end(self, code: int) -> None:
            say(end=code)

    return Reporter()


if __name__ == "__main__":
    main()
