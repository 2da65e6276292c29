"""Store every finished call in one SQLite file: a rerun replays it, and it is the ledger of costs.

A call is committed as soon as it is finished. Failures are not stored, so a rerun tries them again.
The endpoint is stored but is not part of the key. Several processes may write one file: of two
answers to one request the first is kept.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pimono_sdpo.errors import InferenceError
from pimono_sdpo.llm.calls import Reply, Request, Usage

# Numbers come first, so that summing them does not read the long texts.
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
# Seconds to wait while another process writes.
LOCK_SECONDS = 60.0


class Journal:
    """The calls in one file, for any number of threads and processes; raises InferenceError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held = threading.local()
        with self._translate_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection().execute(SCHEMA)

    def get(self, request: Request) -> Reply | None:
        """Return the answer to exactly this request, None when it was never finished."""
        with self._translate_errors():
            query = f"select {REPLY} from calls where key = ?"
            row = self._connection().execute(query, (request.key,)).fetchone()
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
        with self._translate_errors(), self._connection() as connection:
            places = ", ".join("?" * len(row))
            connection.execute(
                f"insert into calls values ({places}) on conflict (key) do nothing", row
            )

    def usage(self) -> dict[str, Usage]:
        """Return the usage of each model so far, by all processes."""
        query = (
            "select model, count(*), sum(prompt_tokens), sum(completion_tokens), "
            "sum(cached_tokens), sum(latency) from calls group by model order by model"
        )
        with self._translate_errors():
            rows = self._connection().execute(query).fetchall()
        return {
            model: Usage(calls, 0, 0, prompt, completion, cached, seconds)
            for model, calls, prompt, completion, cached, seconds in rows
        }

    def _connection(self) -> sqlite3.Connection:
        """Return this thread's connection in this process; it must not cross a fork."""
        if getattr(self._held, "process", None) != os.getpid():
            connection = sqlite3.connect(self.path, timeout=LOCK_SECONDS)
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = normal")
            self._held.process, self._held.connection = os.getpid(), connection
        held: sqlite3.Connection = self._held.connection
        return held

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise  # a bug in this class
        except (sqlite3.Error, OSError) as error:
            raise InferenceError(
                f"Cannot use the journal `{self.path}` ({error}); give another folder, or "
                "free disk space."
            ) from error
