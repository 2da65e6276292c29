"""Judge by pytest: pristine tests, counted, reported under a nonce, on screened files only.

tests  kind: "pytest"; files: path to text of the tests and what they need; passes: the node ids
       that must pass, or how many; seconds: CPU seconds of the whole run (default SECONDS);
       keep: paths of `files` that are read while tests run (the others are removed once they were
       collected); plugins: names for pytest's `-p`; allow: what the screen lets pass; `needs` as in
       `rewards.verifiers.tests`: leave out of it what holds the answer

What remains possible: code in the same process that finds the reporter's closure through memory,
replaces parts of pytest, or looks like every value it is compared with, in a spelling that
`rewards.verifiers.screen` does not know; and reading the tests while they are being imported. No
such program is among those tested, but one can be written. Tests of values have none of this.
"""

import importlib.util
import json
import secrets
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from rewards.sandbox import Limits, SandboxError
from rewards.verifiers.candidate import Candidate
from rewards.verifiers.judged import Outcome, Python, died
from rewards.verifiers.screen import offence, refused_file

SECONDS = 30.0
OUTPUT = 8 << 20
JUDGE = Path(__file__).with_name("pytest_judge.py").read_text()
STAGES = [("setup", "passed"), ("call", "passed"), ("teardown", "passed")]
Events = list[dict[str, Any]]


def refusal(candidate: Candidate, tests: Mapping[str, Any]) -> str | None:
    """Say what in the change is none of the task's business, None when all is."""
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


def judge(files: Mapping[str, str], tests: Mapping[str, Any], python: Python) -> list[Outcome]:
    """Run the tests on the files; one outcome for each that must pass, and one for what else fails.

    Raises ValueError for tests that are none, SandboxError when nothing could be run, and
    Overloaded when the machine was too busy to tell.
    """
    passes = tests.get("passes")
    if not passes or not tests["files"]:
        raise ValueError("Tests by pytest need `files`, and in `passes` the node ids or a number.")
    if importlib.util.find_spec("pytest") is None:
        raise SandboxError("pytest is not installed beside this package; install it")
    nonce = secrets.token_hex(16)
    modules = [path for path in tests["files"] if _is_test(path)]
    job = {
        "nonce": nonce,
        "arguments": [part for name in tests.get("plugins", ()) for part in ("-p", name)] + modules,
        "remove": [path for path in tests["files"] if path not in tests.get("keep", ())],
    }
    seconds = float(tests.get("seconds", SECONDS))
    limits = Limits(cpu_seconds=seconds, wall_seconds=max(30, 5 * seconds), output=OUTPUT)
    ran = python(["-c", JUDGE], {**files, **tests["files"]}, json.dumps(job).encode(), limits)
    events = _events(ran.stdout, nonce)
    outcomes = _outcomes(events, passes)
    broken = [event for event in events if "broken" in event]
    ended = [event["end"] for event in events if "end" in event]
    if broken:
        _put(outcomes, Outcome("error", f"{broken[0]['broken']}: {broken[0]['text']}"))
    elif not ended:
        running = [event["start"] for event in events if "start" in event] or [
            "importing the tests"
        ]
        _put(outcomes, died(ran, python, running[-1]))
    elif ended != [0] and all(outcome.kind == "passed" for outcome in outcomes):
        outcomes.append(Outcome("error", f"pytest ended with exit code {ended[0]}"))
    return outcomes


def _put(outcomes: list[Outcome], befell: Outcome) -> None:
    """Say what befell the run at the first test that was not reached, or as one more."""
    at = next((i for i, one in enumerate(outcomes) if one.kind == "unknown"), len(outcomes))
    outcomes[at : at + 1] = [befell]


def _outcomes(events: Events, passes: list[str] | int) -> list[Outcome]:
    """Return what came of every test that must pass."""
    collected = [name for event in events for name in event.get("collected", ())]
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
