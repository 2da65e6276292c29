"""Ask models at one endpoint: bounded, retried, journaled; failures are replies.

chat = Chat(find_endpoint("hf", os.environ), Journal(out / "calls.sqlite"))
reply = await chat.ask(Request(model="openai/gpt-oss-20b", messages=[...], seed=42))
if reply.error is None: ...
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import httpx2
from datasets import Dataset, Features
from tqdm import tqdm

from pimono_sdpo.llm.calls import Budget, Journal, Json, Prices, Reply, Request, Tally, cost
from pimono_sdpo.llm.settings import NO_KEY, CallSection, Endpoint, Limits, find_endpoint, read_environment
from pimono_sdpo.runs.engine import hide_bars
from pimono_sdpo.text import replace_surrogates

# Importing `openai` takes half a second, so it is imported when the first call is made.
if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion, ChatCompletionMessageFunctionToolCall

MESSAGE_CHARS = 300
MOST_TOKENS = 2**62
REFUSED = (401, 402, 403)
# Wait so many seconds when a server asks for more; the client would give up at two minutes.
LONGEST_WAIT = 60.0


def read_reply(answer: "ChatCompletion") -> Reply:
    """Read an answer, whose parts may be missing or of other types; raises ValueError."""
    try:
        if not answer.choices:
            raise ValueError("the answer has no choices")
        choice = answer.choices[0]
        called = cast("list[ChatCompletionMessageFunctionToolCall]", choice.message.tool_calls)
        text = replace_surrogates(choice.message.content or "")
        calls = []
        for number, call in enumerate(called or []):
            name, arguments = map(replace_surrogates, (call.function.name, call.function.arguments))
            own = call.id if isinstance(call.id, str) else f"call_{number}"
            calls.append({"id": own, "type": "function", "function": {"name": name, "arguments": arguments}})
    except (AttributeError, IndexError, TypeError) as error:
        raise ValueError(f"a part is missing or of another type, {error!r}") from error
    finish, usage = choice.finish_reason, answer.usage
    prompt = _read_count(usage, "prompt_tokens")
    cached = _read_count(getattr(usage, "prompt_tokens_details", None), "cached_tokens")
    return Reply(
        text=text,
        tool_calls=calls,
        finish_reason=finish if isinstance(finish, str) else None,
        prompt_tokens=prompt,
        completion_tokens=_read_count(usage, "completion_tokens"),
        cached_tokens=min(cached, prompt),
    )


def _read_count(usage: object, name: str) -> int:
    value = getattr(usage, name, None)
    return value if isinstance(value, int) and 0 <= value < MOST_TOKENS else 0


def describe_error(error: Exception, endpoint: Endpoint) -> str:
    """Say why there is no answer; the key is removed even if the server repeats it."""
    from openai import APIStatusError, APITimeoutError

    if isinstance(error, APIStatusError):
        detail = error.body
        # The usual shapes of an error body.
        while isinstance(detail, dict):
            detail = next((detail[name] for name in ("error", "message", "detail") if detail.get(name)), "")
        text = f"`{endpoint.name}` answered {error.status_code}: {replace_surrogates(str(detail))}"
    elif isinstance(error, APITimeoutError):
        text = f"`{endpoint.name}` did not answer in time"
    else:
        # Sentences of `read_reply` say more than what made it raise them.
        cause = error if type(error) is ValueError else error.__cause__ or error
        why = str(cause) if type(cause) is ValueError else f"{type(cause).__name__}: {cause}"
        if isinstance(cause, httpx2.ReadError) and not str(cause):
            why = "the connection was reset"
        text = f"`{endpoint.name}` gave no usable answer ({why})"
    text = " ".join(text.split())
    if endpoint.key and endpoint.key != NO_KEY:
        text = text.replace(endpoint.key, "[key]")
    return text[:MESSAGE_CHARS]


def find_base_url(endpoint: Endpoint) -> str:
    """Return the base URL as the client takes it.

    >>> find_base_url(Endpoint("mine", "http://localhost:8000", ""))
    'http://localhost:8000/v1'
    """
    base = endpoint.base_url.rstrip("/").removesuffix("/chat/completions")
    return base if urlsplit(base).path else f"{base}/v1"


class _Http(httpx2.AsyncClient):
    """Limit whole attempts, and how long a server may ask to wait."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            # The client's own timeout is per read, so a trickling answer would never time out.
            async with asyncio.timeout(self.timeout.read):
                response = await super().send(request, **options)
        except TimeoutError as error:
            raise httpx2.ReadTimeout("The whole answer took too long.", request=request) from error
        wait = response.headers.get("retry-after", "0")
        if not wait.replace(".", "", 1).isdecimal() or float(wait) > LONGEST_WAIT:
            response.headers["retry-after"] = str(LONGEST_WAIT)
        return response


@dataclass(eq=False)
class _Loop:
    client: "AsyncOpenAI"
    slots: asyncio.Semaphore
    in_flight: dict[str, asyncio.Lock] = field(default_factory=dict)


