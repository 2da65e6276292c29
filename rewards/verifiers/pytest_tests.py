"""Judge by pytest: pristine tests, in a process of their own, or together with the answer.

tests  kind: "pytest"; files: path to text of the tests and what they need; passes: the node ids
       that must pass, or how many (default: all that are collected and do not skip themselves);
       seconds: CPU seconds of the whole run (default SECONDS); plugins: names for pytest's `-p`;
       shared: paths of `files` whose classes both sides need, to hand their objects over; roots:
       folders from which the answer's modules are imported (default: the root, and `src`);
       `needs` as in `rewards.verifiers.tests`: leave out of it what holds the answer
       together: whether the answer runs in pytest's own process (default false); then keep: paths
       of `files` that are read while tests run, allow: what the screen lets pass

Apart (see `rewards.verifiers.isolated`) the answer sees arguments and gives values. It can read
neither tests nor results, and no object of its own is asked about an expected value. What tests
cannot do there, `rewards.verifiers.isolated` lists. Tests that are skipped or expected to fail do
not count.

Together is for tests that reach into the answer: mocks handed to it, its source inspected. What is
known of cheating there is refused by `rewards.verifiers.tamper_check`, the reports carry a
nonce, and a determined program can still win.
"""

import importlib.util
import json
import secrets
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from rewards.sandbox import Limits, Ran, SandboxError
from rewards.verifiers.candidate import Candidate
from rewards.verifiers.isolated import host
from rewards.verifiers.isolated.host import Events
from rewards.verifiers.outcomes import Outcome, Python, Unjudged, died
from rewards.verifiers.rubric import BadSpec
from rewards.verifiers.tamper_check import offence, refused_file

SECONDS = 30.0
JUDGE = Path(__file__).with_name("pytest_judge.py").read_text()
STAGES = [("setup", "passed"), ("call", "passed"), ("teardown", "passed")]


def refusal(candidate: Candidate, tests: Mapping[str, Any]) -> str | None:
    """Say what in the change is none of the task's business, None when all is."""
    if not tests.get("together"):
        return None
    theirs = tests["files"]
    for path in candidate.changed:
        if why := refused_file(path, theirs, candidate.before):
            return f"{why}; leave it out and change the code under test."
        before, after = candidate.before.get(path, ""), candidate.files.get(path, "")
        if PurePosixPath(path).suffix == ".py" and (
            found := offence(before, after, theirs, tests.get("allow", ()))
        ):
            return f"`{path}` now uses `{found}`, by which tests can be deceived; do without it."
    return None


def judge(
    files: Mapping[str, str], before: Mapping[str, str], tests: Mapping[str, Any], python: Python
) -> list[Outcome]:
    """Run the tests on the files; one outcome for each that must pass, and one for what else fails.

    Raises ValueError for tests that are none, SandboxError when nothing could be run, Overloaded
    when the machine was too busy to tell, Unjudged when the tests cannot be run apart.
    """
    passes = tests.get("passes")
    modules = [path for path in tests["files"] if _is_test(path)]
    if not modules:
        raise BadSpec("Tests by pytest need `files`, one of them named test_*.py or *_test.py.")
    if passes is None and tests.get("together"):
        raise BadSpec("Tests together with the answer need `passes`: the node ids or a number.")
    if importlib.util.find_spec("pytest") is None:
        raise SandboxError("pytest is not installed beside this package; install it")
    seconds = float(tests.get("seconds", SECONDS))
    arguments = [part for name in tests.get("plugins", ()) for part in ("-p", name)] + modules
    run = _together if tests.get("together") else host.run
    ran, events = run(files, before, tests, arguments, seconds, python)
    for event in events:
        if "refused" in event:
            raise SandboxError(event["refused"])
        if "unjudged" in event:
            raise Unjudged(f"{event['unjudged']}, or set `together` for these tests")
    outcomes = _outcomes(events, passes)
    broken = [event for event in events if "broken" in event]
    ended = [event["end"] for event in events if "end" in event]
    if broken:
        befell: Literal["timeout", "error"] = "timeout" if broken[0].get("hung") else "error"
        _put(outcomes, Outcome(befell, f"{broken[0]['broken']}: {broken[0]['text']}"))
    elif not ended:
        running = [event["start"] for event in events if "start" in event] or [
            "importing the tests"
        ]
        _put(outcomes, died(ran, python, running[-1]))
    elif ended != [0] and all(outcome.kind == "passed" for outcome in outcomes):
        outcomes.append(Outcome("error", f"pytest ended with exit code {ended[0]}"))
    return outcomes


def _together(
    files: Mapping[str, str], _: Mapping[str, str], tests: Mapping[str, Any], arguments: list[str],
    seconds: float, python: Python,
) -> tuple[Ran, Events]:  # fmt: skip
    """Run tests and answer in one process."""
    nonce = secrets.token_hex(16)
    remove = [path for path in tests["files"] if path not in tests.get("keep", ())]
    job = {"nonce": nonce, "arguments": arguments, "remove": remove}
    limits = Limits(cpu_seconds=seconds, wall_seconds=max(30, 5 * seconds), output=host.OUTPUT)
    ran = python(["-c", JUDGE], {**files, **tests["files"]}, json.dumps(job).encode(), limits)
    return ran, _events(ran.stdout, nonce)


def _put(outcomes: list[Outcome], befell: Outcome) -> None:
    """Say what befell the run at the first test not reached, unless another told it already."""
    at = next((i for i, one in enumerate(outcomes) if one.kind == "unknown"), len(outcomes))
    if at < len(outcomes) or all(one.kind == "passed" for one in outcomes):
        outcomes[at : at + 1] = [befell]


def _outcomes(events: Events, passes: list[str] | int | None) -> list[Outcome]:
    """Return what came of every test that must pass."""
    collected = [name for event in events for name in event.get("collected", ())]
    if passes is None:
        skipped = {event["id"] for event in events if event.get("outcome") in ("skipped", "xfail")}
        passes = [name for name in collected if name not in skipped] or max(len(collected), 1)
        collected = []
    wanted = collected if isinstance(passes, int) else passes
    outcomes = [_outcome(name, [e for e in events if e.get("id") == name]) for name in wanted]
    number = passes if isinstance(passes, int) else len(passes)
    if collected and (len(collected) != number or {*collected} != {*wanted}):
        told = f"{len(collected)} tests were collected, of {number}"
        outcomes.append(Outcome("error", told))
    return outcomes + [Outcome("unknown")] * (number - len(outcomes))


def _outcome(name: str, reports: Events) -> Outcome:
    if [(report["when"], report["outcome"]) for report in reports] == STAGES:
        return Outcome("passed")
    bad = [report for report in reports if report["outcome"] != "passed"]
    if not bad:
        return Outcome("unknown")
    said = f"{name}: {bad[0]['text'] or bad[0]['outcome']}"
    if bad[0].get("hung"):
        return Outcome("timeout", said)
    asserted = bad[0]["text"].startswith(("assert ", "AssertionError", "Failed: DID NOT"))
    return Outcome("wrong" if asserted or bad[0]["outcome"] != "failed" else "error", said)


def _events(stdout: bytes, nonce: str) -> Events:
    """Decode the lines that carry the nonce."""
    start = f"{nonce} ".encode()
    return [
        json.loads(line.removeprefix(start))
        for line in stdout.split(b"\n")[:-1]
        if line.startswith(start)
    ]


def _is_test(path: str) -> bool:
    name = PurePosixPath(path).name
    return name.endswith("_test.py") or (name.startswith("test_") and name.endswith(".py"))
