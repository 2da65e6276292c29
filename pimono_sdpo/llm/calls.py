"""Requests, replies and limits of calls, and the journal of all finished ones.

The journal is one SQLite file: a rerun replays it, and it is the ledger of costs. Each finished
call is committed at once; failures are not stored, so a rerun tries them again. The endpoint is not
part of the key. Several processes may write one file: of two answers the first is kept.
"""

import hashlib
import json
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import InferenceError

Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """One request to a chat model, in the terms of the OpenAI API.

    `extra` are further fields to send. `sample` distinguishes draws of the same request; it is part
    of the key in the journal and is not sent.
    """

    model: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    temperature: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    sample: int = 0

    @cached_property
    def body(self) -> Json:
        """The fields to send: without nulls, and with text that UTF-8 can encode."""
        body = {
            "model": self.model,
            "messages": [_drop_unused(turn) for turn in self.messages],
            "tools": [dict(tool) for tool in self.tools or ()] or None,
            "temperature": self.temperature,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
        }
        given = {name: value for name, value in body.items() if value is not None}
        text = json.dumps({**self.extra, **given}, ensure_ascii=False)
        # Half a surrogate pair, which broken traces contain, cannot be sent.
        sent: Json = json.loads(text.encode("utf-8", "replace"))
        return sent

    @cached_property
    def canonical(self) -> str:
        """The request as JSON with sorted keys, sample included."""
        return json.dumps({**self.body, "sample": self.sample}, sort_keys=True)

    @cached_property
    def key(self) -> str:
        """The sha256 of the canonical request, in hex; it does not depend on the endpoint."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()


@dataclass(frozen=True)
class Reply:
    """An answer, or in `error` one sentence why there is none.

    `tool_calls` are `{"id", "type", "function": {"name", "arguments"}}` with the arguments as the
    text the model wrote. Tokens are the provider's counts, `cached_tokens` being part of
    `prompt_tokens`; `latency` is in seconds; `cost` is in USD, None when the model has no price.
    """

    text: str = ""
    tool_calls: Sequence[Json] = ()
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    latency: float = 0.0
    cost: float | None = None
    error: str | None = None
    from_journal: bool = False


def _drop_unused(turn: Mapping[str, Any]) -> Json:
    """Drop the columns a turn does not use, which datasets fill with nulls."""
    used = {name: value for name, value in turn.items() if value is not None and value != []}
    # Strict servers require a content in every turn, even if it is null.
    return {"content": None, **used} if "tool_calls" in used else {"content": "", **used}


@dataclass
class Usage:
    """Calls to one model: tokens, seconds of waiting, and how many the journal answered."""

    calls: int = 0
    replayed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0

    def add(self, reply: Reply) -> None:
        """Count a reply."""
        self.calls += 1
        self.replayed += reply.from_journal
        self.failed += reply.error is not None
        self.seconds += reply.latency
        for name in TOKENS:
            setattr(self, name, getattr(self, name) + getattr(reply, name))


TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens")
REPLY = (*TOKENS, "latency", "finish_reason", "text", "tool_calls")
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
# Seconds to wait while another process writes.
LOCK_SECONDS = 60.0


class Store:
    """One SQLite file, for any number of threads and processes; raises InferenceError."""

    def __init__(self, path: Path, schema: str) -> None:
        self.path = path
        self._held = threading.local()
        self._opened: list[tuple[int, sqlite3.Connection]] = []
        # Threads that live until the end keep theirs: only closing the last one moves all into the one file.
        weakref.finalize(self, _close, self._opened)
        with self._open() as connection:
            # The write lock is taken first: a reader that becomes a writer is refused at once.
            connection.execute("begin immediate")
            connection.execute(schema)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Yield this thread's connection in this process, which must not cross a fork; commit."""
        try:
            if getattr(self._held, "process", None) != os.getpid():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                opened = sqlite3.connect(self.path, timeout=LOCK_SECONDS, check_same_thread=False)
                self._opened.append((os.getpid(), opened))
                _write_ahead(opened)
                opened.execute("pragma synchronous = normal")
                self._held.process, self._held.connection = os.getpid(), opened
            connection: sqlite3.Connection = self._held.connection
            with connection:
                yield connection
        except sqlite3.IntegrityError:
            raise  # a bug of the caller
        except (sqlite3.Error, OSError) as error:
            raise InferenceError(
                f"Cannot use the journal `{self.path}` ({error}); give another folder, or free disk space."
            ) from error


def _close(opened: list[tuple[int, sqlite3.Connection]]) -> None:
    for process, connection in opened:
        if process == os.getpid():
            connection.close()


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Change to write-ahead logging, for which SQLite does not wait when the file is locked."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)


class Journal(Store):
    """The finished calls."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, SCHEMA)

    def get(self, request: Request) -> Reply | None:
        """Return the answer to exactly this request, None when it was never finished."""
        query = f"select {', '.join(REPLY)} from calls where key = ?"
        with self._open() as connection:
            row = connection.execute(query, (request.key,)).fetchone()
        if row is None:
            return None
        found = dict(zip(REPLY, row, strict=True))
        return Reply(**found | {"tool_calls": json.loads(found["tool_calls"])}, from_journal=True)

    def put(self, request: Request, reply: Reply, endpoint: str) -> None:
        """Commit a finished call."""
        assert reply.error is None
        row = {"key": request.key, "model": request.model, "endpoint": endpoint, "request": request.canonical}
        row |= {name: getattr(reply, name) for name in REPLY} | {"tool_calls": json.dumps(reply.tool_calls)}
        names = f"({', '.join(row)}) values ({', '.join(f':{name}' for name in row)})"
        with self._open() as connection:
            connection.execute(f"insert into calls {names} on conflict (key) do nothing", row)

    def usage(self) -> dict[str, Usage]:
        """Return the usage of each model so far, by all processes."""
        sums = ", ".join(f"sum({name})" for name in (*TOKENS, "latency"))
        query = f"select model, count(*), {sums} from calls group by model order by model"
        with self._open() as connection:
            rows = connection.execute(query).fetchall()
        return {model: Usage(calls, 0, 0, *used) for model, calls, *used in rows}
