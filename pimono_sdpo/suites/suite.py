"""Read, check and write the JSON file of a task suite, and show agents a task's repo.

    {"name": "mine", "split": "train",
     "defaults": {"repo": "../checkout", "test_cmd": "python -m pytest -q", "hide": ["answers"]},
     "tasks": [{"task_id": "fix_gcd", "goal": "gcd(4, 6) never returns.", "test_cmd": "...",
                "repo": "...", "hide": [...], "metadata": {"files": ["gcd.py"], "group": "gcd"},
                "verifier_spec": {"files": {}, "tests": {}}}]}

`defaults` apply to tasks that do not override them. `repo` is relative to the suite's file. `hide`
is a list of globs. A task is tested by its `verifier_spec`, else by its `test_cmd`; a task with
neither can only be trained on.

A glob of `hide` without a slash hides every file and folder of that name; one with a slash hides
that path from the root of the repo, and everything below it. `*` matches any characters, including
slashes, and case is ignored. ALWAYS is hidden in every suite: histories and caches contain answers.
"""

import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypedDict

from pimono_sdpo.errors import OutputError, SourceError

NAME = "suite.json"
# Hidden where a suite has no `hide`: the answers of QuixBugs.
HIDE = ("correct_python_programs", "correct_java_programs")
SPLITS = ("train", "test")
TOP = ("name", "description", "split", "defaults", "tasks")
DEFAULTS = ("repo", "test_cmd", "hide")
KEYS = ("task_id", "goal", *DEFAULTS, "metadata", "verifier_spec")
# Ids are part of file names.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,149}")


class TaskRow(TypedDict):
    """One task: the columns `TASK` of `pimono_sdpo.schema`.

    `repo` is an absolute folder; `verifier_spec` is JSON text.
    """

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
    """A checked suite; `path` is its file."""

    name: str
    tasks: tuple[TaskRow, ...]
    path: Path
    description: str = ""
    split: str | None = None


def load_suite(path: Path, repos: bool = True) -> Suite:
    """Read a suite, or the `suite.json` of a folder; with `repos`, their folders must exist.

    Raises SourceError.
    """
    path = path / NAME if path.is_dir() else path
    given = _read_file(path)
    _check_keys(given, TOP, f"The suite `{path}`")
    name = given.get("name")
    if not isinstance(name, str) or not name.strip():
        raise SourceError(f"The suite `{path}` has no `name`; give it one.")
    split = given.get("split")
    if split not in (None, *SPLITS):
        raise SourceError(f"`split` of `{path}` is {split!r}; use 'train' or 'test'.")
    defaults, tasks = given.get("defaults", {}), given.get("tasks")
    if not isinstance(defaults, dict):
        raise SourceError(f"`defaults` of `{path}` is {_describe(defaults)}, not an object.")
    _check_keys(defaults, DEFAULTS, f"`defaults` of `{path}`")
    if not isinstance(tasks, list) or not tasks:
        raise SourceError(f"The suite `{path}` has no tasks; `tasks` must be a list of objects.")
    rows: dict[str, TaskRow] = {}
    for number, task in enumerate(tasks):
        row = _read_task(task, number, defaults, name, split, path, repos)
        if row["task_id"] in rows:
            raise SourceError(
                f"The suite `{path}` has `{row['task_id']}` twice; task ids must be unique."
            )
        rows[row["task_id"]] = row
    description = given.get("description") or ""
    return Suite(name, tuple(rows.values()), path, str(description), split)


def dataset(suite: Suite) -> Any:
    """Return the tasks as a `Dataset` with the columns `TASK`, in order."""
    from datasets import Dataset

    from pimono_sdpo.schema import TASK

    return Dataset.from_list([dict(row) for row in suite.tasks], features=TASK)


