"""Read Gemini CLI and Qwen Code sessions, whose messages have the parts of Google's API.

Gemini CLI appends a message again when it changes, such as when its calls have results; the last version counts.
`$rewindTo` takes messages back, and `$set` replaces the history, after a compression or to mask old results; masked
copies of known messages are not read. Before 2026 a session was one JSON document, whose messages are read as lines.
Qwen Code writes a tree of records, each with its provenance.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import blocks
from pimono_sdpo.traces.harness.base import (
    Entry,
    Harness,
    Tool,
    describe_arguments,
    describe_list,
    find_home,
    read_setting,
)
from pimono_sdpo.traces.harness.blocks import find_text, list_objects, to_object, to_text

# How the result of a command ends; newer versions of Gemini CLI leave out what says nothing, such as a zero.
_ENDED = re.compile(
    r"(?P<failed>\nError: (?!\(none\)).*)?(?:(?:\n|^)Exit Code: (?P<code>\S+))?"
    r"(?P<rest>(?:\n(?:Signal|Background PIDs|Process Group PGID): .*)*)\s*\Z"
)
_TIMED_OUT = re.compile(r"Command (?:timed out after|was automatically cancelled because)")
_UNTRUSTED = re.compile(r"<untrusted_context>\n(.*)\n</untrusted_context>\s*\Z", re.DOTALL)
_SHELL = "run_shell_command"
_CANCELLED = re.compile(r"Request cancelled")
# Messages that begins so are commands, which the model does not see.
_COMMAND = ("/", "?")


def _list_parts(content: object) -> list[Entry]:
    """Return the parts of a message, which may also be a text or a single part."""
    items = content if isinstance(content, list) else [content]
    return [item if isinstance(item, dict) else {"text": item} for item in items if isinstance(item, dict | str)]


def _list_texts(parts: list[Entry]) -> list[str]:
    return [text for part in parts if part.get("thought") is not True and (text := to_text(part.get("text")))]


def _read_calls(parts: list[Entry]) -> Iterator[Event]:
    for call in (part["functionCall"] for part in parts if isinstance(part.get("functionCall"), dict)):
        yield blocks.build_call(call.get("id"), call.get("name"), call.get("args"))


def _read_results(parts: list[Entry], status: object) -> Iterator[Event]:
    """Read results; a cancelled call is not an error of its tool."""
    for answer in (part["functionResponse"] for part in parts if isinstance(part.get("functionResponse"), dict)):
        response = to_object(answer.get("response"))
        error = to_text(response.get("error"))
        text = find_text([response.get("output"), error]) or "\n".join(
            _list_texts(_list_parts(response.get("content")))
        )
        if match := _UNTRUSTED.match(text):
            text = match[1]
        code = _read_code(text) if answer.get("name") == _SHELL and not error else None
        failed = bool(error or status == "error" or code or _TIMED_OUT.match(text))
        if status == "cancelled":
            failed, code = False, None
        yield Event(0, "tool_result", text, call_id=to_text(answer.get("id")), is_error=failed, exit_code=code)


def _read_code(text: str) -> int | None:
    """Return the exit code of a command, None if it did not end by itself."""
    ended = _ENDED.search(text[-400:])
    if ended is None:
        return None
    if ended["code"]:
        return int(ended["code"]) if ended["code"].lstrip("-").isdecimal() else None
    says_nothing = not ended["failed"] and "Signal: " not in ended["rest"]
    return 0 if says_nothing and (ended["rest"] or text.startswith("Output: ")) else None


def recognises_gemini(entry: Entry) -> bool:
    """Recognise an answer of the model, alone or in the messages of a document or of `$set`."""
    lists = (entry.get("messages"), to_object(entry.get("$set")).get("messages"))
    messages = [entry, *(one for inner in lists if isinstance(inner, list) for one in inner if isinstance(one, dict))]
    return any(one.get("type") == "gemini" and "content" in one and isinstance(one.get("id"), str) for one in messages)


def _find_sessions(objects: list[Entry]) -> str:
    return find_text(entry.get("sessionId") for entry in objects)


def read_gemini_header(objects: list[Entry]) -> tuple[str, str]:
    """Return the session id and the first folder of the workspace, which only subagents and `/dir add` record."""
    folders = (listed for entry in objects if isinstance(listed := entry.get("directories"), list))
    return _find_sessions(objects), find_text(folder for one in folders for folder in one)


def read_gemini(objects: list[Entry]) -> list[Event]:
    """Return the events of each message where it was first written."""
    lines = [one for entry in objects for one in (entry, *list_objects(entry.get("messages")))]
    latest = {entry["id"]: entry for entry in lines if isinstance(entry.get("id"), str)}
    steps = blocks.Steps()
    begins: dict[str, int] = {}
    answered: set[str] = set()
    is_subagent = any(entry.get("kind") == "subagent" for entry in objects)
    parent = ""
    for entry in lines:
        entry_id = to_text(entry.get("id"))
        events: list[Event] = []
        if rewound := to_text(entry.get("$rewindTo")):
            for event in steps.events[begins.get(rewound, 0) :]:
                event.on_active_branch = False
            parent = next((event.id for event in reversed(steps.events) if event.on_active_branch), "")
        elif isinstance(history := to_object(entry.get("$set")).get("messages"), list):
            events = _read_history(history, begins)
        elif entry_id and entry_id not in begins:
            begins[entry_id] = len(steps.events)
            events = list(_read_message(latest[entry_id], is_subagent and "user" in {e.kind for e in steps.events}))
        for event in events or [Event(0, "other")]:
            if event.kind == "tool_result":
                # The results stand in the answer, and again in the message that took them to the model.
                event.kind = "other" if event.call_id in answered else event.kind
                answered.add(event.call_id)
            event.id, event.parent_id = entry_id, parent
            event.timestamp = to_text(entry.get("timestamp"))
            steps.follow(event)
        if entry.get("type") == "info" and _CANCELLED.match("\n".join(_list_texts(_list_parts(entry.get("content"))))):
            steps.abort()
        parent = entry_id or parent
    return blocks.finish_events(steps.events)


def _read_history(history: list[Any], begins: dict[str, int]) -> list[Event]:
    """Return the summary in a history that replaces the conversation; known messages are kept as they were."""
    messages = [(to_text(one.get("id")), one) for one in list_objects(history)]
    kept = min((begins[name] for name, _ in messages if name in begins), default=None)
    new = (one for name, one in messages if name not in begins and one.get("type") == "user")
    summary = find_text("\n".join(_list_texts(_list_parts(one.get("content")))) for one in new)
    return [Event(0, "compaction", summary, kept_from=kept)] if summary else []


def _read_message(entry: Entry, has_task: bool) -> Iterator[Event]:
    parts = _list_parts(entry.get("content"))
    match entry.get("type"):
        case "user":
            yield from _read_results(parts, "")
            shown = entry.get("displayContent")
            typed = _list_texts(_list_parts(shown)) if shown else _list_texts(parts)
            if shown and (added := [text for text in _list_texts(parts) if text not in typed]):
                yield Event(0, "custom_message", "\n".join(added))
            is_command = "\n".join(typed).lstrip().startswith(_COMMAND)
            yield from blocks.split_typed(typed, not has_task and not is_command)
        case "gemini":
            yield Event(0, "assistant", "\n".join(_list_texts(parts)))
            calls = list_objects(entry.get("toolCalls"))
            for call in calls:
                yield blocks.build_call(call.get("id"), call.get("name"), call.get("args"))
            if not calls:
                yield from _read_calls(parts)
            for call in calls:
                yield from _read_results(_name_result(call), call.get("status"))


def _name_result(call: Entry) -> list[Entry]:
    """Return the parts of a call's result; a text is one part."""
    result = call.get("result")
    if isinstance(result, str):
        result = {"functionResponse": {"id": call.get("id"), "name": call.get("name"), "response": {"output": result}}}
    return _list_parts(result)


