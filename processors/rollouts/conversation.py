"""Runs as conversations: their turns, the turn of each step as a target, and what it was based on.

A run is a row with the columns of ROLLOUT. Step i is the turn `messages[n_context]`, which has at most
one call; the model had read the turns before it. Both protocols are read: `native` has `tool_calls` and
turns of role `tool`, `json` has calls as JSON objects in the text of the assistant and results as turns
of the user.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pimono_sdpo.schema import TURN, Turn
from pimono_sdpo.text import shorten

Json = dict[str, Any]
Row = Mapping[str, Any]
# A reason for a reject, and its detail.
Why = tuple[str, str]
_EMPTY = dict.fromkeys(TURN)


def make_turn(role: str, content: str | None, **more: Any) -> Turn:
    """Return a turn with every column of TURN."""
    return {**_EMPTY, "role": role, "content": content, **more}  # type: ignore[typeddict-item]


def dump_json(value: Any) -> str:
    r"""Serialize as targets are: on one line, without escaping letters.

    >>> dump_json({"type": "tool_call", "name": "grep", "args": {"pattern": "é"}})
    '{"type": "tool_call", "name": "grep", "args": {"pattern": "é"}}'
    """
    return json.dumps(value, ensure_ascii=False)


def find_goal(run: Row, step: Row) -> int:
    """Return the index of the request of a step: the first of a rollout, the latest of a session."""
    requests = [at for at, turn in enumerate(run["messages"][: step["n_context"]]) if turn["role"] == "user"]
    return 0 if not requests else requests[-1] if run["suite"] is None else requests[0]


def select_context(turns: Sequence[Turn], goal: int, last: int | None, tool_chars: int | None) -> list[Turn]:
    """Keep the system's turn, the request at index `goal`, and the `last` turns of the assistant with results."""
    kept = list(turns)
    if last is not None:
        starts = [at for at in range(goal + 1, len(turns)) if turns[at]["role"] == "assistant"]
        start = [*starts, len(turns)][-last - 1] if len(starts) > last else goal + 1
        kept = [turn for turn in turns[:goal] if turn["role"] == "system"]
        kept += [turns[goal], *turns[start:]]
    if tool_chars is None:
        return kept
    first = next((at for at, turn in enumerate(kept) if turn["role"] == "user"), 0)
    for at in range(first + 1, len(kept)):
        if kept[at]["role"] in {"tool", "user"}:
            kept[at] = {**kept[at], "content": shorten(kept[at]["content"] or "", tool_chars)}
    return kept


def render_target(run: Row, step: Row) -> Turn:
    """Return the turn to learn: in the json protocol exactly one JSON object."""
    if run["protocol"] != "json" or step["kind"] == "parse_error":
        turn: Turn = run["messages"][step["n_context"]]
        return turn
    args = step["args"] if isinstance(step["args"], dict) else {}
    called = {"type": "tool_call", "name": step["name"], "args": args}
    return make_turn("assistant", dump_json({"type": "final", **args} if step["kind"] == "final" else called))


# A call that is made this often in a row is a loop.
REPEATS = 3
MAX_ERROR = 200


def add_call(
    turns: list[Turn], steps: list[Json], text: str, call_id: str, name: str, args: Any, result: str, failed: bool
) -> None:
    """Add a call and its result: two turns, and their step."""
    loop = [(step["name"], step["args"]) for step in steps[1 - REPEATS :]] == [(name, args)] * (REPEATS - 1)
    kind = "parse_error" if not isinstance(args, dict) else "loop" if loop else "tool_call"
    steps.append(make_step(len(steps), kind, len(turns), name, args, result[:MAX_ERROR] if failed else None))
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": args}}
    turns.append(make_turn("assistant", text, tool_calls=[call]))
    turns.append(make_turn("tool", result, tool_call_id=call_id, name=name))


def add_answer(turns: list[Turn], steps: list[Json], text: str) -> None:
    """Add an answer without a call, and its step."""
    steps.append(make_step(len(steps), "final", len(turns)))
    turns.append(make_turn("assistant", text))


def make_step(
    index: int, kind: str, at: int, name: str | None = None, args: Any = None, error: str | None = None
) -> Json:
    """Return a step whose answer is the turn at index `at`; it worked if there is no error."""
    step = {"index": index, "kind": kind, "name": name, "args": args, "ok": error is None, "error": error}
    return {**step, "n_context": at, "tests_ok": None, "malformed": None}


def count_steps(steps: Sequence[Json]) -> Json:
    """Return the columns of a rollout that count its steps."""
    kinds = [step["kind"] for step in steps]
    counted = {"n_tool_calls": "tool_call", "parse_errors": "parse_error", "loop_detections": "loop"}
    return {"n_steps": len(kinds), **{name: kinds.count(kind) for name, kind in counted.items()}}


def has_worked(step: Row) -> bool:
    """Whether a step is a call or a report that could be read and did not fail."""
    return step["kind"] in {"tool_call", "final"} and step["ok"] is not False


# Texts that may be empty: an empty file, and a replacement that deletes.
MAY_BE_BLANK = frozenset({"content", "newText", "new_string", "new_str", "new_source"})


def find_problem(step: Row, tools: Sequence[Json]) -> Why | None:
    """Return reason and detail why a call could not have worked, None if it could."""
    if step["kind"] == "parse_error":
        return "malformed_call", step["error"] or ""
    if step["kind"] == "final":
        return None
    known = {tool["function"]["name"]: tool["function"] for tool in tools if "function" in tool}
    if known and step["name"] not in known:
        return "unknown_tool", str(step["name"])
    schema = (known.get(step["name"]) or {}).get("parameters") or {}
    for name in schema.get("required") or ():
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


def convert_to_json(run: Row) -> Row:
    """Return the run in the json protocol."""
    if run["protocol"] == "json":
        return run
    known = [{"name": tool["function"]["name"], "args": tool["function"].get("parameters")} for tool in run["tools"]]
    system = make_turn("system", PROMPTS["actions"].format(tools="\n".join(map(dump_json, known))))
    given = run["messages"]
    had = bool(given) and given[0]["role"] == "system"
    turns = [system, *map(_convert_turn, given[had:])]
    steps = []
    for step in run["steps"]:
        at, args = step["n_context"], step["args"]
        if step["kind"] == "final" and not isinstance(args, dict):
            args = {"summary": given[at]["content"] or ""}
        steps.append({**step, "args": args, "n_context": at + (not had)})
    return {**run, "messages": turns, "steps": steps, "protocol": "json"}


def _convert_turn(turn: Turn) -> Turn:
    text = turn["content"] or ""
    if turn["role"] == "tool":
        return make_turn("user", f"[tool_result]\n{text}")
    if turn["role"] != "assistant":
        return turn
    called: Json = {"type": "final", "summary": text}
    if calls := turn.get("tool_calls"):
        function = calls[0]["function"]
        called = {"type": "tool_call", "name": function["name"], "args": function["arguments"]}
    return make_turn("assistant", dump_json(called))
