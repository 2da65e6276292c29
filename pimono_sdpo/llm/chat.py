"""Call chat models at one endpoint, with retries, limits and a journal; failures are replies.

chat = Chat(find_endpoint("hf"), Journal(out / "calls.sqlite"))
reply = await chat.ask(Request(model="openai/gpt-oss-20b", messages=[...], seed=42))
if reply.error is None: ...
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import httpx2
from datasets import Dataset, Features
from tqdm import tqdm

from pimono_sdpo.llm.calls import Budget, Journal, Json, Prices, Reply, Request, Tally, cost
from pimono_sdpo.llm.settings import NO_KEY, CallSection, Endpoint, Limits
from pimono_sdpo.runs.engine import hide_bars
from pimono_sdpo.text import replace_surrogates

# Importing `openai` takes half a second, so it is imported when the first call is made.
if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion, ChatCompletionMessageFunctionToolCall

# Larger token counts are mistakes of a server; sums of them would overflow SQLite's integers.
MAX_COUNT = 2**62
# Another call would get the same answer: the key, the credit, or the address or model is wrong.
REFUSED = (401, 402, 403, 404)
# A longer wait that a server asks for is shortened to this; the client would give up at two minutes.
LONGEST_WAIT = 60.0


def read_reply(answer: "ChatCompletion") -> Reply:
    """Convert an answer of the API; raises ValueError if a part is missing or has another type."""
    try:
        if not answer.choices:
            raise ValueError("the answer has no choices")
        choice = answer.choices[0]
        api_calls = cast("list[ChatCompletionMessageFunctionToolCall]", choice.message.tool_calls)
        text = replace_surrogates(choice.message.content or "")
        calls = []
        for number, call in enumerate(api_calls or []):
            name, arguments = map(replace_surrogates, (call.function.name, call.function.arguments))
            call_id = call.id if isinstance(call.id, str) else f"call_{number}"
            calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
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
    return value if isinstance(value, int) and 0 <= value < MAX_COUNT else 0


def describe_error(error: Exception, endpoint: Endpoint) -> str:
    """Return why there is no answer, without the key even if the server repeats it."""
    from openai import APIStatusError, APITimeoutError

    if isinstance(error, APIStatusError):
        detail = error.body
        # The usual shapes of an error body.
        while isinstance(detail, dict):
            detail = next((detail[name] for name in ("error", "message", "detail") if detail.get(name)), "")
        if location := error.response.headers.get("location"):
            detail = f"it redirects to {location}; give that address if you trust it"
        text = f"`{endpoint.name}` answered {error.status_code}: {replace_surrogates(str(detail))}"
    elif isinstance(error, APITimeoutError):
        text = f"`{endpoint.name}` did not answer in time"
    else:
        # The messages of `read_reply` say more than their causes.
        cause = error if type(error) is ValueError else error.__cause__ or error
        why = str(cause) if type(cause) is ValueError else f"{type(cause).__name__}: {cause}"
        if isinstance(cause, httpx2.ReadError) and not str(cause):
            why = "the connection was reset"
        text = f"`{endpoint.name}` gave no usable answer ({why})"
    text = " ".join(text.split())
    if endpoint.key and endpoint.key != NO_KEY:
        text = text.replace(endpoint.key, "[key]")
    return text[:300]


def find_base_url(endpoint: Endpoint) -> str:
    """Return the base URL of an endpoint for the client.

    >>> find_base_url(Endpoint("mine", "http://localhost:8000", ""))
    'http://localhost:8000/v1'
    """
    base = endpoint.base_url.rstrip("/").removesuffix("/chat/completions")
    return base if urlsplit(base).path else f"{base}/v1"


class _Http(httpx2.AsyncClient):
    """Limit the time of a whole attempt, and the wait that a server may ask for."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            # The client's own timeout applies to each read, so a trickling answer would never time out.
            async with asyncio.timeout(self.timeout.read):
                response = await super().send(request, **options)
        except TimeoutError as error:
            raise httpx2.ReadTimeout("The whole answer took too long.", request=request) from error
        wait = response.headers.get("retry-after", "0")
        if not wait.replace(".", "", 1).isdecimal() or float(wait) > LONGEST_WAIT:
            response.headers["retry-after"] = str(LONGEST_WAIT)
        if response.is_success and response.content.lstrip().startswith(b"<"):
            # A page of a proxy, which the client tries again like a lost connection.
            raise httpx2.DecodingError("the answer is a web page", request=request)
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
    # Whether the journal keeps a finished call.
    keeps: Callable[[Reply], bool] = lambda _: True
    # Why no more calls are made, as one sentence, or None.
    stopped: str | None = None
    _failures: int = 0
    _loops: dict[asyncio.AbstractEventLoop, _Loop] = field(default_factory=dict)

    async def ask(self, request: Request) -> Reply:
        """Answer from the journal or the endpoint; a failure is a reply with `error`."""
        running, key = asyncio.get_running_loop(), request.key
        if running not in self._loops:
            # Each part of a run has its own loop, and a client keeps its loop and a megabyte alive.
            for closed in [loop for loop in [*self._loops] if loop.is_closed()]:
                self._loops.pop(closed, None)
            from openai import AsyncOpenAI

            client = AsyncOpenAI(
                api_key=self.endpoint.key,
                base_url=find_base_url(self.endpoint),
                max_retries=self.limits.attempts - 1,
                timeout=self.limits.timeout,
                # A redirect would send the texts to a host that was not named.
                http_client=_Http(timeout=self.limits.timeout, follow_redirects=False),
            )
            if self.endpoint.name != "openai":
                # The client reads them from OPENAI_ORG_ID and other variables, for every address.
                client.organization = client.project = client.admin_api_key = None
                client._custom_headers = {}
            self._loops[running] = _Loop(client, asyncio.Semaphore(self.limits.concurrency))
        loop = self._loops[running]
        # Two tasks with the same request pay once; the second finds the answer in the journal.
        async with loop.in_flight.setdefault(key, asyncio.Lock()):
            stored = self.journal.get(request) if self.journal else None
            reply = stored or await self._call(request, loop)
        loop.in_flight.pop(key, None)
        self.tally.add(request.model, reply)
        return replace(reply, cost=cost(self.prices, request.model, reply))

    async def close(self) -> None:
        """Close the connections of this event loop."""
        loop = self._loops.pop(asyncio.get_running_loop(), None)
        if loop is not None:
            await loop.client.close()

    async def _call(self, request: Request, loop: _Loop) -> Reply:
        from openai import OpenAIError
        from openai.types.chat import ChatCompletion

        reservation = self.budget.reserve(request) if self.budget else nullcontext()
        async with loop.slots, reservation as refusal:
            self.stopped = self.stopped or refusal
            if self.stopped:
                return Reply(error=self.stopped)
            started = time.monotonic()
            try:
                # `chat.completions.create` first searches all messages for keys to rename, which
                # takes twice as long as the call itself.
                answer = await loop.client.post("/chat/completions", cast_to=ChatCompletion, body=request.body)
                reply = replace(read_reply(answer), latency=time.monotonic() - started)
            except (OpenAIError, OSError, RecursionError, ValueError) as error:
                text = describe_error(error, self.endpoint)
                self._failures += 1
                refused = getattr(error, "status_code", None) in REFUSED
                # All attempts to connect failed.
                down = isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout)
                if refused or down or self._failures >= self.limits.give_up:
                    self.stopped = text
                return Reply(error=text)
            if self.budget:
                self.budget.add(request, reply)
        self._failures = 0
        if self.journal and self.keeps(reply):
            self.journal.put(request, reply, self.endpoint.name)
        return reply


