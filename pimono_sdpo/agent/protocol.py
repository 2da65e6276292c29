"""Prompts of the agent, and its answers read as one action: a call, a final report, an error.

json    the text is exactly one object, {"type": "tool_call", "name", "args"} or
        {"type": "final", "summary", "changes"}; results come back as user messages
native  OpenAI's `tool_calls`, one at a time; a text without a call is the final report

Strict reading accepts nothing else. Lenient reading also looks for the object in code fences and
prose, accepts common misnomers, and records the correction in `malformed`. The history then has the
action in canonical form, so that no rollout teaches the malformed one.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pimono_sdpo.schema import Protocol, TestPolicy
from pimono_sdpo.text import replace_surrogates
from rewards.verifiers.tool_schemas import definitions

MAX_CHARS = 1_000_000
MAX_DEPTH = 64
MAX_STARTS = 50
# The limit of JSON columns and of other parsers.
MOST_INTEGER = 2**63 - 1
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*[ \t]*\n(.*?)\n?[ \t]*```\s*\Z", re.DOTALL)
_MARKUP = re.compile(
    r"<\|?tool_calls?\b|\[TOOL_CALLS\]|<function=|<invoke\b"
    r'|\A\s*(?:```(?:json)?\s*)?\{\s*"(?:type|name)"\s*:'
)
_ARGS = ("args", "arguments", "parameters", "input")


@dataclass(frozen=True, slots=True)
class Action:
    """A model's action: `kind` says whether `name` and `args` or `report` are set.

    `malformed` is the problem of a `parse_error`; for other kinds, what a lenient reader corrected,
    or "". `text` is the text beside a native call; `report` is the final object.
    """

    kind: Literal["tool_call", "final", "parse_error"]
    name: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    malformed: str = ""


class _Unreadable(Exception):
    """Why an answer cannot be read as an action."""


def read_json(text: str, *, lenient: bool = False, cut: bool = False) -> Action:
    """Read an answer of the json protocol; `cut` means it reached the maximum length.

    >>> read_json('{"type": "tool_call", "name": "grep", "args": {"pattern": "x"}}').name
    'grep'
    >>> read_json("Sure! I will look first.").malformed
    'it is prose and not one JSON object'
    """
    bare = _THOUGHT.sub("", text).strip()
    try:
        try:
            return _to_action(_decode_whole(bare))
        except _Unreadable as problem:
            if not lenient:
                raise
            value = _find_action(bare)
            if value is None:
                raise
            action = _to_action(_rename_keys(value))
            malformed = str(problem)
            return Action(action.kind, action.name, action.args, action.report, malformed=malformed)
    except _Unreadable as problem:
        malformed = f"it was cut off at the maximum length: {problem}" if cut else str(problem)
        return Action("parse_error", malformed=malformed)


def read_native(
    text: str, calls: Sequence[Mapping[str, Any]], *, lenient: bool = False, cut: bool = False
) -> Action:
    """Read an answer of the native protocol; of several calls the first is taken.

    >>> call = {"function": {"name": "grep", "arguments": '{"pattern": "x"}'}}
    >>> read_native("", [call, call]).malformed
    '2 calls in one answer, of which the first was taken'
    """
    bare = _THOUGHT.sub("", text).strip()
    prefix = "it was cut off at the maximum length: " if cut else ""
    if not calls:
        if not bare:
            return Action("parse_error", malformed=f"{prefix}it is empty")
        if _MARKUP.search(bare):
            if lenient and (value := _find_action(bare)) is not None:
                try:
                    action = _to_action(_rename_keys(value))
                except _Unreadable:
                    pass
                else:
                    why = "a call written into the text"
                    return Action(
                        action.kind, action.name, action.args, action.report, malformed=why
                    )
            return Action("parse_error", malformed=f"{prefix}it has a call written into its text")
        if cut:
            return Action("parse_error", malformed="it was cut off at the maximum length")
        return Action("final", report={"type": "final", "summary": bare})
    function = calls[0].get("function") or {}
    try:
        name, arguments = function.get("name"), function.get("arguments")
        if isinstance(arguments, str):
            arguments = _loads(arguments or "{}")
        action = _to_action({"type": "tool_call", "name": name, "args": arguments})
    except _Unreadable as problem:
        return Action("parse_error", malformed=f"{prefix}its call cannot be read, {problem}")
    several = f"{len(calls)} calls in one answer, of which the first was taken"
    malformed = several if len(calls) > 1 else ""
    return Action("tool_call", action.name, action.args, text=bare, malformed=malformed)


def render_action(action: Action) -> str:
    """Return an action in the form of the json protocol."""
    if action.kind == "final":
        return json.dumps(action.report, ensure_ascii=False)
    call = {"type": "tool_call", "name": action.name, "args": action.args}
    return json.dumps(call, ensure_ascii=False)


def _decode_whole(text: str) -> dict[str, Any]:
    """Decode a text that is exactly one object."""
    if not text:
        raise _Unreadable("it is empty")
    if not text.startswith("{"):
        if _FENCE.match(text):
            raise _Unreadable("the JSON object stands in a code fence")
        if "{" in text and '"type"' in text:
            raise _Unreadable("there is text before the JSON object")
        raise _Unreadable("it is prose and not one JSON object")
    value = _loads(text)
    if not isinstance(value, dict):
        raise _Unreadable("it is not a JSON object")
    return value


def _loads(text: str) -> Any:
    if len(text) > MAX_CHARS:
        raise _Unreadable(f"it is longer than {MAX_CHARS} characters")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise _Unreadable("there is text after the JSON object") from error
        raise _Unreadable(f"it is not valid JSON: {error.msg} at character {error.pos}") from error
    except (ValueError, RecursionError) as error:
        raise _Unreadable("it is not valid JSON: a number or the nesting is too large") from error


def _to_action(value: dict[str, Any]) -> Action:
    """Read an object that is exactly an action."""
    kind = value.get("type")
    if kind == "final":
        report = _make_storable(value)
        if not isinstance(report.get("summary"), str):
            raise _Unreadable("`final` has no `summary` text")
        if not isinstance(report.get("changes", []), list):
            raise _Unreadable("`changes` of `final` is not a list")
        return Action("final", report=report)
    if kind != "tool_call":
        raise _Unreadable("the object has no `type` that is `tool_call` or `final`")
    name, args = value.get("name"), value.get("args")
    if not isinstance(name, str) or not name.strip():
        raise _Unreadable("the tool call has no `name`")
    if "args" not in value:
        raise _Unreadable("the tool call has no `args`")
    if not isinstance(args, dict):
        raise _Unreadable("`args` of the tool call is not an object")
    if unknown := sorted(set(value) - {"type", "name", "args", "thought"}):
        raise _Unreadable(f"the tool call has the unknown key `{unknown[0][:80]}`")
    return Action("tool_call", replace_surrogates(name.strip()), _make_storable(args))


def _find_action(text: str) -> dict[str, Any] | None:
    """Return the first object in a text that looks like an action."""
    for value in _objects(text[:MAX_CHARS]):
        if value.get("type") == "final" or isinstance(value.get("name"), str):
            return value
    return None


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a text, outermost first; only few attempts, as each scans the text."""
    decoder = json.JSONDecoder(strict=False)
    start = tried = 0
    while (start := text.find("{", start)) >= 0 and tried < MAX_STARTS:
        tried += 1
        try:
            value, start = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start += 1
            continue
        if isinstance(value, dict):
            yield value


