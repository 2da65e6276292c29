"""Read Claude Code sessions: a parentUuid tree of messages, or the output of stream-json mode.

The blocks of an answer are separate lines with one message id. A user line contains typed text,
text that the harness added, or results of tools. Subagents are sidechains.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import msgspec

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.harness import blocks
from pimono_sdpo.traces.harness.base import (
    TEXT,
    Entry,
    Harness,
    Tool,
    describe_arguments,
    describe_list,
    describe_object,
    keep_fields,
)
from pimono_sdpo.traces.harness.blocks import to_object, to_text

_COMMAND = re.compile(r"<command-name>([^<]{0,200})</command-name>")
# Slash commands whose arguments are settings rather than requests.
_SETTINGS = frozenset(
    """add-dir agents branch clear color compact config effort export fast fork hooks login mcp
    memory model output-style permissions plugin rename resume rewind statusline theme""".split()
)
_REFUSAL_MESSAGE = re.compile(
    r"(?:the user said:|rejected with user message:|provided the following reason for the rejection:)\s*"
)
_NOTE = "\n\nNote: The user's next message"
_ERROR, _ERROR_END = "<tool_use_error>", "</tool_use_error>"
_REMINDER, _REMINDER_END = "<system-reminder>", "</system-reminder>"
# The harness cancels a call when another one made at the same time fails.
_NOT_RUN = ("Sibling tool call errored", "Cancelled: parallel tool call")
# Lines between the messages, which may have any parent: a shell's, a memory, a command's output.
_ASIDE = re.compile(r"\s*(?:<(?:bash-\w+|user-memory-input|local-command-\w+)>|#[^\n]*\Z)")
_CONTINUED = "This session is being continued from a previous conversation"
_BLOCK = keep_fields("type text id name input tool_use_id content is_error")
_MESSAGE = keep_fields("id model stop_reason", content=str | list[_BLOCK | str] | None)  # type: ignore[valid-type]
_DECODER = msgspec.json.Decoder(
    keep_fields(
        "type uuid parentUuid sessionId session_id cwd isSidechain agentId parent_tool_use_id"
        " subtype timestamp isMeta isCompactSummary isApiErrorMessage origin summary attachment operation content"
        " version claude_code_version",
        message=_MESSAGE | None,
    )
)


# The text after the last answer to a question, and the text between an answer and the note of the user on it.
_ANSWERED = re.compile(r"\.\s+(?:You can now continue\b|Read the answers\b).*|\.?\s*\Z", re.DOTALL)
_BESIDE = re.compile(r"\s(?:user )?notes: ")
_SHOWN = re.compile(r"\s+selected \w{1,20}:")


@dataclass
class _Answer:
    """An answer of the agent, its blocks, and those of earlier answers to which a proxy has given the same id."""

    event: Event
    texts: list[str]
    blocks: list[Entry]
    earlier: list[Entry] = field(default_factory=list)
    # How many lines of the user, and how many prompts, stood before its last line.
    lines: int = 0
    prompts: int = 0


@dataclass
class _State:
    """What was read so far; the text of an answer is joined from its lines at the end."""

    steps: blocks.Steps = field(default_factory=blocks.Steps)
    answers: dict[str, _Answer] = field(default_factory=dict)
    ended: list[_Answer] = field(default_factory=list)
    lines: int = 0
    prompts: int = 0
    questions: dict[str, list[Entry]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    # The id of a slash command before the first request; the text below it is its request.
    command: str = ""
    has_request: bool = False


def recognises(entry: Entry) -> bool:
    """Recognise a message by its type and content."""
    message = entry.get("message")
    return to_text(entry.get("type")) in {"user", "assistant"} and isinstance(message, dict) and "content" in message


def read_header(objects: list[Entry]) -> tuple[str, str]:
    """Return the first session id and the first working directory."""
    ids = (entry.get("sessionId") or entry.get("session_id") for entry in objects)
    return blocks.find_text(ids), blocks.find_text(entry.get("cwd") for entry in objects)


def read(objects: list[Entry]) -> list[Event]:
    """Return the events in file order; abandoned branches and subagents are marked.

    A file with only a subagent is a session of its own; the prompt of its first line is the request.
    """
    if all(_is_sidechain(e) and e.get("agentId") for e in objects if to_text(e.get("type")) in {"user", "assistant"}):
        objects = [{**entry, "isSidechain": False} for entry in objects]
    objects = _restore_queued(objects)
    active = _find_active(objects)
    state = _State()
    for position, entry in enumerate(objects):
        uuid, sidechain = to_text(entry.get("uuid")), _is_sidechain(entry)
        is_copy = bool(uuid) and uuid in state.seen
        state.seen.add(uuid)
        for event in [Event(0, "other")] if is_copy else list(_read_entry(entry, state)):
            event.id, event.parent_id = uuid, to_text(entry.get("parentUuid"))
            event.timestamp, event.cwd = to_text(entry.get("timestamp")), to_text(entry.get("cwd"))
            event.on_active_branch = position in active and not sidechain
            event.is_subagent = sidechain
            state.steps.follow(event)
    for answer in (*state.ended, *state.answers.values()):
        answer.event.text = "\n".join(filter(None, answer.texts))
    return blocks.finish_events(state.steps.events)


def _restore_queued(objects: list[Entry]) -> list[Entry]:
    """Turn queued messages that the agent took while it worked into attachments, unless another line repeats them."""
    queue: list[str] = []
    transcript = ""
    restored = list(objects)
    for at, entry in enumerate(objects):
        match to_text(entry.get("type")) == "queue-operation" and entry.get("operation"):
            case "enqueue":
                queue.append(blocks.join_text(entry.get("content")).strip())
            case "popAll":
                queue.clear()
            case "dequeue" | "remove" as operation if queue:
                content = blocks.join_text(entry.get("content")).strip()
                text = queue.pop(queue.index(content) if content in queue else 0)
                if operation == "dequeue" or text[:1] in {"", "<", "{", "/"}:
                    continue
                transcript = transcript or _join_messages(objects)
                if "\n" + text.partition("\n")[0] + "\n" not in transcript:
                    attachment = {"type": "queued_command", "prompt": text}
                    restored[at] = {**entry, "type": "attachment", "attachment": attachment}
    return restored


def _join_messages(objects: list[Entry]) -> str:
    prompts = (to_object(entry.get("attachment")).get("prompt") for entry in objects)
    return "\n".join(f"\n{blocks.join_text(one).strip()}\n" for one in (*map(_content_of, objects), *prompts))


def _is_sidechain(entry: Entry) -> bool:
    return entry.get("isSidechain") is True or isinstance(entry.get("parent_tool_use_id"), str)


def _find_active(objects: list[Entry]) -> set[int]:
    """Return the positions of all lines except those below a prompt that the user later edited.

    Only prompts with the same parent are a fork: the user edited the first of them. Any other line
    whose parent already has a child (results of parallel calls, hooks, commands of a shell, answers
    after a restart) continues the line before it. The active path leads to the last answer.
    """
    position_of: dict[str, int] = {}
    parents: dict[int, int] = {}
    continued: set[int] = set()
    prompted: set[int] = set()
    prompts: set[int] = set()
    last = -1
    for at, entry in enumerate(objects):
        uuid = to_text(entry.get("uuid"))
        if not uuid or uuid in position_of or _is_sidechain(entry):
            continue
        parent_id = _find_parent(entry)
        parent = -1 if parent_id is None else position_of.get(parent_id, last)
        is_edit = parent in prompted and _may_replace(entry)
        parents[at] = parent if is_edit or parent not in continued else last
        # In an early version, all shell commands have the one caveat above the first as parent.
        if _is_prompt(entry) and not (parent >= 0 and objects[parent].get("isMeta") is True):
            prompted.add(parent)
            prompts.add(at)
        continued |= {parent, parents[at]}
        position_of[uuid] = last = at
    answers = (at for at in parents if objects[at].get("type") == "assistant")
    step = leaf = max(answers, default=last)
    path: set[int] = set()
    while step >= 0:
        path.add(step)
        step = parents[step]
    answered = [*path]
    for at, parent in parents.items():
        if parent == leaf or (parent > leaf and parent in path):
            path.add(at)
    if path.issuperset(parents):
        return {*range(len(objects))}
    # An entry with the id of an answer or a call on the path belongs to it, unless a proxy gives one id to several:
    # below an abandoned prompt, only a copy counts, which a continued session has of all lines.
    shown: dict[str, list[object]] = {}
    for at in answered:
        for own in _list_ids(objects[at], "id") | _find_block_ids(objects[at], "tool_use_id"):
            shown.setdefault(own, []).append(_content_of(objects[at]))
    abandoned = prompts - path

    def belongs(at: int) -> bool:
        known = [content for own in _list_ids(objects[at], "tool_use_id") for content in shown.get(own, ())]
        above = at
        while above >= 0 and above not in path and above not in abandoned:
            above = parents.get(above, -1)
        return bool(known) and (above not in abandoned or _content_of(objects[at]) in known)

    return {at for at in range(len(objects)) if at not in parents or at in path or belongs(at)}


def _list_ids(entry: Entry, key: str) -> set[str]:
    """Return the id of an answer, and those in its blocks."""
    answer = to_text(to_object(entry.get("message")).get("id")) if entry.get("type") == "assistant" else ""
    return {answer, *_find_block_ids(entry, key)} - {""}


def _may_replace(entry: Entry) -> bool:
    kind = entry.get("type")
    return kind == "system" or (kind == "user" and not _find_block_ids(entry, "tool_use_id"))


def _is_prompt(entry: Entry) -> bool:
    """Return whether a line is a request or a command, which the user may edit later."""
    if entry.get("type") != "user" or not _may_replace(entry):
        return False
    text = blocks.join_text(_content_of(entry))
    is_typed = any(event.kind == "user" for event in _read_user(entry))
    return not _ASIDE.match(text) and (is_typed or bool(_COMMAND.search(text[:400])))


def _content_of(entry: Entry) -> object:
    return to_object(entry.get("message")).get("content")


def _find_parent(entry: Entry) -> str | None:
    """Return the parent's id, None for a root, and "" after a compaction, which has no parent either."""
    parent = entry.get("parentUuid", "")
    if parent is not None:
        return to_text(parent)
    # The first versions did not mark the summary of a compaction.
    is_compaction = (
        entry.get("subtype") == "compact_boundary"
        or entry.get("isCompactSummary") is True
        or (entry.get("type") == "user" and blocks.join_text(_content_of(entry)).startswith(_CONTINUED))
    )
    return "" if is_compaction else None


