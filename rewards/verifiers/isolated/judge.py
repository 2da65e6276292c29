"""Runs inside the sandbox: the answer in one process, pytest in another, a report to the output.

The answer's process is started before the tests are read, and may read what it could before but the
tests' folder. It holds no end of the report.
"""

import json
import os
import sys
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from rewards.sandbox import landlock
from rewards.verifiers.isolated import serve, wire
from rewards.verifiers.isolated.connection import Connection, Ended
from rewards.verifiers.isolated.copies import Unjudged
from rewards.verifiers.isolated.handles import Finder

MAX_TEXT = 2000
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def main() -> None:
    """Start the answer's process, read the job, run pytest, report."""
    work = Path.cwd()
    place = Path(os.environ["TMPDIR"])
    requests, replies = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        _answer(requests[0], replies[1], work, place)
    os.close(requests[0])
    os.close(replies[1])
    job = json.loads(sys.stdin.buffer.read())
    channel = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    report = _Report(channel)
    (place / "answer").mkdir()
    (place / "shared").mkdir()
    wire.send(requests[1], {key: job[key] for key in ("read", "roots", "shared")})
    try:
        wire.receive(replies[0])
    except EOFError:
        report.say(refused="the answer's process could not be confined")
        os._exit(0)
    shared = serve.load_shared(job["shared"])
    root = place / "tests"
    for path, text in job["files"].items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    os.chdir(root)
    connection = report.connection = Connection(replies[0], requests[1], child, shared)
    connection.entries = frozenset(job["entries"])
    sys.meta_path.insert(
        0, Finder(connection, job["modules"], [str(root / one) for one in job["roots"]])
    )
    sys.path[:] = [str(root), *(path for path in sys.path if path)]
    code = _pytest(root, place / "shared" / "pytest", job["arguments"], report)
    report.say(end=code)
    os._exit(0)


def _pytest(root: Path, base: Path, arguments: list[str], report: "_Report") -> int:
    options = ["-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={root}", "-q", "--tb=short"]
    options += [f"--confcutdir={root}", f"--basetemp={base}", *arguments]
    return int(pytest.main(options, plugins=[report]))


def _answer(reader: int, writer: int, work: Path, place: Path) -> NoReturn:
    """Become the answer's process."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    low, high = sorted((reader, writer))
    os.closerange(3, low)
    os.closerange(low + 1, high)
    os.closerange(high + 1, os.sysconf("SC_OPEN_MAX"))
    try:
        job = wire.receive(reader)
        os.environ["TMPDIR"] = str(place / "answer")
        write = [str(work), str(place / "answer"), str(place / "shared")]
        landlock.restrict([path for path in job["read"] if path != str(place)], write, DEVICES)
        sys.path[:] = [*(str(work / root) for root in job["roots"]), *(p for p in sys.path if p)]
        wire.send(writer, {})
        serve.serve(reader, writer, job["shared"])
    except BaseException:  # the end of the tests, or a fault that the tests' side will notice
        traceback.print_exc()
    finally:
        os._exit(1)


class _Report:
    """What pytest says, as lines of JSON."""

    def __init__(self, channel: int) -> None:
        self.channel = channel
        self.connection: Connection | None = None

    def say(self, **event: Any) -> None:
        left = memoryview(json.dumps(event).encode() + b"\n")
        while left:
            left = left[os.write(self.channel, left) :]

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome != "passed":
            text = getattr(report, "said", report.longreprtext)[-MAX_TEXT:]
            text += getattr(report, "where", "")
            self.say(broken=report.nodeid, text=text, hung=self._ended() == "hung")

    def pytest_collection_finish(self, session: Any) -> None:
        self.say(collected=[item.nodeid for item in session.items])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.say(start=nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: Any) -> Generator[None, Any, Any]:
        report = yield
        if call.excinfo:
            self.pytest_exception_interact(call, report)
        return report

    def pytest_exception_interact(self, call: Any, report: Any) -> None:
        error = call.excinfo.value
        if type(error).__name__ == "CollectError" and error.__cause__ is not None:
            error = error.__cause__
        where = getattr(error, "__dict__", {}).get("_where")
        report.where = f"\n  {where}" if where else ""
        report.said = f"{type(error).__name__}: {error}"

    def pytest_runtest_logreport(self, report: Any) -> None:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash is not None else report.longreprtext
        outcome = "xfail" if hasattr(report, "wasxfail") else report.outcome
        if hasattr(report, "context") and outcome != "failed":
            return  # a part of a test, whose own report follows
        if ended := self._ended():
            outcome, text = "failed", str(self.connection and self.connection.trouble)
        text = text[:MAX_TEXT] + getattr(report, "where", "")
        hung = ended == "hung"
        self.say(id=report.nodeid, when=report.when, outcome=outcome, text=text, hung=hung)

    def _ended(self) -> str:
        """Say whether the answer's process is gone, and tell when nothing can be judged."""
        trouble = self.connection.trouble if self.connection else None
        if isinstance(trouble, Unjudged):
            self.say(unjudged=str(trouble))
        if isinstance(trouble, Ended):
            return "hung" if trouble.hung else "ended"
        return ""
