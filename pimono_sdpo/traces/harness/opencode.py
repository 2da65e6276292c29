"""Read OpenCode sessions: the rows of its SQLite file, its older JSON files, and what `opencode export` prints.

A session has messages with a role, and a message has parts: text, calls with their results, marks of steps. Forks such
as Kilo use the same tables.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import blocks
from pimono_sdpo.traces.harness.base import Entry, Harness, Schema, Store, Table, Tool, describe_arguments, find_home
from pimono_sdpo.traces.harness.blocks import to_object, to_text

_FEEDBACK = "use this specific tool call with the following feedback: "


def recognises(entry: Entry) -> bool:
    """Recognise a message or a part, as a row, a file or in an export, by its ids."""
    if isinstance(entry.get("messages"), list):
        return to_text(to_object(entry.get("info")).get("id")).startswith("ses_")
    if "table" in entry:
        return entry["table"] in ("message", "part") and isinstance(entry.get("data"), dict)
    of = {**entry, **to_object(entry.get("part"))}
    return to_text(of.get("sessionID")).startswith("ses_") and ("role" in of or "messageID" in of)


def _flatten(objects: list[Entry]) -> Iterator[Entry]:
    """Yield the session, its messages and their parts in one form."""
    for entry in objects:
        if isinstance(messages := entry.get("messages"), list):
            yield to_object(entry.get("info"))
            for message in map(to_object, messages):
                yield {"role": "", **to_object(message.get("info"))}
                yield from filter(None, blocks.to_blocks(message.get("parts")))
        elif "table" in entry:
            yield {**entry, "messageID": entry.get("message_id"), **to_object(entry.get("data"))}
        else:
            # `opencode run --format json` wraps parts.
            yield to_object(entry.get("part")) or entry


def _is_part(entry: Entry) -> bool:
    return "type" in entry and bool(to_text(entry.get("messageID")))


def _find_session(objects: list[Entry]) -> Entry:
    return next((entry for entry in _flatten(objects) if "role" not in entry and not _is_part(entry)), {})


def read_header(objects: list[Entry]) -> tuple[str, str]:
    """Return the session's id and working directory."""
    session = _find_session(objects)
    others = (entry.get("sessionID") or entry.get("session_id") for entry in _flatten(objects))
    return to_text(session.get("id")) or blocks.find_text(others), to_text(session.get("directory"))


def read_version(objects: list[Entry]) -> str:
    """Return the version of OpenCode in the session."""
    return to_text(_find_session(objects).get("version"))


def read(objects: list[Entry]) -> list[Event]:
    """Return the events in the order of the messages; what the user has reverted is off the active path."""
    session = _find_session(objects)
    is_subagent = bool(to_text(session.get("parent_id") or session.get("parentID")))
    reverted = to_text(to_object(blocks.decode_text(session.get("revert"))).get("messageID"))
    messages: dict[str, tuple[Entry, list[Entry]]] = {}
    for entry in _flatten(objects):
        if _is_part(entry):
            messages.setdefault(to_text(entry["messageID"]), ({}, []))[1].append(entry)
        elif "role" in entry:
            message_id = to_text(entry.get("id"))
            messages[message_id] = entry, messages.get(message_id, ({}, []))[1]
    steps, first, above, has_request, is_active = blocks.Steps(), dict[str, int](), "", False, True
    for message_id, (message, parts) in messages.items():
        is_active = is_active and not (reverted and message_id == reverted)
        first[message_id] = len(steps.events)
        events = list(_read_message(message, parts, not (is_subagent and has_request))) or [Event(0, "other")]
        for event in events:
            event.id, event.parent_id, event.on_active_branch = message_id, above, is_active
            event.timestamp = event.timestamp or blocks.format_time(to_object(message.get("time")).get("created"))
            if event.kind == "compaction":
                tails = (to_text(part.get("tail_start_id")) for _, others in messages.values() for part in others)
                event.kept_from = first.get(next(filter(None, tails), "-"))
            has_request |= event.kind == "user"
            steps.follow(event)
        above = message_id
    return blocks.finish_events(steps.events)