Result = Json | list[Json]


def map_rows(
    rows: Dataset, function: Callable[[Json], Awaitable[Result]], features: Features, *, in_flight: int, desc: str
) -> Dataset:
    """Apply an async function that returns a row or rows to each row, and return the dataset of results, in order.

    Rows and results must fit into memory. The function must not raise because of the content of a row: an exception
    loses all results. Ctrl-C cancels the rows in flight. Finished calls are cached by the journal, not by `datasets`.
    """

    async def run_all(batch: list[Json]) -> list[Result]:
        slots = asyncio.Semaphore(in_flight)
        # `disable=None` shows the bar only on a terminal.
        with tqdm(total=len(batch), desc=desc, disable=None) as bar:

            async def run(row: Json) -> Result:
                async with slots:
                    result = await function(row)
                bar.update()
                return result

            return await asyncio.gather(*map(run, batch))

    # `map` also takes coroutine functions, but after Ctrl-C it would wait for the other rows.
    def run_batch(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
        batch = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        results = (result if isinstance(result, list) else [result] for result in asyncio.run(run_all(batch)))
        made = list(chain.from_iterable(results))
        return {name: [row[name] for row in made] for name in features}

    with hide_bars():
        return rows.map(
            run_batch,
            batched=True,
            batch_size=None,
            features=features,
            remove_columns=rows.column_names,
            keep_in_memory=True,
            load_from_cache_file=False,
            new_fingerprint=f"{desc}-of-this-run",
        )


@cache
def _name_host(destination: str) -> None:
    """Print once where texts are sent; not on stdout, whose lines are those of the reference run."""
    sys.stderr.write(f"texts for the model are sent to {destination}\n")


def open_chat(
    section: CallSection, prices: Prices, journal: Path, models: Sequence[str], max_cost: float | None, replay: bool
) -> Chat:
    """Open the endpoint of a section for these models; `max_cost` in USD limits all calls of the journal.

    With `replay`, no calls are made: a request that is not in the journal gets a reply with an error.
    """
    endpoint = Endpoint("journal", "", NO_KEY) if replay else section.find_endpoint()
    if not replay:
        _name_host(endpoint.destination)
    calls = Journal(journal)
    budget = None if max_cost is None else Budget(max_cost, models, prices, calls)
    stopped = "The journal lacks an answer that this run needs; run without --replay." if replay else None
    return Chat(endpoint, calls, prices=prices, limits=section, budget=budget, stopped=stopped)
