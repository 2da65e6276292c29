"""Check the tool calls of a completion: are they readable, do the tools exist, do arguments fit.

spec   tools: what may be called, as in `tool_schemas.tools_of`; without it the row is skipped
       harness: the harness to whose tools the names of a list belong (default: Pi)
       format: a name of EXAMPLES, or several families (default: that of the set of tools, else
       every family's); with the format of the model's own chat template no other counts
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
"""

import json
from collections.abc import Sequence
from typing import Any

from referencing.exceptions import Unresolvable

from pimono_sdpo.text import shorten
from rewards.verifiers.call_formats import EXAMPLES, Call, Reading, read_calls
from rewards.verifiers.rubric import VerifierResult, error, failed, passed, skipped
from rewards.verifiers.tool_schemas import DEFAULT_FORMATS, BadTools, Checked, Tool, check, tools_of

NAME = "tool_calls"
UNKNOWN_TOOL = 0.2
FAMILIES_ONLY = [name for name in EXAMPLES if name not in ("json", "bash_block")]
MAX_FEEDBACK = 1200  # characters; TRL cuts a long teacher prompt from the left
MAX_SHOWN = 3  # failed calls


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Verify the calls of a completion, decoded with its special tokens (`call_formats.decode`)."""
    if not spec.get("tools"):
        return skipped(NAME, "The row names no tools.")
    try:
        tools, formats, reading = _read(completion, spec)
    except BadTools as found:
        return error(NAME, f"The row's spec cannot be used: {found}.")
    form = f"Write it as {EXAMPLES[formats[0]]}." if len(formats) == 1 else ""
    if reading.cut or spec.get("truncated"):
        text = "The message was cut off before its end: it reached the longest length allowed. Make one smaller call."
    elif reading.problem:
        text = f"The tool call could not be parsed: {reading.problem}. {form}"
    elif reading.calls:
        try:
            return _verify_calls(reading.calls, tools)
        except (Unresolvable, RecursionError) as found:  # depth of arguments is bounded: the $ref loops
            return error(NAME, f"A $ref of the row's tools leads nowhere: {str(found)[:200]}.")
    elif spec.get("call") == "optional":
        return skipped(NAME, "The message makes no call, and needs none.")
    else:
        text = f"The message makes no tool call. Call one of {_names(tools)}. {form}"
    return failed(NAME, "malformed_output", shorten(text.strip(), MAX_FEEDBACK), calls=0, strict=0.0)


def calls_of(completion: str, spec: dict[str, Any]) -> tuple[Call, ...]:
    """Return the calls of a completion for other verifiers; none when they cannot be read."""
    try:
        return _read(completion, spec)[2].calls if spec.get("tools") else ()
    except BadTools:
        # `verify` says so; another verdict on it would only repeat it.
        return ()


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
    formats = [given] if isinstance(given, str) else list(given)
    if unknown := [name for name in formats if name not in EXAMPLES]:
        raise BadTools(f"format {unknown[0]!r} is not one of {', '.join(EXAMPLES)}")
    if len(formats) > 1 and (alone := {"json", "bash_block"}.intersection(formats)):
        raise BadTools(f"format {min(alone)} cannot be mixed with others")
    return formats


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
