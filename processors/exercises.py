"""Make an exercise of each tool call that failed, and of corrections by the user if asked to.

The prompt is the conversation up to the turn that failed; a verifier judges what the model does
there (`rewards.verifiers.next_call`). What went wrong, and what resolved it, is for the teacher.

reads   session_id, source, trace, bytes_not_utf8
writes  one row per failed call or correction
drops   no_call (no call of the agent failed), refused (the user, a hook or a sandbox stopped the
        call), not_decidable (a test, a build or a service failed, or nothing recorded tells what
        the call was for)

`goal` of the `verifier_spec` says what a call at this step should do, by `kind`:

change      make the change of the failed edit or write, on `path`
read        read `path`, which the harness wants before it is changed
path        find or use what was looked for under the missing `path`; `shown` if its name was
            in the conversation
folder      look into the folder `path`, which was taken for a file
program     do the same without the missing `program`
call        make the same call with arguments that fit its schema
correction  nothing that could be decided (only with --corrections)
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from datasets import Features, Value

from pimono_sdpo.replay.calls import decode_arguments, find_path, find_text, is_veto, read_edits, read_patch
from pimono_sdpo.replay.commands import parse_once
from pimono_sdpo.replay.initial_state import Beginnings, Known
from pimono_sdpo.schema import EVIDENCE, Finding
from pimono_sdpo.shell import Stage
from pimono_sdpo.stage import FlatMap, Row
from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import find_harness
from pimono_sdpo.traces.parse import read_trace
from processors.corrections import Judge
from processors.corrections.features import strip_wrapper
from processors.evidence import (
    LEAD_IN_CHARS,
    count_row,
    find_evidence,
    gather_history,
    hash_messages,
    spell_out,
    stands_alone,
)
from processors.outcome import is_command
from processors.redact import identify
from processors.rollouts.conversation import find_problem
from processors.rollouts.sessions import infer_tools
from processors.rows import PROMPT_CHARS

Json = dict[str, Any]
TOKEN_CHARS = 4
# Of one result or one text among the arguments of an earlier call.
RESULT_CHARS, ARGUMENT_CHARS, PLAN_CHARS = 3000, 600, 1200
FILE_CHARS = 30_000
MOST_PATHS, MOST_PROGRAMS, MOST_AFTER = 300, 60, 20
# Words of a command that looks at one place: a pattern, and the place.
MOST_WORDS = 2
# Of the words of two commands that do the same.
MIN_SHARED = 0.6
# So many calls show which arguments a tool always needs.
ENOUGH_CALLS = 5
_CHANGES = frozenset({"edit", "write", "multi_edit"})
_UNREAD = re.compile(r"not been read yet|modified since|[Rr]ead (?:it|the file) (?:first|again)|must read")
_IS_FOLDER = re.compile(r"EISDIR|[Ii]s a directory")
_NO_PROGRAM = re.compile(
    r"(?:^|: )(?:command not found: (\S{1,40})|([\w.+-]{1,40}): (?:command )?not found)\s*$", re.MULTILINE
)
_NO_PATH = re.compile(
    r"(?:access|open|stat|read) ?['\"\u2018]?([^'\"\u2019\n]{1,300})['\"\u2019]?: No such file"
    r"|no such file or directory(?:, \w+)?:? '?([^'\n]{1,300})'?"
    r"|: '?\"?([^'\":\n]{1,300})['\"]?: No such file or directory"
    r"|can't open file '([^'\n]{1,300})'",
    re.IGNORECASE,
)
# Programs that are given a file because it is thought to be there.
_USES = frozenset("cat head tail sed cd source bash sh node python python3 cp mv rg grep".split())
_PICTURE = re.compile(r"\.(?:png|jpe?g|gif|webp|pdf)$", re.IGNORECASE)
_OUTCOMES = frozenset({"test_or_assertion", "build_lint_compile", "runtime_exception"})
_REFUSED = frozenset({"policy_block", "permission_auth"})


def gather_exercises(
    row: Row,
    prompt_chars: int,
    judge: Judge | None = None,
    recorder: Sequence[str] | None = (),
    corrections: bool = False,
) -> list[dict[str, Any]]:
    """Return a row for each failure, and correction if asked for, of a session; at least one."""
    trace = read_trace(row["trace"] or b"")
    events = trace.events
    evidence = find_evidence(events, judge)
    matched, requests, described = evidence.matched, evidence.requests, evidence.described
    identity = identify(row["trace"], trace, recorder) if any(described.values()) else recorder
    called = {result: call for call, result in matched.items()}
    harness = find_harness(trace.harness)
    files = Beginnings(events, matched, trace.cwd, harness.files, len(events))
    tools = _list_tools(events, matched, trace.harness)
    found = [(request, item) for request in requests for item in described.get(request.index, ())]
    found.sort(key=lambda one: _find_begin(one[1], events, called))
    # A row has the same number whether corrections are rows or not.
    wanted: list[tuple[int, Event | None, Finding | None]] = [
        (number, *one) for number, one in enumerate(found) if corrections or one[1]["kind"] == "failure"
    ]
    made: list[dict[str, Any]] = []
    before = 0
    for number, request, item in wanted or [(0, None, None)]:
        begin = _find_begin(item, events, called) if item else 0
        stop = item["event_index"] + 1 if item and item is not wanted[-1][2] else len(events)
        problem: str | None = trace.problem
        prompt, exercise, known = "", None, []
        if item is None or request is None:
            problem = problem or "no_evidence"
        else:
            call = events[begin] if item["kind"] == "failure" else _find_last_change(events, item)
            prompt = spell_out(request, events)
            goal = _find_goal(item, call)
            resolver = events[called[item["resolved_at"]]] if item["resolved_at"] else None
            if isinstance(goal, str):
                problem = goal
            else:
                path = str(goal.get("path", ""))
                if call and (resolver is None or goal["kind"] == "read"):
                    resolver = _find_resolver(events, matched, item, call, goal)
                known = files.known_at(begin, item["event_index"], path, FILE_CHARS)
                if not _can_be_won(goal, item, call, resolver, known):
                    problem = "not_decidable"
                if goal["kind"] == "path":
                    name = _name(path)
                    shown = (e.text for e in events[:begin] if e.kind in {"tool_result", "user"})
                    goal["shown"] = any(name in text for text in shown)
                exercise = {
                    "cwd": trace.cwd,
                    "tools": tools,
                    "turns": _list_turns(events, matched, request, begin, prompt_chars),
                    "plan": _find_plan(events, begin) if item["kind"] == "failure" else "",
                    "goal": goal,
                    "failed_call": _describe_call(call),
                    "resolved_call": _describe_call(resolver),
                    "paths": files.nearest[:MOST_PATHS],
                    "programs": _list_programs(events[:begin], matched, events),
                }
        made.append(
            {
                "harness": trace.harness,
                "session_id": row["session_id"] or trace.session_id,
                "source": row["source"],
                "episode": number,
                "cwd": trace.cwd,
                "identity": identity,
                "prompt": prompt,
                "history": [],
                "request": begin,
                # A slip is what an exercise is made of.
                "findings": [{**item, "request": begin, "excuse": item["excuse"].replace("slip", "")}] if item else [],
                "continued": bool(item and item["resolved_at"]),
                "tools": [],
                "workspace": [one._asdict() for one in known],
                "problem": problem,
                "worth": 0.0,
                "is_best": True,
                "fingerprints": hash_messages(events[begin : begin + 1]) if item else [],
                **count_row(events[before:stop], evidence, row, trace.lines, not made),
                "exercise": json.dumps(exercise),
            }
        )
        before = max(before, stop)
    return made


def _find_begin(item: Finding, events: Sequence[Event], called: Mapping[int, int]) -> int:
    """Return the failed call, or the end of the message that the corrected turn answered."""
    at = item["event_index"]
    if item["kind"] == "failure":
        return called.get(at, at)
    users = (n for n in range(at - 1, -1, -1) if events[n].kind == "user")
    return next(users, item["request"]) + 1


def _find_last_change(events: Sequence[Event], correction: Finding) -> Event | None:
    """Return the last call before a correction that did not only look."""
    for event in reversed(events[correction["request"] : correction["event_index"]]):
        if event.kind == "tool_call" and event.tool_name in _CHANGES | {"bash"}:
            return event
    return None


def _find_goal(item: Finding, call: Event | None) -> Json | str:
    """Return what a call at this step should do, or why that cannot be said."""
    if item["kind"] == "correction":
        return {"kind": "correction"}
    if call is None or call.kind != "tool_call":
        return "no_call"
    given, categories, text = decode_arguments(call), set(item["categories"]), item["text"]
    path = find_path(given)
    if is_veto(text):
        return "refused"
    if is_command(call.tool_name, item["target"]) or _find_command(call):
        return _find_command_goal(item)
    if _REFUSED & categories and not _IS_FOLDER.search(text):
        return "refused"
    if call.tool_name in _CHANGES:
        patches = read_patch(given)
        path = patches[0].path if len(patches) == 1 else path
        if _OUTCOMES & categories:
            return "not_decidable"
        if path and _UNREAD.search(text):
            return {"kind": "read", "path": path}
        is_readable = bool(patches or read_edits(given) or find_text(given, "content"))
        if path and "missing_file_or_command" in categories:
            return {"kind": "path", "path": path}
        if len(patches) < 2 and (path or item["resolved_at"]):
            can_compare = is_readable or item["resolved_at"] is not None
            return {"kind": "change", "path": path} if can_compare else "not_decidable"
        return "not_decidable"
    if path and _IS_FOLDER.search(text):
        return {"kind": "folder", "path": path}
    if path and "missing_file_or_command" in categories:
        return {"kind": "path", "path": path}
    return {"kind": "call"} if "tool_schema_validation" in categories else "not_decidable"


def _can_be_won(goal: Json, item: Finding, call: Event | None, resolver: Event | None, known: Sequence[Known]) -> bool:
    """Whether the session tells of a call that does what the failed one was for."""
    if goal["kind"] in {"correction", "read", "folder"}:
        return True
    if call and resolver and resolver.arguments == call.arguments:
        # The same call worked later: it was not what was wrong.
        return False
    if goal["kind"] == "change":
        return resolver is not None or bool(known)
    if goal["kind"] == "program" and resolver:
        stages = [stage for one in parse_once(_find_command(resolver)) for stage in one.stages]
        return all(stage.program != goal["program"] for stage in stages)
    if goal["kind"] == "path":
        command = item["target"] if call and _find_command(call) else ""
        if not re.search(r"[A-Za-z]", goal["path"]) or _PICTURE.search(goal["path"]):
            return False
        stages = [stage for one in parse_once(command) for stage in one.stages]
        uses = [stage for stage in stages if goal["path"] in stage.arguments]
        # Others look whether something is there, or look in several places.
        return not command or any(
            stage.program in _USES and (resolver or len(_list_words(stage)) <= MOST_WORDS) for stage in uses
        )
    return resolver is not None


def _list_words(stage: Stage) -> list[str]:
    return [word for word in stage.arguments if not word.startswith("-")]


def _find_command(call: Event) -> str:
    return find_text(decode_arguments(call), "command", "cmd")


def _find_command_goal(item: Finding) -> Json | str:
    """Return the goal after a command named a program or a path that is missing."""
    if "missing_file_or_command" not in item["categories"] or _OUTCOMES & {*item["categories"]}:
        return "refused" if _REFUSED & {*item["categories"]} else "not_decidable"
    text = item["text"][-4000:]
    if found := _NO_PROGRAM.search(text):
        program = found[1] or found[2]
        if re.search(rf"(?<![\w./-]){re.escape(program)}(?![\w./-])", item["target"]):
            return {"kind": "program", "program": program}
    for match in _NO_PATH.finditer(text):
        path = next(filter(None, match.groups()), "").strip()
        if path and path in item["target"] and re.search(r"\w", path):
            return {"kind": "path", "path": path}
    return "not_decidable"


def _describe_call(call: Event | None) -> Json | None:
    return {"name": call.tool_name, "args": decode_arguments(call)} if call else None


def _find_resolver(
    events: Sequence[Event], matched: Mapping[int, int], item: Finding, call: Event, goal: Json
) -> Event | None:
    """Return the first of the next calls that worked and does what the goal says."""
    words = set(item["target"].split())
    for event in events[item["event_index"] : item["event_index"] + MOST_AFTER]:
        if event.kind == "user":
            return None
        result = matched.get(event.index)
        if event.kind != "tool_call" or not result or events[result].is_error:
            continue
        path, command = find_path(decode_arguments(event)), _find_command(event)
        if goal["kind"] == "read" and (event.tool_name, path) == ("read", goal["path"]):
            return event
        if goal["kind"] == "path":
            named = [path, *command.split()]
            if any(_name(one) == _name(goal["path"]) != one for one in named if one != goal["path"]):
                return event
        if goal["kind"] == "program" and goal["program"] not in command.split():
            shared = words & {*command.split()}
            if 2 * len(shared) >= MIN_SHARED * (len(words) + len({*command.split()})):
                return event
    return None


def _name(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\").strip("'\""))[-1]


def _list_programs(before: Sequence[Event], matched: Mapping[int, int], events: Sequence[Event]) -> list[str]:
    """Return the programs of the last commands that worked before a step."""
    found: dict[str, None] = {}
    for event in reversed(before):
        result = events[matched[event.index]] if event.index in matched else None
        if event.kind == "tool_call" and result and not result.is_error:
            for pipeline in parse_once(_find_command(event)):
                found |= dict.fromkeys(stage.program for stage in pipeline.stages)
        if len(found) >= MOST_PROGRAMS:
            break
    return sorted(found)


def _find_plan(events: Sequence[Event], begin: int) -> str:
    """Return what the agent said right before the call that failed."""
    said: list[str] = []
    for event in reversed(events[:begin]):
        if event.kind == "assistant" and event.on_active_branch and event.text.strip():
            said.append(event.text.strip())
        elif event.kind in {"user", "tool_call", "tool_result"}:
            break
    return "\n\n".join(reversed(said))


def _list_tools(events: Sequence[Event], matched: Mapping[int, int], name: str) -> list[Json]:
    """Return the tools of the harness as it defines them, and others as the session used them."""
    steps = [
        {
            "kind": "tool_call",
            "ok": not events[matched[event.index]].is_error,
            "name": event.tool_name,
            "args": decode_arguments(event),
        }
        for event in events
        if event.kind == "tool_call" and event.index in matched and event.tool_name
    ]
    own = find_harness(name).tools
    tools = []
    for tool in infer_tools(steps, name):
        function = tool["function"]
        worked = [step for step in steps if step["ok"] and step["name"] == function["name"]]
        schemas = own[function["name"]].schemas if function["name"] in own else ()
        # Harnesses that write the same format may have tools of their own.
        if schemas and all(any(_fits(step, schema) for schema in schemas) for step in worked):
            function |= {"parameters": schemas[-1], "known": True}
        elif len(worked) < ENOUGH_CALLS:
            function["parameters"]["required"] = []
        tools.append(tool)
    return tools


def _fits(step: Json, schema: Json) -> bool:
    tool = {"function": {"name": step["name"], "parameters": schema}}
    return find_problem(step, [tool]) is None


def _list_turns(
    events: Sequence[Event], matched: Mapping[int, int], request: Event, begin: int, chars: int
) -> list[Json]:
    """Return the request and the last turns before an event that fit into so many characters.

    A turn is a `text` of the user, or a `call` with its `result`; redacted and cut later.
    """
    ask = spell_out(request, events)
    if not stands_alone(ask):
        lead = gather_history(events, request.index, LEAD_IN_CHARS)
        told = "\n\n".join(f"[{turn['role']} before]\n{turn['content']}" for turn in lead)
        ask = f"{told}\n\n[request]\n{ask}" if told else ask
    turns: list[Json] = []
    left = chars - min(len(ask), PROMPT_CHARS)
    for event in reversed(events[request.index + 1 : begin]):
        if not event.on_active_branch or event.is_subagent:
            continue
        if event.kind == "user" and event.text.strip():
            turns.append({"text": strip_wrapper(event.text)})
            left -= min(len(event.text), RESULT_CHARS)
        elif event.kind == "tool_call" and event.index in matched:
            result = events[matched[event.index]].text
            turns.append({"call": _describe_call(event), "result": result})
            left -= min(len(result), RESULT_CHARS) + min(len(event.arguments), ARGUMENT_CHARS)
        if left < 0:
            del turns[-1:]
            break
    return [{"text": ask}, *reversed(turns)]


def stage(
    prompt_tokens: int, judge: Judge | None = None, recorder: Sequence[str] | None = (), corrections: bool = False
) -> FlatMap:
    """Build the stage for prompts of so many tokens, counted as TOKEN_CHARS characters each."""
    return FlatMap(
        partial(
            gather_exercises,
            prompt_chars=prompt_tokens * TOKEN_CHARS,
            judge=judge,
            recorder=recorder,
            corrections=corrections,
        ),
        reads=("session_id", "source", "trace", "bytes_not_utf8"),
        writes=Features({**EVIDENCE, "exercise": Value("string")}),
        tallies=("counts", "volume"),
    )