@dataclass(eq=False)
class Chat:
    """One endpoint, for any model it serves, shared by any number of tasks and event loops."""

    endpoint: Endpoint
    journal: Journal | None = None
    _: KW_ONLY
    prices: Prices = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    budget: Budget | None = None
    tally: Tally = field(default_factory=Tally)
    # One sentence why no more calls are made, or None.
    stopped: str | None = None
    _failures: int = 0
    _loops: dict[asyncio.AbstractEventLoop, _Loop] = field(default_factory=dict)

    async def ask(self, request: Request) -> Reply:
        """Answer from the journal or the endpoint; a failure is a reply with `error`."""
        running, key = asyncio.get_running_loop(), request.key
        if running not in self._loops:
            # Each part of a run has a loop, and a client keeps its loop and a megabyte alive.
            for ended in [one for one in [*self._loops] if one.is_closed()]:
                self._loops.pop(ended, None)
            from openai import AsyncOpenAI

            client = AsyncOpenAI(
                api_key=self.endpoint.key,
                base_url=find_base_url(self.endpoint),
                max_retries=self.limits.attempts - 1,
                timeout=self.limits.timeout,
                http_client=_Http(timeout=self.limits.timeout, follow_redirects=True),
            )
            self._loops[running] = _Loop(client, asyncio.Semaphore(self.limits.concurrency))
        here = self._loops[running]
        # Two tasks with the same request pay once; the second finds the answer in the journal.
        async with here.in_flight.setdefault(key, asyncio.Lock()):
            known = self.journal.get(request) if self.journal else None
            reply = known or await self._call(request, here)
        here.in_flight.pop(key, None)
        self.tally.add(request.model, reply)
        return replace(reply, cost=cost(self.prices, request.model, reply))

    async def close(self) -> None:
        """Close the connections of this event loop."""
        here = self._loops.pop(asyncio.get_running_loop(), None)
        if here is not None:
            await here.client.close()

    async def _call(self, request: Request, here: _Loop) -> Reply:
        from openai import OpenAIError
        from openai.types.chat import ChatCompletion

        held = self.budget.hold(request) if self.budget else nullcontext()
        async with here.slots, held as refusal:
            self.stopped = self.stopped or refusal
            if self.stopped:
                return Reply(error=self.stopped)
            started = time.monotonic()
            try:
                # `chat.completions.create` first looks through all messages for keys to rename,
                # which takes twice the time of the call itself.
                answer = await here.client.post("/chat/completions", cast_to=ChatCompletion, body=request.body)
                reply = replace(read_reply(answer), latency=time.monotonic() - started)
            except (OpenAIError, OSError, RecursionError, ValueError) as error:
                text = describe_error(error, self.endpoint)
                self._failures += 1
                refused = getattr(error, "status_code", None) in REFUSED
                # After all attempts there is still no connection.
                down = isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout)
                if refused or down or self._failures >= self.limits.give_up:
                    self.stopped = text
                return Reply(error=text)
            if self.budget:
                self.budget.paid(request, reply)
        self._failures = 0
        if self.journal:
            self.journal.put(request, reply, self.endpoint.name)
        return reply


Made = Json | list[Json]


def map_rows(
    rows: Dataset, one: Callable[[Json], Awaitable[Made]], features: Features, *, in_flight: int, desc: str
) -> Dataset:
    """Return a dataset of the row or rows that `one` makes of each row, in order.

    Rows and results fit into memory. `one` must not raise on what a row holds: one exception loses
    the whole call. Ctrl-C cancels the rows under way. The journal is the cache, not `datasets`.
    """

    async def ask_all(given: list[Json]) -> list[Made]:
        slots = asyncio.Semaphore(in_flight)
        # Only on a terminal.
        with tqdm(total=len(given), desc=desc, disable=None) as bar:

            async def ask(row: Json) -> Made:
                async with slots:
                    made = await one(row)
                bar.update()
                return made

            return await asyncio.gather(*map(ask, given))

    # `map` takes coroutine functions, too, but after Ctrl-C it would go on waiting for the others.
    def make(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        given = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        several = (made if isinstance(made, list) else [made] for made in asyncio.run(ask_all(given)))
        made = list(chain.from_iterable(several))
        return {name: [row[name] for row in made] for name in features}

    options: Json = {"batched": True, "batch_size": None, "features": features, "remove_columns": rows.column_names}
    options |= {"keep_in_memory": True, "load_from_cache_file": False, "new_fingerprint": f"{desc}-of-this-run"}
    with hide_bars():
        return rows.map(make, **options)


def open_chat(
    section: CallSection, prices: Prices, journal: Path, models: Sequence[str], max_cost: float | None, replay: bool
) -> Chat:
    """Open the endpoint of a section for these models; `max_cost` is in USD, for all calls of the journal."""
    where = Endpoint("journal", "", NO_KEY) if replay else find_endpoint(section.provider, read_environment())
    book = Journal(journal)
    budget = None if max_cost is None else Budget(max_cost, models, prices, book)
    missing = "The journal lacks an answer that this run needs; run without --replay."
    return Chat(where, book, prices=prices, limits=section, budget=budget, stopped=missing if replay else None)
