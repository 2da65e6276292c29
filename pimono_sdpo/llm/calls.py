"""A call of a chat model: request, reply, and the key of both in the journal."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """One request to a chat model, in the terms of the OpenAI API.

    `extra` is sent as further fields of the body. `sample` distinguishes draws of the same request;
    it is part of the key in the journal and is not sent.
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
        body: Json = {
            "model": self.model,
            "messages": [_drop_unused(turn) for turn in self.messages],
        }
        body["tools"] = [dict(tool) for tool in self.tools] if self.tools else None
        body["temperature"] = self.temperature
        body["seed"] = self.seed
        body["max_tokens"] = self.max_tokens
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
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.cached_tokens += reply.cached_tokens
        self.seconds += reply.latency


@dataclass(frozen=True)
class Limits:
    """Limits and retries for an endpoint; times in seconds.

    `timeout` is for one whole attempt; a server's Retry-After is respected up to `wait_max`. After
    `give_up` failed calls in a row no more calls are made.
    """

    concurrency: int = 16
    timeout: float = 180.0
    attempts: int = 6
    wait_initial: float = 1.0
    wait_max: float = 60.0
    give_up: int = 20
