"""The loop that drives one run: ask the model, do what it wants, run the tests, until it is done.

    {"kind": "final", "run_id": "...", "t": 4, "final": {...}}

`t` counts the model's turns from 0. Kinds and what they add: run_start (task_id, goal, seed, model
and rules), llm_request (messages: those the model had not seen before, n_messages), llm_action
(raw, action, usage), llm_parse_error (raw, error, usage), tool_result (name, args, ok, output,
changed), tests (ok, output, error), driver_note (note), final (final: the model's report with
`test_result`), run_end (ended, error and the counts). No line holds a time: a replayed run has the
same bytes.

The driver alone runs tests, by its policy: `on_write` after every write that changed a file and
shows the model what came of it, `on_final` once the run has ended, `never`. Unless `never`, a run
always ends with a verdict on the files as they are then.

Each turn of the model is one step and one message: step i answers `messages[:n_context]`, and the
answer is `messages[n_context]`. What follows is one message for each: user in the json protocol,
where two user messages never come in a row, tool or user in the native one.
"""

import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pimono_sdpo.agent import prompts
from pimono_sdpo.agent.patch import unified_diff
from pimono_sdpo.agent.protocol import Action, read_json, read_native, written
from pimono_sdpo.agent.task_tests import TaskResult
from pimono_sdpo.agent.tools import Workspace
from pimono_sdpo.llm.calls import Reply
from pimono_sdpo.options import option, options
from pimono_sdpo.schema import Protocol, TestPolicy, Turn
from pimono_sdpo.text import shorten

Kind = Literal[
    "run_start", "llm_request", "llm_action", "llm_parse_error", "tool_result", "tests",
    "driver_note", "final", "run_end",
]  # fmt: skip
Event = dict[str, Any]


def event(kind: Kind, run_id: str, t: int, **fields: Any) -> Event:
    """Return one event."""
    return {"kind": kind, "run_id": run_id, "t": t, **fields}


def write_trace(path: Path, events: Sequence[Event]) -> None:
    """Write a trace, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(
        "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in events), encoding="utf-8"
    )
    partial.replace(path)


def read_trace(path: Path) -> list[Event]:
    """Return the events of a trace."""
    # Not splitlines: texts may hold other ends of lines.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


Ended = Literal["final", "max_iters", "loop", "parse_errors", "error"]
Ask = Callable[[list[Turn]], Awaitable[Reply]]


RunTests = Callable[[Workspace], Awaitable[TaskResult]]


@options
class Rules:
    """How every run of a suite is driven."""

    protocol: Protocol = option(
        "Calls as one `json` object, or the API's `native` ones.",
        default="json",
        flag="--tool-protocol",
    )
    test_policy: TestPolicy = option(
        "Run tests `on_write` and show the result, `on_final`, or `never`.", default="on_write"
    )
    max_iters: int = option("Maximum number of the model's turns.", default=20, minimum=1)
    max_tool_chars: int = option("Shorten longer tool results.", default=8000, minimum=200)
    lenient: bool = option(
        "Accept calls within code fences and prose, and record that.", default=False
    )


@dataclass(slots=True)
class Run:
    """A run as it goes; finished when `ended` says how.

    `steps` are rows of STEP_TAKEN. `error` is a fault of ours or of the endpoint: such a run says
    nothing of the model. `report` is what the model said at the end, None when it never did.
    """

    run_id: str
    messages: list[Turn]
    turn: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    ended: Ended | None = None
    report: dict[str, Any] | None = None
    tests_ok: bool | None = None
    test_output: str | None = None
    tested: dict[str, bytes] | None = None
    n_test_runs: int = 0
    parse_errors_in_row: int = 0
    loops: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    told: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = 0.0
    error: str | None = None
    patch: str = ""
    files_touched: tuple[str, ...] = ()

    def log(self, kind: Kind, **fields: Any) -> None:
        """Add an event at the present turn."""
        self.events.append(event(kind, self.run_id, self.turn, **fields))

    def fail(self, why: str) -> None:
        """End the run by a fault that is not the model's."""
        self.ended, self.error, self.tests_ok = "error", why, None


def status_of(row: Mapping[str, Any]) -> str:
    """PASS or FAIL as tests said, ERROR for a fault that is not the model's, else N/A."""
    if row["error"] is not None:
        return "ERROR"
    return {True: "PASS", False: "FAIL", None: "N/A"}[row["tests_ok"]]


LOOP_REPEATS = 2  # so many times a call is done before it is a loop
MOST_LOOPS = 3
MOST_PARSE_ERRORS = 4  # in a row
MAX_RAW = 200_000
CUT = "length"


