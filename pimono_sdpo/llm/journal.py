"""Every finished call, in one SQLite file: a rerun replays it, and it is the ledger of costs.

A call is committed the moment it is finished; failures are not stored, so that a rerun tries them
again. Who answered is noted, but a question is the same whoever is asked. Several processes may
write one file: of two answers to one question the first is kept.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pimono_sdpo.errors import InferenceError
from pimono_sdpo.llm.calls import Reply, Request

# Numbers first: adding them up then need not read the long texts.
SCHEMA = """
create table if not exists calls (
    key text primary key,
    model text not null,
    endpoint text not null,
    prompt_tokens integer not null,
    completion_tokens integer not null,
    cached_tokens integer not null,
    latency real not null,
    finish_reason text,
    text text not null,
    tool_calls text not null,
    request text not null
) strict
"""
REPLY = "prompt_tokens, completion_tokens, cached_tokens, latency, finish_reason, text, tool_calls"
# Seconds to wait for another process that writes.
PATIENCE = 60.0


@dataclass(frozen=True)
class Usage:
    """What a model was asked so far: calls, tokens, and the seconds its answers took."""

    model: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    latency: float


class Journal:
    """The calls in one file, for any number of threads and processes; raises InferenceError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held = threading.local()
        with self._told():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection().execute(SCHEMA)

    def get(self, request: Request) -> Reply | None:
        """The answer to exactly this request, None when it was never finished."""
        with self._told():
            asked = f"select {REPLY} from calls where key = ?"
            row = self._connection().execute(asked, (request.key,)).fetchone()
        if row is None:
            return None
        prompt, completion, cached, latency, finish_reason, text, tool_calls = row
        return Reply(
            text=text,
            tool_calls=json.loads(tool_calls),
            finish_reason=finish_reason,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            latency=latency,
            from_journal=True,
        )

    def put(self, request: Request, reply: Reply, endpoint: str) -> None:
        """Commit a finished call."""
        assert reply.error is None
        row = (
            *(request.key, request.model, endpoint),
            *(reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens, reply.latency),
            *(reply.finish_reason, reply.text, json.dumps(reply.tool_calls), request.canonical),
        )
        with self._told(), self._connection() as connection:
            places = ", ".join("?" * len(row))
            connection.execute(
                f"insert into calls values ({places}) on conflict (key) do nothing", row
            )

    def usage(self) -> list[Usage]:
        """What each model was asked so far, by all processes."""
        asked = (
            "select model, count(*), sum(prompt_tokens), sum(completion_tokens), "
            "sum(cached_tokens), sum(latency) from calls group by model order by model"
        )
        with self._told():
            return [Usage(*row) for row in self._connection().execute(asked)]

    def _connection(self) -> sqlite3.Connection:
        """The connection of this thread in this process; SQLite's must not cross a fork."""
        if getattr(self._held, "process", None) != os.getpid():
            connection = sqlite3.connect(self.path, timeout=PATIENCE)
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = normal")
            self._held.process, self._held.connection = os.getpid(), connection
        held: sqlite3.Connection = self._held.connection
        return held

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise  # a bug of ours
        except (sqlite3.Error, OSError) as error:
            raise InferenceError(
                f"The journal `{self.path}` cannot be used ({error}); give another folder, or make "
                "room."
            ) from error
