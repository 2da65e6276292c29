"""A run as a conversation: its turns, its actions one call at a time, and what each was based on.

Both protocols are read: `native` has `tool_calls` and turns of role `tool`; `json` has calls as
JSON objects in the text of the assistant and results as turns of the user.

A turn with several calls becomes one turn per call, each followed by its own result, so that every
action has exactly one call.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from pimono_sdpo.schema import TURN, Turn
from pimono_sdpo.text import shorten

Json = dict[str, Any]


def make_turn(role: str, content: str | None, **more: Any) -> Turn:
    """Return a turn with every column of TURN."""
    return complete_turn({"role": role, "content": content, **more})


def complete_turn(turn: Mapping[str, Any]) -> Turn:
    """Fill in the columns of TURN that a turn leaves out; arguments of calls are decoded."""
    full: Any = {name: turn.get(name) for name in TURN}
    full["tool_calls"] = [_decode_call(call) for call in turn.get("tool_calls") or ()] or None
    return full  # type: ignore[no-any-return]


def dump_json(value: Any) -> str:
    r"""Serialize as targets are: on one line, without escaping letters.

    >>> dump_json({"type": "tool_call", "name": "grep", "args": {"pattern": "é"}})
    '{"type": "tool_call", "name": "grep", "args": {"pattern": "é"}}'
    """
    return json.dumps(value, ensure_ascii=False)


def select_context(prompt: Sequence[Turn], goal: int, last: int | None, tool_chars: int | None) -> list[Turn]:
    """Keep the system's turn, the request at index `goal`, and the turns after it.

    With `last`, only that many turns of the assistant with their results are kept; results are
    shortened to `tool_chars`.
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
        turn
        if at <= first or turn["role"] not in {"tool", "user"}
        else {**turn, "content": shorten(turn["content"] or "", tool_chars)}
        for at, turn in enumerate(kept)
    ]


def _decode_call(call: Json) -> Json:
    """Decode arguments: chat templates need an object, APIs give text."""
    function = call.get("function") or {}
    given = function.get("arguments")
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            # Arguments that are not valid JSON stay text; such a call is never a target.
            return call
    return {**call, "function": {**function, "arguments": given}}


# Texts that may be empty: an empty file, and a replacement that deletes.
MAY_BE_BLANK = frozenset({"content", "newText", "new_string", "new_str", "new_source"})


@dataclass(frozen=True)
class Action:
    """A step of a run and its turn; the model had read `turns[:n_context]`."""

    step: Json
    turn: Turn
    n_context: int


@dataclass(frozen=True)
class Run:
    """All turns of a run, in order, each with at most one call; and its actions."""

    turns: list[Turn]
    actions: list[Action]
    protocol: str
    is_rollout: bool

    def goal_of(self, action: Action) -> int:
        """Return the index of the request: the first of a rollout, the latest of a session."""
        requests = [at for at in range(action.n_context) if self.turns[at]["role"] == "user"]
        return 0 if not requests else requests[0] if self.is_rollout else requests[-1]


def read_run(row: Mapping[str, Any]) -> Run:
    """Return the turns and actions of a run, without steps that have no assistant's turn."""
    steps: dict[int, list[Json]] = {}
    for step in row["steps"]:
        steps.setdefault(step["n_context"], []).append(step)
    turns: list[Turn] = []
    actions: list[Action] = []
    given = [complete_turn(turn) for turn in row["messages"]]
    results: dict[str, Any] = {}
    for at, turn in enumerate(given):
        if turn["role"] == "tool" and results.pop(turn.get("tool_call_id") or "", {}):
            # It is already placed behind its call.
            continue
        taken = steps.get(at, []) if turn["role"] == "assistant" else []
        calls = turn.get("tool_calls") or []
        if len(calls) > 1:
            after = takewhile(lambda one: one["role"] == "tool", given[at + 1 :])
            results = {one["tool_call_id"] or "": one for one in after}
        for number, call in enumerate(calls or [{}]):
            alone = turn
            if len(calls) > 1:
                content = turn["content"] if number == 0 else ""
                alone = make_turn("assistant", content, tool_calls=[call])
            actions += [Action(step, alone, len(turns)) for step in taken[number : number + 1]]
            turns.append(alone)
            if len(calls) > 1 and call.get("id") in results:
                turns.append(results[call["id"]])
    return Run(turns, actions, row["protocol"], row["suite"] is not None)


