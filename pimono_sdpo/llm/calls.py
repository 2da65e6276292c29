"""Chat requests and replies, the journal of finished calls, and their costs and budget.

The journal is one SQLite file: a rerun replays it, and it is the ledger of costs. Each finished
call is committed at once; failures are not stored, so a rerun tries them again. The endpoint is not
part of the key. Several processes may write to one file; the first answer to a request is kept.
"""

import asyncio
import hashlib
import json
import math
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import InferenceError
from pimono_sdpo.llm.settings import Price

Json = dict[str, Any]
Prices = Mapping[str, Price]


@dataclass(frozen=True)
class Request:
    """One request to a chat model, in the format of the OpenAI API."""

    model: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    temperature: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    sample: int = 0  # number of a repeated draw; part of the key, but not sent

    @cached_property
    def body(self) -> Json:
        """The fields to send, without nulls and with valid UTF-8 text."""
        body = {
            "model": self.model,
            "messages": [_drop_unused(turn) for turn in self.messages],
            "tools": [dict(tool) for tool in self.tools or ()] or None,
            "temperature": self.temperature,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
        }
        text = json.dumps({name: value for name, value in body.items() if value is not None}, ensure_ascii=False)
        # Broken traces contain lone surrogates, which cannot be sent.
        sent: Json = json.loads(text.encode("utf-8", "replace"))
        return sent

    @cached_property
    def canonical(self) -> str:
        """The request as JSON with sorted keys, including the sample."""
        return json.dumps({**self.body, "sample": self.sample}, sort_keys=True)

    @cached_property
    def key(self) -> str:
        """The sha256 of the canonical request in hex."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()


@dataclass(frozen=True)
class Reply:
    """An answer, or the reason in `error` why there is none, as one sentence."""

    text: str = ""
    tool_calls: Sequence[Json] = ()  # as in the API, with the arguments as the text the model wrote
    finish_reason: str | None = None
    prompt_tokens: int = 0  # as counted by the provider, like those below
    completion_tokens: int = 0
    cached_tokens: int = 0  # part of the prompt tokens
    latency: float = 0.0  # seconds
    cost: float | None = None  # USD, None if the model has no price
    error: str | None = None
    from_journal: bool = False


def _drop_unused(turn: Mapping[str, Any]) -> Json:
    """Drop unused columns, which `datasets` fills with nulls."""
    used = {name: value for name, value in turn.items() if value is not None and value != []}
    # Strict servers require `content` in every turn, even if it is null.
    return {"content": None, **used} if "tool_calls" in used else {"content": "", **used}


@dataclass
class Usage:
    """The calls to one model: their number, tokens and seconds; `replayed` counts answers from the journal."""

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
# The numbers come first, so that summing them does not read the long texts.
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
# Rows that an estimate asks about, each of a different task; the help of --estimate names the number.
ESTIMATED = 8
# Tokens are rarely shorter than this, in bytes of UTF-8.
BYTES_PER_TOKEN = 2
# The assumed limit of requests without `max_tokens`.
MOST_TOKENS = 4096
# Seconds between checks whether calls in flight have released their reservations.
POLL_SECONDS = 0.05
# Seconds to wait while another process writes.
LOCK_SECONDS = 60.0


class Store:
    """One SQLite file, for any number of threads and processes; raises InferenceError."""

    def __init__(self, path: Path, schema: str) -> None:
        self.path = path
        self._local = threading.local()
        self._opened: list[tuple[int, sqlite3.Connection]] = []
        # Closing the last connection moves the write-ahead log into the file; threads may outlive the store.
        weakref.finalize(self, _close, self._opened)
        with self._open() as connection:
            # Take the write lock first: SQLite does not wait when a reader becomes a writer.
            connection.execute("begin immediate")
            connection.execute(schema)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection of this thread and process, and commit; connections must not cross a fork."""
        try:
            if getattr(self._local, "process", None) != os.getpid():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                opened = sqlite3.connect(self.path, timeout=LOCK_SECONDS, check_same_thread=False)
                self._opened.append((os.getpid(), opened))
                _enable_write_ahead(opened)
                opened.execute("pragma synchronous = normal")
                self._local.process, self._local.connection = os.getpid(), opened
            connection: sqlite3.Connection = self._local.connection
            with connection:
                yield connection
        except sqlite3.IntegrityError:
            raise  # a bug of the caller
        except (sqlite3.Error, OSError) as error:
            raise InferenceError(
                f"Cannot use the journal `{self.path}` ({error}); use another folder, or free disk space."
            ) from error


def _close(opened: list[tuple[int, sqlite3.Connection]]) -> None:
    for process, connection in opened:
        if process == os.getpid():
            connection.close()


def _enable_write_ahead(connection: sqlite3.Connection) -> None:
    """Enable write-ahead logging; wait while the file is locked, which SQLite does not do for this."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class Journal(Store):
    """The journal of finished calls."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, SCHEMA)

    def get(self, request: Request) -> Reply | None:
        """Return the stored answer to a request, None if there is none."""
        query = f"select {', '.join(REPLY)} from calls where key = ?"
        with self._open() as connection:
            row = connection.execute(query, (request.key,)).fetchone()
        if row is None:
            return None
        columns = dict(zip(REPLY, row, strict=True))
        return Reply(**columns | {"tool_calls": json.loads(columns["tool_calls"])}, from_journal=True)

    def put(self, request: Request, reply: Reply, endpoint: str) -> None:
        """Commit a finished call."""
        assert reply.error is None
        row = {"key": request.key, "model": request.model, "endpoint": endpoint, "request": request.canonical}
        row |= {name: getattr(reply, name) for name in REPLY} | {"tool_calls": json.dumps(reply.tool_calls)}
        names = f"({', '.join(row)}) values ({', '.join(f':{name}' for name in row)})"
        with self._open() as connection:
            connection.execute(f"insert into calls {names} on conflict (key) do nothing", row)

    def usage(self) -> dict[str, Usage]:
        """Return the usage of each model so far, over all processes."""
        sums = ", ".join(f"sum({name})" for name in (*TOKENS, "latency"))
        query = f"select model, count(*), {sums} from calls group by model order by model"
        with self._open() as connection:
            rows = connection.execute(query).fetchall()
        return {model: Usage(calls, 0, 0, *used) for model, calls, *used in rows}