def _find_block_ids(entry: Entry, key: str) -> set[str]:
    return {to_text(block.get(key)) for block in blocks.to_blocks(_content_of(entry))} - {""}


def _read_entry(entry: Entry, state: _State) -> Iterator[Event]:
    kind = to_text(entry.get("type"))
    is_message = isinstance(entry.get("message"), dict)
    if kind == "assistant" and is_message:
        yield from _read_assistant(entry, state)
    elif kind == "user" and is_message:
        is_request = bool(state.command) and entry.get("parentUuid") == state.command
        events = list(_read_user({**entry, "isMeta": False} if is_request else entry))
        state.lines += not _is_sidechain(entry)
        state.prompts += any(event.kind == "user" for event in events)
        answers = (_read_answers(state.questions.get(event.call_id, []), event.text) for event in events)
        events += [Event(0, "user", answer) for answer in answers if answer]
        state.has_request |= any(event.kind == "user" for event in events)
        is_command = _COMMAND.search(blocks.join_text(_content_of(entry))[:400])
        state.command = to_text(entry.get("uuid")) if is_command and not state.has_request else ""
        yield from events or [Event(0, "other")]
    elif kind == "attachment":
        yield from _read_attachment(to_object(entry.get("attachment")), state)
    elif kind == "summary":
        # The title of the branch that ends at `leafUuid`, not a compaction.
        yield Event(0, "branch_summary", to_text(entry.get("summary")))
    else:
        yield Event(0, "other")


