"""Judge what an agent left of a task's repo: by its `verifier_spec`, else by its `test_cmd`.

A spec is judged as in `rewards.verifiers.tests`: where the answer's code does not run. A command
runs in the sandbox on a fresh copy in which the files of the tests are those of the repo, whatever
the agent made of them; tests and answer share their processes there, so that a determined program
can win. Files of the tests are those that `metadata["test_files"]` names, globs as those of `hide`;
without it what looks like tests or their settings (LOCKED), what lies beside a test file that the
command names, and what is hidden and has "test" in its path. No other hidden file is there.
`metadata["seconds"]` are the CPU seconds of a command (default SECONDS).
"""

import importlib.util
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pimono_sdpo.errors import SourceError
from pimono_sdpo.shell import parse
from pimono_sdpo.suites.workspace import files_of, matches, visible
from pimono_sdpo.text import shorten, well_formed
from rewards import sandbox
from rewards.sandbox import Limits, SandboxError
from rewards.sandbox.limits import MEBI
from rewards.verifiers import candidate, outcomes, tests
from rewards.verifiers.outcomes import Overloaded, Python, Unjudged, cold, died
from rewards.verifiers.rubric import BadSpec
from rewards.verifiers.spec import check_tests

SECONDS = 20.0
MAX_OUTPUT = 4000
NOT_FOUND = (126, 127)
# Without its plugins pytest starts in a sixth of the time; `-p NAME` in the command loads one.
ENVIRONMENT = {
    **outcomes.ENVIRONMENT,
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "NO_COLOR": "1",
}
# A file of such a name at the top of the repo would be imported in the place of the real module.
TAKEN = sys.stdlib_module_names | {
    "pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "hypothesis",
    "sitecustomize", "usercustomize",
}  # fmt: skip
_PASSED = re.compile(rb"\b[1-9]\d* passed\b")
# What differs from run to run, and what stands for it: replays need the same text.
_UNSTEADY = (
    (re.compile(r"(?:/[\w.-]+)*/sandbox-\w+/(work|tmp)"), r"/\1"),
    (re.compile(r"\bin \d+(?:\.\d+)?s(?: \(\d+:\d\d:\d\d\))?"), "in 0.00s"),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "0x0"),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """What tests said: `ok` is None when nothing was judged, and `error` then says why.

    `output` is the same text for the same files; `error` is never the agent's fault.
    """

    ok: bool | None
    output: str
    error: str | None = None


def run_tests(task: Mapping[str, Any], folder: Path, python: Python = cold) -> Judged:
    """Judge the files of `folder` as an answer to a task with the columns `TASK`.

    `python` is `tests.warm`'s way to run many specs. Never raises on what an agent wrote, nor for
    a spec that is none: that is an `error`.
    """
    try:
        if task["verifier_spec"]:
            return _by_spec(task, folder, python)
        if task["test_cmd"]:
            return _by_command(task, folder)
    except (SandboxError, SourceError, Overloaded, Unjudged, BadSpec) as trouble:
        return Judged(None, "", str(trouble))
    return Judged(None, "", "the task has no tests")


def check_task(task: Mapping[str, Any]) -> None:
    """Raise SourceError when a task's tests are none, before anything is spent on it."""
    try:
        _check_metadata(task)
        if task["verifier_spec"]:
            spec = _spec(task, {})
            candidate.files_of(spec)
            check_tests(spec)
    except BadSpec as wrong:
        raise SourceError(f"Task `{task['task_id']}` cannot be judged: {wrong}") from wrong


def steady(text: str) -> str:
    """Put fixed words for times, folders and addresses.

    >>> steady("1 passed in 0.12s at 0x7f00deadbeef")
    '1 passed in 0.00s at 0x0'
    """
    for pattern, instead in _UNSTEADY:
        text = pattern.sub(instead, text)
    return text


def _spec(task: Mapping[str, Any], shown: Mapping[str, str]) -> dict[str, Any]:
    """Return the spec of a task, whose files are those of the repo unless it says otherwise."""
    spec = json.loads(task["verifier_spec"])
    if not isinstance(spec, dict) or "tests" not in spec:
        raise BadSpec("The `verifier_spec` has no `tests`; write them, or leave it out.")
    return {"files": dict(shown), **spec}


def _by_spec(task: Mapping[str, Any], folder: Path, python: Python) -> Judged:
    shown = files_of(Path(task["repo"]), task["hide"])
    spec = _spec(task, shown)
    candidate.files_of(spec)
    before, left = {**shown, **spec["files"]}, files_of(folder)
    may = {**spec, "allowed": spec.get("allowed") or ["*"]}
    # What the agent could not see is as it was, and what it may not change counts as it was.
    files = {path: text for path, text in before.items() if path not in shown or path in left}
    files |= {
        path: text for path, text in left.items() if candidate.refused_path(path, may) is None
    }
    changed = (path for path in {*before, *files} if before.get(path) != files.get(path))
    result = tests.judge(candidate.Candidate(files, tuple(sorted(changed)), before), spec, python)
    if result.status in ("error", "skipped"):
        return Judged(None, "", result.feedback)
    if result.status == "passed":
        number = int(result.metrics["tests"])
        return Judged(True, f"{number} of {number} tests pass.")
    return Judged(False, steady(result.feedback))