def list_gemini_kinds(objects: list[Entry]) -> Iterator[str]:
    """Yield the type of each line, those of the parts in it, and the states of its calls."""
    for entry in objects:
        for one in (entry, *list_objects(entry.get("messages"))):
            kind = to_text(one.get("type")) or next(iter({"$set", "$rewindTo", "projectHash"} & one.keys()), "")
            yield kind
            yield from (f"{kind}:{name}" for part in _list_parts(one.get("content")) for name in _name_part(part))
            yield from (f"{kind}/{call.get('status')}" for call in list_objects(one.get("toolCalls")))


def _name_part(part: Entry) -> list[str]:
    """Return the field that says what a part is."""
    return [key for key in part if key not in {"thought", "thoughtSignature"}][:1]


def recognises_qwen(entry: Entry) -> bool:
    """Recognise a message with parts in a tree of records."""
    message = to_object(entry.get("message"))
    is_message = entry.get("type") in ("user", "assistant", "tool_result")
    return is_message and "parentUuid" in entry and isinstance(message.get("parts"), list)


def read_qwen_header(objects: list[Entry]) -> tuple[str, str]:
    """Return the session id and the working directory."""
    return _find_sessions(objects), find_text(entry.get("cwd") for entry in objects)


def read_qwen(objects: list[Entry]) -> list[Event]:
    """Return the events in file order; what is not on the path to the last message is marked."""
    active = _find_active(objects)
    steps = blocks.Steps()
    for position, entry in enumerate(objects):
        is_subagent = entry.get("isSidechain") is True
        for event in list(_read_record(entry)) or [Event(0, "other")]:
            event.id, event.parent_id = to_text(entry.get("uuid")), to_text(entry.get("parentUuid"))
            event.timestamp, event.cwd = to_text(entry.get("timestamp")), to_text(entry.get("cwd"))
            event.is_subagent = is_subagent
            event.on_active_branch = position in active and not is_subagent
            steps.follow(event)
    return blocks.finish_events(steps.events)