def _read_assistant(entry: Entry, state: _State) -> Iterator[Event]:
    message = entry["message"]
    text = blocks.join_text(message.get("content"))
    stop = to_text(message.get("stop_reason"))
    if entry.get("isApiErrorMessage") is True:
        yield Event(0, "assistant", text, stop_reason="error")
        return
    if message.get("model") == "<synthetic>":
        yield Event(0, "other", text)
        return
    message_id = to_text(message.get("id"))
    content = blocks.to_blocks(message.get("content"))
    known = state.answers.get(message_id) if message_id else None
    if known is None:
        new = _skip_repeated(content, [], []) if message_id else content
        answer = _Answer(Event(0, "assistant", text, stop_reason=stop), [text], new)
        yield answer.event
    else:
        is_next = known.lines == state.lines
        new = _skip_repeated(content, known.blocks if is_next else [], known.blocks + known.earlier)
        said = blocks.join_text(new)
        # An entry after a line of the user belongs to another answer, unless this one has only begun to think.
        has_begun = any(known.texts) or any(block.get("type") == "tool_use" for block in known.blocks)
        if new and (known.prompts != state.prompts or (said and has_begun and not is_next)):
            state.ended.append(known)
            answer = _Answer(Event(0, "assistant", said, stop_reason=stop), [said], new, known.blocks + known.earlier)
            yield answer.event
        else:
            answer = known
            answer.texts.append(said)
            answer.blocks += new
            if answer.event.stop_reason != "aborted":
                answer.event.stop_reason = stop or answer.event.stop_reason
    answer.lines, answer.prompts = state.lines, state.prompts
    if message_id:
        state.answers[message_id] = answer
    for block in new:
        if block.get("type") == "tool_use":
            if block.get("name") == "AskUserQuestion":
                state.questions[to_text(block.get("id"))] = blocks.to_blocks(
                    to_object(block.get("input")).get("questions")
                )
            yield blocks.build_call(block.get("id"), block.get("name"), block.get("input"))