def _rename_keys(value: dict[str, Any]) -> dict[str, Any]:
    """Rename common misnomers of a call to the protocol's names; other keys are dropped."""
    if value.get("type") == "final":
        return value
    key = next((key for key in _ARGS if key in value), None)
    args = value.get(key, {}) if key else {}
    if isinstance(args, str):
        args = _loads(args)
    return {"type": "tool_call", "name": value["name"], "args": args}


def _make_storable(value: Any, depth: int = 0) -> Any:
    """Return a value that every column can hold: no lone surrogates, no infinite numbers."""
    if depth > MAX_DEPTH:
        raise _Unreadable(f"it is nested deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise _Unreadable(f"{value} is not a JSON number")
    if isinstance(value, int) and abs(value) > MOST_INTEGER:
        raise _Unreadable("a number is too large")
    if isinstance(value, dict):
        return {
            replace_surrogates(key): _make_storable(item, depth + 1) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_make_storable(item, depth + 1) for item in value]
    return value


_TASK = """\
You mend a code repository. You see it through tools only, and all paths are relative to its \
top folder. Find the cause of the problem, change as little as needed, and leave everything else \
as it is. Look at the files before you write one; write_file replaces the whole file, so give all \
of it."""
_JSON = """\
Every answer is exactly one JSON object and nothing else: no text around it, no code fence. \
Either call one tool:
{"type": "tool_call", "name": "read_file", "args": {"rel_path": "src/main.py"}}
or finish, when the work is done:
{"type": "final", "summary": "what was wrong and what you changed", \
"changes": [{"path": "src/main.py", "description": "what changed there"}]}

Results come back as messages that begin with [tool_result]. The tools, as JSON Schemas of `args`:
"""
_NATIVE = """\
Call one tool at a time. When the work is done, answer without a tool call: say what was wrong and \
what you changed."""
_TESTS: dict[TestPolicy, str] = {
    "on_write": "After each file you write, the tests are run for you; their result stands below "
    "that of the tool, after [TESTS PASS] or [TESTS FAIL]. You cannot run anything yourself.",
    "on_final": "Tests are run once you have finished. You cannot run anything yourself.",
    "never": "You cannot run anything.",
}
_AGAIN = {
    "json": 'Answer with exactly one JSON object, {"type": "tool_call", "name": ..., "args": '
    '{...}} or {"type": "final", "summary": ...}, and nothing else.',
    "native": "Call one of the tools, or answer with a plain text when the work is done.",
}


def system_prompt(protocol: Protocol, test_policy: TestPolicy) -> str:
    """Return the first message of every run, which does not depend on the task."""
    if protocol == "native":
        return "\n\n".join((_TASK, _NATIVE, _TESTS[test_policy]))
    tools = "\n".join(
        json.dumps(
            {"name": one["name"], "description": one["description"], "args": one["parameters"]}
        )
        for one in (tool["function"] for tool in definitions("repo_agent"))
    )
    return "\n\n".join((_TASK, _JSON + tools, _TESTS[test_policy]))


def goal_prompt(goal: str) -> str:
    """Return the second message of a run."""
    return f"GOAL:\n{goal}"


def render_parse_note(action: Action, protocol: Protocol) -> str:
    """Return the note on an answer that could not be read."""
    return f"[driver] Your last answer could not be read: {action.malformed}. {_AGAIN[protocol]}"


def render_malformed_note(action: Action) -> str:
    """Return the note on an answer that was accepted although it was malformed."""
    return f"[driver] Your last answer was not as wanted: {action.malformed}."


LOOP = (
    "Loop detected: you made this same call before and nothing has changed since, so it was not "
    "run again. Look at something else, or change your approach."
)
