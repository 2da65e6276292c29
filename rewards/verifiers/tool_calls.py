"""Check that the tool calls of a completion can be parsed and match the schemas of existing tools.

spec   tools: the tools that may be called, as in `load_tools`; without it the row is skipped
       (the reward takes them from the column `tools`)
       harness: the harness whose tools are meant by the names in `tools`; all generations of their
       schemas are valid (default: Pi for tools without a definition)
       tool_calls: the calls that TRL parsed (name, arguments), which `VerifierReward` takes from the message
       format: "json" if the whole message is one object {"type": "tool_call", "name", "args"}; so is the
       text of a spec without `tool_calls`, and always that of the repository agent
       call: "required" (default), or "optional" to skip completions without a call
       truncated: whether the completion stopped without its end token
score  from this table, for the worst call

| the completion | score |
|---|---|
| has no call or an invalid one, or was cut off | 0.0 |
| calls a tool that does not exist | 0.2 |
| has arguments that are not an object | 0.3 |
| lacks a required argument | 0.4 |
| has all arguments, one with the wrong type or value | 0.6 |
| has unknown arguments, and is otherwise valid | 0.8 |
| has only valid calls | 1.0 |

The tools of a harness are those of its `Harness` object; those of the repository agent are in
agent_tools.json. Pi accepts "42" as a number since January 2026. Since its edits are a list, it also
accepts a single edit, or edits written as a string.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
from pimono_sdpo.traces.harness import HARNESSES, base
from rewards.answers import Call
from rewards.verifiers.rubric import BadSpec, VerifierResult, failed, passed, skipped

NAME = "tool_calls"
UNKNOWN_TOOL = 0.2
MAX_FEEDBACK = 1200  # characters; TRL cuts a long teacher prompt from the left
MAX_SHOWN = 3  # failed calls

AGENT_TOOLS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("agent_tools.json").read_text(encoding="utf-8")
)
# The tools of each known set, by name.
TOOL_SETS: dict[str, Mapping[str, base.Tool]] = {
    "repo_agent": {name: base.Tool(tool["description"], (tool["parameters"],)) for name, tool in AGENT_TOOLS.items()},
    **{harness.name: harness.tools for harness in HARNESSES if harness.tools},
}
COERCING = frozenset(harness.name for harness in HARNESSES if harness.coerces)


@dataclass(frozen=True)
class Tool:
    """A tool; arguments are valid if one of its schemas, oldest first, accepts them."""

    name: str
    schemas: tuple[dict[str, Any], ...]
    lenient: bool = False

    @cached_property
    def validators(self) -> list[Draft202012Validator]:
        """The validators of the schemas; the registry keeps them from fetching a "$ref" from the network."""
        return [Draft202012Validator(schema, registry=Registry()) for schema in self.schemas]


def load_tools(tools: str | Sequence[str | dict[str, Any]], harness: str | None = None) -> dict[str, Tool]:
    """Return the tools by name; raises BadSpec.

    `tools` is the name of a set in TOOL_SETS, or a list of OpenAI-style definitions and of names of
    the harness's tools (a name that the harness does not have accepts any object). A definition of
    one of the harness's tools, if one is given, stands for all generations of that tool.
    """
    if harness is not None and (not isinstance(harness, str) or harness not in TOOL_SETS):
        raise BadSpec(f"`harness` of the spec is {harness!r}; use one of {', '.join(TOOL_SETS)}.")
    return _parse_tools(json.dumps(tools), harness)


@lru_cache(maxsize=1024)
def _parse_tools(text: str, harness: str | None) -> dict[str, Tool]:
    tools: Any = json.loads(text)
    if isinstance(tools, str):
        if tools not in TOOL_SETS:
            raise BadSpec(f"`tools` of the spec is {tools!r}; use one of {', '.join(TOOL_SETS)}.")
        tools, harness = [*TOOL_SETS[tools]], tools
    if not isinstance(tools, list) or not tools:
        raise BadSpec("`tools` of the spec must be the name of a set, or a list of tools that is not empty.")
    return {tool.name: tool for tool in (_parse_tool(entry, harness) for entry in tools)}


def _parse_tool(entry: Any, harness: str | None) -> Tool:
    if isinstance(entry, str):
        return _extend_tool(Tool(entry, ()), harness or "pi")
    function = entry.get("function", entry) if isinstance(entry, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadSpec(f"`tools` of the spec has {str(entry)[:80]!r}; give a name, or a function with a name.")
    schema = function.get("parameters") or {"type": "object"}
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise BadSpec(
            f"The parameters of {function['name']} in the spec are not a schema: {error.message[:200]}."
        ) from error
    tool = Tool(function["name"], (schema,))
    return _extend_tool(tool, harness) if harness else tool


def _extend_tool(tool: Tool, harness: str) -> Tool:
    """Add the generations of the schema that the harness has had, and whether it converts arguments."""
    known = TOOL_SETS[harness].get(tool.name)
    schemas = (*known.schemas, *tool.schemas) if known else tool.schemas
    return Tool(tool.name, schemas or ({"type": "object"},), harness in COERCING)


MAX_ERRORS = 12
MAX_COLLECTED = 50  # collecting one error takes as long as checking a whole valid call
NO_OBJECT, MISSING, WRONG, EXTRA = 0.3, 0.4, 0.6, 0.8


class Checked(NamedTuple):
    """The score of arguments, their errors, and whether they are valid without coercion."""

    score: float
    errors: tuple[str, ...] = ()
    strict: bool = False


def check(tool: Tool, arguments: Any) -> Checked:
    """Check the arguments against each schema, newest first; return the best result."""
    if not isinstance(arguments, dict):
        return Checked(NO_OBJECT, ("root: must be object",))
    results = []
    for validator in reversed(tool.validators):
        checked = _check_schema(validator, arguments)
        if checked.errors and tool.lenient:
            coerced = coerce(_list_edits(tool, arguments), validator.schema)
            checked = _check_schema(validator, coerced)._replace(strict=False)
        results.append(checked)
    return max(results, key=lambda checked: (checked.score, checked.strict, -len(checked.errors)))


def _check_schema(validator: Draft202012Validator, arguments: Any) -> Checked:
    errors = list(islice(validator.iter_errors(arguments), MAX_COLLECTED))
    if not errors:
        return Checked(1.0, strict=True)
    kinds = {str(error.validator) for error in errors}
    score = EXTRA if kinds == {"additionalProperties"} else WRONG
    lines = dict.fromkeys(line for error in errors for line in _describe_error(error))
    return Checked(MISSING if "required" in kinds else score, tuple(lines)[:MAX_ERRORS])


def _describe_error(error: ValidationError) -> list[str]:
    """Describe an error with the messages of Ajv, which Pi shows; other errors keep those of jsonschema."""
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


def _list_edits(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Convert edits that are a string of JSON or a single edit to a list, as Pi does."""
    if tool.name != "edit" or "edits" not in arguments:
        return arguments
    edits = arguments["edits"]
    with suppress(ValueError, RecursionError):  # the text stays and fails the check
        edits = json.loads(edits) if isinstance(edits, str) else edits
    return {**arguments, "edits": [edits] if isinstance(edits, dict) else edits}


