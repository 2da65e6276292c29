"""Check the tool calls of a completion: are they readable, do the tools exist, do arguments fit.

spec   tools: what may be called, as in `tools_of`; without it the row is skipped
       harness: the harness to whose tools the names of a list belong (default: Pi)
       format: a name of EXAMPLES (default: that of the set of tools, else every family's); with the
       format of the model's own chat template no other counts
       response_template: the response template of the model's tokenizer; without `format` it alone counts
       call: "required" (default), or "optional" to skip completions without a call
       truncated: whether the completion stopped without its end token
score  by the table, that of the worst call

| what the completion has | score |
|---|---|
| no call, a call that cannot be read, a message that was cut off | 0.0 |
| a call of a tool that does not exist | 0.2 |
| arguments that are not an object | 0.3 |
| a required argument is missing | 0.4 |
| all are present, one has the wrong type or value | 0.6 |
| only arguments that the tool does not know are wrong | 0.8 |
| every call is valid | 1.0 |

The tools of a harness are those of its `Harness` object; those of the repository agent are in
agent_tools.json. Pi has taken "42" for a number since January 2026, and one edit alone, or edits
written as text, since its edits are a list.
"""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from pimono_sdpo.text import shorten
from pimono_sdpo.traces.harness import HARNESSES
from pimono_sdpo.traces.harness.base import Schema
from rewards.verifiers.call_formats import EXAMPLES, FAMILIES, Call, Reading, read_calls
from rewards.verifiers.rubric import BadSpec, VerifierResult, failed, passed, skipped

NAME = "tool_calls"
UNKNOWN_TOOL = 0.2
FAMILIES_ONLY = list(FAMILIES)
MAX_FEEDBACK = 1200  # characters; TRL cuts a long teacher prompt from the left
MAX_SHOWN = 3  # failed calls, and problems of one

AGENT_TOOLS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("agent_tools.json").read_text(encoding="utf-8")
)
DEFAULT_FORMATS = {"repo_agent": ["json"]}
HARNESS_TOOLS = {harness.name: harness.tools for harness in HARNESSES if harness.tools}
# The sets of tools that `definitions` can describe.
DECLARED = ("repo_agent", *HARNESS_TOOLS)
COERCING = frozenset(harness.name for harness in HARNESSES if harness.coerces)
# The schemas of each known set of tools, by the names of the tools.
TOOL_SETS: dict[str, dict[str, tuple[Schema, ...]]] = {
    **{harness: {name: tool.schemas for name, tool in tools.items()} for harness, tools in HARNESS_TOOLS.items()},
    "repo_agent": {name: (tool["parameters"],) for name, tool in AGENT_TOOLS.items()},
}


@dataclass(frozen=True)
class Tool:
    """A tool; arguments are good when one of the schemas, oldest first, takes them."""

    name: str
    schemas: tuple[dict[str, Any], ...]
    lenient: bool = False

    @cached_property
    def validators(self) -> list[Draft202012Validator]:
        """The validators of the schemas, which without a registry would fetch a "$ref" from the network."""
        return [Draft202012Validator(schema, registry=Registry()) for schema in self.schemas]

    def typed(self) -> dict[str, Any]:
        """Return the tool as transformers wants it, with the properties of all generations."""
        properties = {name: one for schema in self.schemas for name, one in (schema.get("properties") or {}).items()}
        return {"function": {"name": self.name, "parameters": {"properties": properties}}}


def tools_of(tools: str | Sequence[str | dict[str, Any]], harness: str = "pi") -> dict[str, Tool]:
    """Return the tools by name; raises BadSpec.

    `tools` is the name of a set in TOOL_SETS, or a list of OpenAI-style definitions and of names of
    the harness's tools (a name that it does not have takes any object).
    """
    if not isinstance(harness, str) or harness not in HARNESS_TOOLS:
        raise BadSpec(f"`harness` of the spec is {harness!r}; known are {', '.join(HARNESS_TOOLS)}.")
    return _tools(json.dumps(tools), harness)


@lru_cache(maxsize=1024)
def _tools(text: str, harness: str) -> dict[str, Tool]:
    given: Any = json.loads(text)
    if isinstance(given, str):
        if given not in TOOL_SETS:
            raise BadSpec(f"`tools` of the spec is {given!r}; known sets are {', '.join(TOOL_SETS)}.")
        given, harness = [*TOOL_SETS[given]], given
    if not isinstance(given, list) or not given:
        raise BadSpec("`tools` of the spec must be the name of a set, or a list of tools that is not empty.")
    return {tool.name: tool for tool in (_tool(entry, harness) for entry in given)}


