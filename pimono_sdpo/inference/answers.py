"""What an endpoint sent, as a Reply; what it refused, as one sentence without the key."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from huggingface_hub import ChatCompletionOutput
from huggingface_hub.errors import HfHubHTTPError

from pimono_sdpo.inference.calls import Json, Reply
from pimono_sdpo.inference.providers import NO_KEY, Endpoint

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
