"""Read Hermes sessions: the rows of `state.db`, exported sessions, and the files of older versions.

Messages have OpenAI's form. The results of tools are JSON objects, which may have an exit code, an error or a status.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import blocks
from pimono_sdpo.traces.harness.base import Entry, Harness, Schema, Store, Table, Tool, describe_arguments, find_home
from pimono_sdpo.traces.harness.blocks import to_object, to_text

# A list of blocks in a text column begins so.
_ENCODED = re.compile(r"[\0\1]json:")
_SUMMARY = re.compile(r"\[CONTEXT (?:COMPACTION|SUMMARY)\b")
_INSERTED = re.compile(
    r"\[IMPORTANT: (?:The user has invoked the|Background process)|\[System note:"
    r"|\[System: This session is about to be automatically reset"
    r"|Review the conversation above and (?:update the skill library|consider saving)"
)
_SCHEDULED = re.compile(r"\[(?:SYSTEM|IMPORTANT): You are running as a scheduled cron job\b.*?\]\n\n", re.DOTALL)
_INSTRUCTION = re.compile(
    r"(?:following instruction alongside the skill (?:invocation|command)|^User instruction): (.*?)(?=\n\n\[|\Z)",
    re.DOTALL | re.MULTILINE,
)
_STOPS = {"interrupted": "aborted", "cancelled": "aborted"}
_FAILED = ("error", "errored", "failed", "timeout")
_NOT_RUN = ("blocked", "pending_approval", "approval_required")


class _Exported(msgspec.Struct):
    """A line of an export; with these fields no other agent writes one."""

    id: str
    source: str
    messages: msgspec.Raw


_EXPORTED = msgspec.json.Decoder(_Exported)


def recognises(entry: Entry) -> bool:
    """Recognise a whole session, the row of a message, or the first line of an older file."""
    if isinstance(entry.get("messages"), list):
        return "session_start" in entry or ("source" in entry and "started_at" in entry)
    is_row = entry.get("table") == "messages" and "role" in entry and "ordinal" not in entry
    return is_row or entry.get("role") == "session_meta"


def _split(objects: list[Entry]) -> tuple[Entry, list[Entry]]:
    """Return the session and its messages."""
    session: Entry = {}
    messages: list[Entry] = []
    for entry in objects:
        listed = entry.get("messages")
        if isinstance(listed, list):
            messages += filter(None, map(to_object, listed))
        if isinstance(listed, list) or entry.get("table") == "sessions":
            session = session or entry
        elif "role" in entry:
            messages.append(entry)
    return session, messages


def read_header(objects: list[Entry]) -> tuple[str, str]:
    """Return the session's id and working directory."""
    session, messages = _split(objects)
    ids = (entry.get(key) for entry in (session, *messages[:1]) for key in ("id", "session_id"))
    return blocks.find_text(ids), to_text(session.get("cwd"))


def read(objects: list[Entry]) -> list[Event]:
    """Return the events in the order of the messages; what the user has undone is off the active path."""
    session, messages = _split(objects)
    config = to_object(blocks.decode_text(session.get("model_config")))
    is_subagent = bool(session.get("parent_session_id")) and "_delegate_from" in config
    # A compaction writes the last messages again, and marks those before it.
    kept = {_identify(message) for message in messages if message.get("compacted") != 1}
    steps, has_request = blocks.Steps(), False
    for message in messages:
        is_copied = message.get("compacted") == 1 and _identify(message) in kept
        typed = not (is_subagent and has_request)
        for event in ([] if is_copied else list(_read_message(message, typed))) or [Event(0, "other")]:
            event.id = str(message.get("id") or "")
            event.timestamp = _format_seconds(message.get("timestamp"))
            event.on_active_branch = message.get("active") != 0 or message.get("compacted") == 1
            has_request |= event.kind == "user"
            steps.follow(event)
    return blocks.finish_events(steps.events)