def _find_active(objects: list[Entry]) -> set[int]:
    said = [at for at, one in enumerate(objects) if recognises_qwen(one) and one.get("isSidechain") is not True]
    if not said:
        return set(range(len(objects)))
    parents = [to_text(parent) if (parent := entry.get("parentUuid", "")) is not None else None for entry in objects]
    return blocks.find_path([to_text(entry.get("uuid")) for entry in objects], parents, said[-1])


def _read_record(entry: Entry) -> Iterator[Event]:
    parts = _list_parts(to_object(entry.get("message")).get("parts"))
    payload = to_object(entry.get("systemPayload"))
    match entry.get("type"):
        case "user":
            by_person = entry.get("provenance", "real_user") == "real_user"
            typed = [text for text in [to_text(payload.get("displayText"))] if text and by_person]
            if typed and (added := [text for text in _list_texts(parts) if text not in typed]):
                yield Event(0, "custom_message", "\n".join(added))
            yield from blocks.split_typed(typed or _list_texts(parts), by_person)
        case "assistant":
            yield Event(0, "assistant", "\n".join(_list_texts(parts)))
            yield from _read_calls(parts)
        case "tool_result" if entry.get("subtype") != "code_mode_tool_result":
            yield from _read_results(parts, to_object(entry.get("toolCallResult")).get("status"))
        case "system" if entry.get("subtype") == "chat_compression":
            history = list_objects(payload.get("compressedHistory"))
            yield Event(
                0, "compaction", "\n".join(_list_texts(_list_parts(history[0].get("parts")) if history else []))
            )


def read_qwen_version(objects: list[Entry]) -> str:
    """Return the version of Qwen Code that began the session."""
    return find_text(entry.get("version") for entry in objects)


