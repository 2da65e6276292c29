"""Run the agent on one task: query the model, parse its answer as an action, run tools and tests, repeat.

json    the answer is exactly one object, {"type": "tool_call", "name", "args"} or
        {"type": "final", "summary", "changes"}; results come back as user messages
native  OpenAI's `tool_calls`, one at a time; a text without a call is the final report

Nothing else is accepted. The history contains actions in canonical form, so that rollouts do not
teach malformed ones. The trace has events such as:

    {"kind": "final", "run_id": "...", "t": 4, "final": {...}}

`t` counts the model's turns from 0. The kinds are run_start, llm_request (with the messages that
are new to the model), llm_action, llm_parse_error, tool_result, tests, driver_note, final (the
model's report with `test_result`) and run_end. There are no times, so a replayed run gives the same
bytes.

Only the driver runs tests. The policy `on_write` runs them after every write that changed a file and
shows the result to the model, `on_final` runs them when the run has ended, and `never` does not run
them. Unless it is `never`, the final files are always tested.

Each turn of the model is one step and one message, followed by one message: from the user in the json
protocol, where roles alternate, and from a tool or the user in the native one.
"""

import asyncio
import json
import re
import tomllib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from pimono_sdpo.agent.task_tests import TaskResult
from pimono_sdpo.agent.tools import Workspace, unified_diff
from pimono_sdpo.llm.calls import Json, Reply
from pimono_sdpo.options import option, options
from pimono_sdpo.schema import Protocol, TestPolicy, Turn
from pimono_sdpo.text import shorten
from pimono_sdpo.traces.events import MAX_DEPTH
from processors.rollouts.conversation import REPEATS, dump_json, make_step
from rewards.verifiers.tool_calls import definitions

Ask = Callable[[list[Turn]], Awaitable[Reply]]
RunTests = Callable[[Mapping[str, bytes]], Awaitable[TaskResult]]
MOST_LOOPS = 3
MOST_PARSE_ERRORS = 4  # in a row
# Limits of JSON columns and of other parsers.
MAX_INTEGER = 2**63 - 1
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)
_FENCE = re.compile(r"\A\s*```[a-zA-Z]*[ \t]*\n(.*?)\n?[ \t]*```\s*\Z", re.DOTALL)
_MARKUP = re.compile(
    r"<\|?tool_calls?\b|\[TOOL_CALLS\]|<function=|<invoke\b"
    r'|\A\s*(?:```(?:json)?\s*)?\{\s*"(?:type|name)"\s*:'
)
_TEXTS = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text(encoding="utf-8"))
LOOP: str = _TEXTS["loop"]


@options
class RunRules:
    """RunRules of every run of a suite."""

    protocol: Protocol = option(
        "Calls as one `json` object, or the API's `native` ones.", default="json", flag="--tool-protocol"
    )
    test_policy: TestPolicy = option(
        "Run tests `on_write` and show the result to the model, `on_final`, or `never`.", default="on_write"
    )
    max_iters: int = option("Maximum number of the model's turns.", default=20, minimum=1)
    max_tool_chars: int = option("Shorten longer tool results.", default=8000, minimum=200)


class _Call(msgspec.Struct, tag_field="type", tag="tool_call", forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"\S")]
    args: Json
    thought: Any = None


class _Final(msgspec.Struct, tag_field="type", tag="final"):
    summary: str
    changes: list[Any] = []


@dataclass(frozen=True, slots=True)
class Action:
    """A model's action: a call has `name` and `args`; a final report has its fields in `args`."""

    kind: Literal["tool_call", "final", "parse_error"]
    name: str | None = None
    args: Json | None = None
    text: str = ""  # beside a native call
    malformed: str = ""  # why a `parse_error` cannot be read, or what was ignored in another action

    def render(self) -> Json:
        """Return the JSON object of the action in the json protocol."""
        if self.kind == "final":
            return {"type": "final", **(self.args or {})}
        return {"type": "tool_call", "name": self.name, "args": self.args}


