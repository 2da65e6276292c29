"""A run as a conversation: its turns, its actions one call at a time, and what each was based on.

Both protocols are read: `native` has `tool_calls` and turns of role `tool`; `json` has calls as
JSON objects in the text of the assistant and results as turns of the user.

A turn with several calls becomes one turn per call, each followed by its own result, so that every
action has exactly one call.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry

from pimono_sdpo.schema import TURN, Turn
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


# Texts that may be empty: a file without content, and a passage that is taken away.
MAY_BE_BLANK = frozenset({"content", "newText", "new_string", "new_str", "new_source"})


@dataclass(frozen=True)
class Action:
    """A step of a run, and the turn it was; before it the model had read `turns[:n_context]`."""

    step: Json
    turn: Turn
    n_context: int


@dataclass(frozen=True)
class Run:
    """All turns of a run with one call each, in order, and its actions."""

    turns: list[Turn]
    actions: list[Action]
    protocol: str
    is_rollout: bool

    def goal_of(self, action: Action) -> int:
        """Return the index of the request: of a rollout the first, of a session the last before."""
        asked = [at for at in range(action.n_context) if self.turns[at]["role"] == "user"]
        return 0 if not asked else asked[0] if self.is_rollout else asked[-1]


def run_of(row: Mapping[str, Any]) -> Run:
    """Return the turns and actions of a run; steps that name no assistant's turn are left out."""
    steps: dict[int, list[Json]] = {}
    for step in row["steps"]:
        steps.setdefault(step["n_context"], []).append(step)
    turns: list[Turn] = []
    actions: list[Action] = []
    given = [complete(turn) for turn in row["messages"]]
    results: dict[str, Any] = {}
    for at, turn in enumerate(given):
        if turn["role"] == "tool" and results.pop(turn.get("tool_call_id") or "", {}):
            # It stands behind its call already.
            continue
        taken = steps.get(at, []) if turn["role"] == "assistant" else []
        calls = turn.get("tool_calls") or []
        if len(calls) < 2:
            actions += [Action(step, turn, len(turns)) for step in taken[:1]]
            turns.append(turn)
            continue
        results = {one["tool_call_id"] or "": one for one in _results(given, at)}
        for number, call in enumerate(calls):
            content = turn["content"] if number == 0 else ""
            alone = turn_of("assistant", content, tool_calls=[call])
            if number < len(taken):
                actions.append(Action(taken[number], alone, len(turns)))
            turns.append(alone)
            if call.get("id") in results:
                turns.append(results[call["id"]])
    return Run(turns, actions, row["protocol"], row["suite"] is not None)


def _results(turns: Sequence[Turn], at: int) -> list[Turn]:
    """The results that follow the turn at an index."""
    found = []
    for turn in turns[at + 1 :]:
        if turn["role"] != "tool":
            break
        found.append(turn)
    return found


def target(action: Action, protocol: str) -> Turn:
    """Return the turn to learn: in the json protocol one JSON object and nothing around it."""
    step = action.step
    if protocol != "json" or step["kind"] == "parse_error":
        return action.turn
    args = step["args"] if isinstance(step["args"], dict) else {}
    if step["kind"] == "final":
        return turn_of("assistant", as_json({"type": "final", **args}))
    return turn_of("assistant", as_json({"type": "tool_call", "name": step["name"], "args": args}))


def key_of(action: Action) -> str:
    """Tell an action again in another run: the same call, or the same words."""
    step = action.step
    if step["kind"] == "parse_error":
        return as_json(["parse_error", action.turn["content"]])
    return as_json([step["kind"] == "final", step["name"], step["args"]])


def problem_of(step: Mapping[str, Any], tools: Sequence[Json]) -> tuple[str, str] | None:
    """Say why a call could not have worked, as a reason and a detail; None when it could."""
    if step["kind"] == "parse_error":
        return "malformed_call", step["error"] or ""
    if step["kind"] == "final":
        return None
    known = {tool["function"]["name"]: tool["function"] for tool in tools if "function" in tool}
    if known and step["name"] not in known:
        return "unknown_tool", str(step["name"])
    if not isinstance(step["args"], dict):
        return "malformed_call", "the arguments are no object"
    schema = (known.get(step["name"]) or {}).get("parameters") or {}
    required = schema.get("required") or ()
    for name in required:
        value = step["args"].get(name)
        if isinstance(value, str) and not value.strip() and name not in MAY_BE_BLANK:
            return "blank_argument", name
    wrong = next(iter(_validator(as_json(schema)).iter_errors(step["args"])), None)
    return ("invalid_arguments", wrong.message[:200]) if wrong else None


@lru_cache(maxsize=256)
def _validator(schema: str) -> Draft202012Validator:
    decoded = json.loads(schema)
    try:
        Draft202012Validator.check_schema(decoded)
    except SchemaError:
        # A tool that declares nonsense takes whatever it is given.
        decoded = {}
    # Without a registry of its own the validator would fetch a "$ref" from the network.
    return Draft202012Validator(decoded, registry=Registry())


def native_call(name: str, args: Any, call_id: str, content: str = "") -> Turn:
    """Return an assistant's turn with one call."""
    return turn_of("assistant", content, tool_calls=[call_of(name, args, call_id)])


As = Literal["as_recorded", "json"]
RESULT = "[tool_result]\n"
SYSTEM = """\
You are a coding agent. Answer with exactly one JSON object and nothing else:
{{"type": "tool_call", "name": NAME, "args": {{...}}}} to use a tool, or
{{"type": "final", "summary": TEXT}} when the work is done. These are the tools:
{tools}"""


def in_json(run: Run, tools: Sequence[Json]) -> Run:
    """Return the run in the json protocol; one that is in it stays as it is."""
    if run.protocol == "json":
        return run
    known = [
        {"name": tool["function"]["name"], "args": tool["function"].get("parameters")}
        for tool in tools
    ]
    system = turn_of("system", SYSTEM.format(tools="\n".join(map(as_json, known))))
    had = bool(run.turns) and run.turns[0]["role"] == "system"
    turns = [system, *(_text(turn) for turn in run.turns[had:])]
    shift = 0 if had else 1
    actions = [_moved(action, shift, turns) for action in run.actions]
    return replace(run, turns=turns, actions=actions, protocol="json")


def _moved(action: Action, shift: int, turns: list[Turn]) -> Action:
    at = action.n_context + shift
    step = action.step
    if step["kind"] == "final" and not isinstance(step["args"], dict):
        step = {**step, "args": {"summary": action.turn["content"] or ""}}
    return Action(step, turns[at], at)


def _text(turn: Turn) -> Turn:
    if turn["role"] == "tool":
        return turn_of("user", RESULT + (turn["content"] or ""))
    if turn["role"] != "assistant":
        return turn
    for call in turn.get("tool_calls") or ():
        about = call.get("function") or {}
        called = {"type": "tool_call", "name": about.get("name"), "args": about.get("arguments")}
        return turn_of("assistant", as_json(called))
    return turn_of("assistant", as_json({"type": "final", "summary": turn["content"] or ""}))
