"""What tests said, kept by what was tested: the same files of the same task are judged once.

In the SQLite file of the journal of calls. A run that is repeated shows the model the same words,
so that it asks nothing new, and needs no sandbox. A fault of ours is never kept.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import InferenceError
from pimono_sdpo.suites.workspace import visible

SCHEMA = """
create table if not exists verdicts (
    key text primary key,
    ok integer not null,
    output text not null
) strict
"""
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A verdict that was kept."""

    ok: bool | None
    output: str
    error: str | None = None


class Verdicts:
    """The verdicts in one file, for any number of threads and processes; raises InferenceError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as connection:
            connection.execute(SCHEMA)

    def get(self, key: str) -> Kept | None:
        """What tests said, None when nothing was kept."""
        with self._open() as connection:
            found = connection.execute("select ok, output from verdicts where key = ?", (key,))
            row = found.fetchone()
        return None if row is None else Kept(bool(row[0]), row[1])

    def put(self, key: str, ok: bool, output: str) -> Kept:
        """Keep a verdict; of two on the same the first, which is returned."""
        with self._open() as connection:
            connection.execute(
                "insert into verdicts values (?, ?, ?) on conflict (key) do nothing",
                (key, int(ok), output),
            )
        kept = self.get(key)
        assert kept is not None
        return kept

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=PATIENCE)) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise InferenceError(
                f"The journal `{self.path}` cannot be used ({error}); give another one, or make "
                "room."
            ) from error


def key_of(task: Mapping[str, Any], changed: Mapping[str, bytes]) -> str:
    """Tell a state of a task's files: what judges it, its repo, and what was changed there."""
    told = [
        task["verifier_spec"], task["test_cmd"], task["hide"], task["metadata"],
        tree_of_task(task), {path: _sha256(content) for path, content in changed.items()},
    ]  # fmt: skip
    return _sha256(json.dumps(told, sort_keys=True).encode())


def tree_of_task(task: Mapping[str, Any]) -> str:
    """Tell what of a task's repo its runs and its verdicts depend on.

    A test command finds hidden files, too: tests may be among them.
    """
    return _tree(task["repo"], tuple(task["hide"]) if task["verifier_spec"] else ())


@lru_cache(maxsize=256)
def _tree(repo: str, hide: tuple[str, ...]) -> str:
    """Tell the contents of a folder; read once in a process."""
    files = {path: _sha256(file.read_bytes()) for path, file in visible(Path(repo), hide)}
    return _sha256(json.dumps(files, sort_keys=True).encode())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