def _read_message(message: Entry, parts: list[Entry], typed: bool) -> Iterator[Event]:
    if message.get("role") == "user":
        texts = [part for part in parts if part.get("type") == "text" and part.get("ignored") is not True]
        own = [to_text(part.get("text")) for part in texts if part.get("synthetic") is not True]
        added = [to_text(part.get("text")) for part in texts if part.get("synthetic") is True]
        yield from blocks.split_typed(added, typed=False)
        yield from blocks.split_typed(own, typed)
        return
    error = to_text(to_object(message.get("error")).get("name"))
    stop = "aborted" if error == "MessageAbortedError" else "error" if error else to_text(message.get("finish"))
    is_summary = message.get("summary") is True
    step: list[Entry] = []
    # An older message holds several steps.
    for part in [*parts, {"type": "step-start"}]:
        if part.get("type") != "step-start":
            step.append(part)
        elif step:
            text = "\n".join(to_text(one.get("text")) for one in step if one.get("type") == "text")
            calls = [one for one in step if one.get("type") == "tool"]
            yield Event(0, "compaction", text) if is_summary else Event(0, "assistant", text, stop_reason=stop)
            yield from (
                blocks.build_call(one.get("callID"), one.get("tool"), _state(one).get("input")) for one in calls
            )
            for one in calls:
                yield from _read_result(one)
            step = []


def _state(part: Entry) -> Entry:
    return to_object(part.get("state"))


def _read_result(part: Entry) -> Iterator[Event]:
    """Yield the result of a call that ended, and what the user says in it."""
    state, call_id = _state(part), to_text(part.get("callID"))
    metadata, status = to_object(state.get("metadata")), state.get("status")
    code = metadata.get("exit") if type(metadata.get("exit")) is int else None
    text = to_text(state.get("error") if status == "error" else state.get("output"))
    when = blocks.format_time(to_object(state.get("time")).get("end"))
    if status in ("completed", "error"):
        # Without a code, a command was stopped: it took too long, or the user aborted it.
        is_error = status == "error" or bool(code) or ("exit" in metadata and code is None)
        yield Event(0, "tool_result", text, call_id=call_id, is_error=is_error, exit_code=code, timestamp=when)
    if status == "error" and _FEEDBACK in text:
        yield Event(0, "user", text.partition(_FEEDBACK)[2], is_veto=True, timestamp=when)
    questions, answers = to_object(state.get("input")).get("questions"), metadata.get("answers")
    if part.get("tool") == "question" and isinstance(questions, list) and isinstance(answers, list):
        options = {
            to_text(one.get("label")) for of in questions for one in blocks.to_blocks(to_object(of).get("options"))
        }
        given = [to_text(one) for some in answers for one in (some if isinstance(some, list) else [some])]
        # An answer that is not an option was typed.
        yield from blocks.split_typed(one for one in given if one and one not in options)


def list_kinds(objects: list[Entry]) -> Iterator[str]:
    """Yield the roles of messages, the types of parts and the states of calls."""
    for entry in _flatten(objects):
        if _is_part(entry):
            yield f"part:{entry['type']}"
            if entry["type"] == "tool":
                yield f"tool:{_state(entry).get('status')}"
        else:
            yield f"message:{entry['role']}" if "role" in entry else "session"


def join_files(session: Path) -> bytes:
    """Return the JSON files of a session, a line for each; the first one is STORAGE/session/PROJECT/ID.json."""
    storage = session.parents[2]
    messages = sorted((storage / "message" / session.stem).glob("*.json"))
    parts = [file for message in messages for file in sorted((storage / "part" / message.stem).glob("*.json"))]
    # JSON has no line breaks inside of texts.
    return b"\n".join(file.read_bytes().replace(b"\n", b" ") for file in (session, *messages, *parts))


