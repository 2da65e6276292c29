"""Read GitHub Copilot CLI sessions: `events.jsonl`, and the output of `copilot --output-format json`.

Its schema of events is public: https://github.com/github/copilot-sdk. What the user typed is `content`; what the
model saw of it has more text around it. A call of a shell ends with its exit code as text.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import blocks
from pimono_sdpo.traces.harness.base import TEXT, Entry, Harness, Tool, describe_arguments, describe_list, find_home
from pimono_sdpo.traces.harness.blocks import find_text, list_objects, to_object, to_text

_EXIT = re.compile(r"<(?:[^<>\n]{0,80} )?(?:exited|completed) with exit code (-?\d{1,9})>\s*\Z")
_ANSWERED = re.compile(r"User responded: ")
# The sources of messages that a person typed; skills, schedules and other agents have names of their own.
_PERSON = frozenset({"", "user", "cli"})


# The tool of earlier versions that did all of this, by its argument `command`.
_EDITOR = {"view": "view", "create": "create", "str_replace": "edit", "insert": "insert"}


def recognises(entry: Entry) -> bool:
    """Recognise a message of the user or of the model."""
    data = entry.get("data")
    is_message = entry.get("type") in ("user.message", "assistant.message")
    return is_message and isinstance(data, dict) and isinstance(data.get("content"), str)


def _find_data(objects: list[Entry], *kinds: str) -> Iterator[Entry]:
    return (to_object(entry.get("data")) for entry in objects if entry.get("type") in kinds)


def read_header(objects: list[Entry]) -> tuple[str, str]:
    """Return the session id and the working directory."""
    started = [*_find_data(objects, "session.start", "session.resume")]
    context = (to_object(data.get("context")).get("cwd") for data in started)
    return find_text(data.get("sessionId") for data in started), find_text(context)


def read(objects: list[Entry]) -> list[Event]:
    """Return the events in file order; what a rewind took back is not on the active path."""
    gone = _find_rewound(objects)
    steps = blocks.Steps()
    requested: set[str] = set()
    own: dict[str, Event] = {}
    for position, entry in enumerate(objects):
        data = to_object(entry.get("data"))
        is_subagent = bool(to_text(entry.get("agentId")) or to_text(data.get("parentToolCallId")))
        if entry.get("type") == "abort" and not is_subagent:
            steps.abort()
        for event in list(_read_entry(entry, data, requested, own)) or [Event(0, "other")]:
            event.id, event.parent_id = to_text(entry.get("id")), to_text(entry.get("parentId"))
            event.timestamp = to_text(entry.get("timestamp"))
            event.is_subagent = is_subagent
            event.on_active_branch = not is_subagent and position not in gone
            steps.follow(event)
    return blocks.finish_events(steps.events)


def _find_rewound(objects: list[Entry]) -> set[int]:
    """Return the positions of the entries that a rewind took back."""
    at: dict[str, int] = {}
    gone: set[int] = set()
    for position, entry in enumerate(objects):
        if entry.get("type") == "session.snapshot_rewind":
            first = at.get(to_text(to_object(entry.get("data")).get("upToEventId")), position)
            gone.update(range(first, position))
        at[to_text(entry.get("id"))] = position
    return gone


def _read_entry(entry: Entry, data: Entry, requested: set[str], own: dict[str, Event]) -> Iterator[Event]:
    """Read an entry; `requested` are the calls so far, `own` the commands that the user ran."""
    text, call_id = to_text(data.get("content")), to_text(data.get("toolCallId"))
    match to_text(entry.get("type")):
        case "user.message":
            by_person = to_text(data.get("source")) in _PERSON and data.get("isAutopilotContinuation") is not True
            typed = by_person and not to_text(entry.get("agentId"))
            yield from blocks.split_typed([text], typed)
        case "system.notification":
            yield Event(0, "custom_message", text)
        case "assistant.message":
            yield Event(0, "assistant", text)
            for call in list_objects(data.get("toolRequests")):
                requested.add(to_text(call.get("toolCallId")))
                yield _build_call(call, call.get("name"))
        case "tool.user_requested":
            given = to_object(data.get("arguments"))
            own[call_id] = Event(0, "bash", tool_name="bash", arguments=to_text(given.get("command")))
        case "tool.execution_start" if call_id not in requested and call_id not in own:
            # The file of a session that was cut begins with the middle of a turn.
            requested.add(call_id)
            yield _build_call(data, data.get("toolName"))
        case "tool.execution_complete":
            yield from _read_result(data, own.get(call_id))
        case "permission.completed":
            if feedback := to_text(to_object(data.get("result")).get("feedback")):
                yield Event(0, "user", feedback, is_veto=True)
        case "session.compaction_complete" if data.get("success") is not False:
            yield Event(0, "compaction", to_text(data.get("summaryContent")))
        case "session.context_cleared":
            yield Event(0, "compaction")


def _build_call(call: Entry, name: object) -> Event:
    if name == "str_replace_editor":
        name = _EDITOR.get(to_text(to_object(call.get("arguments")).get("command")), name)
    return blocks.build_call(call.get("toolCallId"), name, call.get("arguments"))


def _read_result(data: Entry, command: Event | None) -> Iterator[Event]:
    """Read the result of a call or of the user's command; a typed answer to a question is the user's word."""
    result, error = to_object(data.get("result")), to_object(data.get("error"))
    text = to_text(result.get("content")) or to_text(error.get("message"))
    codes = (part.get("exitCode") for part in list_objects(result.get("contents")))
    code = next((one for one in codes if type(one) is int), None)
    if code is None and (match := _EXIT.search(text[-200:])):
        code = int(match[1])
    failed = data.get("success") is False or bool(code)
    if command:
        command.text, command.exit_code, command.is_error = text, code, failed
        yield command
        return
    call_id = to_text(data.get("toolCallId"))
    yield Event(0, "tool_result", text, call_id=call_id, is_error=failed, exit_code=code)
    if answered := _ANSWERED.match(text):
        yield Event(0, "user", text[answered.end() :])


def read_version(objects: list[Entry]) -> str:
    """Return the version of Copilot CLI that began or last resumed the session."""
    return find_text(data.get("copilotVersion") for data in _find_data(objects, "session.start", "session.resume"))


def list_kinds(objects: list[Entry]) -> Iterator[str]:
    """Yield the type of each line, and those of the blocks of a result."""
    for entry in objects:
        kind = to_text(entry.get("type"))
        yield kind
        if kind == "tool.execution_complete":
            contents = to_object(to_object(entry.get("data")).get("result")).get("contents")
            yield from (f"contents:{block.get('type')}" for block in list_objects(contents))


def list_homes(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Return the folder of sessions, also where versions before 1.0 kept it."""
    places = [find_home(environ, "COPILOT_HOME", home / ".copilot")]
    if state := environ.get("XDG_STATE_HOME"):
        places.append(Path(state).expanduser() / ".copilot")
    return [place / "session-state" for place in places]


