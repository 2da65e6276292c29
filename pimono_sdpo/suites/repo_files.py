"""Copy and read the files of a task's repo that an agent may see.

A glob of `hide` without a slash hides every file and folder of that name; one with a slash hides
that path from the root of the repo, and everything below it. `*` matches any characters, including
slashes, and case is ignored. ALWAYS is hidden in every suite: histories and caches contain answers.
"""

import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import OutputError, SourceError

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
        raise SourceError(f"There is no folder `{repo}`; correct `repo` of the suite.")
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
