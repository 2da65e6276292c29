"""Check the arguments of a call, and say what is wrong in the words of the harness (Ajv's)."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any

from jsonschema.exceptions import ValidationError

from rewards.verifiers.tool_schemas import Tool

MAX_ERRORS = 12
MAX_LOOKED_AT = 50  # each costs as much as a whole valid call


class Fit(IntEnum):
    """How far arguments fit a tool."""

    NO_OBJECT = 0
    MISSING = 1
    WRONG = 2
    EXTRA = 3
    COERCED = 4
    STRICT = 5


@dataclass(frozen=True, slots=True)
class Checked:
    """How far the arguments fit, and the errors when they do not."""

    fit: Fit
    errors: tuple[str, ...] = ()


def check(tool: Tool, arguments: Any, generation: int | None = None) -> Checked:
    """Check against the generation that fits best, or only against the given one (1 is first)."""
    if not isinstance(arguments, dict):
        return Checked(Fit.NO_OBJECT, ("root: must be object",))
    best = Checked(Fit.NO_OBJECT)
    for number, validator in reversed(list(enumerate(tool.validators, 1))):
        if generation in (None, number) or len(tool.validators) == 1:
            checked = _checked(list(islice(validator.iter_errors(arguments), MAX_LOOKED_AT)))
            if checked.errors and tool.lenient:
                taken = coerce(_prepared(tool, arguments, number), tool.schemas[number - 1])
                again = _checked(list(islice(validator.iter_errors(taken), MAX_LOOKED_AT)))
                checked = again if again.errors else Checked(Fit.COERCED)
            best = max(best, checked, key=lambda one: (one.fit, -len(one.errors)))
    return best


def _checked(errors: list[ValidationError]) -> Checked:
    if not errors:
        return Checked(Fit.STRICT)
    kinds = {str(error.validator) for error in errors}
    if "required" in kinds:
        fit = Fit.MISSING
    else:
        fit = Fit.EXTRA if kinds == {"additionalProperties"} else Fit.WRONG
    lines = dict.fromkeys(line for error in errors for line in _lines(error))
    return Checked(fit, tuple(lines)[:MAX_ERRORS])


def _lines(error: ValidationError) -> Iterable[str]:
    where = "/".join(map(str, error.absolute_path))
    if error.validator == "required":
        for key in error.validator_value:
            if key not in error.instance:
                yield f"{where or key}: must have required property '{key}'"
    else:
        yield f"{where[:200] or 'root'}: {_message(error)}"


def _message(error: ValidationError) -> str:
    value = error.validator_value
    shown = json.dumps(value, ensure_ascii=False)[:200]
    match error.validator:
        case "type":
            return f"must be {value if isinstance(value, str) else ','.join(value)}"
        case "additionalProperties":
            return "must NOT have additional properties"
        case "minLength":
            return f"must NOT have fewer than {value} characters"
        case "maxLength":
            return f"must NOT have more than {value} characters"
        case "minItems":
            return f"must NOT have fewer than {value} items"
        case "maxItems":
            return f"must NOT have more than {value} items"
        case "minimum":
            return f"must be >= {value}"
        case "maximum":
            return f"must be <= {value}"
        case "enum":
            return f"must be equal to one of the allowed values: {shown}"
        case "const":
            return f"must be equal to constant: {shown}"
        case "pattern":
            return f"must match pattern {shown}"
        case "anyOf":
            return "must match a schema in anyOf"
        case "oneOf":
            return "must match exactly one schema in oneOf"
        case _:
            return f"must satisfy {error.validator}: {shown}"


def _prepared(tool: Tool, arguments: dict[str, Any], generation: int) -> dict[str, Any]:
    """Bring the edits of a call to a list, as Pi does: texts of JSON, and one edit alone."""
    edits = arguments.get("edits")
    if tool.name != "edit" or generation < 2:
        return arguments
    if isinstance(edits, str):
        try:
            edits = json.loads(edits)
        except (ValueError, RecursionError):  # stays the text that it is, which is an error
            return arguments
    if isinstance(edits, dict):
        edits = [edits]
    return {**arguments, "edits": edits} if "edits" in arguments else arguments


def coerce(value: Any, schema: Any) -> Any:
    """Return the value with scalars turned into the type the schema asks for, as Ajv does.

    >>> coerce({"limit": "20"}, {"type": "object", "properties": {"limit": {"type": "number"}}})
    {'limit': 20}
    """
    if not isinstance(schema, dict):
        return value
    properties, items = schema.get("properties"), schema.get("items")
    if isinstance(value, dict) and isinstance(properties, dict):
        return {key: coerce(item, properties.get(key)) for key, item in value.items()}
    if isinstance(value, list) and isinstance(items, dict):
        return [coerce(item, items) for item in value]
    return _scalar(value, schema.get("type"))


def _scalar(value: Any, kind: Any) -> Any:
    if isinstance(value, dict | list):
        return value
    if kind == "string" and value is not None and not isinstance(value, str):
        return json.dumps(value)
    if kind == "string" and value is None:
        return ""
    if kind == "boolean" and not isinstance(value, bool):
        known = {"true": True, "false": False} if isinstance(value, str) else {1: True, 0: False}
        return False if value is None else known.get(value, value)
    if kind in ("number", "integer"):
        return _number(value, kind)
    return value


def _number(value: Any, kind: str) -> Any:
    if value is None or isinstance(value, bool):
        return int(bool(value))
    if isinstance(value, str):
        try:
            number = json.loads(value.strip())
        except (ValueError, RecursionError):  # stays the text that it is, which is an error
            return value
        if isinstance(number, float):
            fits = math.isfinite(number) and (kind == "number" or number.is_integer())
        else:
            fits = isinstance(number, int) and not isinstance(number, bool)
        return number if fits else value
    return value