def cost(prices: Prices, model: str, used: Usage | Reply) -> float | None:
    """Return the cost of the tokens used in USD, None if the model has no price."""
    price = prices.get(model)
    if price is None:
        return None
    cached_price = price.input if price.cached is None else price.cached
    uncached = max(used.prompt_tokens - used.cached_tokens, 0)
    total = uncached * price.input + used.cached_tokens * cached_price + used.completion_tokens * price.output
    return total / 1_000_000


def sum_costs(prices: Prices, models: Mapping[str, Usage]) -> float | None:
    """Return the cost of the usage of several models in USD, None if one has no price."""
    costs = [cost(prices, model, used) for model, used in models.items()]
    return None if None in costs else math.fsum(filter(None, costs))


@dataclass
class Tally:
    """The usage of each model in a run."""

    models: dict[str, Usage] = field(default_factory=dict)

    def add(self, model: str, reply: Reply) -> None:
        """Count a reply."""
        self.models.setdefault(model, Usage()).add(reply)

    def summarize(self, prices: Prices) -> str:
        """Return one line per model: calls, tokens, and USD if the price is known."""
        return "\n".join(
            f"{model}: {used.calls:,} calls ({used.replayed:,} from the journal, "
            f"{used.failed:,} failed), {_describe(prices, model, used, 1.0)}"
            for model, used in sorted(self.models.items())
        )

    def estimate(self, prices: Prices, done: int, rows: int, concurrency: int) -> str:
        """Extrapolate tokens, USD and time from `done` to `rows` rows, by model; failed calls are not counted."""
        scale = rows / max(done, 1)
        lines = [f"estimate for {rows:,} rows, from {done:,} that were run:"]
        lines += [
            f"  {model}: {round((used.calls - used.failed) * scale):,} calls, {_describe(prices, model, used, scale)}"
            for model, used in sorted(self.models.items())
        ]
        usd = sum_costs(prices, self.models)
        total = "no USD without [prices.MODEL] in chain.toml" if usd is None else format_dollars(usd * scale)
        minutes = sum(used.seconds for used in self.models.values()) * scale / concurrency / 60
        lines.append(f"  in all: {total}, {minutes:,.0f} min at {concurrency} calls at once")
        if failed := sum(used.failed for used in self.models.values()):
            lines.append(f"  {failed:,} calls failed and are not counted")
        return "\n".join(lines)


def _describe(prices: Prices, model: str, used: Usage, scale: float) -> str:
    prompt, completion, cached = (round(getattr(used, name) * scale) for name in TOKENS)
    usd = cost(prices, model, used)
    price = "" if usd is None else f", {format_dollars(usd * scale)}"
    return f"{prompt:,} tokens in ({cached:,} cached), {completion:,} out{price}"


def format_dollars(usd: float) -> str:
    """Return an amount with cents, or with two significant digits if it is less than one cent.

    >>> format_dollars(1234.5), format_dollars(0.00123)
    ('$1,234.50', '$0.0012')
    """
    digits = 1 - math.floor(math.log10(usd)) if 0 < usd < 0.01 else 2
    return f"${usd:,.{digits}f}"


def need_prices(models: Sequence[str], prices: Prices) -> None:
    """Raise InferenceError if a model has no price, which a cost limit needs."""
    if missing := next((model for model in models if model not in prices), None):
        raise InferenceError(
            f'--max-cost needs the price of `{missing}`; set [prices."{missing}"] with input and output in chain.toml.'
        )


class Budget:
    """A cost limit in USD for all calls of a journal, including those of earlier runs.

    It is never exceeded, if providers count tokens as estimated here and do not bill failed calls.
    Costs of other processes are only counted up to the start of this process.
    """

    def __init__(self, limit: float, models: Sequence[str], prices: Prices, journal: Journal) -> None:
        used = journal.usage()
        need_prices([*models, *used], prices)
        self.limit, self.prices, self.spent = limit, prices, sum_costs(prices, used) or 0.0
        self._reserved: list[float] = []

    @asynccontextmanager
    async def reserve(self, request: Request) -> AsyncIterator[str | None]:
        """Reserve the maximum cost of a call; yield None, or why the call must not be made."""
        prompt = len(request.canonical) // BYTES_PER_TOKEN
        bound = Usage(prompt_tokens=prompt, completion_tokens=request.max_tokens or MOST_TOKENS)
        most = cost(self.prices, request.model, bound) or 0.0
        # A call that does not fit waits until calls in flight have reported their real cost.
        while (exceeds := self.spent + math.fsum(self._reserved) + most > self.limit) and self._reserved:
            await asyncio.sleep(POLL_SECONDS)
        if exceeds:
            limit, spent = format_dollars(self.limit), format_dollars(self.spent)
            yield f"The limit of {limit} is reached ({spent} spent); raise it to go on."
            return
        self._reserved.append(most)
        try:
            yield None
        finally:
            self._reserved.remove(most)

    def add(self, request: Request, reply: Reply) -> None:
        """Count the cost of a finished call."""
        self.spent += cost(self.prices, request.model, reply) or 0.0