def find_homes(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Return the databases, one for each channel of releases, and the folder of older sessions."""
    folder = find_home(environ, "XDG_DATA_HOME", home / ".local/share") / "opencode"
    stores = [find_home(environ, "OPENCODE_DB", folder / "opencode.db"), *sorted(folder.glob("opencode-*.db"))]
    return [*stores, folder / "storage/session"]


_LIST: Schema = {"type": "array"}
TOOLS = {
    "bash": Tool(
        "Run a shell command; `timeout` is in milliseconds.",
        (describe_arguments("command", "command description workdir", "timeout"),),
    ),
    "read": Tool(
        "Read a file or folder, or `limit` lines of it from line `offset`.",
        (describe_arguments("filePath", "filePath", "offset limit"),),
    ),
    "write": Tool(
        "Write a file, replacing what it held.", (describe_arguments("filePath content", "filePath content"),)
    ),
    "edit": Tool(
        "Replace a text of a file, or apply a patch.",
        (
            describe_arguments("patchText", "patchText"),
            describe_arguments("filePath oldString newString", "filePath oldString newString", flags="replaceAll"),
        ),
    ),
    "grep": Tool(
        "Search the contents of files for a regular expression.",
        (describe_arguments("pattern", "pattern path include"),),
    ),
    "glob": Tool("Find files whose names match a pattern.", (describe_arguments("pattern", "pattern path"),)),
    "ls": Tool("List a folder.", (describe_arguments("", "path", ignore=_LIST),)),
    "webfetch": Tool("Fetch a web page.", (describe_arguments("url", "url format", "timeout"),)),
    "todowrite": Tool("Replace the list of tasks.", (describe_arguments("todos", "", todos=_LIST),)),
    "todoread": Tool("Return the list of tasks.", (describe_arguments("", ""),)),
    "task": Tool(
        "Let a subagent do a task.",
        (describe_arguments("description prompt subagent_type", "description prompt subagent_type"),),
    ),
    "skill": Tool("Load the instructions of a skill.", (describe_arguments("name", "name"),)),
    "question": Tool("Ask the user questions.", (describe_arguments("questions", "", questions=_LIST),)),
    "invalid": Tool("Say that a call was malformed.", (describe_arguments("tool error", "tool error"),)),
}

HARNESS = Harness(
    name="opencode",
    title="OpenCode",
    word="opencode",
    homes=find_homes,
    about="OpenCode's SQLite file, its older JSON files, and exported sessions",
    recognises=recognises,
    read_header=read_header,
    read=read,
    version_of=read_version,
    list_kinds=list_kinds,
    tools=TOOLS,
    edit=("oldString", "newString"),
    store=Store(
        tables=(
            Table("session", "id", "rowid", "time_updated"),
            Table("message", "session_id", "time_created, id", "time_updated", "data", ("id", "session_id")),
            Table("part", "session_id", "message_id, id", "time_updated", "data", ("id", "session_id", "message_id")),
        ),
        project="directory",
    ),
    sample="""\
{"table": "session", "id": "ses_1", "directory": "/w/app", "version": "1.2.0"}
{"table": "message", "id": "msg_1", "session_id": "ses_1", "data": {"role": "user"}}
{"table": "message", "id": "msg_2", "session_id": "ses_1", "data": {"role": "assistant"}}
{"table": "part", "id": "prt_1", "session_id": "ses_1", "message_id": "msg_1",\
 "data": {"type": "text", "text": "Fix the failing test of the parser."}}
{"table": "part", "id": "prt_2", "session_id": "ses_1", "message_id": "msg_2", "data": {"type": "tool",\
 "callID": "c", "tool": "bash", "state": {"status": "error", "input": {"command": "npm test"},\
 "error": "AssertionError: expected 1"}}}
""",
)
