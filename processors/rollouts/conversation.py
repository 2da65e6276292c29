"""Read and build the conversation of a run: turns, steps, and the context and target of each step.

A run is a row with the columns of ROLLOUT. Step i is the turn `messages[n_context]`, which has at most
one call; the turns before it are its context. There are two protocols: `native` has `tool_calls` and
turns of role `tool`; `json` has calls as JSON objects in the assistant's text, and results as user turns.
"""

import json
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pimono_sdpo.schema import TURN, Turn
from pimono_sdpo.text import shorten

Json = dict[str, Any]
Row = Mapping[str, Any]
# The reason for a reject, and its detail.
Why = tuple[str, str]
_EMPTY = dict.fromkeys(TURN)


def make_turn(role: str, content: str | None, **more: Any) -> Turn:
    """Return a turn with every column of TURN."""
    return {**_EMPTY, "role": role, "content": content, **more}  # type: ignore[typeddict-item]


def dump_json(value: Any) -> str:
    r"""Return a value as JSON on one line, without escaping letters, as in targets.

    >>> dump_json({"type": "tool_call", "name": "grep", "args": {"pattern": "é"}})
    '{"type": "tool_call", "name": "grep", "args": {"pattern": "é"}}'
    """
    return json.dumps(value, ensure_ascii=False)


def find_goal(run: Row, step: Row) -> int:
    """Return the index of the request of a step: the first user turn of a rollout, the latest of a session."""
    requests = [at for at, turn in enumerate(run["messages"][: step["n_context"]]) if turn["role"] == "user"]
    if not requests:
        return 0
    return requests[-1] if run["suite"] is None else requests[0]


def select_context(turns: Sequence[Turn], goal: int, last: int | None, tool_chars: int | None) -> list[Turn]:
    """Keep the system turn, the request at index `goal`, and the `last` assistant turns with their results.

    Later results and user turns are shortened to `tool_chars`. None keeps all turns, or all characters.
    """
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
    """Return the turn to learn; in the json protocol it is exactly one JSON object."""
    if run["protocol"] != "json" or step["kind"] == "parse_error":
        turn: Turn = run["messages"][step["n_context"]]
        return turn
    args = step["args"] if isinstance(step["args"], dict) else {}
    if step["kind"] == "final":
        return make_turn("assistant", dump_json({"type": "final", **args}))
    return make_turn("assistant", dump_json({"type": "tool_call", "name": step["name"], "args": args}))


# A call that is repeated this often in a row is a loop.
REPEATS = 3
MAX_ERROR = 200


def add_call(
    turns: list[Turn], steps: list[Json], text: str, call_id: str, name: str, args: Any, result: str, failed: bool
) -> None:
    """Append a call and its result as two turns, and their step."""
    loop = [(step["name"], step["args"]) for step in steps[1 - REPEATS :]] == [(name, args)] * (REPEATS - 1)
    kind = "parse_error" if not isinstance(args, dict) else "loop" if loop else "tool_call"
    steps.append(make_step(len(steps), kind, len(turns), name, args, result[:MAX_ERROR] if failed else None))
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": args}}
    turns.append(make_turn("assistant", text, tool_calls=[call]))
    turns.append(make_turn("tool", result, tool_call_id=call_id, name=name))


def add_answer(turns: list[Turn], steps: list[Json], text: str) -> None:
    """Append an answer without a call as a turn, and its step."""
    steps.append(make_step(len(steps), "final", len(turns)))
    turns.append(make_turn("assistant", text))


def make_step(
    index: int, kind: str, at: int, name: str | None = None, args: Any = None, error: str | None = None
) -> Json:
    """Return the step of the turn at index `at`; it worked if there is no error."""
    step = {"index": index, "kind": kind, "name": name, "args": args, "ok": error is None, "error": error}
    return {**step, "n_context": at, "tests_ok": None, "malformed": None}


def count_steps(steps: Sequence[Json]) -> Json:
    """Return the columns of a rollout that count its steps."""
    kinds = Counter(step["kind"] for step in steps)
    return {
        "n_steps": len(steps),
        "n_tool_calls": kinds["tool_call"],
        "parse_errors": kinds["parse_error"],
        "loop_detections": kinds["loop"],
    }


def has_worked(step: Row) -> bool:
    """Return whether a step is a call or a report that could be read and did not fail."""
    return step["kind"] in {"tool_call", "final"} and step["ok"] is not False


# Arguments that may be empty: the content of an empty file, or a replacement that deletes text.
MAY_BE_BLANK = frozenset({"content", "newText", "new_string", "new_str", "new_source"})


def find_problem(step: Row, tools: Sequence[Json]) -> Why | None:
    """Return why a call could not have worked, as reason and detail; None if it could."""
    if step["kind"] == "parse_error":
        return "malformed_call", step["error"] or ""
    if step["kind"] == "final":
        return None
    functions = {tool["function"]["name"]: tool["function"] for tool in tools if "function" in tool}
    if functions and step["name"] not in functions:
        return "unknown_tool", str(step["name"])
    schema = functions.get(step["name"], {}).get("parameters") or {}
    for name in schema.get("required") or ():
        value = step["args"].get(name)
        if isinstance(value, str) and not value.strip() and name not in MAY_BE_BLANK:
            return "blank_argument", name
    error = next(iter(_make_validator(dump_json(schema)).iter_errors(step["args"])), None)
    return ("invalid_arguments", error.message[:200]) if error else None


# Names of tests and their configuration, as globs for each part of a path.
TEST_NAMES = ("test", "tests", "test_*", "*_test.*", "*.test.*", "conftest.py", "pytest.ini")


def is_test(path: str) -> bool:
    """Return whether a path belongs to tests or their configuration.

    >>> is_test("src/tests/data.json"), is_test("test_add.py"), is_test("src/contest.py")
    (True, True, False)
    """
    return any(fnmatchcase(part, glob) for part in path.split("/") for glob in TEST_NAMES)


@lru_cache(maxsize=256)
def _make_validator(schema: str) -> Any:
    # Imported here because the filter uses this module without validating anything.
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
    tools = [{"name": tool["function"]["name"], "args": tool["function"].get("parameters")} for tool in run["tools"]]
    system = make_turn("system", PROMPTS["actions"].format(tools="\n".join(map(dump_json, tools))))
    messages = run["messages"]
    has_system = bool(messages) and messages[0]["role"] == "system"
    turns = [system, *map(_convert_turn, messages[has_system:])]
    steps = []
    for step in run["steps"]:
        at, args = step["n_context"], step["args"]
        if step["kind"] == "final" and not isinstance(args, dict):
            args = {"summary": messages[at]["content"] or ""}
        steps.append({**step, "args": args, "n_context": at + (not has_system)})
    return {**run, "messages": turns, "steps": steps, "protocol": "json"}


def _convert_turn(turn: Turn) -> Turn:
    text = turn["content"] or ""
    if turn["role"] == "tool":
        return make_turn("user", f"[tool_result]\n{text}")
    if turn["role"] != "assistant":
        return turn
    action: Json = {"type": "final", "summary": text}
    if calls := turn.get("tool_calls"):
        function = calls[0]["function"]
        action = {"type": "tool_call", "name": function["name"], "args": function["arguments"]}
    return make_turn("assistant", dump_json(action))
