"""Define the tools of a session in the form that chat templates take.

Sessions do not record which tools the agent had: its common ones are assumed, and those that it called.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pimono_sdpo.traces.harness.base import Schema, Tool, describe_object
from pimono_sdpo.traces.harness.blocks import COMMON_TOOLS

Json = dict[str, Any]
_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
# The names that the APIs of OpenAI and Anthropic accept, and dots. Models write anything else as a name, too.
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII)


def describe_tools(
    calls: Iterable[tuple[str, Any]], agent: str, known: Mapping[str, Tool] | None = None
) -> list[Json]:
    """Return the definitions of the common tools among the known ones, and of the called ones, by name.

    `calls` are names with decoded arguments, None for unknown ones. A known tool has the newest of its
    schemas that all its calls fit; any other tool is described from its calls.
    """
    own = known or {}
    called: dict[str, list[Json]] = {name: [] for name in COMMON_TOOLS & own.keys()}
    for name, arguments in calls:
        if _NAME.fullmatch(name):
            called.setdefault(name, []).extend([arguments] if isinstance(arguments, dict) else [])
    tools = []
    for name, arguments_of in sorted(called.items()):
        tool = own.get(name, Tool(f"The tool `{name}` of {agent}.", ()))
        fitting = [schema for schema in tool.schemas if all(_fits(one, schema) for one in arguments_of)]
        tools.append(tool.define(name, fitting[-1] if fitting else _infer_schema(arguments_of)))
    return tools


def _fits(arguments: Json, schema: Schema) -> bool:
    known = schema["properties"]
    return arguments.keys() >= {*schema["required"]} and all(
        known[key].get("type", kind) in {kind, "number" if kind == "integer" else kind}
        for key, kind in ((key, _KINDS.get(type(value))) for key, value in arguments.items())
        if key in known
    )


def _infer_schema(calls: list[Json]) -> Schema:
    """Describe arguments: one is required if all calls have it, and has a type if all its values have the same."""
    properties: dict[str, Schema] = {}
    for key in sorted({key for arguments in calls for key in arguments if _NAME.fullmatch(key)}):
        kinds = {_KINDS.get(type(arguments[key])) for arguments in calls if key in arguments}
        kind = kinds.pop()
        properties[key] = {} if kinds or kind is None else {"type": kind}
    required = (key for key in properties if all(key in arguments for arguments in calls))
    return describe_object(" ".join(required), **properties)
