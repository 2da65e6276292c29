"""Run the tests of a task on an agent's changes: by its `verifier_spec`, else by its `test_cmd`.

A spec is checked as in `rewards.verifiers.tests`, in a process that does not run the answer's code.
A command runs in the sandbox on the changed files, but with the original test files, even if the agent
changed them. Tests and answer run in the same processes there, so a malicious answer can cheat.
Test files are those that `metadata["test_files"]` names, with globs like those of `hide`; without it,
everything that looks like tests or their configuration (LOCKED), everything beside a test file that
the command names, and hidden files with "test" in their path. Other hidden files are left out.
`metadata["seconds"]` is the CPU time of a command (default SECONDS).

Results are stored in the SQLite file of the call journal, keyed by what was tested: the same files of
the same task are tested once. So a repeated run shows the model the same output, makes no new calls,
and needs no sandbox. Infrastructure failures are never stored.
"""

import asyncio
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec

from pimono_sdpo.errors import SourceError
from pimono_sdpo.llm.calls import Store
from pimono_sdpo.shell import parse_command
from pimono_sdpo.suites.suite import decode_text, files_of, has_tests, list_files
from pimono_sdpo.text import match_globs, replace_surrogates, shorten
from rewards import sandbox
from rewards.sandbox import MEBI, Limits, SandboxError
from rewards.verifiers import candidate, outcomes, tests
from rewards.verifiers.outcomes import describe_ending
from rewards.verifiers.patches import apply_patch
from rewards.verifiers.rubric import BadSpec

SECONDS = 20.0
MAX_OUTPUT = 4000
NOT_FOUND = (126, 127)
# Without plugins pytest starts six times as fast; `-p NAME` in the command loads one.
ENVIRONMENT = {**outcomes.ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "NO_COLOR": "1"}
# A file with such a name at the root of the repo would be imported instead of the real module.
RESERVED = sys.stdlib_module_names | {
    "pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "hypothesis",
    "sitecustomize", "usercustomize",
}  # fmt: skip
_LOCKED = [f"/{glob}" if "/" in glob else glob for glob in candidate.LOCKED]
_PASSED = re.compile(rb"\b[1-9]\d* passed\b")
# Texts that differ from run to run, and their replacements; replays need equal texts.
_UNSTABLE = (
    (re.compile(r"(?:/[\w.-]+)*/sandbox-\w+/(work|tmp)"), r"/\1"),
    (re.compile(r"\bin \d+(?:\.\d+)?s(?: \(\d+:\d\d:\d\d\))?"), "in 0.00s"),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "0x0"),
)


