"""JSON Schemas of the tools a completion may call.

`tool_schemas.json` holds the tools of Pi (`edit` in its three generations: one text, a closed list
of edits, an open list of edits) and the one tool of agents that write a bash block; those of the
repository agent are of `pimono_sdpo.agent`. Pi has taken "42" for a number since January 2026, and
one edit alone or edits written as text since its edits are a list; the others take nothing else.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry

from pimono_sdpo.agent.schemas import TOOLS

DEFAULT_FORMATS = {"repo_agent": ["json"], "bash_block": ["bash_block"]}


class BadTools(ValueError):
    """The spec's tools are none: the row is to blame, not the model."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool; arguments are good when one of the schemas, oldest first, takes them."""

    name: str
    schemas: tuple[dict[str, Any], ...]
    lenient: bool
    validators: tuple[Draft202012Validator, ...]

    def typed(self) -> dict[str, Any]:
        """Return the tool as transformers wants it, with the properties of all generations."""
        properties: dict[str, Any] = {}
        for schema in self.schemas:
            properties |= schema.get("properties") or {}
        return {"function": {"name": self.name, "parameters": {"properties": properties}}}


def tools_of(tools: str | Sequence[str | dict[str, Any]]) -> dict[str, Tool]:
    """Return the tools by name.

    `tools` is "pi", "repo_agent" or "bash_block", or a list of names of Pi's tools (names that Pi
    does not have take any object) and of OpenAI-style definitions. BadTools says what is wrong.
    """
    return _tools(json.dumps(tools))


@lru_cache(maxsize=1024)
def _tools(text: str) -> dict[str, Tool]:
    given = json.loads(text)
    if isinstance(given, str):
        if given not in _known():
            raise BadTools(f"tools is {given!r}; known sets are {', '.join(_known())}")
        lenient = given == "pi"
        found = [_tool(name, schemas, lenient) for name, schemas in _known()[given].items()]
    elif isinstance(given, list) and given:
        found = [_listed(entry) for entry in given]
    else:
        raise BadTools("tools must be the name of a set or a list of tools that is not empty")
    return {tool.name: tool for tool in found}


def _listed(entry: Any) -> Tool:
    if isinstance(entry, str):
        return _tool(entry, _known()["pi"].get(entry, [{"type": "object"}]), lenient=True)
    function = entry.get("function", entry) if isinstance(entry, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadTools(f"a tool is a name or a function with a name, not {str(entry)[:80]!r}")
    schema = function.get("parameters") or {"type": "object"}
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as found:
        raise BadTools(f"parameters of {function['name']}: {found.message[:200]}") from found
    return _tool(function["name"], [schema], lenient=False)


def _tool(name: str, schemas: list[dict[str, Any]], lenient: bool) -> Tool:
    # Without a registry of its own the validator would fetch a "$ref" from the network.
    validators = tuple(Draft202012Validator(schema, registry=Registry()) for schema in schemas)
    return Tool(name, tuple(schemas), lenient, validators)


@cache
def _known() -> dict[str, dict[str, list[dict[str, Any]]]]:
    known: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(
        Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
    )
    return known | {"repo_agent": {name: [tool["parameters"]] for name, tool in TOOLS.items()}}
