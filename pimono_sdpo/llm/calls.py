"""A call of a chat model: what is asked, what came back, and the key both are journaled under."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """One question to a chat model, in the terms of the OpenAI API.

    `extra` is sent as further fields of the body. `sample` tells two draws of the same question
    apart; it is not sent, only the journal knows it.
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
        """The fields that are sent: without nulls, and with text that UTF-8 can hold."""
        body: Json = {"model": self.model, "messages": [_told(turn) for turn in self.messages]}
        body["tools"] = [dict(tool) for tool in self.tools] if self.tools else None
        body["temperature"] = self.temperature
        body["seed"] = self.seed
        body["max_tokens"] = self.max_tokens
        given = {name: value for name, value in body.items() if value is not None}
        text = json.dumps({**self.extra, **given}, ensure_ascii=False)
        # Half a surrogate pair, as broken traces hold, cannot be sent.
        sent: Json = json.loads(text.encode("utf-8", "replace"))
        return sent

    @cached_property
    def canonical(self) -> str:
        """The request as JSON with sorted keys, sample included."""
        return json.dumps({**self.body, "sample": self.sample}, sort_keys=True)

    @cached_property
    def key(self) -> str:
        """The sha256 of the canonical request, in hex. Who is asked is no part of it."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()


@dataclass(frozen=True)
class Reply:
    """What came back. Either `error` says in one sentence why there is no answer, or it is None.

    `tool_calls` are `{"id", "type", "function": {"name", "arguments"}}` with the arguments as the
    text the model wrote. Tokens are the provider's counts, `cached_tokens` a part of
    `prompt_tokens`; `latency` is in seconds; `cost` in USD, None when the model has no price.
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


def _told(turn: Mapping[str, Any]) -> Json:
    """A turn without the columns it does not use, which datasets fill with nulls."""
    told = {name: value for name, value in turn.items() if value is not None and value != []}
    # Strict servers want the content of every turn, if only null.
    return {"content": None, **told} if "tool_calls" in told else {"content": "", **told}