def read_action(reply: Reply, protocol: Protocol) -> Action:
    """Parse an answer as an action; of several native calls, only the first counts.

    >>> read_action(Reply('{"type": "tool_call", "name": "grep", "args": {"pattern": "x"}}'), "json").name
    'grep'
    >>> read_action(Reply("Sure! I will look first."), "json").malformed
    'it is prose and not one JSON object'
    """
    text = _THOUGHT.sub("", reply.text).strip()
    calls, is_cut = reply.tool_calls, reply.finish_reason == "length"
    try:
        if calls and protocol == "native":
            function, ignored = calls[0]["function"], ""
            if len(calls) > 1:
                ignored = f"{len(calls)} calls in one answer, of which the first was taken"
            action = _read_object(function["arguments"] or "{}", function["name"])
            return replace(action, text=text, malformed=ignored)
        if protocol == "json" and text.startswith("{"):
            return _read_object(text)
        problem = _find_format_problem(text, protocol, bool(calls))
    except msgspec.DecodeError as error:
        problem = f"its call cannot be read, {error}" if protocol == "native" else f"it is not valid: {error}"
    if protocol == "native" and not problem and not is_cut:
        return Action("final", args={"summary": text})
    reasons = ["it was cut off at the maximum length" if is_cut else "", problem]
    return Action("parse_error", malformed=": ".join(filter(None, reasons)))


def _find_format_problem(text: str, protocol: Protocol, has_calls: bool) -> str:
    """Return why a text is not a JSON object or, in the native protocol, not a final report; else ""."""
    if not text:
        return "it is a native call and no text" if has_calls else "it is empty"
    if protocol == "native":
        return "it has a call written into its text" if _MARKUP.search(text) else ""
    if _FENCE.match(text):
        return "the JSON object stands in a code fence"
    has_object = "{" in text and '"type"' in text
    return "there is text before the JSON object" if has_object else "it is prose and not one JSON object"


def _read_object(text: str, name: str | None = None) -> Action:
    """Parse an action, or the arguments of a call of `name`; raises msgspec.DecodeError."""
    try:
        value = msgspec.json.decode(text)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    action = msgspec.convert(
        value if name is None else {"type": "tool_call", "name": name, "args": value}, _Call | _Final
    )
    if not _is_storable(value):
        raise msgspec.DecodeError(f"a number is too large, or it is nested deeper than {MAX_DEPTH}")
    if isinstance(action, _Call):
        return Action("tool_call", action.name.strip(), action.args)
    return Action("final", args={key: field for key, field in value.items() if key != "type"})


def _is_storable(value: Any, depth: int = 0) -> bool:
    if isinstance(value, int):
        return abs(value) <= MAX_INTEGER
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth <= MAX_DEPTH and all(_is_storable(item, depth + 1) for item in items)


def render_system_prompt(protocol: Protocol, test_policy: TestPolicy) -> str:
    """Return the first message of every run, which does not depend on the task."""
    format_text = _TEXTS[protocol]
    if protocol == "json":
        functions = (tool["function"] for tool in definitions("repo_agent"))
        format_text += "\n".join(
            json.dumps({"name": f["name"], "description": f["description"], "args": f["parameters"]})
            for f in functions
        )
    return "\n\n".join((_TEXTS["task"], format_text, _TEXTS["tests"][test_policy]))