def list_qwen_kinds(objects: list[Entry]) -> Iterator[str]:
    """Yield the type of each record, of its parts, and the state of its call."""
    for entry in objects:
        kind = "/".join(filter(None, (to_text(entry.get("type")), to_text(entry.get("subtype")))))
        yield kind
        parts = _list_parts(to_object(entry.get("message")).get("parts"))
        yield from (f"{entry.get('type')}:{name}" for part in parts for name in _name_part(part))
        if status := to_object(entry.get("toolCallResult")).get("status"):
            yield f"{kind}/{status}"


def list_gemini_homes(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Return the folder below which each project has its `chats`."""
    return [find_home(environ, "GEMINI_CLI_HOME", home) / ".gemini" / "tmp"]


def list_qwen_homes(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Return the folder below which each project has its `chats`."""
    place = find_home(environ, "QWEN_HOME", home / ".qwen")
    moved = read_setting(place / "settings.json", "advanced", "runtimeOutputDir")
    runtime = find_home(environ, "QWEN_RUNTIME_DIR", place / Path(moved).expanduser() if moved else place)
    return [runtime / "projects"]


def _describe_shell(folder: str) -> Tool:
    arguments = describe_arguments("command", f"command description {folder}", "timeout delay_ms", "is_background")
    return Tool("Run a command in a shell and return its output.", (arguments,))


_TODOS = describe_arguments("todos", "", todos=describe_list({"type": "object"}))
_QUESTIONS = describe_arguments("questions", "", questions=describe_list({"type": "object"}))
_REMEMBER = Tool("Remember a fact.", (describe_arguments("fact", "fact scope"),))
_WRITE = Tool("Write a file.", (describe_arguments("file_path content", "file_path content"),))
# packages/core/src/tools/definitions of google-gemini/gemini-cli.
GEMINI_TOOLS = {
    "bash": _describe_shell("dir_path"),
    "read": Tool(
        "Read a file, or the lines from `start_line` to `end_line`.",
        (
            describe_arguments("file_path", "file_path", "offset limit"),
            describe_arguments("file_path", "file_path", "start_line end_line"),
        ),
    ),
    "write": _WRITE,
    "edit": Tool(
        "Replace a text that occurs once in a file, or all of its occurrences.",
        (
            describe_arguments(
                "file_path old_string new_string",
                "file_path instruction old_string new_string",
                "expected_replacements",
                "allow_multiple",
            ),
        ),
    ),
    "grep": Tool(
        "Search files for a pattern.",
        (
            describe_arguments(
                "pattern",
                "pattern dir_path include include_pattern exclude_pattern",
                "context after before max_matches_per_file total_max_matches",
                "names_only case_sensitive fixed_strings no_ignore",
            ),
        ),
    ),
    "glob": Tool(
        "Find files whose names match a pattern.",
        (describe_arguments("pattern", "pattern dir_path", flags="case_sensitive respect_git_ignore"),),
    ),
    "ls": Tool(
        "List a directory.", (describe_arguments("dir_path", "dir_path", ignore=describe_list({"type": "string"})),)
    ),
    "google_web_search": Tool("Search the web.", (describe_arguments("query", "query"),)),
    "web_fetch": Tool("Fetch pages and answer a prompt about them.", (describe_arguments("prompt", "prompt"),)),
    "write_todos": Tool("Write the list of subtasks.", (_TODOS,)),
    "ask_user": Tool("Ask the user questions.", (_QUESTIONS,)),
    "activate_skill": Tool("Load a skill.", (describe_arguments("name", "name"),)),
    "enter_plan_mode": Tool("Begin to plan.", (describe_arguments("", "reason"),)),
    "exit_plan_mode": Tool("Show the plan to the user.", (describe_arguments("", "plan_filename plan_path"),)),
    "list_background_processes": Tool("List the commands in the background.", (describe_arguments("", ""),)),
    "read_background_output": Tool(
        "Read the output of a command in the background.", (describe_arguments("pid", "", "pid lines delay_ms"),)
    ),
    "save_memory": _REMEMBER,
}
# packages/core/src/tools/builtin-tool-definitions.ts of QwenLM/qwen-code.
QWEN_TOOLS = {
    "bash": _describe_shell("directory"),
    "read": Tool(
        "Read a file, or `limit` lines of it from line `offset`.",
        (describe_arguments("file_path", "file_path pages", "offset limit"),),
    ),
    "write": Tool(
        "Write a file.", (describe_arguments("file_path content", "file_path content", flags="record_as_artifact"),)
    ),
    "edit": Tool(
        "Replace a text that occurs once in a file, or all of its occurrences.",
        (
            describe_arguments(
                "file_path old_string new_string", "file_path old_string new_string", flags="replace_all"
            ),
        ),
    ),
    "grep": Tool("Search files for a pattern.", (describe_arguments("pattern", "pattern path glob", "limit"),)),
    "glob": Tool("Find files whose names match a pattern.", (describe_arguments("pattern", "pattern path"),)),
    "ls": Tool("List a directory.", (describe_arguments("path", "path", ignore=describe_list({"type": "string"})),)),
    "web_fetch": Tool("Fetch a page and answer a prompt about it.", (describe_arguments("url prompt", "url prompt"),)),
    "todo_write": Tool("Write the list of subtasks.", (_TODOS,)),
    "ask_user_question": Tool("Ask the user questions.", (_QUESTIONS,)),
    "agent": Tool(
        "Let a subagent do a task.",
        (describe_arguments("description prompt", "description prompt subagent_type", flags="run_in_background"),),
    ),
    "skill": Tool("Load a skill.", (describe_arguments("skill", "skill"),)),
    "exit_plan_mode": Tool("Show the plan to the user.", (describe_arguments("plan", "plan"),)),
    "web_search": Tool("Search the web.", (describe_arguments("query", "query provider"),)),
    "save_memory": _REMEMBER,
}

GEMINI = Harness(
    name="gemini_cli",
    about="Gemini CLI sessions: `session-*.jsonl`, and the JSON documents of older versions",
    recognises=recognises_gemini,
    read_header=read_gemini_header,
    read=read_gemini,
    tools=GEMINI_TOOLS,
    list_kinds=list_gemini_kinds,
    edit=("old_string", "new_string"),
    title="Gemini CLI",
    word="gemini",
    homes=list_gemini_homes,
    sample="""\
{"sessionId": "s", "projectHash": "p", "startTime": "2026-01-02T03:04:05Z"}
{"id": "1", "type": "user", "content": [{"text": "Fix the failing test of the parser."}]}
{"id": "2", "type": "gemini", "content": "", "toolCalls": [{"id": "c", "name": "run_shell_command",\
 "args": {"command": "npm test"}, "status": "success", "result": [{"functionResponse": {"id": "c",\
 "name": "run_shell_command", "response": {"output": "Output: AssertionError: expected 1\\nExit Code: 1"}}}]}]}
""",
)
QWEN = Harness(
    name="qwen_code",
    about="Qwen Code sessions (`projects/*/chats/*.jsonl`)",
    recognises=recognises_qwen,
    read_header=read_qwen_header,
    read=read_qwen,
    tools=QWEN_TOOLS,
    version_of=read_qwen_version,
    list_kinds=list_qwen_kinds,
    edit=("old_string", "new_string"),
    title="Qwen Code",
    word="qwen",
    homes=list_qwen_homes,
    sample="""\
{"uuid": "1", "parentUuid": null, "sessionId": "s", "cwd": "/w/app", "type": "user", "provenance": "real_user",\
 "message": {"role": "user", "parts": [{"text": "Fix the failing test of the parser."}]}}
{"uuid": "2", "parentUuid": "1", "type": "assistant", "message": {"role": "model", "parts": [{"functionCall":\
 {"id": "c", "name": "run_shell_command", "args": {"command": "npm test"}}}]}}
{"uuid": "3", "parentUuid": "2", "type": "tool_result", "toolCallResult": {"status": "success"},\
 "message": {"role": "user", "parts": [{"functionResponse": {"id": "c", "name": "run_shell_command",\
 "response": {"output": "Output: AssertionError: expected 1\\nExit Code: 1"}}}]}}
""",
)