def _identify(message: Entry) -> str:
    return blocks.dump_json([message.get(key) for key in ("role", "content", "tool_call_id", "tool_calls")])


def _format_seconds(value: object) -> str:
    return blocks.format_time(value * 1000 if isinstance(value, int | float) else value)


def _read_message(message: Entry, typed: bool) -> Iterator[Event]:
    role, content = to_text(message.get("role")), message.get("content")
    if isinstance(content, str) and (match := _ENCODED.match(content)):
        content = blocks.decode_text(content[match.end() :])
    text = blocks.join_text(content)
    if message.get("_compressed_summary") == 1 or (role in ("user", "assistant") and _SUMMARY.match(text)):
        yield Event(0, "compaction", text)
    elif role == "assistant":
        stop = to_text(message.get("finish_reason"))
        yield Event(0, "assistant", text, stop_reason=_STOPS.get(stop, stop))
        for call in blocks.to_blocks(blocks.decode_text(message.get("tool_calls"))):
            function = to_object(call.get("function"))
            call_id = call.get("id") or call.get("call_id")
            yield blocks.build_call(call_id, function.get("name"), function.get("arguments"))
    elif role == "tool":
        yield _read_result(text, to_text(message.get("tool_call_id")))
    elif role == "user":
        is_inserted = bool(_INSERTED.match(text)) or to_text(message.get("display_kind")) == "hidden"
        if match := _SCHEDULED.match(text):
            yield Event(0, "custom_message", match[0])
            text = text[match.end() :]
        yield from blocks.split_typed([text], typed and not is_inserted)
        if is_inserted and typed and (match := _INSTRUCTION.search(text)):
            yield Event(0, "user", match[1])


def _read_result(text: str, call_id: str) -> Event:
    """Return a result with the output and the error in its JSON, which notes may follow."""
    result = Event(0, "tool_result", text, call_id=call_id)
    try:
        value, end = json.JSONDecoder().raw_decode(text) if text.startswith("{") else ({}, 0)
    except (ValueError, RecursionError):
        # It was cut off, or a tool prints something that begins like JSON.
        return result
    error, status, code = to_text(value.get("error")), to_text(value.get("status")), value.get("exit_code")
    is_expected = "not an error" in to_text(value.get("exit_code_meaning"))
    if type(code) is int and status not in _NOT_RUN:
        result.exit_code = code
    failed = bool(result.exit_code) or bool(error) or value.get("success") is False or status in _FAILED
    result.is_error = failed and not is_expected
    shown = blocks.find_text(value.get(key) for key in ("output", "content"))
    if shown or "output" in value or error:
        # A script's error repeats what it printed.
        result.text = "\n".join(filter(None, (shown, "" if error in shown else error, text[end:].strip())))
    return result


def split_export(content: bytes) -> list[tuple[str, bytes]]:
    """Return the id and the line of each session of an export of several, [] for any other content."""
    lines = content.splitlines(keepends=True) if content.startswith(b'{"id"') and b"\n" in content.strip() else []
    try:
        sessions = [_EXPORTED.decode(line) for line in lines]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []
    return [(session.id, line) for session, line in zip(sessions, lines, strict=True)]


def list_kinds(objects: list[Entry]) -> Iterator[str]:
    """Yield the roles of messages, and the types of blocks in them."""
    session, messages = _split(objects)
    yield from ["session"] * bool(session)
    for message in messages:
        yield f"message:{message.get('role')}"