@dataclass(slots=True)
class Run:
    """A run of the agent; it is finished when `ended` is set to a value of that column of ROLLOUT.

    `run_tests` is None for a task without tests. `error` is a failure of the infrastructure or the endpoint; a run
    with an error says nothing about the model.
    """

    run_id: str
    space: Workspace
    ask: Ask
    run_tests: RunTests | None
    rules: RunRules
    messages: list[Turn] = field(default_factory=list)
    turn: int = 0
    steps: list[Json] = field(default_factory=list)
    events: list[Json] = field(default_factory=list)
    ended: str | None = None
    report: Json | None = None
    tests_ok: bool | None = None
    test_output: str | None = None
    tested: dict[str, bytes] | None = None
    n_test_runs: int = 0
    parse_errors_in_row: int = 0
    loops: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    n_logged: int = 0
    replies: list[Reply] = field(default_factory=list)
    error: str | None = None
    patch: str = ""
    files_touched: tuple[str, ...] = ()

    async def drive(self, goal: str, metadata: Json) -> None:
        """Run the agent to its end; `metadata` goes into the first event of the trace."""
        rules = self.rules
        system = render_system_prompt(rules.protocol, rules.test_policy)
        self.messages = [{"role": "system", "content": system}, {"role": "user", "content": f"GOAL:\n{goal}"}]
        self.log("run_start", goal=goal, **metadata)
        while self.ended is None and len(self.steps) < rules.max_iters:
            await self._take_turn()
        self.ended = self.ended or "max_iters"
        changed = self.space.changed()
        if self.error is None and self.tested != changed:
            await self._test()
        self.patch = unified_diff(self.space.before, changed)
        self.files_touched = tuple(changed)
        if self.report is not None:
            report = {**self.report}
            report.setdefault("changes", [{"path": path, "description": "written"} for path in changed])
            if self.tests_ok is not None:
                report["test_result"] = {"ok": self.tests_ok, "output": shorten(self.test_output or "", 500)}
            self.log("final", final=report)
        self.log(
            "run_end",
            ended=self.ended,
            error=self.error,
            n_steps=len(self.steps),
            n_test_runs=self.n_test_runs,
            tests_ok=self.tests_ok,
        )

    def log(self, kind: str, **fields: Any) -> None:
        """Add an event at the current turn."""
        self.events.append({"kind": kind, "run_id": self.run_id, "t": self.turn, **fields})

    def _fail(self, why: str) -> None:
        """End the run because of a failure that is not the model's."""
        self.ended, self.error, self.tests_ok = "error", why, None

    async def _take_turn(self) -> None:
        """Query the model once and run its action; adds one step and, unless the run ends, two messages."""
        self.turn, context, protocol = len(self.steps), len(self.messages), self.rules.protocol
        self.log("llm_request", n_messages=context, messages=self.messages[self.n_logged :])
        reply = await self.ask(self.messages)
        if reply.error is not None:
            self._fail(reply.error)
            return
        usage = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens}
        self.replies.append(reply)
        action = read_action(reply, protocol)
        raw = {"text": reply.text, "tool_calls": list(reply.tool_calls)}
        self.messages.append(_render_turn(action, reply, context, self.rules))
        self.n_logged = len(self.messages)
        if action.kind == "parse_error":
            self.log("llm_parse_error", raw=raw, error=action.malformed, usage=usage)
            self._add_step(action, action.malformed)
            self.parse_errors_in_row += 1
            if self.parse_errors_in_row == MOST_PARSE_ERRORS:
                self.ended = "parse_errors"
                return
            note = f"[driver] Your last answer could not be read: {action.malformed}. {_TEXTS['again'][protocol]}"
            self.log("driver_note", note=note)
            self.messages.append({"role": "user", "content": note})
            return
        self.log("llm_action", raw=raw, action=action.render(), usage=usage)
        self.parse_errors_in_row = 0
        if action.kind == "final":
            self._add_step(action)
            self.ended, self.report = "final", action.render()
        else:
            await self._run_call(str(action.name), action.args or {}, action)

    async def _run_call(self, name: str, args: Json, action: Action) -> None:
        """Run a tool call, and the tests if it changed a file; show the results to the model."""
        key = json.dumps([name, {key: value for key, value in args.items() if key != "thought"}], sort_keys=True)
        self.seen[key] += 1
        if self.seen[key] >= REPEATS:
            self.loops += 1
            self.log("driver_note", note=LOOP)
            self._add_step(action, LOOP, kind="loop")
            if self.loops == MOST_LOOPS:
                self.ended = "loop"
            else:
                self._add_result(f"[driver] {LOOP}")
            return
        # In a thread, because searching a large repository takes seconds.
        result = await asyncio.to_thread(self.space.call, name, args)
        text = shorten(result.text, self.rules.max_tool_chars)
        self.log("tool_result", name=name, args=args, ok=result.ok, output=text, changed=result.changed)
        shown, verdict = text if result.ok else f"[tool_error] {text}", None
        if result.changed:
            self.seen = Counter({key: 1})
            if self.rules.test_policy == "on_write":
                verdict = await self._test()
        if verdict is not None:
            output = shorten(self.test_output or "", self.rules.max_tool_chars)
            shown = f"{shown}\n\n[TESTS {'PASS' if verdict else 'FAIL'}]\n{output}".rstrip()
        self._add_step(action, None if result.ok else text, tests_ok=verdict)
        if self.ended is None:
            if action.malformed:
                note = f"[driver] Your last answer was not as wanted: {action.malformed}."
                self.log("driver_note", note=note)
                shown = f"{shown}\n\n{note}"
            self._add_result(shown.rstrip())

    async def _test(self) -> bool | None:
        """Run the tests, if any, on the current files; a failure of the infrastructure ends the run."""
        if self.run_tests is None or self.rules.test_policy == "never":
            return None
        self.tested = self.space.changed()
        result = await self.run_tests(self.tested)
        self.log("tests", ok=result.ok, output=result.output, error=result.error)
        self.tests_ok, self.test_output = result.ok, result.output
        self.n_test_runs += 1
        if result.ok is None:
            self._fail(f"tests could not be run: {result.error}")
        return result.ok

    def _add_result(self, text: str) -> None:
        if calls := self.messages[-1].get("tool_calls"):
            call = {"tool_call_id": calls[0]["id"], "name": calls[0]["function"]["name"]}
            self.messages.append({"role": "tool", "content": text, **call})  # type: ignore[typeddict-item]
        else:
            self.messages.append({"role": "user", "content": f"[tool_result]\n{text}"})

    def _add_step(
        self, action: Action, error: str | None = None, kind: str | None = None, tests_ok: bool | None = None
    ) -> None:
        index = len(self.messages) - 1
        step = make_step(len(self.steps), kind or action.kind, index, action.name, action.args, error)
        self.steps.append({**step, "tests_ok": tests_ok, "malformed": action.malformed or None})


def status_of(row: Mapping[str, Any]) -> str:
    """Return PASS or FAIL by the tests, ERROR for a failure that is not the model's, else N/A."""
    if row["error"] is not None:
        return "ERROR"
    return {True: "PASS", False: "FAIL", None: "N/A"}[row["tests_ok"]]


def _render_turn(action: Action, reply: Reply, context: int, rules: RunRules) -> Turn:
    """Return the model's turn for the history, in canonical form unless it could not be parsed."""
    text = reply.text.strip()
    if action.kind == "parse_error":
        functions = [call["function"] for call in reply.tool_calls]
        calls = "\n".join(f"{one['name']}({one['arguments']})" for one in functions)
        # Some servers refuse empty answers.
        text = shorten(text or calls, rules.max_tool_chars) or "(no answer)"
    elif rules.protocol == "json":
        text = dump_json(action.render()) if text.startswith("<think>") else text
    elif action.kind == "final":
        text = action.render()["summary"]
    else:
        function = {"name": action.name, "arguments": action.args}
        # A provider's own ids differ from run to run.
        call = {"id": f"call{context:05d}", "type": "function", "function": function}
        return {"role": "assistant", "content": action.text, "tool_calls": [call]}
    return {"role": "assistant", "content": text}