def render_target(action: Action, protocol: str) -> Turn:
    """Return the turn to learn: in the json protocol exactly one JSON object."""
    step = action.step
    if protocol != "json" or step["kind"] == "parse_error":
        return action.turn
    args = step["args"] if isinstance(step["args"], dict) else {}
    if step["kind"] == "final":
        return make_turn("assistant", dump_json({"type": "final", **args}))
    return make_turn("assistant", dump_json({"type": "tool_call", "name": step["name"], "args": args}))


# A call that is made this often in a row is a loop.
REPEATS = 3


def add_step(steps: list[Json], at: int, name: str | None = None, args: Any = None, error: str | None = None) -> None:
    """Add the step of the turn at index `at`: a call, or without a name the final answer."""
    kind = "final"
    if name is not None:
        last = [(step["name"], step["args"]) for step in steps[1 - REPEATS :]]
        is_loop = last == [(name, args)] * (REPEATS - 1)
        kind = "parse_error" if not isinstance(args, dict) else "loop" if is_loop else "tool_call"
    steps.append(
        {
            "index": len(steps),
            "kind": kind,
            "name": name,
            "args": args,
            "ok": error is None,
            "error": error,
            "n_context": at,
            "tests_ok": None,
            "malformed": None,
        }
    )


def has_worked(step: Mapping[str, Any]) -> bool:
    """Whether a step is a call or a report that could be read and did not fail."""
    return step["kind"] in {"tool_call", "final"} and step["ok"] is not False


def action_key(action: Action) -> str:
    """Return a key that equal actions of other runs share: the same call or the same words."""
    step = action.step
    if step["kind"] == "parse_error":
        return dump_json(["parse_error", action.turn["content"]])
    return dump_json([step["kind"] == "final", step["name"], step["args"]])


def find_problem(step: Mapping[str, Any], tools: Sequence[Json]) -> tuple[str, str] | None:
    """Return reason and detail why a call could not have worked, None if it could."""
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
    wrong = next(iter(_make_validator(dump_json(schema)).iter_errors(step["args"])), None)
    return ("invalid_arguments", wrong.message[:200]) if wrong else None


# Names of tests and their settings, as globs for each part of a path.
TEST_NAMES = ("test", "tests", "test_*", "*_test.*", "*.test.*", "conftest.py", "pytest.ini")


def is_test(path: str) -> bool:
    """Tell tests and their settings by their names.

    >>> is_test("src/tests/data.json"), is_test("test_add.py"), is_test("src/contest.py")
    (True, True, False)
    """
    return any(fnmatchcase(part, glob) for part in path.split("/") for glob in TEST_NAMES)


@lru_cache(maxsize=256)
def _make_validator(schema: str) -> Any:
    # The filter reads sessions with this module, and does not need them.
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from referencing import Registry

    decoded = json.loads(schema)
    try:
        Draft202012Validator.check_schema(decoded)
    except SchemaError:
        # A tool with an invalid schema accepts any arguments.
        decoded = {}
    # Without a registry of its own the validator would fetch a "$ref" from the network.
    return Draft202012Validator(decoded, registry=Registry())


As = Literal["as_recorded", "json"]
PROMPTS = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text(encoding="utf-8"))


def convert_to_json(run: Run, tools: Sequence[Json]) -> Run:
    """Return the run in the json protocol."""
    if run.protocol == "json":
        return run
    known = [{"name": tool["function"]["name"], "args": tool["function"].get("parameters")} for tool in tools]
    system = make_turn("system", PROMPTS["actions"].format(tools="\n".join(map(dump_json, known))))
    had = bool(run.turns) and run.turns[0]["role"] == "system"
    turns = [system, *map(_convert_turn, run.turns[had:])]
    actions = []
    for action in run.actions:
        step, at = action.step, action.n_context + (not had)
        if step["kind"] == "final" and not isinstance(step["args"], dict):
            step = {**step, "args": {"summary": action.turn["content"] or ""}}
        actions.append(Action(step, turns[at], at))
    return replace(run, turns=turns, actions=actions, protocol="json")


def _convert_turn(turn: Turn) -> Turn:
    if turn["role"] == "tool":
        return make_turn("user", f"[tool_result]\n{turn['content'] or ''}")
    if turn["role"] != "assistant":
        return turn
    called: Json = {"type": "final", "summary": turn["content"] or ""}
    if calls := turn.get("tool_calls"):
        about = calls[0].get("function") or {}
        called = {"type": "tool_call", "name": about.get("name"), "args": about.get("arguments")}
    return make_turn("assistant", dump_json(called))