async def drive(
    run_id: str,
    goal: str,
    space: Workspace,
    ask: Ask,
    run_tests: RunTests | None,
    rules: Rules,
    about: dict[str, Any],
) -> Run:
    """Run an agent on the workspace until it ends; `run_tests` is None for a task without tests.

    `about` goes into the trace's first event. Trouble of the endpoint or the sandbox is the run's
    `error`; raises OSError when the workspace's disk fails.
    """
    run = Run(
        run_id,
        [
            {"role": "system", "content": prompts.system_prompt(rules.protocol, rules.test_policy)},
            {"role": "user", "content": prompts.goal_prompt(goal)},
        ],
    )
    run.log("run_start", goal=goal, **about)
    run_tests = None if rules.test_policy == "never" else run_tests
    while run.ended is None and len(run.steps) < rules.max_iters:
        run.turn = len(run.steps)
        await _turn(run, space, ask, run_tests, rules)
    run.ended = run.ended or "max_iters"
    changed = space.changed()
    if run_tests is not None and run.error is None and run.tested != changed:
        await _test(run, space, run_tests, changed)
    run.patch = unified_diff(space.before, changed)
    run.files_touched = tuple(changed)
    if run.report is not None:
        run.log("final", final=_final(run))
    counts = {"n_steps": len(run.steps), "n_test_runs": run.n_test_runs, "tests_ok": run.tests_ok}
    run.log("run_end", ended=run.ended, error=run.error, **counts)
    return run


async def _turn(
    run: Run, space: Workspace, ask: Ask, run_tests: RunTests | None, rules: Rules
) -> None:  # fmt: skip
    """One question and what comes of it: one step and, unless the run ends, two messages."""
    context = len(run.messages)
    run.log("llm_request", n_messages=context, messages=run.messages[run.told :])
    reply = await ask(run.messages)
    if reply.error is not None:
        run.fail(reply.error)
        return
    usage = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens}
    run.prompt_tokens += reply.prompt_tokens
    run.completion_tokens += reply.completion_tokens
    run.cost = None if run.cost is None or reply.cost is None else run.cost + reply.cost
    action = _read(reply, rules)
    raw: Any = {"text": reply.text[:MAX_RAW], "tool_calls": list(reply.tool_calls)}
    run.messages.append(_said(action, reply, context, rules))
    run.told = len(run.messages)
    if action.kind == "parse_error":
        run.log("llm_parse_error", raw=raw, error=action.malformed, usage=usage)
        _parse_error(run, action, context, rules)
        return
    run.log("llm_action", raw=raw, action=json.loads(written(action)), usage=usage)
    run.parse_errors_in_row = 0
    if action.kind == "final":
        _step(run, action, context, ok=True)
        run.ended, run.report = "final", action.report
        return
    await _call(run, space, action, run_tests, rules, context)


async def _call(
    run: Run,
    space: Workspace,
    action: Action,
    run_tests: RunTests | None,
    rules: Rules,
    context: int,
) -> None:
    """Do a tool call, run the tests when it changed a file, and tell the model of both."""
    asked = {name: value for name, value in action.args.items() if name != "thought"}
    key = json.dumps([action.name, asked], sort_keys=True)
    run.seen[key] += 1
    if run.seen[key] > LOOP_REPEATS:
        run.loops += 1
        run.log("driver_note", note=prompts.LOOP)
        _step(run, action, context, kind="loop", ok=False, error=prompts.LOOP)
        if run.loops == MOST_LOOPS:
            run.ended = "loop"
        else:
            _tell(run, f"[driver] {prompts.LOOP}", rules)
        return
    result = space.call(action.name, action.args)
    if result.changed:
        run.seen = Counter({key: 1})
    text = shorten(result.text, rules.max_tool_chars)
    run.log(
        "tool_result",
        **{"name": action.name, "args": action.args, "ok": result.ok, "output": text},
        changed=result.changed,
    )
    said = text if result.ok else f"[tool_error] {text}"
    verdict = None
    if result.changed and run_tests is not None and rules.test_policy == "on_write":
        verdict = await _test(run, space, run_tests, space.changed())
        status = {True: "PASS", False: "FAIL"}.get(run.tests_ok)  # type: ignore[arg-type]
        if status:
            output = shorten(run.test_output or "", rules.max_tool_chars)
            said = f"{said}\n\n[TESTS {status}]\n{output}".rstrip()
    error = None if result.ok else text
    _step(run, action, context, ok=result.ok, error=error, tests_ok=verdict)
    if run.ended is None:
        note = prompts.one_call(action) if action.malformed else ""
        if note:
            run.log("driver_note", note=note)
        _tell(run, f"{said}\n\n{note}".rstrip(), rules)


