"""Ask chat models at one endpoint: bounded, retried, journaled, and never an exception.

chat = Chat(endpoint("hf", os.environ), Journal(out / "calls.sqlite"))
reply = await chat.ask(Request(model="openai/gpt-oss-20b", messages=[...], seed=42))
if reply.error is None: ...
"""

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from weakref import WeakKeyDictionary

import stamina
from httpx2 import HTTPError, InvalidURL, TransportError
from huggingface_hub import AsyncInferenceClient, ChatCompletionOutput
from huggingface_hub.errors import HfHubHTTPError, InferenceTimeoutError

from pimono_sdpo.llm.calls import Json, Reply, Request
from pimono_sdpo.llm.journal import Journal
from pimono_sdpo.llm.money import Budget, Price, Tally, cost
from pimono_sdpo.llm.providers import NO_KEY, Endpoint

MESSAGE_CHARS = 300
MOST_TOKENS = 2**62


class Garbage(Exception):
    """The endpoint said 200 and sent something that is no answer."""


def reply_of(answer: ChatCompletionOutput) -> Reply:
    """Read an answer, whatever the client made of it; raises Garbage."""
    choices = answer.choices
    if not isinstance(choices, list) or not choices:
        raise Garbage("no choices")
    message = getattr(choices[0], "message", None)
    if not isinstance(message, dict):
        raise Garbage("no message")
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise Garbage("content that is no text")
    finish = choices[0].get("finish_reason")
    usage = answer.usage if isinstance(answer.usage, dict) else {}
    prompt = count_of(usage.get("prompt_tokens"))
    details = usage.get("prompt_tokens_details")
    cached = count_of(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return Reply(
        text=_sent(content or ""),
        tool_calls=_tool_calls(message.get("tool_calls")),
        finish_reason=finish if isinstance(finish, str) else None,
        prompt_tokens=prompt,
        completion_tokens=count_of(usage.get("completion_tokens")),
        cached_tokens=min(cached, prompt),
    )


def _tool_calls(given: object) -> list[Json]:
    if not given:
        return []
    if not isinstance(given, list):
        raise Garbage("tool calls that are no list")
    calls = []
    for number, call in enumerate(given):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise Garbage("a tool call without a function")
        name, arguments = function.get("name"), function.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, str):
            raise Garbage("a tool call without name or arguments")
        identity = call.get("id")
        calls.append(
            {
                "id": identity if isinstance(identity, str) else f"call_{number}",
                "type": "function",
                "function": {"name": _sent(name), "arguments": _sent(arguments)},
            }
        )
    return calls


def count_of(value: object) -> int:
    """A number of tokens as a server tells it; 0 when that is none."""
    return value if isinstance(value, int) and 0 <= value < MOST_TOKENS else 0


def _sent(text: str) -> str:
    """JSON can hold half a surrogate pair; files cannot."""
    return text.encode("utf-8", "replace").decode()


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds a server asks to wait, given as a number or as a date; None when it does not say."""
    told = headers.get("retry-after", "").strip()
    try:
        seconds = float(told)
    except ValueError:
        try:
            until = parsedate_to_datetime(told)
        except ValueError:
            return None
        until = until if until.tzinfo else until.replace(tzinfo=UTC)
        seconds = (until - datetime.now(UTC)).total_seconds()
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def sentence(error: Exception, endpoint: Endpoint) -> str:
    """Say why there is no answer. A server that repeats the key does not bring it into files."""
    if isinstance(error, HfHubHTTPError):
        told = f"`{endpoint.name}` answered {error.response.status_code}: {_server_says(error)}"
    elif isinstance(error, TimeoutError):
        told = f"`{endpoint.name}` did not answer in time"
    elif isinstance(error, Garbage):
        told = f"`{endpoint.name}` sent what is no answer: {error}"
    else:
        told = f"`{endpoint.name}` could not be asked ({type(error).__name__}: {error})"
    told = " ".join(told.split())
    if endpoint.key and endpoint.key != NO_KEY:
        told = told.replace(endpoint.key, "[key]")
    return told[:MESSAGE_CHARS]


def _server_says(error: HfHubHTTPError) -> str:
    """The message of the usual shapes of an error's body, the body's own text otherwise."""
    try:
        body: Any = error.response.json()
    except (ValueError, RecursionError):
        return _sent(error.response.text)
    while isinstance(body, dict):
        body = next((body[name] for name in ("error", "message", "detail") if body.get(name)), "")
    return _sent(str(body))


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