def _by_command(task: Mapping[str, Any], folder: Path) -> Judged:
    command, repo = task["test_cmd"], Path(task["repo"])
    _check_metadata(task)
    if "pytest" in command and importlib.util.find_spec("pytest") is None:
        raise SandboxError("pytest is not installed beside this package; install it")
    pristine = {path: file for path, file in visible(repo, ()) if _is_of_tests(path, task)}
    folders = {str(parent) for path in pristine for parent in PurePosixPath(path).parents}
    left = {
        path: file
        for path, file in visible(folder, ())
        if not _is_of_tests(path, task)
        # Nothing takes the place of a folder of the tests, nor lies in one of their files.
        and path not in folders
        and not any(str(parent) in pristine for parent in PurePosixPath(path).parents)
    }
    if instead := _stand_ins(set(left) - {path for path, _ in visible(repo, ())}):
        return Judged(False, f"`{instead}` would be imported in the place of a module of Python's.")
    files = {path: file.read_bytes() for path, file in (left | pristine).items()}
    size, seconds = sum(map(len, files.values())), (task["metadata"] or {}).get("seconds", SECONDS)
    limits = Limits(
        cpu_seconds=seconds,
        wall_seconds=max(60, 5 * seconds),
        memory=1024 * MEBI,
        disk=256 * MEBI + 4 * size,
        files=4_000 + 4 * len(files),
        open_files=512,
    )
    ran = sandbox.run(["sh", "-c", command], files=files, limits=limits, env=ENVIRONMENT)
    said = (ran.stdout + b"\n" + ran.stderr).decode(errors="replace").strip()
    output = shorten(steady(well_formed(said)), MAX_OUTPUT)
    if ran.exit_code == 0 and not ran.stopped:
        if _is_pytest(command) and not _PASSED.search(ran.stdout):
            return Judged(False, f"pytest ended before it told of any test.\n{output}".strip())
        return Judged(True, output)
    if ran.exit_code in NOT_FOUND and (missing := _missing(command)):
        return Judged(None, output, f"`{command}` cannot be run: the sandbox has no {missing}")
    if ran.stopped:
        output = f"{died(ran, cold, f'`{command}`').told}\n{output}".strip()
    return Judged(False, output)


def _stand_ins(new: Iterable[str]) -> str | None:
    """Name a new file that stands in for a module the tests run by."""
    names = {path: path.partition("/")[0].partition(".")[0] for path in sorted(new)}
    return next((path for path, name in names.items() if name in TAKEN), None)


def _is_pytest(command: str) -> bool:
    """Whether pytest runs and says how many tests passed, which it does unless it is `-qq`."""
    words = [w for p in parse(command) for s in p.stages for w in (s.program, *s.arguments)]
    quiet = any(re.fullmatch(r"-q{2,}", word) for word in words) or words.count("-q") > 1
    return not quiet and any(word in ("pytest", "py.test") for word in words)


def _missing(command: str) -> str:
    """Name the first program of a command that is not there, "" when all are."""
    for pipeline in parse(command):
        for name in (stage.program for stage in pipeline.stages):
            probe = ["sh", "-c", 'command -v "$1" >/dev/null', "sh", name]
            if "/" not in name and sandbox.run(probe).exit_code != 0:
                return name
    return ""


def _check_metadata(task: Mapping[str, Any]) -> None:
    given = (task["metadata"] or {}).get("test_files", [])
    if not isinstance(given, list) or not all(isinstance(glob, str) for glob in given):
        raise BadSpec(f"`test_files` of the metadata is {given!r}; write a list of globs.")
    seconds = (task["metadata"] or {}).get("seconds", SECONDS)
    if type(seconds) not in (int, float) or not 0 < seconds < math.inf:
        raise BadSpec(f"`seconds` of the metadata is {seconds!r}; write a number above 0.")


def _is_of_tests(path: str, task: Mapping[str, Any]) -> bool:
    given = (task["metadata"] or {}).get("test_files")
    if given is not None:
        return matches(path, given)
    named = [word.partition("::")[0].removeprefix("./") for word in task["test_cmd"].split()]
    beside = {f"/{PurePosixPath(name).parent}/*" for name in named if _looks_like_tests(name)}
    return (
        _looks_like_tests(path)
        or matches(path, sorted(beside - {"/./*"}))
        or ("test" in path.casefold() and matches(path, task["hide"]))
    )


def _looks_like_tests(path: str) -> bool:
    return matches(path, [f"/{glob}" if "/" in glob else glob for glob in candidate.LOCKED])
