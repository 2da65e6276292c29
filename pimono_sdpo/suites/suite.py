"""Read, check and write the JSON file of a task suite, and list the files of a task's repo that agents see.

docs/reference/files.md describes the file. A task with neither `verifier_spec` nor `test_cmd` can only be
trained on. A glob of `hide` without a slash hides every file and folder of that name; one with a slash hides
that path from the root of the repo, and everything below it. `*` matches any characters, including
slashes, and case is ignored. ALWAYS is hidden in every suite: histories and caches contain answers.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from pimono_sdpo.errors import SourceError
from pimono_sdpo.runs.folders import writing
from pimono_sdpo.runs.parquet import write_atomically
from pimono_sdpo.text import describe_size, match_globs, replace_surrogates

NAME = "suite.json"
# The default of `hide`: the answers of QuixBugs.
HIDE = ("correct_python_programs", "correct_java_programs")
ALWAYS = (
    *(".git", ".hg", ".svn", "*.orig", "*.rej", "*.pyc", "__pycache__", ".pytest_cache"),
    *(".mypy_cache", ".ruff_cache", ".tox", ".venv", "node_modules", ".hypothesis"),
)
# Key in the metadata of a task with another start state; its value is the id of the original task.
START_OF = "start_of"
MAX_FILES = 20_000
MAX_BYTES, MAX_TEXT = 256 * 2**20, 2**20

Text = Annotated[str, Meta(pattern=r"\S")]
# Ids are part of file names.
TaskId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,149}\Z")]
# Globs can only hide, not show again.
Glob = Annotated[str, Meta(pattern="^[^!]")]


class _Defaults(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    repo: Text | None = None
    test_cmd: str | None = None
    hide: list[Glob] | None = None


class _Start(_Defaults, kw_only=True, frozen=True, forbid_unknown_fields=True):
    goal: Text | None = None
    verifier_spec: dict[str, Any] | None = None


class _Task(_Defaults, kw_only=True, frozen=True, forbid_unknown_fields=True):
    task_id: TaskId
    goal: Text
    metadata: dict[str, Any] | None = None
    verifier_spec: dict[str, Any] | None = None
    starts: dict[TaskId, _Start] | None = None


def _list_starts(task: _Task) -> Iterator[_Task]:
    """Yield a task, and one task for each of its other start states."""
    yield task
    for name, start in (task.starts or {}).items():
        changes = {key: value for key, value in msgspec.structs.asdict(start).items() if value is not None}
        metadata = {**(task.metadata or {}), START_OF: task.task_id}
        yield msgspec.structs.replace(task, **changes, task_id=f"{task.task_id}+{name}", metadata=metadata)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Text
    tasks: Annotated[list[_Task], Meta(min_length=1)]
    description: str | None = None
    split: Literal["train", "test"] | None = None
    defaults: _Defaults = _Defaults()


class TaskRow(TypedDict):
    """A row of `schema.TASK`; `repo` is an absolute path, `verifier_spec` is JSON text."""

    task_id: str
    suite: str
    repo: str
    goal: str
    test_cmd: str | None
    hide: list[str]
    metadata: dict[str, Any]
    verifier_spec: str | None
    split: str | None


@dataclass(frozen=True, slots=True)
class Suite:
    """A valid suite; `path` is its file."""

    name: str
    tasks: tuple[TaskRow, ...]
    path: Path
    description: str = ""
    split: str | None = None


def load_suite(path: Path, repos: bool = True, outside: bool = True) -> Suite:
    """Read a suite from its file or folder.

    With `repos`, the repos must exist; without `outside`, they must lie in the folder of the suite's file.
    """
    path = path / NAME if path.is_dir() else path
    try:
        # Expected values may be infinite, which msgspec does not read.
        content = json.loads(path.read_bytes())
        # Raises for lone surrogates, which cannot be written.
        json.dumps(content, ensure_ascii=False).encode()
        file = msgspec.convert(content, _File)
    except OSError as error:
        raise SourceError(f"`{path}` cannot be read ({error.strerror}); give a suite's JSON file.") from error
    except (ValueError, RecursionError) as error:
        raise SourceError(f"`{path}` is not a task suite ({error}); correct it.") from error
    rows: dict[str, TaskRow] = {}
    for task in chain.from_iterable(map(_list_starts, file.tasks)):
        if task.task_id in rows:
            raise SourceError(f"`{path}` has `{task.task_id}` twice; task ids must be unique.")
        row = _make_row(task, file, path, repos)
        if not outside and not Path(row["repo"]).resolve().is_relative_to(path.parent.resolve()):
            raise SourceError(
                f"Task `{task.task_id}` of `{path}` has the repo `{row['repo']}`, which is outside "
                "the suite's folder; add --allow-outside-repo if a model may read it."
            )
        rows[task.task_id] = row
    return Suite(file.name, tuple(rows.values()), path, file.description or "", file.split)


def _make_row(task: _Task, suite: _File, path: Path, repos: bool) -> TaskRow:
    name, defaults = f"Task `{task.task_id}` of `{path}`", suite.defaults
    folder = task.repo or defaults.repo
    if folder is None:
        raise SourceError(f"{name} has no `repo`, and neither do the `defaults`; name a folder.")
    repo = Path(os.path.normpath(path.parent.resolve() / Path(folder).expanduser()))
    if repos and not repo.is_dir():
        raise SourceError(f"{name} has the repo `{folder}`, but `{repo}` does not exist.")
    hide = defaults.hide if task.hide is None else task.hide
    hide = list(HIDE if hide is None else hide)
    if path.resolve().is_relative_to(repo.resolve()):
        # The suite's file may contain the expected values of the tests.
        hide.append("/" + path.resolve().relative_to(repo.resolve()).as_posix())
    command = (defaults.test_cmd if task.test_cmd is None else task.test_cmd) or ""
    spec = task.verifier_spec
    return {
        "task_id": task.task_id,
        "suite": suite.name,
        "repo": str(repo),
        "goal": task.goal,
        "test_cmd": command if command.strip() else None,
        "hide": list(dict.fromkeys(hide)),
        "metadata": task.metadata or {},
        "verifier_spec": json.dumps(spec, ensure_ascii=False) if spec else None,
        "split": suite.split,
    }


def write_suite(suite: Suite, seen_from: Path | None = None) -> Path:
    """Write a suite and return its path.

    Repos are written relative to the file; those outside its folder, relative to `seen_from`, which is the final
    name of the folder if it will be renamed.
    """
    folder = suite.path.parent.resolve()
    tasks: list[dict[str, Any]] = []
    for task in suite.tasks:
        repo = Path(task["repo"]).resolve()
        start = folder if repo.is_relative_to(folder) else (seen_from or folder).resolve()
        row = {
            "task_id": task["task_id"],
            "goal": task["goal"],
            "repo": Path(os.path.relpath(repo, start)).as_posix(),
            "test_cmd": task["test_cmd"],
            "hide": task["hide"],
            "metadata": task["metadata"] or None,
            "verifier_spec": json.loads(task["verifier_spec"] or "null"),
        }
        tasks.append({key: value for key, value in row.items() if value is not None})
    content = {"name": suite.name, "description": suite.description, "split": suite.split, "tasks": tasks}
    content = {key: value for key, value in content.items() if value}
    with writing(suite.path):
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(content, indent=1, ensure_ascii=False)
        write_atomically(suite.path, f"{text}\n".encode())
    return suite.path


class _Paraphrases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of a file of paraphrases."""

    task_id: str
    goals: Annotated[list[Text], Meta(min_length=1)]