def find_homes(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Return the databases of all profiles, or the folder of an older version."""
    folder = find_home(environ, "HERMES_HOME", home / ".hermes")
    stores = [*folder.glob("state.db"), *sorted(folder.glob("profiles/*/state.db"))]
    return stores or [folder / "state.db", folder / "sessions"]


_LIST: Schema = {"type": "array"}
TOOLS = {
    "bash": Tool(
        "Run a shell command.",
        (
            describe_arguments(
                "command", "command workdir", "timeout", "background pty notify_on_complete", watch_patterns=_LIST
            ),
        ),
    ),
    "read": Tool(
        "Read a file, or `limit` lines of it from line `offset`.",
        (describe_arguments("path", "path", "offset limit"),),
    ),
    "write": Tool(
        "Write a file, replacing what it held.",
        (describe_arguments("path content", "path content", flags="cross_profile"),),
    ),
    "edit": Tool(
        "Replace a text of a file (mode `replace`) or apply a patch to several files (mode `patch`).",
        (describe_arguments("mode", "mode path old_string new_string patch", flags="replace_all cross_profile"),),
    ),
    "search_files": Tool(
        "Search the contents of files, or find files by name.",
        (describe_arguments("pattern", "pattern target path file_glob output_mode", "limit offset context"),),
    ),
    "process": Tool(
        "Manage a process in the background.",
        (describe_arguments("action", "action session_id data", "timeout limit offset"),),
    ),
    "execute_code": Tool("Run a Python script that can call tools.", (describe_arguments("code", "code"),)),
    "browser_navigate": Tool("Open a page in the browser.", (describe_arguments("url", "url"),)),
    "browser_snapshot": Tool("Return the page as text.", (describe_arguments("", "", flags="full"),)),
    "browser_click": Tool("Click an element of the page.", (describe_arguments("ref", "ref"),)),
    "browser_type": Tool("Type into a field of the page.", (describe_arguments("ref text", "ref text"),)),
    "web_search": Tool("Search the web.", (describe_arguments("query", "query", "limit"),)),
    "web_extract": Tool("Read web pages.", (describe_arguments("urls", "", urls=_LIST),)),
    "delegate_task": Tool(
        "Let subagents do tasks.", (describe_arguments("", "goal context", toolsets=_LIST, tasks=_LIST),)
    ),
    "todo": Tool("Read or replace the list of tasks.", (describe_arguments("", "", flags="merge", todos=_LIST),)),
    "memory": Tool(
        "Remember something across sessions.", (describe_arguments("action target", "action target content old_text"),)
    ),
    "skill_view": Tool("Load a skill or one of its files.", (describe_arguments("name", "name file_path"),)),
    "skills_list": Tool("List skills.", (describe_arguments("", "category"),)),
    "skill_manage": Tool(
        "Change a skill.",
        (
            describe_arguments(
                "action name",
                "action name content category file_path file_content old_string new_string",
                flags="replace_all",
            ),
        ),
    ),
    "session_search": Tool("Search earlier sessions.", (describe_arguments("", "query role_filter", "limit"),)),
    "clarify": Tool("Ask the user a question.", (describe_arguments("question", "question", choices=_LIST),)),
    "vision_analyze": Tool("Look at an image.", (describe_arguments("image_url question", "image_url question"),)),
}

HARNESS = Harness(
    name="hermes",
    title="Hermes",
    word="hermes",
    homes=find_homes,
    about="Hermes' `state.db`, exported sessions, and the files of older versions",
    recognises=recognises,
    read_header=read_header,
    read=read,
    list_kinds=list_kinds,
    tools=TOOLS,
    edit=("old_string", "new_string"),
    store=Store(
        tables=(Table("sessions", "id", "rowid", "started_at"), Table("messages", "session_id", "id", "timestamp")),
        project="cwd",
    ),
    sample="""\
{"id": "20260101_1", "source": "cli", "cwd": "/w/app", "started_at": 1767225600.0, "messages": [\
{"role": "user", "content": "Fix the failing test of the parser."},\
{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function":\
 {"name": "terminal", "arguments": "{\\"command\\": \\"npm test\\"}"}}]},\
{"role": "tool", "tool_call_id": "c",\
 "content": "{\\"output\\": \\"AssertionError: expected 1\\", \\"exit_code\\": 1, \\"error\\": null}"}]}
""",
)