def coerce(value: Any, schema: Any) -> Any:
    """Return the value with scalars converted to the type of the schema, as Ajv does.

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
        with suppress(ValueError, RecursionError):  # the text stays and fails the check
            number = json.loads(value.strip())
            is_integer = type(number) is int or (isinstance(number, float) and number.is_integer())
            is_float = isinstance(number, float) and math.isfinite(number) and kind == "number"
            return number if is_integer or is_float else value
    return value


def definitions(name: str) -> list[dict[str, Any]]:
    """Return the tools of a harness, or of "repo_agent", as OpenAI-style functions sorted by name.

    >>> [tool["function"]["name"] for tool in definitions("repo_agent")]
    ['grep', 'list_files', 'read_file', 'write_file']
    """
    return [tool.define(called, tool.schemas[-1]) for called, tool in sorted(TOOL_SETS[name].items())]


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Check the calls of a completion."""
    if not spec.get("tools"):
        return skipped(NAME, "The row has no tools.")
    tools, (calls, problem) = load_tools(spec["tools"], spec.get("harness")), read_calls(completion, spec)
    example = f"Write it as {EXAMPLE}." if is_json(spec) else ""
    if spec.get("truncated"):
        text = "The message was cut off because it reached the maximum length. Make one shorter call."
    elif problem:
        text = f"The tool call could not be parsed: {problem}. {example}"
    elif calls:
        try:
            return _verify_calls(calls, tools)
        except (Unresolvable, RecursionError) as error:  # the depth of arguments is limited, so the $ref loops
            raise BadSpec(f"A $ref of the spec's tools cannot be resolved: {str(error)[:200]}.") from error
    elif spec.get("call") == "optional":
        return skipped(NAME, "The message has no tool call, and does not need one.")
    else:
        text = f"The message makes no tool call. Call one of {_join_names(tools)}. {example}"
    return failed(NAME, "malformed_output", shorten(text.strip(), MAX_FEEDBACK), calls=0, strict=0.0)


