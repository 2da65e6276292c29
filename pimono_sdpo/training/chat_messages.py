"""Conversations with tool calls as chat templates take them.

Columns of rollouts have a field for whatever a turn may need and null where it does not; some
templates write `None` for such a field, and several refuse arguments that are JSON text. Text that
spells a control token would open or end a turn.

reads turns as in rollout_schema.TURN, tools / writes the same without nulls, arguments as mappings
"""

import json
from collections.abc import Sequence
from typing import Any

from pimono_sdpo.training.token_budget import neutralise

Json = dict[str, Any]
TEXT_FIELDS = ("content", "reasoning_content", "thinking", "name", "tool_call_id")


class BadTurn(ValueError):
    """A row's turns are none; a few words say why."""


def clean_turns(
    turns: Any, special: Sequence[str], control: Sequence[str], padded: bool = False
) -> tuple[list[Json], int]:
    """Return the turns, and how many control tokens their text spelled; raises BadTurn.

    `special` are all that a template writes; in what the model itself says only `control` is
    broken, so that `<think>` and the like stay what they are. `padded` says that the column is made
    of structs, which hold a null for every argument that another call has.

    >>> clean_turns([{"role": "user", "content": "a <eos>", "name": None}], ["<eos>"], ["<eos>"])[1]
    1
    """
    if not isinstance(turns, list) or not turns:
        raise BadTurn("is no list of turns")
    cleaned, found = [], 0
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
            raise BadTurn("has a turn without `role`")
        broken = control if turn["role"] == "assistant" else special
        one, spelled = _clean_turn(turn, tuple(broken), padded)
        cleaned.append(one)
        found += spelled
    return cleaned, found


def clean_tools(tools: Any, padded: bool = False) -> list[Json] | None:
    """Return tool definitions as objects, None when there are none; raises BadTurn."""
    if isinstance(tools, str):
        tools = _decoded(tools)
    if not tools:
        return None
    decoded = [_decoded(tool) if isinstance(tool, str) else tool for tool in tools]
    if not all(isinstance(tool, dict) for tool in decoded):
        raise BadTurn("has tools that are no JSON objects")
    return [_without_nulls(tool) for tool in decoded] if padded else decoded


def called_names(turns: Sequence[Json]) -> list[str]:
    """Return the tools that a conversation calls, in order."""
    calls = [call for turn in turns for call in turn.get("tool_calls", ())]
    return [str(call["function"]["name"]) for call in calls]


def _clean_turn(turn: Json, special: tuple[str, ...], padded: bool) -> tuple[Json, int]:
    cleaned: Json = {"role": turn["role"]}
    found = 0
    for field in TEXT_FIELDS:
        value = turn.get(field)
        if value is None:
            continue
        if not isinstance(value, str):
            raise BadTurn(f"has a turn whose `{field}` is no text")
        cleaned[field], spelled = neutralise(value, special)
        found += spelled
    calls = turn.get("tool_calls")
    if calls:
        cleaned["tool_calls"], spelled = _broken([_call(call, padded) for call in calls], special)
        found += spelled
    # Templates read it of every turn, and write `None` for one that only calls tools.
    cleaned.setdefault("content", "")
    return cleaned, found


def _call(call: Any, padded: bool) -> Json:
    call = _decoded(call) if isinstance(call, str) else call
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadTurn("has a tool call without a name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _decoded(arguments or "{}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise BadTurn("has a tool call whose arguments are no JSON object")
    if padded:
        arguments = _without_nulls(arguments)
    said = {key: call[key] for key in ("id", "type") if call.get(key) is not None}
    return {
        "type": "function",
        **said,
        "function": {"name": function["name"], "arguments": arguments},
    }


def _broken(value: Any, special: tuple[str, ...]) -> tuple[Any, int]:
    """Break control tokens in every text of a JSON value."""
    if isinstance(value, str):
        return neutralise(value, special)
    if isinstance(value, list):
        parts = [_broken(item, special) for item in value]
        return [part for part, _ in parts], sum(found for _, found in parts)
    if isinstance(value, dict):
        items = {key: _broken(item, special) for key, item in value.items()}
        whole = {key: part for key, (part, _) in items.items()}
        return whole, sum(found for _, found in items.values())
    return value, 0


def _without_nulls(value: Any) -> Any:
    """Leave out what a column of structs has added."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadTurn("has a tool or a call that is no JSON") from error
