"""Turns of a conversation with tools: complete, bare, one call each, and shortened to a window.

Both protocols are read: `native` has `tool_calls` and turns of role `tool`; `json` has calls as
JSON objects in the text of the assistant and results as turns of the user.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pimono_sdpo.rollout_schema import TURN, Turn
from pimono_sdpo.text import shorten

Json = dict[str, Any]


def turn_of(role: str, content: str | None, **more: Any) -> Turn:
    """Return a turn with every column of TURN."""
    return complete({"role": role, "content": content, **more})


def complete(turn: Mapping[str, Any]) -> Turn:
    """Fill in the columns of TURN that a turn leaves out; arguments of calls are decoded."""
    full: Any = {name: turn.get(name) for name in TURN}
    full["tool_calls"] = [_decoded(call) for call in turn.get("tool_calls") or ()] or None
    return full  # type: ignore[no-any-return]


def bare(turn: Mapping[str, Any]) -> Json:
    """Leave out what is null, as chat templates and other formats want it."""
    return {name: value for name, value in turn.items() if value is not None}


def call_of(name: str, args: Any, call_id: str) -> Json:
    """Return a native tool call."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": args}}


def as_json(value: Any) -> str:
    r"""Serialise the way targets are: one line, every letter as it is.

    >>> as_json({"type": "tool_call", "name": "grep", "args": {"pattern": "é"}})
    '{"type": "tool_call", "name": "grep", "args": {"pattern": "é"}}'
    """
    return json.dumps(value, ensure_ascii=False)


def window(
    prompt: Sequence[Turn], goal: int, last: int | None, tool_chars: int | None
) -> list[Turn]:
    """Keep the system's turn, the request at index `goal`, and what followed it.

    Of that only the last `last` turns of the assistant with their results, when it is given; a
    result is shortened to `tool_chars`.
    """
    kept = list(prompt)
    if last is not None:
        after = kept[goal + 1 :]
        starts = [at for at, turn in enumerate(after) if turn["role"] == "assistant"]
        start = 0 if len(starts) <= last else starts[-last] if last else len(after)
        kept = [turn for turn in kept[:goal] if turn["role"] == "system"]
        kept += [prompt[goal], *after[start:]]
    if tool_chars is None:
        return kept
    first = next((at for at, turn in enumerate(kept) if turn["role"] == "user"), 0)
    return [
        turn if at <= first or turn["role"] not in {"tool", "user"} else _short(turn, tool_chars)
        for at, turn in enumerate(kept)
    ]


def _short(turn: Turn, chars: int) -> Turn:
    return complete({**turn, "content": shorten(turn["content"] or "", chars)})


def _decoded(call: Json) -> Json:
    """Chat templates want arguments as an object; APIs hand them over as text."""
    function = call.get("function") or {}
    given = function.get("arguments")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            # What a model wrote and nobody can read stays text; such a call is no target.
            return call
    return {**call, "function": {**function, "arguments": given}}