def read_paraphrases(path: Path, suite: Suite) -> dict[str, list[str]]:
    """Return the goal and the paraphrases of each task in a file."""
    goals = {task["task_id"]: [task["goal"]] for task in suite.tasks}
    try:
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            paraphrases = msgspec.json.decode(line, type=_Paraphrases)
            if paraphrases.task_id not in goals:
                raise SourceError(
                    f"{path}:{number} has the task `{paraphrases.task_id}`, which is not in the suite `{suite.name}`."
                )
            goals[paraphrases.task_id] += paraphrases.goals
    except (OSError, ValueError) as error:
        raise SourceError(
            f"`{path}` cannot be read as paraphrases ({error}); each line needs `task_id` and a list `goals`."
        ) from error
    return {task_id: texts for task_id, texts in goals.items() if len(texts) > 1}


def has_tests(task: Mapping[str, Any]) -> bool:
    """Return whether a task has tests."""
    return bool(task["verifier_spec"] or task["test_cmd"])


def make_task_id(name: str) -> str:
    """Return a name as a task id, which is valid in a file name."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "_", name).lstrip("_.-+") or "task"


def list_files(repo: Path, hide: Sequence[str] = ()) -> dict[str, Path]:
    """Return the files of a repo that are not hidden, by path and sorted.

    A symlink stands for the file it points to, if that is in the repo and not hidden.
    """
    if not repo.is_dir():
        raise SourceError(f"The folder `{repo}` does not exist; correct `repo` in the suite.")
    root, size, files = repo.resolve(), 0, dict[str, Path]()

    def refuse(error: OSError) -> None:
        raise SourceError(f"`{error.filename}` cannot be listed ({error.strerror}).") from error

    for folder, folders, names in os.walk(repo, onerror=refuse):
        prefix = "" if Path(folder) == repo else Path(folder).relative_to(repo).as_posix() + "/"
        folders[:] = [name for name in folders if not is_hidden(prefix + name, hide)]
        for name in names:
            path, file = prefix + name, Path(folder, name)
            # Rows cannot store names that are not UTF-8.
            if is_hidden(path, hide) or replace_surrogates(path) != path:
                continue
            if file.is_symlink():
                file = Path(os.path.realpath(file))
                if not file.is_relative_to(root) or is_hidden(str(file.relative_to(root)), hide):
                    continue
            if file.is_file():
                files[path] = file
                size += file.stat().st_size
        if len(files) > MAX_FILES or size > MAX_BYTES:
            raise SourceError(
                f"The repo `{repo}` has more than {MAX_FILES} visible files or {describe_size(MAX_BYTES)}; "
                "hide files that no task needs."
            )
    return dict(sorted(files.items()))


def files_of(repo: Path, hide: Sequence[str] = ()) -> dict[str, str]:
    """Return the texts of `list_files`, without binary files and files larger than MAX_TEXT."""
    texts = {
        path: decode_text(file.read_bytes())
        for path, file in list_files(repo, hide).items()
        if file.stat().st_size <= MAX_TEXT
    }
    return {path: text for path, text in texts.items() if text is not None}


def decode_text(content: bytes) -> str | None:
    """Return the content as text if it is UTF-8 without NUL, else None."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def is_hidden(path: str, hide: Sequence[str]) -> bool:
    """Return whether these globs or ALWAYS hide a path or a folder above it."""
    return match_globs(path, (*ALWAYS, *hide))
