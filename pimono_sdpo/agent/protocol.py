"""Prompts of the agent, and its answers read as one action: a call, a final report, an error.

json    the text is exactly one object, {"type": "tool_call", "name", "args"} or
        {"type": "final", "summary", "changes"}; results come back as user messages
native  OpenAI's `tool_calls`, one at a time; a text without a call is the final report

Nothing else is accepted. The history then has the action in canonical form, so that no rollout
teaches a malformed one.
"""

import json
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from pimono_sdpo.llm.calls import Reply
from pimono_sdpo.schema import Protocol, TestPolicy
from rewards.verifiers.tool_calls import definitions

MAX_DEPTH = 64
# The limit of JSON columns and of other parsers.
MOST_INTEGER = 2**63 - 1
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*[ \t]*\n(.*?)\n?[ \t]*```\s*\Z", re.DOTALL)
_MARKUP = re.compile(
    r"<\|?tool_calls?\b|\[TOOL_CALLS\]|<function=|<invoke\b"
    r'|\A\s*(?:```(?:json)?\s*)?\{\s*"(?:type|name)"\s*:'
)
Json = dict[str, Any]


class _Call(msgspec.Struct, tag_field="type", tag="tool_call", forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"\S")]
    args: Json
    thought: Any = None


class _Final(msgspec.Struct, tag_field="type", tag="final"):
    summary: str
    changes: list[Any] = []


@dataclass(frozen=True, slots=True)
class Action:
    """A model's action: a call has `name` and `args`, a final report the fields in `args`.

    `malformed` is the problem of a `parse_error`, or what was left out of another action. `text` is
    the text beside a native call.
    """

    kind: Literal["tool_call", "final", "parse_error"]
    name: str | None = None
    args: Json | None = None
    text: str = ""
    malformed: str = ""

    def render(self) -> Json:
        """Return the object of the json protocol."""
        if self.kind == "final":
            return {"type": "final", **(self.args or {})}
        return {"type": "tool_call", "name": self.name, "args": self.args}


def read_action(reply: Reply, protocol: Protocol) -> Action:
    """Read an answer; of several native calls the first is taken.

    >>> read_action(Reply('{"type": "tool_call", "name": "grep", "args": {"pattern": "x"}}'), "json").name
    'grep'
    >>> read_action(Reply("Sure! I will look first."), "json").malformed
    'it is prose and not one JSON object'
    """
    bare = _THOUGHT.sub("", reply.text).strip()
    calls, cut = reply.tool_calls, reply.finish_reason == "length"
    try:
        if calls and protocol == "native":
            function, several = calls[0]["function"], ""
            if len(calls) > 1:
                several = f"{len(calls)} calls in one answer, of which the first was taken"
            action = _read_object(function["arguments"] or "{}", function["name"])
            return replace(action, text=bare, malformed=several)
        if protocol == "json" and bare.startswith("{"):
            return _read_object(bare)
        problem = _explain(bare, protocol, bool(calls))
    except msgspec.DecodeError as error:
        problem = str(error)
        problem = f"its call cannot be read, {problem}" if protocol == "native" else f"it is not valid: {problem}"
    if protocol == "native" and not problem and not cut:
        return Action("final", args={"summary": bare})
    reasons = ["it was cut off at the maximum length" * cut, problem]
    return Action("parse_error", malformed=": ".join(filter(None, reasons)))


def _explain(text: str, protocol: Protocol, has_calls: bool) -> str:
    """Return why a text is neither an object nor, in the native protocol, a final report."""
    if not text:
        return "it is a native call and no text" if has_calls else "it is empty"
    if protocol == "native":
        return "it has a call written into its text" if _MARKUP.search(text) else ""
    if _FENCE.match(text):
        return "the JSON object stands in a code fence"
    has_object = "{" in text and '"type"' in text
    return "there is text before the JSON object" if has_object else "it is prose and not one JSON object"


def _read_object(text: str, name: str | None = None) -> Action:
    """Read an action, or the arguments of a call of `name`; raises msgspec.DecodeError."""
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    found = msgspec.convert(
        value if name is None else {"type": "tool_call", "name": name, "args": value}, _Call | _Final
    )
    if not _is_storable(value):
        raise msgspec.DecodeError(f"a number is too large, or it is nested deeper than {MAX_DEPTH}")
    if isinstance(found, _Call):
        return Action("tool_call", found.name.strip(), found.args)
    return Action("final", args={key: one for key, one in value.items() if key != "type"})


def _is_storable(value: Any, depth: int = 0) -> bool:
    if isinstance(value, int):
        return abs(value) <= MOST_INTEGER
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth <= MAX_DEPTH and all(_is_storable(one, depth + 1) for one in items)


_TEXTS = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text(encoding="utf-8"))
LOOP: str = _TEXTS["loop"]
PARAPHRASE: str = _TEXTS["paraphrase"]


def system_prompt(protocol: Protocol, test_policy: TestPolicy) -> str:
    """Return the first message of every run, which does not depend on the task."""
    if protocol == "native":
        return "\n\n".join((_TEXTS["task"], _TEXTS["native"], _TEXTS["tests"][test_policy]))
    tools = "\n".join(
        json.dumps({"name": one["name"], "description": one["description"], "args": one["parameters"]})
        for one in (tool["function"] for tool in definitions("repo_agent"))
    )
    return "\n\n".join((_TEXTS["task"], _TEXTS["json"] + tools, _TEXTS["tests"][test_policy]))


def describe_problem(action: Action, protocol: Protocol) -> str:
    """Return the note on an answer that could not be read."""
    return f"[driver] Your last answer could not be read: {action.malformed}. {_TEXTS['again'][protocol]}"
