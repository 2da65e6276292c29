"""Judge what an agent left of a task's repo: by its `verifier_spec`, else by its `test_cmd`.

A spec is judged as in `rewards.verifiers.tests`: where the answer's code does not run. A command
runs in the sandbox on a fresh copy in which the files of the tests are those of the repo, whatever
the agent made of them; tests and answer share their processes there, so that a determined program
can win. Files of the tests are those that `metadata["test_files"]` names, globs as those of `hide`;
without it what looks like tests or their settings (LOCKED), what lies beside a test file that the
command names, and what is hidden and has "test" in its path. No other hidden file is there.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pimono_sdpo.suites.workspace import files_of, matches, visible
from pimono_sdpo.text import shorten, well_formed
from rewards import sandbox
from rewards.sandbox import Limits, SandboxError
from rewards.sandbox.limits import MEBI
from rewards.verifiers import tests
from rewards.verifiers.candidate import LOCKED, Candidate, refused_path
from rewards.verifiers.judged import Overloaded, Python, Unjudged, cold, died
from rewards.verifiers.result import BadSpec

SECONDS = 60.0
MAX_OUTPUT = 4000
NOT_FOUND = (126, 127)
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "NO_COLOR": "1"}
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
            return _by_spec(task, json.loads(task["verifier_spec"]), folder, python)
        if task["test_cmd"]:
            return _by_command(task, folder)
    except (SandboxError, Overloaded, Unjudged, BadSpec) as trouble:
        return Judged(None, "", str(trouble))
    return Judged(None, "", "the task has no tests")


def steady(text: str) -> str:
    """Put fixed words for times, folders and addresses.

    >>> steady("1 passed in 0.12s at 0x7f00deadbeef")
    '1 passed in 0.00s at 0x0'
    """
    for pattern, instead in _UNSTEADY:
        text = pattern.sub(instead, text)
    return text


def _by_spec(task: Mapping[str, Any], spec: dict[str, Any], folder: Path, python: Python) -> Judged:
    if "tests" not in spec:
        return Judged(None, "", "the `verifier_spec` of the task has no `tests`")
    shown = files_of(Path(task["repo"]), task["hide"])
    spec = {"files": shown, **spec}
    before, left = {**shown, **spec["files"]}, files_of(folder)
    may = {**spec, "allowed": spec.get("allowed") or ["*"]}
    # What the agent could not see is as it was, and what it may not change counts as it was.
    files = {path: text for path, text in before.items() if path not in shown or path in left}
    files |= {path: text for path, text in left.items() if refused_path(path, may) is None}
    changed = (path for path in {*before, *files} if before.get(path) != files.get(path))
    result = tests.judge(Candidate(files, tuple(sorted(changed)), before), spec, python)
    if result.status in ("error", "skipped"):
        return Judged(None, "", result.feedback)
    if result.status == "passed":
        number = int(result.metrics["tests"])
        return Judged(True, f"{number} of {number} tests pass.")
    return Judged(False, steady(result.feedback))


def _by_command(task: Mapping[str, Any], folder: Path) -> Judged:
    command, repo = task["test_cmd"], Path(task["repo"])
    _check_test_files(task)
    left = {path: file for path, file in visible(folder, ()) if not _is_of_tests(path, task)}
    left |= {path: file for path, file in visible(repo, ()) if _is_of_tests(path, task)}
    files = {path: file.read_bytes() for path, file in left.items()}
    size = sum(map(len, files.values()))
    limits = Limits(
        cpu_seconds=SECONDS,
        wall_seconds=5 * SECONDS,
        memory=1024 * MEBI,
        disk=256 * MEBI + 4 * size,
        files=4_000 + 4 * len(files),
        open_files=512,
    )
    ran = sandbox.run(["sh", "-c", command], files=files, limits=limits, env=ENVIRONMENT)
    said = (ran.stdout + b"\n" + ran.stderr).decode(errors="replace").strip()
    output = shorten(steady(well_formed(said)), MAX_OUTPUT)
    if ran.exit_code == 0 and not ran.stopped:
        return Judged(True, output)
    if ran.exit_code in NOT_FOUND or "No module named pytest" in said:
        return Judged(None, output, f"`{command}` cannot be run in the sandbox: {output[-200:]}")
    if ran.stopped:
        output = f"{died(ran, cold, f'`{command}`').told}\n{output}".strip()
    return Judged(False, output)


def _check_test_files(task: Mapping[str, Any]) -> None:
    given = (task["metadata"] or {}).get("test_files", [])
    if not isinstance(given, list) or not all(isinstance(glob, str) for glob in given):
        raise BadSpec(f"`test_files` of the metadata is {given!r}; write a list of globs.")


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
    return matches(path, [f"/{glob}" if "/" in glob else glob for glob in LOCKED])