def write_suite(
    path: Path,
    name: str,
    tasks: Iterable[TaskRow],
    description: str = "",
    split: str | None = None,
    seen_from: Path | None = None,
) -> Path:
    """Write a suite whose `repo`s are relative to its file; the same tasks give the same bytes.

    `seen_from` is the later name of the suite's folder.
    """
    folder = path.parent.resolve()
    listed = [_task_json(task, folder, (seen_from or folder).resolve()) for task in tasks]
    defaults = {
        key: listed[0][key]
        for key in DEFAULTS
        if len(listed) > 1 and all(task.get(key) == listed[0].get(key) for task in listed)
        if key in listed[0]
    }
    content: dict[str, Any] = {"name": name}
    content |= {"description": description} if description else {}
    content |= {"split": split} if split else {}
    content |= {"defaults": defaults} if defaults else {}
    content["tasks"] = [
        {key: value for key, value in task.items() if key not in defaults} for task in listed
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.partial")
        unfinished.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise OutputError(
            f"Cannot write `{path}` ({error.strerror}); give another folder."
        ) from error
    return path


def has_tests(task: Mapping[str, Any]) -> bool:
    """Whether the task has tests."""
    return bool(task["verifier_spec"] or task["test_cmd"])


def spec_text(spec: Mapping[str, Any]) -> str:
    """Return a spec as the text in its column."""
    return json.dumps(spec, ensure_ascii=False)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(given, ensure_ascii=False).encode()
    except FileNotFoundError:
        raise SourceError(f"`{path}` does not exist; give a suite's JSON file.") from None
    except OSError as error:
        raise SourceError(f"`{path}` cannot be read ({error.strerror}).") from error
    except (UnicodeError, RecursionError):
        raise SourceError(f"`{path}` is not well-formed UTF-8 JSON.") from None
    except ValueError as error:
        raise SourceError(
            f"`{path}` is not valid JSON ({error}); give a suite's JSON file."
        ) from None
    if not isinstance(given, dict):
        raise SourceError(f"`{path}` is {_describe(given)}; a suite is an object with `tasks`.")
    return given


def _read_task(
    task: Any,
    number: int,
    defaults: dict[str, Any],
    suite: str,
    split: str | None,
    path: Path,
    repos: bool,
) -> TaskRow:
    if not isinstance(task, dict):
        raise SourceError(f"Task {number + 1} of `{path}` is {_describe(task)}, not an object.")
    name = task.get("task_id")
    if not isinstance(name, str) or not _ID.fullmatch(name):
        raise SourceError(
            f"`task_id` of task {number + 1} of `{path}` is {_describe(name)}; use at most 150 "
            "letters, digits and . _ + -, beginning with a letter or a digit."
        )
    where = f"Task `{name}` of `{path}`"
    _check_keys(task, KEYS, where)
    goal, command = task.get("goal"), task.get("test_cmd", defaults.get("test_cmd"))
    if not isinstance(goal, str) or not goal.strip():
        raise SourceError(f"{where} has no `goal`; describe what is to be done.")
    if command is not None and not isinstance(command, str):
        raise SourceError(
            f"`test_cmd` of {_lower_first(where)} is {_describe(command)}, not a string."
        )
    spec, metadata = task.get("verifier_spec"), task.get("metadata") or {}
    for key, value in (("verifier_spec", spec or {}), ("metadata", metadata)):
        if not isinstance(value, dict):
            raise SourceError(
                f"`{key}` of {_lower_first(where)} is {_describe(value)}, not an object."
            )
    repo = _read_repo(task.get("repo", defaults.get("repo")), where, path, repos)
    return {
        "task_id": name,
        "suite": suite,
        "repo": str(repo),
        "goal": goal,
        "test_cmd": command if command and command.strip() else None,
        "hide": _read_hide(task.get("hide", defaults.get("hide")), where, repo, path),
        "metadata": metadata,
        "verifier_spec": spec_text(spec) if spec else None,
        "split": split,
    }


def _read_repo(given: Any, where: str, path: Path, repos: bool) -> Path:
    if not isinstance(given, str) or not given.strip():
        raise SourceError(f"{where} has no `repo`, and neither do the `defaults`; name a folder.")
    repo = Path(os.path.normpath(path.parent.resolve() / Path(given).expanduser()))
    if repos and not repo.is_dir():
        raise SourceError(f"{where} has the repo `{given}`, but there is no folder `{repo}`.")
    return repo


def _read_hide(given: Any, where: str, repo: Path, path: Path) -> list[str]:
    if given is None:
        given = list(HIDE)
    if not isinstance(given, list) or not all(isinstance(glob, str) and glob for glob in given):
        raise SourceError(
            f"`hide` of {_lower_first(where)} is {_describe(given)}, not a list of globs."
        )
    if negated := [glob for glob in given if glob.startswith("!")]:
        raise SourceError(
            f"`hide` of {_lower_first(where)} has `{negated[0]}`; globs can only hide, not show "
            "again."
        )
    itself = path.resolve()
    if itself.is_relative_to(repo.resolve()):
        # The suite's file may contain what the tests expect.
        given = [*given, "/" + itself.relative_to(repo.resolve()).as_posix()]
    return list(dict.fromkeys(given))


def _task_json(task: TaskRow, folder: Path, seen_from: Path) -> dict[str, Any]:
    spec, repo = task["verifier_spec"], Path(task["repo"]).resolve()
    start = folder if repo.is_relative_to(folder) else seen_from
    written = {
        "task_id": task["task_id"],
        "goal": task["goal"],
        "repo": Path(os.path.relpath(repo, start)).as_posix(),
        "test_cmd": task["test_cmd"],
        "hide": task["hide"],
        "metadata": task["metadata"] or None,
        "verifier_spec": json.loads(spec) if spec else None,
    }
    return {key: value for key, value in written.items() if value is not None}


def _check_keys(given: dict[str, Any], keys: tuple[str, ...], where: str) -> None:
    if strange := [key for key in given if key not in keys]:
        raise SourceError(
            f"{where} has the unknown key `{strange[0]}`; known are {', '.join(keys)}, and tasks "
            "may have keys of your own in `metadata`."
        )


def _lower_first(where: str) -> str:
    return where[0].lower() + where[1:]


def _describe(value: Any) -> str:
    return "missing" if value is None else repr(value)[:80]


ALWAYS = (
    *(".git", ".hg", ".svn", "*.orig", "*.rej", "*.pyc", "__pycache__", ".pytest_cache"),
    *(".mypy_cache", ".ruff_cache", ".tox", ".venv", "node_modules", ".hypothesis"),
)
MEBI = 1 << 20
MAX_FILES = 20_000
MAX_BYTES = 256 * MEBI
MAX_TEXT = MEBI


def visible_copy(task: Mapping[str, Any], folder: Path) -> list[str]:
    """Copy what an agent may see of `task["repo"]` into an empty folder; return the paths.

    Files are copied byte by byte and are writable in the copy. A symlink becomes the file it points
    to if that is in the repo and visible, and is left out otherwise, like links to folders, pipes
    and devices. Raises SourceError for a repo that is missing or has more than MAX_FILES files or
    MAX_BYTES, OutputError for a folder that is not empty.
    """
    repo = Path(task["repo"])
    if folder.resolve().is_relative_to(repo.resolve()):
        raise OutputError(f"`{folder}` is inside the repo `{repo}`; give a folder outside it.")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise OutputError(f"`{folder}` is not empty; give a new folder.")
    paths = []
    for path, source in walk_visible(repo, task["hide"]):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise SourceError(f"`{source}` cannot be read ({error.strerror}).") from error
        target.chmod(0o755 if source.stat().st_mode & 0o111 else 0o644)
        paths.append(path)
    return paths


def files_of(folder: Path, hide: Sequence[str] = ()) -> dict[str, str]:
    """Return the texts of a folder by path, in order of the paths.

    Files that are not UTF-8, contain NUL or exceed MAX_TEXT bytes are left out, as are links.
    """
    texts = {}
    for path, source in walk_visible(folder, hide, links=False):
        if source.stat().st_size > MAX_TEXT:
            continue
        content = source.read_bytes()
        try:
            text = content.decode()
        except UnicodeDecodeError:
            continue
        if "\0" not in text:
            texts[path] = text
    return texts


def visible_files(task: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a task's repo that an agent may see; none when the repo is missing."""
    repo = Path(task["repo"])
    return files_of(repo, task["hide"]) if repo.is_dir() else {}


def walk_visible(repo: Path, hide: Sequence[str], links: bool = True) -> Iterator[tuple[str, Path]]:
    """Yield path and file of everything that is not hidden, in order of the paths."""
    if not repo.is_dir():
        raise SourceError(f"The folder `{repo}` does not exist; correct `repo` in the suite.")
    files = size = 0
    for path, source in sorted(_walk(repo, "", hide)):
        real = _resolve_link(repo, source, hide) if source.is_symlink() and links else source
        if real is None or real.is_symlink() or not stat.S_ISREG(real.stat().st_mode):
            continue
        files, size = files + 1, size + real.stat().st_size
        if files > MAX_FILES or size > MAX_BYTES:
            raise SourceError(
                f"The repo `{repo}` shows more than {MAX_FILES} files or {MAX_BYTES // MEBI} MB; "
                "hide what no task needs."
            )
        yield path, real


def is_hidden(path: str, hide: Sequence[str]) -> bool:
    """Whether these globs or ALWAYS hide a path, or a folder above it."""
    return matches(path, (*ALWAYS, *hide))


def matches(path: str, globs: Sequence[str]) -> bool:
    """Whether globs match a path, or a folder above it.

    >>> matches("src/answers/a.py", ["answers"]), matches("src/a.py", ["/a.py", "tests/*"])
    (True, False)
    >>> matches("src/a.py", ["**/src"]), matches("my/src/a.py", ["**/src/*"])
    (True, True)
    """
    parts = path.casefold().split("/")
    above = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    for glob in globs:
        wanted = glob.casefold().removeprefix("./").rstrip("/")
        if wanted.startswith("**/"):
            names, wanted = [f"/{name}" for name in above], wanted.removeprefix("*")
        else:
            names, wanted = above if "/" in wanted else parts, wanted.removeprefix("/")
        if any(fnmatchcase(name, wanted) for name in names):
            return True
    return False


def _walk(folder: Path, above: str, hide: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield everything but folders, by path; links are not followed."""
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        raise SourceError(f"`{folder}` cannot be listed ({error.strerror}).") from error
    for entry in entries:
        path = above + entry.name
        if is_hidden(path, hide) or not _is_utf8(path):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry), f"{path}/", hide)
        else:
            yield path, Path(entry)


def _resolve_link(repo: Path, link: Path, hide: Sequence[str]) -> Path | None:
    """Return the file a link points to, None when an agent must not see it."""
    try:
        real, root = link.resolve(strict=True), repo.resolve()
    except (OSError, RuntimeError):  # broken, or a loop
        return None
    inside = real.is_relative_to(root) and not is_hidden(real.relative_to(root).as_posix(), hide)
    return real if inside and real.is_file() else None


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # the name is not UTF-8
        return False
    return True