# The files that an answer changes: contents by path, None for a file that it removed.
Written = Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Whether the tests pass; `ok` is None if they could not be run, and `error` then says why."""

    ok: bool | None
    output: str
    error: str | None = None


def run_tests(task: Mapping[str, Any], written: Written) -> TaskResult:
    """Test the repo of a task with the written files; an invalid spec is an `error` of the result."""
    try:
        if task["verifier_spec"]:
            return _test_by_spec(task, written)
        if task["test_cmd"]:
            return _test_by_command(task, written)
    except (SandboxError, SourceError, BadSpec) as error:
        return TaskResult(None, "", str(error))
    return TaskResult(None, "", "the task has no tests")


def stabilize(text: str) -> str:
    """Replace times, folders and addresses, which differ from run to run.

    >>> stabilize("1 passed in 0.12s at 0x7f00deadbeef")
    '1 passed in 0.00s at 0x0'
    """
    for pattern, replacement in _UNSTABLE:
        text = pattern.sub(replacement, text)
    return text


def _test_by_spec(task: Mapping[str, Any], written: Written) -> TaskResult:
    shown = _read_texts(task["repo"], tuple(task["hide"]))
    spec = {"files": shown, **json.loads(task["verifier_spec"])}
    if "tests" not in spec:
        raise BadSpec("The `verifier_spec` has no `tests`; add them, or leave the spec out.")
    before = {**shown, **candidate.get_files(spec)}
    texts = {path: None if content is None else decode_text(content) for path, content in written.items()}
    after = {path: text for path, text in before.items() if path not in shown or texts.get(path, "") is not None}
    allowed = {**spec, "allowed": spec.get("allowed") or ["*"]}
    for path, text in {**shown, **texts}.items():
        # Changes that an answer may not make are ignored.
        if text is not None and text != before.get(path) and candidate.refused_path(path, allowed) is None:
            after[path] = text
    changed = tuple(path for path in sorted({*before, *after}) if before.get(path) != after.get(path))
    result = tests.verify_candidate(candidate.Candidate(after, changed, before), spec)
    if result.status in ("error", "skipped"):
        return TaskResult(None, "", result.feedback)
    if result.status == "passed":
        number = int(result.metrics["tests"])
        return TaskResult(True, f"{number} of {number} tests pass.")
    return TaskResult(False, stabilize(result.feedback))


class _Metadata(msgspec.Struct):
    """The metadata of a task that its test command uses."""

    test_files: tuple[str, ...] | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0)] = SECONDS


def _test_by_command(task: Mapping[str, Any], written: Written) -> TaskResult:
    command, hide = task["test_cmd"], tuple(task["hide"])
    try:
        metadata = msgspec.convert(task["metadata"] or {}, _Metadata)
    except msgspec.ValidationError as error:
        raise BadSpec(f"The metadata of the task is not valid ({error}).") from error
    all_files = list_repo(task["repo"], ())
    test_files = {
        path: file.read_bytes()
        for path, file in all_files.items()
        if _is_test_file(path, command, hide, metadata.test_files)
    }
    folders = {str(parent) for path in test_files for parent in PurePosixPath(path).parents}
    files = dict(test_files)
    for path, content in {**list_repo(task["repo"], hide), **written}.items():
        # A file must not replace a folder of the tests, or be below one of their files.
        if path in folders or any(str(parent) in test_files for parent in PurePosixPath(path).parents):
            continue
        if content is not None and not _is_test_file(path, command, hide, metadata.test_files):
            files[path] = content.read_bytes() if isinstance(content, Path) else content
    for path in sorted(files.keys() - all_files.keys()):
        if path.partition("/")[0].partition(".")[0] in RESERVED:
            return TaskResult(False, f"`{path}` would be imported in the place of a module of Python's.")
    limits = make_limits(metadata.seconds, files)
    ran = sandbox.run(["sh", "-c", command], files=files, limits=limits, env=ENVIRONMENT)
    text = (ran.stdout + b"\n" + ran.stderr).decode(errors="replace").strip()
    output = shorten(stabilize(replace_surrogates(text)), MAX_OUTPUT)
    if ran.exit_code == 0 and not ran.stopped:
        if _is_pytest(command) and not _PASSED.search(ran.stdout):
            return TaskResult(False, f"pytest ended before it reported any test.\n{output}".strip())
        return TaskResult(True, output)
    if ran.exit_code in NOT_FOUND and (missing := _find_missing_program(command)):
        return TaskResult(None, output, f"`{command}` cannot be run: the sandbox has no {missing}")
    if ran.stopped:
        output = f"{describe_ending(ran, f'`{command}`').message}\n{output}".strip()
    return TaskResult(False, output)


def make_limits(seconds: float, files: Mapping[str, bytes]) -> Limits:
    """Return the sandbox limits for a command with `seconds` of CPU time on these files."""
    return Limits(
        cpu_seconds=seconds,
        wall_seconds=max(60, 5 * seconds),
        memory=1024 * MEBI,
        disk=256 * MEBI + 4 * sum(map(len, files.values())),
        files=4_000 + 4 * len(files),
        open_files=512,
    )


def _is_pytest(command: str) -> bool:
    """Return whether a command runs pytest and reports the number of passed tests, as it does without `-qq`."""
    words = [w for p in parse_command(command) for s in p.stages for w in (s.program, *s.arguments)]
    quiet = any(re.fullmatch(r"-q{2,}", word) for word in words) or words.count("-q") > 1
    return not quiet and any(word in ("pytest", "py.test") for word in words)


def _find_missing_program(command: str) -> str:
    """Return the first missing program of a command, or ""."""
    names = [stage.program for pipeline in parse_command(command) for stage in pipeline.stages]
    probe = 'for name; do command -v "$name" >/dev/null || echo "$name"; done'
    missing = sandbox.run(["sh", "-c", probe, "sh", *(name for name in names if "/" not in name)])
    return missing.stdout.decode().partition("\n")[0]


@lru_cache(maxsize=1 << 16)
def _is_test_file(path: str, command: str, hide: tuple[str, ...], test_files: tuple[str, ...] | None) -> bool:
    if test_files is not None:
        return match_globs(path, test_files)
    named = [word.partition("::")[0].removeprefix("./") for word in command.split()]
    beside = {f"/{PurePosixPath(name).parent}/*" for name in named if match_globs(name, _LOCKED)}
    return (
        match_globs(path, _LOCKED)
        or match_globs(path, sorted(beside - {"/./*"}))
        or ("test" in path.casefold() and match_globs(path, hide))
    )


@lru_cache(maxsize=256)
def list_repo(repo: str, hide: tuple[str, ...]) -> Mapping[str, Path]:
    """Return the files of a repo that are not hidden; cached until a new TaskTests is made."""
    return list_files(Path(repo), hide)


@lru_cache(maxsize=2)
def _read_texts(repo: str, hide: tuple[str, ...]) -> dict[str, str]:
    return files_of(Path(repo), hide)


@lru_cache(maxsize=256)
def _hash_folder(repo: str, hide: tuple[str, ...]) -> str:
    files = {path: _sha256(file.read_bytes()) for path, file in list_repo(repo, hide).items()}
    return _sha256(json.dumps(files, sort_keys=True).encode())


def hash_repo(task: Mapping[str, Any]) -> str:
    """Return a hash of the files that a task's runs and test results depend on."""
    # A test command also reads hidden files, which may be tests.
    return _hash_folder(task["repo"], tuple(task["hide"]) if task["verifier_spec"] else ())


