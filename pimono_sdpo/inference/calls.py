"""A call of a chat model: what is asked, what came back, and the key both are journaled under."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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


def body_of(request: Request) -> Json:
    """The fields that are sent: without nulls, and with text that UTF-8 can hold."""
    body: Json = {"model": request.model, "messages": [_told(turn) for turn in request.messages]}
    body["tools"] = [dict(tool) for tool in request.tools] if request.tools else None
    body["temperature"] = request.temperature
    body["seed"] = request.seed
    body["max_tokens"] = request.max_tokens
    given = {name: value for name, value in body.items() if value is not None}
    text = json.dumps({**request.extra, **given}, ensure_ascii=False)
    # Half a surrogate pair, as broken traces hold, cannot be sent.
    sent: Json = json.loads(text.encode("utf-8", "replace"))
    return sent


def _told(turn: Mapping[str, Any]) -> Json:
    """A turn without the columns it does not use, which datasets fill with nulls."""
    told = {name: value for name, value in turn.items() if value is not None and value != []}
    # Strict servers want the content of every turn, if only null.
    return {"content": None, **told} if "tool_calls" in told else {"content": "", **told}


def canonical(request: Request) -> str:
    """The request as JSON with sorted keys, sample included."""
    return json.dumps({**body_of(request), "sample": request.sample}, sort_keys=True)


def key_of(request: Request) -> str:
    """The sha256, in hex, of the canonical request."""
    return hashlib.sha256(canonical(request).encode()).hexdigest()