def _skip_repeated(content: list[Entry], own: list[Entry], recorded: list[Entry]) -> list[Entry]:
    """Return the blocks of a line that were not recorded before, nor have the id of one of the answer's own blocks."""
    new: list[Entry] = []
    for block in content:
        block_id = block.get("id")
        has_own = bool(block_id) and any(one.get("id") == block_id for one in (*own, *new))
        if not has_own and block not in recorded and block not in new:
            new.append(block)
    return new


def _read_user(entry: Entry) -> Iterator[Event]:
    content = blocks.to_blocks(_content_of(entry))
    if entry.get("isCompactSummary") is True:
        yield Event(0, "compaction", blocks.join_text(content))
        return
    for block in content:
        if block.get("type") == "tool_result":
            yield from _read_result(block)
    origin = to_object(entry.get("origin")).get("kind", "human")
    typed = origin == "human" and entry.get("isMeta") is not True and not _is_sidechain(entry)
    texts = blocks.list_texts(content)
    text = "\n".join(texts)
    command = _COMMAND.search(text[:400])
    if not command or not typed:
        yield from blocks.split_typed(texts, typed)
        return
    arguments = text.partition("<command-args>")[2].partition("</command-args>")[0].strip()
    # A single word after a command is an option.
    is_request = len(arguments.split()) > 1 or not arguments.isascii()
    if is_request and command[1].strip().lstrip("/") not in _SETTINGS:
        yield Event(0, "custom_message", command[1])
        yield Event(0, "user", arguments)
    else:
        yield Event(0, "custom_message", text)


def _read_result(block: Entry) -> Iterator[Event]:
    """Read a result, and the message with which the user refused the call, if any."""
    text = _strip_reminders(blocks.join_text(block.get("content")))
    is_marked = text.startswith(_ERROR)
    if is_marked:
        text = text.removeprefix(_ERROR).removesuffix(_ERROR_END).strip()
    is_error = (is_marked or block.get("is_error") is True) and not text.startswith(_NOT_RUN)
    call_id = to_text(block.get("tool_use_id"))
    yield Event(0, "tool_result", text, call_id=call_id, is_error=is_error)
    if blocks.is_refusal(text) and (message := _REFUSAL_MESSAGE.search(text)):
        refusal = text[message.end() :].partition(_NOTE)[0].strip()
        if refusal:
            yield Event(0, "user", refusal, is_veto=True)


def _read_answers(questions: list[Entry], text: str) -> str:
    """Return what the user wrote in answer to questions, without the options that were chosen."""
    marks = [f'"{to_text(question.get("question"))}"=' for question in questions]
    written = []
    for number, (mark, question) in enumerate(zip(marks, questions, strict=True)):
        _, found, answer = text.partition(mark)
        if not found:
            continue
        for other in marks[number + 1 :]:
            answer = answer.partition(f", {other}")[0]
        answer = _ANSWERED.sub("", answer)
        beside = _BESIDE.search(answer)
        chosen = _SHOWN.split(answer[: beside.start()] if beside else answer)[0].strip(' \n"')
        options = {to_text(option.get("label")) for option in blocks.to_blocks(question.get("options"))}
        is_choice = chosen in options or set(chosen.split(", ")) <= options or chosen == "(no option selected)"
        written += ([] if is_choice else [chosen]) + ([answer[beside.end() :].strip()] if beside else [])
    return "\n".join(filter(None, dict.fromkeys(written)))


def _strip_reminders(text: str) -> str:
    """Remove the reminders that the harness appends to the output of a tool."""
    before, *reminders = text.split(_REMINDER)
    while reminders and reminders[-1].rstrip().endswith(_REMINDER_END):
        reminders.pop()
    kept = _REMINDER.join([before, *reminders])
    return text if kept == text else kept.rstrip()


