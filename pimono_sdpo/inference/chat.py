"""Ask chat models at one endpoint: bounded, retried, journaled, and never an exception.

chat = Chat(endpoint("hf", os.environ), Journal(out / "calls.sqlite"))
reply = await chat.ask(Request(model="openai/gpt-oss-20b", messages=[...], seed=42))
if reply.error is None: ...
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import stamina
from httpx2 import HTTPError, InvalidURL, TransportError
from huggingface_hub import AsyncInferenceClient
from huggingface_hub.errors import HfHubHTTPError, InferenceTimeoutError

from pimono_sdpo.inference.answers import Garbage, reply_of, retry_after, sentence
from pimono_sdpo.inference.budget import Budget
from pimono_sdpo.inference.calls import Reply, Request
from pimono_sdpo.inference.journal import Journal
from pimono_sdpo.inference.prices import Price, cost
from pimono_sdpo.inference.providers import Endpoint
from pimono_sdpo.inference.tally import Tally

__all__ = ["Chat", "Limits", "Reply", "Request"]

# A busy endpoint is no news: what finally fails is told by the reply.
logging.getLogger("stamina").setLevel(logging.ERROR)

BUSY = (408, 409, 425, 429, 500, 502, 503, 504, 529)
REFUSED = (401, 402, 403)
# All that the client raises for an endpoint's fault; what is no JSON is a ValueError.
TROUBLE = (HTTPError, InvalidURL, OSError, ValueError, Garbage)
# Fields that `chat_completion` takes by name; all others travel in `extra_body`.
NAMED = ("model", "messages", "tools", "temperature", "seed", "max_tokens")


@dataclass(frozen=True)
class Limits:
    """How an endpoint is treated; times in seconds.

    `timeout` is of one try as a whole; a server's Retry-After is obeyed up to `wait_max`. After
    `give_up` failed calls in a row nothing more is asked.
    """

    concurrency: int = 16
    timeout: float = 180.0
    attempts: int = 6
    wait_initial: float = 1.0
    wait_max: float = 60.0
    give_up: int = 20


class _Loop:
    """What belongs to one event loop: the client, the slots, the questions under way."""

    def __init__(self, endpoint: Endpoint, limits: Limits) -> None:
        # `hf`: the provider is chosen by the router; a URL needs none.
        self.client = AsyncInferenceClient(
            base_url=endpoint.base_url, api_key=endpoint.key, timeout=limits.timeout
        )
        self.slots = asyncio.Semaphore(limits.concurrency)
        self.asked: dict[str, asyncio.Lock] = {}


class Chat:
    """One endpoint, for any model it serves, shared by any number of tasks and event loops."""

    def __init__(
        self,
        endpoint: Endpoint,
        journal: Journal | None = None,
        *,
        prices: Mapping[str, Price] | None = None,
        limits: Limits | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.journal = journal
        self.prices = prices or {}
        self.limits = limits or Limits()
        self.budget = budget
        self.tally = Tally()
        # Why nothing more is asked, as one sentence.
        self.stopped: str | None = None
        self._failures = 0
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = WeakKeyDictionary()

    async def ask(self, request: Request) -> Reply:
        """Answer from the journal, or from the endpoint; trouble is a reply with `error`."""
        here = self._loop()
        key = request.key
        # Two tasks with the same question pay for one answer, which the journal then has.
        async with here.asked.setdefault(key, asyncio.Lock()):
            known = self.journal.get(request) if self.journal else None
            reply = known or await self._spend(request, here)
        here.asked.pop(key, None)
        self.tally.add(request.model, reply)
        usage = (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens)
        return replace(reply, cost=cost(self.prices, request.model, *usage))

    async def close(self) -> None:
        """Close the connections of this event loop."""
        here = self._loops.pop(asyncio.get_running_loop(), None)
        if here is not None:
            await here.client.close()  # type: ignore[no-untyped-call]

    def _loop(self) -> _Loop:
        running = asyncio.get_running_loop()
        if running not in self._loops:
            self._loops[running] = _Loop(self.endpoint, self.limits)
        return self._loops[running]

    async def _spend(self, request: Request, here: _Loop) -> Reply:
        held = self.budget.hold(request) if self.budget else nullcontext()
        async with here.slots, held as refusal:
            self.stopped = self.stopped or refusal
            if self.stopped:
                return Reply(error=self.stopped)
            try:
                reply = await self._tried(request, here.client)
            except TROUBLE as error:
                return self._failed(error)
            if self.budget:
                self.budget.paid(request, reply)
        self._failures = 0
        if self.journal:
            self.journal.put(request, reply, self.endpoint.name)
        return reply

    async def _tried(self, request: Request, client: AsyncInferenceClient) -> Reply:
        limits = self.limits
        async for attempt in stamina.retry_context(
            on=self._wait,
            attempts=limits.attempts,
            timeout=None,
            wait_initial=limits.wait_initial,
            wait_max=limits.wait_max,
            wait_jitter=limits.wait_initial,
        ):
            with attempt:
                started = time.monotonic()
                # The client's own timeout is of each read: one that trickles never ends.
                async with asyncio.timeout(limits.timeout):
                    reply = await self._once(request, client)
                return replace(reply, latency=time.monotonic() - started)
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, request: Request, client: AsyncInferenceClient) -> Reply:
        """One try; raises what is in TROUBLE."""
        body = dict(request.body)
        named: dict[str, Any] = {name: body.pop(name) for name in NAMED if name in body}
        try:
            answer = await client.chat_completion(**named, extra_body=body or None)
        except (AttributeError, RecursionError) as error:
            # The client falls over errors that are no object, and over deep JSON.
            raise Garbage("what the client cannot read") from error
        return reply_of(answer)

    def _wait(self, error: Exception) -> bool | float:
        """Whether to try again, or after how many seconds."""
        if isinstance(error, InferenceTimeoutError | TransportError | TimeoutError):
            return True
        if not isinstance(error, HfHubHTTPError) or error.response.status_code not in BUSY:
            return False
        seconds = retry_after(error.response.headers)
        return True if seconds is None else min(seconds, self.limits.wait_max)

    def _failed(self, error: Exception) -> Reply:
        told = sentence(error, self.endpoint)
        self._failures += 1
        refused = isinstance(error, HfHubHTTPError) and error.response.status_code in REFUSED
        if refused or self._failures >= self.limits.give_up:
            self.stopped = told
        return Reply(error=told)