async def _test(
    run: Run, space: Workspace, run_tests: RunTests, changed: dict[str, bytes]
) -> bool | None:  # fmt: skip
    """Run the tests on the files as they are; a fault of ours ends the run."""
    verdict = await run_tests(space)
    run.log("tests", ok=verdict.ok, output=verdict.output, error=verdict.error)
    run.tested, run.tests_ok, run.test_output = changed, verdict.ok, verdict.output
    run.n_test_runs += 1
    if verdict.ok is None:
        run.fail(f"tests could not be run: {verdict.error}")
    return verdict.ok


def _parse_error(run: Run, action: Action, context: int, rules: Rules) -> None:
    run.parse_errors_in_row += 1
    _step(run, action, context, ok=False, error=action.malformed)
    if run.parse_errors_in_row == MOST_PARSE_ERRORS:
        run.ended = "parse_errors"
        return
    note = prompts.could_not_read(action, rules.protocol)
    run.log("driver_note", note=note)
    run.messages.append({"role": "user", "content": note})


def _read(reply: Reply, rules: Rules) -> Action:
    cut = reply.finish_reason == CUT
    if rules.protocol == "json" and (reply.text.strip() or not reply.tool_calls):
        return read_json(reply.text, lenient=rules.lenient, cut=cut)
    if rules.protocol == "json" and not rules.lenient:
        return Action("parse_error", malformed="it is a native call and no text")
    action = read_native(reply.text, reply.tool_calls, lenient=rules.lenient, cut=cut)
    if rules.protocol == "json" and action.kind != "parse_error":
        return replace(action, malformed=action.malformed or "it is a native call and no text")
    return action


def _said(action: Action, reply: Reply, context: int, rules: Rules) -> Turn:
    """The model's turn as the history holds it: in good form, unless it could not be read.

    Ids of calls are ours: those of providers differ from run to run.
    """
    if action.kind == "parse_error":
        wrote = reply.text.strip() or "\n".join(
            f"{call['function']['name']}({call['function']['arguments']})"
            for call in reply.tool_calls
        )
        # Some servers refuse an answer that holds nothing.
        content = shorten(wrote, rules.max_tool_chars) or "(no answer)"
        return {"role": "assistant", "content": content}
    if rules.protocol == "json":
        plain = not action.malformed and not reply.text.lstrip().startswith("<think>")
        return {"role": "assistant", "content": reply.text.strip() if plain else written(action)}
    if action.kind == "final":
        return {"role": "assistant", "content": action.report["summary"]}
    function = {"name": action.name, "arguments": action.args}
    call = {"id": f"call{context:05d}", "type": "function", "function": function}
    return {"role": "assistant", "content": action.text, "tool_calls": [call]}


def _tell(run: Run, said: str, rules: Rules) -> None:
    """Answer the last tool call."""
    calls = run.messages[-1].get("tool_calls")
    if not calls:
        run.messages.append({"role": "user", "content": f"[tool_result]\n{said}"})
        return
    call = calls[0]
    name = call["function"]["name"]
    run.messages.append(
        {"role": "tool", "content": said, "tool_call_id": call["id"], "name": name}
    )  # fmt: skip


def _step(
    run: Run,
    action: Action,
    context: int,
    *,
    ok: bool,
    kind: str | None = None,
    error: str | None = None,
    tests_ok: bool | None = None,
) -> None:
    run.steps.append(
        {
            "index": len(run.steps),
            "kind": kind or action.kind,
            "name": action.name or None,
            "args": _args(action),
            "ok": ok,
            "error": error,
            "n_context": context,
            "tests_ok": tests_ok,
            "malformed": action.malformed or None,
        }
    )


def _args(action: Action) -> dict[str, Any] | None:
    """The arguments of a call; of a final report, all it says."""
    if action.kind == "final":
        return {key: value for key, value in action.report.items() if key != "type"}
    return action.args if action.kind == "tool_call" else None


def _final(run: Run) -> dict[str, Any]:
    """The model's report as traces hold it: with what tests said and what was really changed."""
    report = dict(run.report or {})
    report.setdefault(
        "changes", [{"path": path, "description": "written"} for path in run.files_touched]
    )
    if run.tests_ok is not None:
        report["test_result"] = {"ok": run.tests_ok, "output": shorten(run.test_output or "", 500)}
    return report