def _read_attachment(attachment: Entry, state: _State) -> Iterator[Event]:
    """Read an attachment: a message that was queued while the agent worked, a changed file or a hook's output."""
    kind = to_text(attachment.get("type"))
    copied = to_text(attachment.get("source_uuid"))
    if kind == "queued_command" and not (copied and copied in state.seen):
        state.seen.add(copied)
        mode = attachment.get("commandMode") or "prompt"
        origin = to_object(attachment.get("origin")).get("kind", "human")
        texts = blocks.list_texts(attachment.get("prompt"))
        yield from blocks.split_typed(texts, mode == "prompt" and origin == "human")
        return
    if kind == "edited_text_file":
        # The note that the model gets, which older versions recorded as text.
        name = to_text(attachment.get("filename"))
        yield Event(0, "other", f"Note: {name} was modified, either by the user or by a linter.")
        return
    error = to_text(to_object(attachment.get("blockingError")).get("blockingError"))
    text = blocks.join_text(attachment.get("content")) or error
    is_hook = kind.startswith("hook_") and bool(text.strip())
    yield Event(0, "custom_message", text) if is_hook else Event(0, "other")


def read_version(objects: list[Entry]) -> str:
    """Return the newest version that wrote to the file, which is that of its last lines."""
    return blocks.find_text(entry.get("version") or entry.get("claude_code_version") for entry in reversed(objects))


def list_kinds(objects: list[Entry]) -> Iterator[str]:
    """Yield the type of each line, and those of its attachment or the blocks of its message."""
    for entry in objects:
        kind, attachment = entry.get("type", ""), entry.get("attachment")
        yield f"{kind}/{attachment.get('type')}" if isinstance(attachment, dict) else f"{kind}"
        content = to_object(entry.get("message")).get("content")
        if isinstance(content, list):
            for block in content:
                if isinstance(block, dict):
                    yield f"{kind}:{block.get('type')}"