def result_key(task: Mapping[str, Any], changed: Written) -> str:
    """Return the key of a test result: a hash of tests, repo and changed files."""
    parts = [
        task["verifier_spec"], task["test_cmd"], task["hide"], task["metadata"],
        hash_repo(task),
        {path: None if new is None else _sha256(new) for path, new in changed.items()},
    ]  # fmt: skip
    return _sha256(json.dumps(parts, sort_keys=True).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class TaskTests:
    """Test the tasks of a run; results are stored in `journal`, if one is given."""

    def __init__(self, journal: Path | None = None) -> None:
        for cached in (list_repo, _read_texts, _hash_folder):
            cached.cache_clear()
        self.store = ResultStore(journal) if journal else None

    async def test(self, task: Mapping[str, Any], changed: Written) -> TaskResult:
        """Return the stored result of these changes, or test them."""
        key = result_key(task, changed)
        if self.store is not None and (known := self.store.get(key)) is not None:
            return known
        try:
            result = await asyncio.to_thread(run_tests, task, changed)
        except Exception as error:
            # One failed run must not stop the others; its row has the error and is run again.
            result = TaskResult(None, "", f"{type(error).__name__}: {error}")
        return result if self.store is None or result.ok is None else self.store.put(key, result)

    def retest(self, task: Mapping[str, Any], patch: str) -> tuple[bool | None, str]:
        """Apply a patch; return whether the tests pass (None if they could not be run), and why."""
        if not has_tests(task):
            return None, "the task has no tests"
        try:
            files = _read_texts(task["repo"], tuple(task["hide"]))
        except SourceError as error:
            return None, str(error)
        try:
            applied = apply_patch(patch, {"files": files, "allowed": ["*"], "locked": []})
        except candidate.Refusal as refused:
            return False, f"the patch does not apply, {refused.why}"
        texts = ((path, applied.files.get(path)) for path in applied.changed)
        result = run_tests(task, {path: None if text is None else text.encode() for path, text in texts})
        return result.ok, result.error or result.output


class ResultStore(Store):
    """Stored test results, in the file of the call journal."""

    def __init__(self, path: Path) -> None:
        columns = "key text primary key, ok integer not null, output text not null"
        super().__init__(path, f"create table if not exists verdicts ({columns}) strict")

    def get(self, key: str) -> TaskResult | None:
        """Return a stored result, None if there is none."""
        with self._open() as connection:
            row = connection.execute("select ok, output from verdicts where key = ?", (key,)).fetchone()
        return None if row is None else TaskResult(bool(row[0]), row[1])

    def put(self, key: str, result: TaskResult) -> TaskResult:
        """Store a result and return it; if the key has a result, keep and return that one."""
        with self._open() as connection:
            added = "insert into verdicts values (?, ?, ?) on conflict (key) do nothing"
            connection.execute(added, (key, int(bool(result.ok)), result.output))
        return self.get(key) or result