MAX_CHARS = 400_000  # enough for a whole file in one call; more would take seconds
MAX_DEPTH = 64
EXAMPLE = '{"type": "tool_call", "name": NAME, "args": {...}} and nothing else'


class Reading(NamedTuple):
    """The calls of a message, or the reason why they cannot be parsed."""

    calls: tuple[Call, ...] = ()
    problem: str = ""


def is_json(spec: dict[str, Any]) -> bool:
    """Return whether the calls of a row are JSON text, rather than in the model's own format; raises BadSpec."""
    if (name := spec.get("format", "json")) != "json":
        raise BadSpec(f"`format` of the spec is {name!r}; use json, or leave it out for the model's own format.")
    return "format" in spec or spec["tools"] == "repo_agent"


def read_calls(completion: str, spec: dict[str, Any]) -> Reading:
    """Return the calls of a completion, as TRL parsed them or in the format `json`; raises BadSpec."""
    if is_json(spec) or "tool_calls" not in spec:
        reading = _read_json(completion)
    else:
        reading = Reading(tuple(Call(one["name"], one["arguments"]) for one in spec["tool_calls"]))
    if not all(isinstance(call.name, str) and call.name.strip() for call in reading.calls):
        return Reading(problem="the call does not name a tool")
    problem = next(filter(None, (_find_unsupported(call.arguments) for call in reading.calls)), "")
    return Reading(problem=problem) if problem else reading


def _read_json(text: str) -> Reading:
    """Parse a message in the format `json`, without prose or a fence around the object; reasoning is skipped."""
    if len(text) > MAX_CHARS:
        return Reading(problem=f"the message is longer than {MAX_CHARS} characters")
    text = text.strip()
    if not text.startswith("{"):
        text = text.partition("</think>")[2].strip()
    if not text.startswith("{"):
        return Reading()
    try:
        action = json.loads(text)
    except json.JSONDecodeError as error:
        near = error.doc[max(error.pos - 20, 0) : error.pos + 20]
        return Reading(problem=f"it is not valid JSON: {error.msg} at character {error.pos}, near {near!r}")
    except (ValueError, RecursionError) as error:  # a number of too many digits, or nested too deeply
        return Reading(problem=f"it is not valid JSON: {str(error)[:200]}")
    if action.get("type") == "final":
        return Reading()
    if action.get("type") != "tool_call" or not {"args"} <= set(action) <= {"type", "name", "args", "thought"}:
        return Reading(problem="the object must have the keys `type` (tool_call or final), `name` and `args`")
    return Reading((Call(action.get("name"), action["args"]),))


def _find_unsupported(arguments: Any) -> str:
    """Return what no harness accepts: NaN, infinity, huge numbers or deep nesting; "" if there is nothing."""
    pending = [(arguments, 0)]
    while pending:
        value, depth = pending.pop()
        if depth > MAX_DEPTH:
            return f"the arguments are nested deeper than {MAX_DEPTH}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"{value} is not a JSON number"
        if isinstance(value, int) and value.bit_length() > 1023:
            return "a number is too large"
        if isinstance(value, dict):
            pending += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, list):
            pending += [(item, depth + 1) for item in value]
    return ""


def _verify_calls(calls: Sequence[Call], tools: dict[str, Tool]) -> VerifierResult:
    failures: list[str] = []
    score, strict = 1.0, True
    for call in calls:
        tool = tools.get(call.name)
        checked = check(tool, call.arguments) if tool else Checked(UNKNOWN_TOOL)
        score, strict = min(score, checked.score), strict and checked.strict
        if tool is None:
            failures.append(f"Tool {call.name[:80]} not found. Available tools: {_join_names(tools)}")
        elif checked.errors:
            # The message of Pi.
            errors = "\n".join(f"  - {line}" for line in checked.errors)
            received = shorten(json.dumps(call.arguments, indent=2, ensure_ascii=False), MAX_FEEDBACK // 2)
            failures.append(f'Validation failed for tool "{call.name}":\n{errors}\n\nReceived arguments:\n{received}')
    if not failures:
        return passed(NAME, calls=len(calls), strict=float(strict))
    text = shorten("\n\n".join(failures[:MAX_SHOWN]), MAX_FEEDBACK)
    return failed(NAME, "tool_schema_validation", text, score, calls=len(calls), strict=float(strict))


def _join_names(tools: dict[str, Tool]) -> str:
    return shorten(", ".join(tools), 300)