_TEXTS = describe_list(TEXT)
_OPTION = describe_arguments("label description", "label description preview")
_QUESTION = describe_arguments(
    "question header options multiSelect", "question header", flags="multiSelect", options=describe_list(_OPTION)
)
_TODO = describe_arguments("content status activeForm", "content status activeForm")
_SEARCH = describe_arguments(
    "pattern", "pattern path glob output_mode type", "-A -B -C context head_limit offset", "-n -i -o multiline"
)
_AGENT = Tool(
    "Hand a task to a subagent.",
    (
        describe_arguments(
            "description prompt", "description prompt subagent_type model name isolation", "", "run_in_background"
        ),
    ),
)
# From sdk-tools.d.ts of the package @anthropic-ai/claude-code, and for tools that are gone from their calls.
TOOLS = {
    "bash": Tool(
        "Run a shell command and return its output.",
        (
            describe_arguments(
                "command", "command description", "timeout", "run_in_background dangerouslyDisableSandbox"
            ),
        ),
    ),
    "read": Tool(
        "Read a file, or `limit` lines of it from line `offset`.",
        (describe_arguments("file_path", "file_path pages", "offset limit", "allow_large"),),
    ),
    "edit": Tool(
        "Replace a text of a file by another one.",
        (
            describe_arguments("notebook_path new_source", "notebook_path cell_id new_source cell_type edit_mode"),
            describe_arguments(
                "file_path edits",
                "file_path",
                edits=describe_list(
                    describe_arguments("old_string new_string", "old_string new_string", flags="replace_all")
                ),
            ),
            describe_arguments(
                "file_path old_string new_string", "file_path old_string new_string", flags="replace_all"
            ),
        ),
    ),
    "write": Tool(
        "Write a file, replacing what it held.", (describe_arguments("file_path content", "file_path content"),)
    ),
    "glob": Tool("Find files whose paths match a pattern.", (describe_arguments("pattern", "pattern path"),)),
    "grep": Tool("Search the content of files for a regular expression.", (_SEARCH,)),
    "ls": Tool("List a directory.", (describe_object("path", path=TEXT, ignore=_TEXTS),)),
    "Agent": _AGENT,
    "Task": _AGENT,
    "AskUserQuestion": Tool(
        "Ask the user to choose among options.", (describe_object("questions", questions=describe_list(_QUESTION)),)
    ),
    "BashOutput": Tool(
        "Return new output of a background command.", (describe_arguments("bash_id", "bash_id filter"),)
    ),
    "EnterPlanMode": Tool("Begin to plan before changing anything.", (describe_object(""),)),
    "ExitPlanMode": Tool("Ask the user to approve the plan.", (describe_arguments("", "plan planFilePath"),)),
    "KillShell": Tool("Stop a background command.", (describe_arguments("shell_id", "shell_id"),)),
    "ListMcpResourcesTool": Tool("List the resources of MCP servers.", (describe_arguments("", "server"),)),
    "Monitor": Tool(
        "Watch a command in the background and report its lines.",
        (describe_arguments("description timeout_ms", "description command", "timeout_ms", "persistent"),),
    ),
    "ReadMcpResourceTool": Tool(
        "Read a resource of an MCP server.", (describe_arguments("server uri", "server uri"),)
    ),
    "ScheduleWakeup": Tool(
        "Continue with a prompt after a delay.",
        (describe_arguments("", "reason prompt", "delaySeconds", "stop noop"),),
    ),
    "SendMessage": Tool(
        "Send a message to another agent.",
        (
            describe_arguments("type recipient content", "type recipient content summary"),
            describe_arguments("to message", "to message summary"),
        ),
    ),
    "Skill": Tool("Load the instructions of a skill.", (describe_arguments("skill", "skill args"),)),
    "TaskCreate": Tool(
        "Add a task to the list.",
        (describe_arguments("subject description", "subject description activeForm", metadata={"type": "object"}),),
    ),
    "TaskGet": Tool("Return a task of the list.", (describe_arguments("taskId", "taskId"),)),
    "TaskList": Tool("Return the list of tasks.", (describe_object(""),)),
    "TaskOutput": Tool(
        "Return the output of a background task.", (describe_arguments("task_id", "task_id", "timeout", "block"),)
    ),
    "TaskStop": Tool("Stop a background task.", (describe_arguments("", "task_id shell_id"),)),
    "TaskUpdate": Tool(
        "Change a task of the list.",
        (
            describe_arguments(
                "taskId",
                "taskId subject description activeForm status owner",
                addBlocks=_TEXTS,
                addBlockedBy=_TEXTS,
                metadata={"type": "object"},
            ),
        ),
    ),
    "TodoWrite": Tool("Replace the list of tasks.", (describe_object("todos", todos=describe_list(_TODO)),)),
    "ToolSearch": Tool("Load tools that match a query.", (describe_arguments("query", "query", "max_results"),)),
    "WebFetch": Tool(
        "Fetch a page and answer a prompt about it.", (describe_arguments("url prompt", "url prompt", "offset"),)
    ),
    "WebSearch": Tool(
        "Search the web.", (describe_object("query", query=TEXT, allowed_domains=_TEXTS, blocked_domains=_TEXTS),)
    ),
}


def list_homes(environ: Mapping[str, str], home: Path) -> list[Path]:
    """Return the folders of sessions, also those of Cowork, which has one for each session."""
    places = [home / ".claude", home / ".config" / "claude"]
    if set_to := environ.get("CLAUDE_CONFIG_DIR"):
        places = [Path(set_to).expanduser()]
    apps = [home / "Library" / "Application Support", home / ".config", Path(environ.get("APPDATA") or home)]
    cowork = (app.glob("Claude/local-agent-mode-sessions/*/*/local_*/.claude") for app in apps)
    return [place / "projects" for place in [*places, *sorted(chain.from_iterable(cowork))]]


HARNESS = Harness(
    name="claude_code",
    about="Claude Code sessions and the output of its stream-json mode; subagents are kept separate",
    recognises=recognises,
    read_header=read_header,
    read=read,
    decoder=_DECODER,
    tools=TOOLS,
    version_of=read_version,
    list_kinds=list_kinds,
    edit=("old_string", "new_string"),
    title="Claude Code",
    word="claude",
    homes=list_homes,
    sample="""\
{"type": "user", "uuid": "1", "parentUuid": null, "sessionId": "s", "cwd": "/w/app",\
 "message": {"role": "user", "content": "Fix the failing test of the parser."}}
{"type": "assistant", "uuid": "2", "parentUuid": "1", "message": {"role": "assistant",\
 "content": [{"type": "tool_use", "id": "c", "name": "Bash", "input": {"command": "npm test"}}]}}
{"type": "user", "uuid": "3", "parentUuid": "2", "message": {"role": "user",\
 "content": [{"type": "tool_result", "tool_use_id": "c", "is_error": true,\
 "content": "AssertionError: expected 1"}]}}
""",
)
