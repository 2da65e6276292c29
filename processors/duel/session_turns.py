"""Draw turns of recorded sessions of any harness; what is hidden is what went wrong later.

reads   SESSION
writes  candidate turns, and per session a record in the columns of a pull request

A session without a failure or a correction has nothing to hide. Secrets and machine paths are
redacted before any model is asked.
"""

import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pimono_sdpo.text import shorten
from pimono_sdpo.traces.events import Event, decode_json
from pimono_sdpo.traces.parse import read_trace
from processors.context import write_context
from processors.duel.answer_format import classify_action
from processors.duel.trajectories import count_readable, find_turns, read_messages
from processors.evidence import gather_evidence
from processors.redact import redact, redact_homes, redact_text

Json = dict[str, Any]
# Maximum characters of an observation.
OBSERVATION = 8_000
SYSTEM = "You are a coding agent. You work on the user's request in a shell, one step at a time."


class Drawn(NamedTuple):
    """A turn and what is hidden from it, or why the session has none."""

    turn: Json | None
    record: Json | None
    drop_reason: str | None


def draw_from_session(session: Mapping[str, Any], seed: int, most: int) -> list[Drawn]:
    """Draw at most `most` turns of a session; never raises on its content."""
    found = gather_evidence(session, "session", 0)[0]
    if found["problem"]:
        return [Drawn(None, None, found["problem"])]
    problems = [item["event_index"] for item in (*found["diagnostics"], *found["corrections"])]
    if not found["prompt"] or not problems:
        return [Drawn(None, None, "nothing_hidden" if found["prompt"] else "no_request")]
    trace = read_trace(session["trace"] or b"")
    conversation = list(_render_events(trace.events))
    messages = [message for message, _ in conversation]
    places = [
        at
        for at in find_turns(messages)
        if conversation[at][1].index < max(problems)
        and classify_action(messages[at]["content"]) != "none"
    ]
    readable = places[: count_readable(messages, places)]
    if not readable:
        return [Drawn(None, None, "too_long" if places else "no_turn")]
    name = session["source"] or found["session_id"]
    rng = random.Random(f"{seed}:{name}")
    drawn = rng.sample(readable, min(most, len(readable)))
    clean_messages = [
        {**message, "content": redact_text(message["content"], trace.cwd)[0]}
        for message in messages[: max(drawn) + 1]
    ]
    clean = {**found, **redact(found)}
    instance = redact_text(found["session_id"] or name, trace.cwd)[0]
    record = {
        "instance_id": instance,
        "problem_statement": clean["prompt"],
        "patch": "",
        "files": [],
        "base_commit": "",
        "description": write_context(clean)["privileged_context"],
    }
    record["pr_chars"] = len(record["problem_statement"]) + len(record["description"])
    return [
        Drawn(_make_turn(clean_messages, at, trace.cwd, instance), record, None) for at in drawn
    ]


def _make_turn(conversation: list[Json], at: int, cwd: str, instance: str) -> Json:
    before = [{"role": "system", "content": SYSTEM}, *conversation[:at]]
    answer = conversation[at]["content"]
    return {
        "instance_id": instance,
        # When the workspace is a home folder, this is just $HOME.
        "repo": redact_homes(cwd.rstrip("/")).rpartition("/")[2],
        "messages": read_messages(before),
        "assistant": answer,
        "turn": find_turns(conversation).index(at) + 1,
        "action_style": classify_action(answer),
    }


def _render_events(events: tuple[Event, ...]) -> Iterator[tuple[Json, Event]]:
    """Yield messages as THOUGHT plus one block; a call takes the text just before it."""
    thought: Event | None = None
    for event in events:
        if not event.on_active_branch or event.is_subagent:
            continue
        if event.kind == "tool_call":
            words = thought.text.strip() if thought else ""
            # The form requires a thought, which many agents do not write down.
            content = f"THOUGHT: {words or 'I take the next step.'}\n\n{_render_call(event)}"
            yield {"role": "assistant", "content": content}, event
            thought = None
            continue
        if thought is not None and thought.text.strip():
            yield {"role": "assistant", "content": thought.text}, thought
        thought = event if event.kind == "assistant" else None
        if event.kind in ("user", "compaction", "branch_summary"):
            yield {"role": "user", "content": event.text}, event
        elif event.kind in ("tool_result", "bash"):
            yield {"role": "user", "content": _render_result(event)}, event


def _render_result(event: Event) -> str:
    code = "" if event.exit_code in (None, 0) else f" (exit code {event.exit_code})"
    ran = f"$ {event.arguments}\n" if event.kind == "bash" else ""
    return f"Observation{code}:\n{ran}{shorten(event.text, OBSERVATION)}"


def _render_call(event: Event) -> str:
    """Return a shell command as a bash block, any other call as JSON."""
    arguments = decode_json(event.arguments)
    command = arguments.get("command") if isinstance(arguments, dict) else None
    if isinstance(command, list):
        command = " ".join(map(str, command))
    if isinstance(command, str) and command.strip() and "```" not in command:
        return f"```bash\n{command.strip()}\n```"
    return f"```json\n{event.tool_name} {shorten(event.arguments, OBSERVATION)}\n```"
