"""The actions of a run: what the model had read, and what it did next, one call at a time.

reads  the columns of ROLLOUT

Where a turn holds several calls, each becomes a turn of its own, followed by its own result: one
action has one call.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry

from pimono_sdpo.schema import Turn
from processors.rollouts.conversations import as_json, call_of, complete, turn_of

# Texts that may be empty: a file without content, and a passage that is taken away.
MAY_BE_BLANK = frozenset({"content", "newText", "new_string", "new_str", "new_source"})
Json = dict[str, Any]


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
