"""The tools of the repository agent: what they are for, and which arguments they take."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from referencing import Registry

TOOLS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("agent_tools.json").read_text(encoding="utf-8")
)
MAX_ERRORS = 3
MAX_VALUE = 80


def definitions() -> list[dict[str, Any]]:
    """Return the tools as OpenAI-style functions, sorted by name.

    >>> [tool["function"]["name"] for tool in definitions()]
    ['grep', 'list_files', 'read_file', 'write_file']
    """
    found = []
    for name, tool in sorted(TOOLS.items()):
        parameters = {k: v for k, v in tool["parameters"].items() if k != "additionalProperties"}
        function = {"name": name, "description": tool["description"], "parameters": parameters}
        found.append({"type": "function", "function": function})
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def problems(name: str, args: dict[str, Any]) -> str:
    """Say what is wrong with the arguments of a call, "" when nothing is.

    >>> problems("read_file", {"rel_path": 3, "mode": "r"})
    '`rel_path` is 3, which is no string; `mode` is not an argument of read_file'
    >>> problems("list_files", {"rel_dir": " "})
    '`rel_dir` is blank'
    """
    told = [
        line for error in _validator(name).iter_errors(args) for line in _told(error, name, args)
    ]
    schema = TOOLS[name]["parameters"]
    told += [
        f"`{key}` is blank"
        for key, value in args.items()
        if "minLength" in schema["properties"].get(key, {})
        and isinstance(value, str)
        and not value.strip()
    ]
    return "; ".join(told[:MAX_ERRORS])


def _told(error: ValidationError, name: str, args: dict[str, Any]) -> list[str]:
    schema = error.schema
    if error.validator == "required":
        missing = [key for key in schema["required"] if key not in args]
        # One error comes for each of them.
        return [f"`{key}` is missing" for key in missing if f"'{key}'" in error.message]
    if error.validator == "additionalProperties":
        unknown = [key for key in args if key not in schema["properties"]]
        return [f"`{key[:MAX_VALUE]}` is not an argument of {name}" for key in unknown]
    if error.validator == "minLength":
        return []  # told as blank
    key, value = error.absolute_path[0], error.instance
    shown = json.dumps(value, ensure_ascii=False)
    shown = shown if len(shown) <= MAX_VALUE else shown[:MAX_VALUE] + "..."
    wanted = schema.get("type")
    if error.validator == "type":
        return [f"`{key}` is {shown}, which is no {wanted}"]
    return [f"`{key}` is {shown}; give at least {schema.get('minimum')}"]


@cache
def _validator(name: str) -> Draft202012Validator:
    # Without a registry of its own the validator would fetch a "$ref" from the network.
    return Draft202012Validator(TOOLS[name]["parameters"], registry=Registry())
