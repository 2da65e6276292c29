"""Prompts of the agent, and its answers read as one action: a call, a final report, an error.

json    the text is exactly one object, {"type": "tool_call", "name", "args"} or
        {"type": "final", "summary", "changes"}; results come back as user messages
native  OpenAI's `tool_calls`, one at a time; a text without a call is the final report

Nothing else is accepted. The history then has the action in canonical form, so that no rollout
teaches a malformed one.
"""

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pimono_sdpo.schema import Protocol, TestPolicy
from pimono_sdpo.text import replace_surrogates
from rewards.verifiers.tool_schemas import definitions

MAX_CHARS = 1_000_000
MAX_DEPTH = 64
# The limit of JSON columns and of other parsers.
MOST_INTEGER = 2**63 - 1
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*[ \t]*\n(.*?)\n?[ \t]*```\s*\Z", re.DOTALL)
_MARKUP = re.compile(
    r"<\|?tool_calls?\b|\[TOOL_CALLS\]|<function=|<invoke\b"
    r'|\A\s*(?:```(?:json)?\s*)?\{\s*"(?:type|name)"\s*:'
)


@dataclass(frozen=True, slots=True)
class Action:
    """A model's action: `kind` says whether `name` and `args` or `report` are set.

    `malformed` is the problem of a `parse_error`, or what was left out of another action. `text` is
    the text beside a native call; `report` is the final object.
    """

    kind: Literal["tool_call", "final", "parse_error"]
    name: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    malformed: str = ""


class _Unreadable(Exception):
    """Why an answer cannot be read as an action."""


def _reject(problem: object, cut: bool) -> Action:
    prefix = "it was cut off at the maximum length: " if cut else ""
    return Action("parse_error", malformed=f"{prefix}{problem}")


def read_json(text: str, cut: bool = False) -> Action:
    """Read an answer of the json protocol; `cut` means it reached the maximum length.

    >>> read_json('{"type": "tool_call", "name": "grep", "args": {"pattern": "x"}}').name
    'grep'
    >>> read_json("Sure! I will look first.").malformed
    'it is prose and not one JSON object'
    """
    bare = _THOUGHT.sub("", text).strip()
    try:
        if not bare:
            raise _Unreadable("it is empty")
        if _FENCE.match(bare):
            raise _Unreadable("the JSON object stands in a code fence")
        if not bare.startswith("{"):
            has_object = "{" in bare and '"type"' in bare
            before = "there is text before the JSON object"
            raise _Unreadable(before if has_object else "it is prose and not one JSON object")
        return _to_action(_loads(bare))
    except _Unreadable as problem:
        return _reject(problem, cut)


def read_native(text: str, calls: Sequence[Mapping[str, Any]], cut: bool = False) -> Action:
    """Read an answer of the native protocol; of several calls the first is taken.

    >>> call = {"function": {"name": "grep", "arguments": '{"pattern": "x"}'}}
    >>> read_native("", [call, call]).malformed
    '2 calls in one answer, of which the first was taken'
    """
    bare = _THOUGHT.sub("", text).strip()
    if calls:
        function = calls[0].get("function") or {}
        name, arguments = function.get("name"), function.get("arguments")
        try:
            args = _loads(arguments or "{}") if isinstance(arguments, str) else arguments
            action = _to_action({"type": "tool_call", "name": name, "args": args})
        except _Unreadable as problem:
            return _reject(f"its call cannot be read, {problem}", cut)
        several = f"{len(calls)} calls in one answer, of which the first was taken"
        return replace(action, text=bare, malformed=several if len(calls) > 1 else "")
    if not bare:
        return _reject("it is empty", cut)
    if _MARKUP.search(bare):
        return _reject("it has a call written into its text", cut)
    if cut:
        return Action("parse_error", malformed="it was cut off at the maximum length")
    return Action("final", report={"type": "final", "summary": bare})


def render_action(action: Action) -> str:
    """Return an action in the form of the json protocol."""
    if action.kind == "final":
        return json.dumps(action.report, ensure_ascii=False)
    call = {"type": "tool_call", "name": action.name, "args": action.args}
    return json.dumps(call, ensure_ascii=False)


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
        return {replace_surrogates(key): _make_storable(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_make_storable(item, depth + 1) for item in value]
    return value


_TEXTS = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text(encoding="utf-8"))
LOOP: str = _TEXTS["loop"]


def system_prompt(protocol: Protocol, test_policy: TestPolicy) -> str:
    """Return the first message of every run, which does not depend on the task."""
    if protocol == "native":
        return "\n\n".join((_TEXTS["task"], _TEXTS["native"], _TEXTS["tests"][test_policy]))
    tools = "\n".join(
        json.dumps({"name": one["name"], "description": one["description"], "args": one["parameters"]})
        for one in (tool["function"] for tool in definitions("repo_agent"))
    )
    return "\n\n".join((_TEXTS["task"], _TEXTS["json"] + tools, _TEXTS["tests"][test_policy]))


def render_parse_note(action: Action, protocol: Protocol) -> str:
    """Return the note on an answer that could not be read."""
    again = _TEXTS["again"][protocol]
    return f"[driver] Your last answer could not be read: {action.malformed}. {again}"