def _tool(entry: Any, harness: str) -> Tool:
    if isinstance(entry, str):
        return Tool(entry, TOOL_SETS[harness].get(entry, ({"type": "object"},)), harness in COERCING)
    function = entry.get("function", entry) if isinstance(entry, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadSpec(f"`tools` of the spec has {str(entry)[:80]!r}; a tool is a name, or a function with a name.")
    schema = function.get("parameters") or {"type": "object"}
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as found:
        raise BadSpec(
            f"The parameters of {function['name']} in the spec are not a schema: {found.message[:200]}."
        ) from found
    return Tool(function["name"], (schema,))


MAX_ERRORS = 12
MAX_LOOKED_AT = 50  # each costs as much as a whole valid call
NO_OBJECT, MISSING, WRONG, EXTRA = 0.3, 0.4, 0.6, 0.8


class Checked(NamedTuple):
    """The score of arguments, the errors when they do not fit, and whether they do as they stand."""

    score: float
    errors: tuple[str, ...] = ()
    strict: bool = False


def check(tool: Tool, arguments: Any) -> Checked:
    """Check against the schema that fits best, the newest first."""
    if not isinstance(arguments, dict):
        return Checked(NO_OBJECT, ("root: must be object",))
    found = []
    for validator in reversed(tool.validators):
        checked = _check(validator, arguments)
        if checked.errors and tool.lenient:
            checked = _check(validator, coerce(_prepared(tool, arguments), validator.schema))._replace(strict=False)
        found.append(checked)
    return max(found, key=lambda one: (one.score, one.strict, -len(one.errors)))


def _check(validator: Draft202012Validator, arguments: Any) -> Checked:
    errors = list(islice(validator.iter_errors(arguments), MAX_LOOKED_AT))
    if not errors:
        return Checked(1.0, strict=True)
    kinds = {str(error.validator) for error in errors}
    score = EXTRA if kinds == {"additionalProperties"} else WRONG
    lines = dict.fromkeys(line for error in errors for line in _lines(error))
    return Checked(MISSING if "required" in kinds else score, tuple(lines)[:MAX_ERRORS])


def _lines(error: ValidationError) -> list[str]:
    """Describe an error in the words of Ajv, which Pi shows, as far as they are known here."""
    where, value = "/".join(map(str, error.absolute_path))[:200], error.validator_value
    match error.validator:
        case "required":
            missing = [key for key in value if key not in error.instance]
            return [f"{where or key}: must have required property '{key}'" for key in missing]
        case "type":
            message = f"must be {value if isinstance(value, str) else ','.join(value)}"
        case "additionalProperties":
            message = "must NOT have additional properties"
        case _:
            message = error.message[:200]
    return [f"{where or 'root'}: {message}"]


def _prepared(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Bring the edits of a call to a list, as Pi does: texts of JSON, and one edit alone."""
    if tool.name != "edit" or "edits" not in arguments:
        return arguments
    edits = arguments["edits"]
    with suppress(ValueError, RecursionError):  # stays the text that it is, which is an error
        edits = json.loads(edits) if isinstance(edits, str) else edits
    return {**arguments, "edits": [edits] if isinstance(edits, dict) else edits}


def coerce(value: Any, schema: Any) -> Any:
    """Return the value with scalars turned into the type the schema asks for, as Ajv does.

    >>> coerce({"limit": "20"}, {"type": "object", "properties": {"limit": {"type": "number"}}})
    {'limit': 20}
    """
    if not isinstance(schema, dict):
        return value
    properties, items, kind = schema.get("properties"), schema.get("items"), schema.get("type")
    if isinstance(value, dict) and isinstance(properties, dict):
        return {key: coerce(item, properties.get(key)) for key, item in value.items()}
    if isinstance(value, list) and isinstance(items, dict):
        return [coerce(item, items) for item in value]
    if isinstance(value, dict | list):
        return value
    if kind == "string" and not isinstance(value, str):
        return "" if value is None else json.dumps(value)
    if kind == "boolean" and not isinstance(value, bool):
        known = {"true": True, "false": False} if isinstance(value, str) else {1: True, 0: False, None: False}
        return known.get(value, value)
    if kind in ("number", "integer") and (value is None or isinstance(value, bool)):
        return int(bool(value))
    if kind in ("number", "integer") and isinstance(value, str):
        with suppress(ValueError, RecursionError):  # stays the text that it is, which is an error
            number = json.loads(value.strip())
            is_whole = type(number) is int or (isinstance(number, float) and number.is_integer())
            is_number = isinstance(number, float) and math.isfinite(number) and kind == "number"
            return number if is_whole or is_number else value
    return value


def definitions(name: str) -> list[dict[str, Any]]:
    """Return the tools of a harness, or of "repo_agent", as OpenAI-style functions sorted by name.

    >>> [tool["function"]["name"] for tool in definitions("repo_agent")]
    ['grep', 'list_files', 'read_file', 'write_file']
    """
    harness, found = HARNESS_TOOLS.get(name, {}), []
    for tool, (*_, schema) in sorted(TOOL_SETS[name].items()):
        description = harness[tool].description if harness else AGENT_TOOLS[tool]["description"]
        parameters = {key: value for key, value in schema.items() if key != "additionalProperties"}
        function = {"name": tool, "description": description, "parameters": deepcopy(parameters)}
        found.append({"type": "function", "function": function})
    return found


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Verify the calls of a completion, decoded with its special tokens (`call_formats.decode`)."""
    if not spec.get("tools"):
        return skipped(NAME, "The row names no tools.")
    tools, formats, reading = _read(completion, spec)
    form = f"Write it as {EXAMPLES[formats[0]]}." if len(formats) == 1 else ""
    if spec.get("truncated"):
        text = "The message was cut off before its end: it reached the longest length allowed. Make one smaller call."
    elif reading.problem:
        text = f"The tool call could not be parsed: {reading.problem}. {form}"
    elif reading.calls:
        try:
            return _verify_calls(reading.calls, tools)
        except (Unresolvable, RecursionError) as found:  # depth of arguments is bounded: the $ref loops
            raise BadSpec(f"A $ref of the spec's tools leads nowhere: {str(found)[:200]}.") from found
    elif spec.get("call") == "optional":
        return skipped(NAME, "The message makes no call, and needs none.")
    else:
        text = f"The message makes no tool call. Call one of {_names(tools)}. {form}"
    return failed(NAME, "malformed_output", shorten(text.strip(), MAX_FEEDBACK), calls=0, strict=0.0)


def calls_of(completion: str, spec: dict[str, Any]) -> tuple[Call, ...]:
    """Return the calls of a completion for other verifiers; none when they cannot be read. Raises BadSpec."""
    return _read(completion, spec)[2].calls if spec.get("tools") else ()


def _read(completion: str, spec: dict[str, Any]) -> tuple[dict[str, Tool], list[str], Reading]:
    """Return the tools of a spec, the formats of their calls, and the calls."""
    tools = tools_of(spec["tools"], spec.get("harness", "pi"))
    formats = _formats(spec.get("format"), spec["tools"])
    typed = [tool.typed() for tool in tools.values()]
    own = None if "format" in spec else spec.get("response_template")
    own = own if isinstance(own, dict) else None
    return tools, formats, read_calls(completion, formats, typed, own)


def _formats(given: Any, named: Any) -> list[str]:
    if given is None:
        return DEFAULT_FORMATS.get(named, FAMILIES_ONLY) if isinstance(named, str) else FAMILIES_ONLY
    if str(given) not in EXAMPLES:
        raise BadSpec(f"`format` of the spec is {given!r}; known are {', '.join(EXAMPLES)}.")
    return [given]


def _verify_calls(calls: Sequence[Call], tools: dict[str, Tool]) -> VerifierResult:
    failures: list[str] = []
    score, strict = 1.0, True
    for call in calls:
        tool = tools.get(call.name)
        checked = check(tool, call.arguments) if tool else Checked(UNKNOWN_TOOL)
        score, strict = min(score, checked.score), strict and checked.strict
        if tool is None:
            failures.append(f"Tool {call.name[:80]} not found. Available tools: {_names(tools)}")
        elif checked.errors:
            # In Pi's words.
            errors = "\n".join(f"  - {line}" for line in checked.errors)
            received = shorten(json.dumps(call.arguments, indent=2, ensure_ascii=False), MAX_FEEDBACK // 2)
            failures.append(f'Validation failed for tool "{call.name}":\n{errors}\n\nReceived arguments:\n{received}')
    if not failures:
        return passed(NAME, calls=len(calls), strict=float(strict))
    text = shorten("\n\n".join(failures[:MAX_SHOWN]), MAX_FEEDBACK)
    return failed(NAME, "tool_schema_validation", text, score, calls=len(calls), strict=float(strict))


def _names(tools: dict[str, Tool]) -> str:
    return shorten(", ".join(tools), 300)