def _describe_shells(shell: str) -> dict[str, Tool]:
    return {
        f"write_{shell}": Tool(
            "Send input to a running shell session.", (describe_arguments("shellId", "shellId input", "delay"),)
        ),
        f"read_{shell}": Tool(
            "Read new output of a shell session.", (describe_arguments("shellId", "shellId", "delay"),)
        ),
        f"stop_{shell}": Tool("Stop a shell session.", (describe_arguments("shellId", "shellId"),)),
        f"list_{shell}": Tool("List the shell sessions.", (describe_arguments("", ""),)),
    }


# The tools of the snapshots of github/copilot-sdk; the CLI itself is not public.
TOOLS = {
    **_describe_shells("bash"),
    **_describe_shells("powershell"),
    "bash": Tool(
        "Run a command in a shell session and return its output.",
        (
            describe_arguments("command sessionId", "command description sessionId", "timeout", "async"),
            describe_arguments("command", "command description mode shellId", "initial_wait", "detach"),
        ),
    ),
    "read": Tool(
        "View a file, or the lines of `view_range`, or list a folder.",
        (
            describe_arguments(
                "path", "path", flags="forceReadLargeFiles", view_range=describe_list({"type": "integer"})
            ),
        ),
    ),
    "write": Tool("Create a file.", (describe_arguments("path file_text", "path file_text"),)),
    "edit": Tool(
        "Replace a text that occurs once in a file.",
        (describe_arguments("path old_str new_str", "path old_str new_str"),),
    ),
    "grep": Tool(
        "Search files for a pattern.",
        (
            describe_arguments(
                "pattern", "pattern glob type output_mode", "-A -B -C head_limit", "-i -n multiline", path={}, paths={}
            ),
        ),
    ),
    "glob": Tool(
        "Find files whose names match a pattern.", (describe_arguments("pattern", "pattern", path={}, paths={}),)
    ),
    "think": Tool("Think about something.", (describe_arguments("thought", "thought"),)),
    "report_intent": Tool("Say in a few words what is done now.", (describe_arguments("intent", "intent"),)),
    "ask_user": Tool(
        "Ask the user a question.",
        (describe_arguments("question", "question", flags="allow_freeform", choices=describe_list(TEXT)),),
    ),
    "task": Tool(
        "Let a subagent do a task.",
        (describe_arguments("agent_type description prompt", "agent_type name description prompt model mode"),),
    ),
    "read_agent": Tool("Read what a subagent has done.", (describe_arguments("agent_id", "agent_id"),)),
    "list_agents": Tool("List the subagents.", (describe_arguments("", ""),)),
    "insert": Tool(
        "Insert a text after a line of a file.",
        (describe_arguments("path insert_line new_str", "path new_str command", "insert_line"),),
    ),
    "sql": Tool("Query the database of the session.", (describe_arguments("query", "query description database"),)),
    "skill": Tool("Load a skill.", (describe_arguments("skill", "skill"),)),
    "web_fetch": Tool(
        "Fetch a page as Markdown.", (describe_arguments("url", "url", "max_length start_index", "raw"),)
    ),
}

HARNESS = Harness(
    name="copilot_cli",
    about="GitHub Copilot CLI sessions (`events.jsonl`) and the output of `copilot --output-format json`",
    recognises=recognises,
    read_header=read_header,
    read=read,
    tools=TOOLS,
    version_of=read_version,
    list_kinds=list_kinds,
    edit=("old_str", "new_str"),
    title="Copilot CLI",
    word="copilot",
    homes=list_homes,
    sample="""\
{"type": "session.start", "data": {"sessionId": "s", "copilotVersion": "1.0.78", "context": {"cwd": "/w/app"}}}
{"type": "user.message", "data": {"content": "Fix the failing test of the parser."}}
{"type": "assistant.message", "data": {"content": "", "toolRequests": [{"toolCallId": "c", "name": "bash",\
 "arguments": {"command": "npm test", "description": "Run the tests"}}]}}
{"type": "tool.execution_complete", "data": {"toolCallId": "c", "success": true,\
 "result": {"content": "AssertionError: expected 1\\n<exited with exit code 1>"}}}
""",
)
