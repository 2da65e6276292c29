"""Convert recorded sessions to runs.

reads   session_id, source, trace
writes  RUN, one row per session

Only the active branch is read, from the first request on, without calls that have no result. Secrets,
machine paths and names are redacted as in the filter. `pimono_sdpo.traces.tools` describes the tools.
"""

from collections.abc import Sequence
from functools import partial

from pimono_sdpo.schema import Turn
from pimono_sdpo.stage import FlatMap, Row
from pimono_sdpo.traces.events import Event, decode_json
from pimono_sdpo.traces.harness import find_harness
from pimono_sdpo.traces.parse import Trace, match_results, read_trace
from pimono_sdpo.traces.tools import describe_tools
from processors.redact import Private, identify, redact_json, redact_text
from processors.rollouts.conversation import Json, add_answer, add_call, make_turn
from processors.rollouts.steps import RUN
from processors.split import split

READ = ("session_id", "source", "trace")


def read_session(row: Row, test_fraction: float, recorder: Sequence[str] | None) -> list[Json]:
    """Return the run of one session."""
    trace, _, turns, steps, _, columns = read_conversation(row, test_fraction, recorder)
    run = {"run_id": columns["task_id"], "protocol": "native", "messages": turns, "steps": steps}
    return [{**dict.fromkeys(RUN), **columns, **run, "error": trace.problem}]


def read_conversation(
    row: Row, test_fraction: float, recorder: Sequence[str] | None
) -> tuple[Trace, Private, list[Turn], list[Json], dict[int, int], Json]:
    """Return the trace, what to redact, the result of `_read_turns`, and the columns that runs and pairs share."""
    trace = read_trace(row["trace"] or b"")
    private = (trace.cwd, *identify(row["trace"], trace, recorder))
    active = [event for event in trace.events if event.on_active_branch and not event.is_subagent]
    turns, steps, turn_of = _read_turns(trace, private, active)
    # A session that is left out is found again by its file.
    named = row["source"] if trace.problem else row["session_id"] or trace.session_id
    session, _ = redact_text(named or row["source"] or row["session_id"], trace.cwd)
    split_column = split({"cwd": trace.cwd, "source": row["source"]}, test_fraction)
    tools = describe_tools(list_worked(steps), trace.harness, find_harness(trace.harness).tools)
    columns = {"task_id": session, "tools": tools, **split_column}
    return trace, private, turns, steps, turn_of, columns


def _read_turns(
    trace: Trace, private: Private, events: Sequence[Event]
) -> tuple[list[Turn], list[Json], dict[int, int]]:
    """Return the turns and steps of these events, and the turn number of each event by the event's index."""
    matched = match_results(trace.events)
    turns: list[Turn] = []
    steps: list[Json] = []
    turn_of: dict[int, int] = {}
    pending = ""
    for event in events:
        text = redact_json(event.text, private)
        if event.kind == "assistant":
            if event.stop_reason not in {"aborted", "error"} and text.strip():
                pending = f"{pending}\n\n{text}" if pending else text
                turn_of[event.index] = len(turns)
            continue
        if event.kind == "tool_call" and turns and event.index in matched:
            result = trace.events[matched[event.index]]
            answer = redact_json(result.text, private)
            args = redact_json(decode_json(event.arguments), private)
            turn_of[event.index], turn_of[result.index] = len(turns), len(turns) + 1
            call_id = event.call_id or f"call_{event.index}"
            add_call(turns, steps, pending, call_id, event.tool_name, args, answer, bool(result.is_error))
            pending = ""
        elif event.kind in {"user", "bash", "custom_message", "compaction"} and text.strip():
            if pending and turns:
                add_answer(turns, steps, pending)
            pending = ""
            command = redact_json(event.arguments, private)
            content = f"$ {command}\n{text}" if command else text
            if turns and turns[-1]["role"] == "user":
                content = f"{turns.pop()['content']}\n\n{content}"
            turn_of[event.index] = len(turns)
            turns.append(make_turn("user", content))
    if pending and turns:
        add_answer(turns, steps, pending)
    return turns, steps, turn_of


def list_worked(steps: Sequence[Json]) -> list[tuple[str, Json]]:
    """Return name and arguments of the calls that worked."""
    return [(step["name"], step["args"]) for step in steps if step["kind"] in {"tool_call", "loop"} and step["ok"]]


def build_stage(test_fraction: float = 0.0, recorder: Sequence[str] | None = ()) -> FlatMap:
    """Return the stage from sessions to runs; `recorder` is as in `processors.redact.identify`."""
    read = partial(read_session, test_fraction=test_fraction, recorder=recorder)
    return FlatMap(read, reads=READ, writes=RUN, on_crash=name_run)


def name_run(row: Row) -> Json:
    """Return the reject of a session on which a stage crashed."""
    return {"task_id": redact_text(row["source"] or row["session_id"], "")[0]}
