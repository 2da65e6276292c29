"""Microseconds that the tool-call verifier needs for a call, by format, on recorded calls.

    python -m benchmarks.tool_calls [--calls 500] [--repeat 3]

writes the calls of the sessions under PIMONO_TRACES/pi (of the samples without it) in every format
and verifies each; the smallest of the repetitions is reported, in microseconds of this process's CPU
per call. `invalid` are the same calls without their first argument. The time without parsing, of
the validation alone, is the last line.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from benchmarks.corpus import source_sessions
from benchmarks.table import print_table
from rewards.verifiers.tool_calls import check, load_tools, verify

Call = tuple[str, dict[str, Any]]


def recorded() -> list[Call]:
    """Return the calls of Pi's own tools."""
    calls = []
    for lines in source_sessions():
        for line in lines:
            message = json.loads(line).get("message") or {}
            for block in message.get("content") or []:
                if isinstance(block, dict) and block.get("type") == "toolCall":
                    calls.append((block["name"], block["arguments"]))
    return [call for call in calls if call[0] in load_tools("pi")]


def _gemma(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma, value)) + "]"
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def _tags(arguments: dict[str, Any], form: str) -> str:
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in arguments.items()}
    return "".join(form.format(key=key, value=value) for key, value in texts.items())


def _qwen_xml(name: str, arguments: dict[str, Any]) -> str:
    body = _tags(arguments, "<parameter={key}>\n{value}\n</parameter>\n")
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def _glm(name: str, arguments: dict[str, Any]) -> str:
    body = _tags(arguments, "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
    return f"<tool_call>{name}\n{body}</tool_call>"


WRITERS: dict[str, Callable[[str, dict[str, Any]], str]] = {
    "gemma4": lambda name, args: f"<|tool_call>call:{name}{_gemma(args)}<tool_call|><turn|>",
    "qwen3": lambda name, args: (
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': args})}\n</tool_call><|im_end|>"
    ),
    "qwen3_5": lambda name, args: _qwen_xml(name, args) + "<|im_end|>",
    "glm4": lambda name, args: _glm(name, args) + "<|observation|>",
    "llama3": lambda name, args: json.dumps({"name": name, "parameters": args}) + "<|eot_id|>",
    "gpt_oss": lambda name, args: (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{json.dumps(args)}<|call|>"
    ),
    "json": lambda name, args: json.dumps({"type": "tool_call", "name": name, "args": args}),
}


def measure(work: Callable[[Any], object], items: list[Any], repeat: int) -> float:
    """Return the least microseconds per item."""
    best = float("inf")
    for _ in range(repeat):
        begin = time.process_time()
        for item in items:
            work(item)
        best = min(best, time.process_time() - begin)
    return best / len(items) * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    calls = list(islice(recorded(), options.calls))
    broken = [(name, dict(list(args.items())[1:])) for name, args in calls]
    rows = []
    for form, write in WRITERS.items():
        spec = {"tools": "pi", "format": form}
        texts = [[write(*call) for call in some] for some in (calls, broken)]
        passed = sum(verify(text, spec).status == "passed" for text in texts[0])
        times = [measure(partial(verify, spec=spec), some, options.repeat) for some in texts]
        rows.append([form, f"{passed} of {len(calls)}", *(f"{one:.0f}" for one in times)])
    tools = load_tools("pi")
    alone = [measure(lambda call: check(tools[call[0]], call[1]), some, options.repeat) for some in (calls, broken)]
    rows.append(["validation alone", "", *(f"{one:.0f}" for one in alone)])
    print_table([["format", "passed", "us a call", "us a call, invalid"], *rows])


if __name__ == "__main__":
    main()
