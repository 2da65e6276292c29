"""Find the failures that tools and the environment reported, and the errors and exit codes that are not failures.

A result counts if it is marked as an error or has an exit code other than 0, or if a chained or
piped command ends in a failure signature although it reports success. Text that was merely read
never counts, nor do provider outages, interrupts by the user and searches without matches.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from pimono_sdpo.failures import RULES, classify, with_role
from pimono_sdpo.prefilter import Guarded, Prefilter, compile_patterns
from pimono_sdpo.schema import Finding
from pimono_sdpo.shell import Stage, list_stages, loses_status, only_reads, parse_command
from pimono_sdpo.traces.events import Event, decode_json
from processors.status import SHORT, decode_status, find_family

_PATTERNS = compile_patterns(Path(__file__).with_name("wording.toml"), "diagnostics")
_PASSED, _SOUNDS_BAD, _TRAILER, _POWERSHELL, _ERROR_BODY, _WANTS_ERROR = map(
    Guarded, itemgetter("passed", "sounds_bad", "trailer", "powershell", "error_body", "wants_error")(_PATTERNS)
)
MIXED_TAIL_LINES = 25
HEAD_LINES = 8
TAIL_LINES = 20
SCRIPT_TAIL_LINES = 6
HEAD_CHARS, TAIL_CHARS = 20_000, 40_000
_END_CHARS = 2_000
_EXIT_CHARS = 100
MAX_COMMAND = 2000
_BROKEN_OFF = 130
_TIMED_OUT_CODE = 124
# Interrupted by the user; ended by `head`; killed by a command that kills.
_KILLED = frozenset({137, 143, 144})
_STOPPED = frozenset({_BROKEN_OFF, 141}) | _KILLED
# `gh pr checks` ends with 8 while checks are running.
_PENDING_CODE = 8
_FILE_TOOLS = frozenset("read edit write ls grep find glob".split())
# These tools fail in few known ways; other words in their results are a veto by an extension.
_WITH_VETOES = frozenset({"bash", "edit", "write"})
_OWN_TO_CALLS = with_role("call")
# Searches that print what they found although they exit with 1.
_PRINTS = frozenset("diff cmp colordiff comm which where type whereis command".split())
# They print nothing when they succeed.
_PREPARE = frozenset("cd pushd export set source . true : sleep mkdir touch".split())
_WALKS = frozenset("find grep rg du ls tar fd".split())
_SHELLS = frozenset("bash sh zsh dash -bash (eval) nohup env timeout xargs sudo".split())
_CHECKED, _SIGNATURE, _COMPLAINED = with_role("check"), with_role("signature"), with_role("complaint")
_NOT_OF_A_COMMAND = with_role("harness")
# The arguments that say all that a call is about, the most telling first.
_TARGETS = (
    *("command", "cmd", "script", "code", "path", "file_path", "filePath", "notebook_path", "file"),
    *("url", "query", "pattern"),
)
_MAY_COMPLAIN = Prefilter([*(rule.pattern for rule in RULES if rule.category in _SIGNATURE), _PATTERNS["complaint"]])
NOTHING_KNOWN: Finding = {
    "kind": "failure",
    "event_index": -1,
    "request": -1,
    "tool": "",
    "target": "",
    "status": "",
    "text": "",
    "categories": [],
    "next": "",
    "resolved_at": None,
    "resolved_by": "",
    "excuse": "",
    "fault": "",
    "rule": "",
    "probability": 1.0,
    "span": "",
}


def find_failures(events: Sequence[Event]) -> list[Finding]:
    """Return the failures of a session in order; `text` is cleaned, not shortened."""
    calls: dict[str, Event] = {}
    found: list[Finding] = []
    for event in events:
        kind = event.kind
        if kind == "tool_call":
            calls[event.call_id] = event
        elif kind in _TELLING and event.on_active_branch and _may_fail(event):
            call = event if kind == "bash" else calls.get(event.call_id)
            if failure := _find_failure(event, call):
                found.append(failure)
    return found


_TELLING = frozenset({"tool_result", "bash", "assistant"})


def _may_fail(event: Event) -> bool:
    """Rule out most of the events that cannot be failures, such as long texts of files."""
    if event.kind == "assistant":
        return event.stop_reason == "error"
    text = event.text
    if event.is_error or event.exit_code or len(text) < SHORT or text[:1] == "{":
        return True
    return event.kind == "bash" or find_family(event.tool_name) != "shows"


def _find_failure(event: Event, call: Event | None) -> Finding | None:
    """Return the failure that an event reports, None without one."""
    if event.kind == "assistant":
        text = _strip_notices(event.text)
        return _build(event, "", "harness", text, _classify_turn(text))
    arguments = call.arguments if call else ""
    code, message = event.exit_code, ""
    runs, is_shell = find_family(event.tool_name) == "runs", _is_shell(event.tool_name, arguments)
    stopped = _PATTERNS["sandboxed"].match(event.text) if is_shell and code is None else None
    if stopped:
        source, code, message = "text", int(stopped[1] or stopped[2] or 1), _unwrap_streams(stopped[3])
    elif event.is_error or (code and event.kind == "tool_result" and (is_shell or runs)):
        source = "flag" if code is None else "exit_code"
    elif is_shell and (code is not None or not _PATTERNS["wrapped"].match(event.text)):
        if not _may_mask_failure("" if event.lacks_status else arguments, event.text):
            return None
        text, target = _strip_notices(event.text), find_target(arguments, event.kind)
        found = _find_masked_failures(target, text, shows_status=not event.lacks_status)
        return _build(event, target, "text", text, found)
    else:
        status = decode_status(event.tool_name, event.text)
        if (status.failed and code != 0) or (runs and _crashed(event.text)):
            source, code, message = "text", status.exit_code, status.message
        elif runs and _PATTERNS["job"].match(event.text):
            text = _strip_notices(event.text)
            found = set(classify("\n".join(_take_last_lines(text)))) & _SIGNATURE
            return _build(event, find_target(arguments, event.kind), "text", text, found)
        else:
            return None
    text, target = _strip_notices(message if stopped else message or event.text), find_target(arguments, event.kind)
    if _PATTERNS["evicted"].fullmatch(text[:500]) or _is_interrupt_or_outage(event, target, text):
        return None
    if code is None and is_shell:
        ended = _PATTERNS["exit_tail"].search(text[-_EXIT_CHARS:])
        code = int(ended[1]) if ended and ended[1] else None
    output = _cut_to_ends(text)
    if code is not None and (is_shell or runs):
        categories = _classify_command(code, target, output)
        if stopped and event.is_error and "permission_auth" in categories:
            categories.add("policy_block")
    else:
        categories = _classify_call(event.tool_name, output) if output.strip() else set()
    return _build(event, target, source, text, categories)


def looks_failed(tool: str, arguments: str, text: str, has_passed: bool = False) -> bool:
    """Check by its text whether a call failed that has no status, or whose status reports success."""
    command = find_target(arguments) if _is_shell(tool, arguments) else ""
    failed = not has_passed and decode_status(tool, text).failed
    if failed and (roles := {stage.role for stage in list_stages(command)}) & {"reads", "searches"}:
        # A command that only shows files is read like a tool that does.
        failed = "runs" in roles or decode_status("read", text).failed
    if failed or not command or not _may_mask_failure(command if has_passed else "", text):
        return failed
    return bool(_find_masked_failures(command, _strip_notices(text), shows_status=has_passed))


def _is_shell(tool: str, arguments: str) -> bool:
    """Check for a shell, perhaps by another name: a runner that was given a command line."""
    return tool == "bash" or (find_family(tool) == "runs" and ('"command":' in arguments or '"cmd":' in arguments))


def _build(event: Event, target: str, source: str, text: str, categories: set[str]) -> Finding | None:
    if not categories:
        return None
    return {
        **NOTHING_KNOWN,
        "event_index": event.index,
        "tool": event.tool_name,
        "target": target,
        "status": source,
        "text": text,
        "categories": sorted(categories),
    }


def find_target(arguments: str, kind: str = "tool_result") -> str:
    """Return the command line, the path or the address of a call, else its arguments as they are.

    >>> find_target('{"limit": 3, "path": "a.ts"}'), find_target('{"action": "list"}')
    ('a.ts', '{"action": "list"}')
    """
    if kind == "bash":
        return arguments
    value = decode_json(arguments)
    if not isinstance(value, dict):
        return value if isinstance(value, str) else ""
    texts = [value[key] for key in _TARGETS if isinstance(value.get(key), str)]
    return next(filter(None, texts), arguments if value else "")


def _strip_notices(text: str) -> str:
    """Remove the notices of a harness about truncated text."""
    text = text.strip()
    leader = _PATTERNS["leader"].match(text)
    text = text[leader.end() :] if leader else text
    end = text[-_END_CHARS:]
    kept = _TRAILER.sub("\n", end)
    return text if kept == end else (text[:-_END_CHARS] + kept).strip()


def _unwrap_streams(text: str) -> str:
    """Return what a command wrote before a sandbox reported it, perhaps as the debug output of Rust."""
    text = _unescape(text) if 'StreamOutput { text: \\"' in text else text
    if streams := _STREAM.findall(text):
        # The third one is both of them together.
        return "\n".join(filter(None, map(_unescape, streams[:2])))
    return text.removeprefix("stdout: ").replace(", stderr: ", "\n", 1)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: _CONTROLS.get(found[1], found[1]), text)


def _classify_turn(text: str) -> set[str]:
    """Classify a turn that ended in an error: the provider's fault, or that of invalid calls."""
    is_own = len(text) < 600 and not _PATTERNS["provider_error"].search(text)
    return set(classify(text)) & {"tool_schema_validation"} if is_own else set()


def _is_interrupt_or_outage(event: Event, target: str, text: str) -> bool:
    if event.exit_code not in {None, _BROKEN_OFF}:
        return False
    # What fetches pages may fail like a provider.
    is_asking = event.tool_name in _FILE_TOOLS or _PATTERNS["prints_text"].search(event.tool_name)
    is_outage = not is_asking and _PATTERNS["provider_error"].search(text[:400])
    is_interrupt = _PATTERNS["interrupt"].search(text[:400]) or text.endswith("Command aborted")
    is_stopped = "\\u0003" in target and not text.startswith("write_stdin failed")
    return bool(is_outage or is_interrupt or is_stopped)


def _crashed(text: str) -> bool:
    """Check for output of a program that ends with an exception nobody caught."""
    end = text[-TAIL_CHARS:]
    shows = "Traceback (most" in end or "Node.js v" in end[-200:] or "exit status " in end[-200:]
    return shows and _PATTERNS["crashed"].search(end) is not None


def _cut_to_ends(text: str) -> str:
    """Return head and tail of a long text, cut at line ends, without the line of the exit code."""
    if len(text) > HEAD_CHARS + TAIL_CHARS:
        head = text[:HEAD_CHARS].rpartition("\n")[0]
        text = head + "\n" + text[-TAIL_CHARS:].partition("\n")[2]
    first = _PATTERNS["exit_head"].match(text)
    text = text[first.end() :] if first else text
    end = text[-_EXIT_CHARS:]
    return text[:-_EXIT_CHARS] + _PATTERNS["exit_tail"].sub("", end) if "P" in end or "C" in end else text


def _classify_call(tool_name: str, output: str) -> set[str]:
    """Classify a failed call: refused by the harness, malformed, or impossible."""
    if _says_it_passed(output) or _PATTERNS["all_passed"].search(output[-_EXIT_CHARS:]):
        return set()
    head = "\n".join(_PATTERNS["quoted"].split(output[:4000], maxsplit=1)[0].split("\n")[:HEAD_LINES])
    if tool_name in _FILE_TOOLS:
        head = _PATTERNS["patch_quoted"].split(head, maxsplit=1)[0]
    shown = set(classify(head))
    if "policy_block" in shown:
        return {"policy_block"}
    if tool_name not in _FILE_TOOLS:
        shown = set(classify(output)) - {"policy_block"}
    # A test that ran says `should`, too.
    own = _OWN_TO_CALLS | _SIGNATURE if tool_name == "bash" else _OWN_TO_CALLS
    is_veto = tool_name in _WITH_VETOES and not shown & own
    if is_veto and _PATTERNS["veto"].search(head):
        return {"policy_block"}
    return shown or {"other_marked_error"}


def _classify_command(exit_code: int, command: str, output: str) -> set[str]:
    """Classify a command that ended with an exit code; nothing if it is not a failure."""
    own = ""
    if only_reads(command):
        output = _PATTERNS["startup"].sub("", output)
        own = _find_own_words(list_stages(command), output)
        found = set(classify(own)) - _NOT_OF_A_COMMAND - _SIGNATURE
    else:
        if any(pipeline.stages[0].role in {"reads", "searches"} for pipeline in parse_command(command)):
            output = "\n".join(output.rstrip().split("\n")[-MIXED_TAIL_LINES:])
        found = set(classify(output)) - _NOT_OF_A_COMMAND
    if exit_code == 1 and "NativeCommandError" in output:
        # PowerShell ends so whatever a program writes to the stream of errors.
        output = "\n".join(line for line in output.split("\n") if line.lstrip()[:1] != "+")
        if not _SOUNDS_BAD.search(output):
            return set()
    found |= {"missing_file_or_command"} if exit_code == 127 else set()
    if not found and not own and _is_no_failure(exit_code, command, output):
        return set()
    return {"command_error"} | found


_SILENCERS = ("2>/dev/null", "&>/dev/null", "SilentlyContinue")


def _is_no_failure(exit_code: int, command: str, output: str) -> bool:
    """Check the reasons for which a command ends with an exit code without having failed."""
    if _shows_http_error(command, output):
        return False
    line = command[:MAX_COMMAND]
    if exit_code == 1 and _find_last_role(list_stages(command)) == "searches":
        return True
    is_silenced = exit_code in {1, 2} and any(sign in command for sign in _SILENCERS)
    if is_silenced and (only_reads(command) or _PATTERNS["ends_with_look"].search(line)):
        return True
    if exit_code in _STOPPED and (exit_code not in _KILLED or _PATTERNS["stops"].search(line)):
        return True
    # A server or a watcher that was meant to be stopped.
    is_limited = exit_code == _TIMED_OUT_CODE and re.search(r"\btimeout\s+[-\w]", command) is not None
    if is_limited and not _PATTERNS["is_check"].search(line):
        return True
    may_wait = exit_code == _PENDING_CODE or only_reads(command)
    return bool(may_wait and _PATTERNS["pending"].search(output)) or _says_it_passed(output)


def _says_it_passed(output: str) -> bool:
    """Check for output of an extension that contradicts the mark as an error."""
    return bool(_PASSED.search(output)) and not _SOUNDS_BAD.search(output)


@lru_cache(maxsize=256)
def _compile_own_words(programs: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(re.escape(program[:40]) for program in programs)
    return re.compile(
        rf"^(?:(?:\S{{0,80}}/)?(?:{names}|bash|zsh|sh|dash|\(eval\)|fatal|[Ee]rror|ERROR|usage)"
        r"(?::\d{1,6}|: line \d{1,6}| error)?:"
        r"|(?:regex parse error|rg|ssh|scp|[\w.@-]{1,80}: Permission denied|Connection \w{1,20})\b"
        r"|HTTP [45]\d\d|Command timed out|[ \t]*\+ (?:CategoryInfo|FullyQualifiedErrorId)\b)"
        r"[^\n]*",
        re.MULTILINE,
    )


def _find_own_words(stages: list[Stage], output: str) -> str:
    """Return the lines that viewers, searches or the shell wrote themselves."""
    programs = {stage.program for stage in stages}
    lines = _compile_own_words(tuple(sorted(programs))).finditer(output)
    if own := "\n".join(line[0] for line in lines):
        return own
    said = output.strip().removeprefix("(no output)")
    # A search without a match prints nothing; then what it was prepared by complained.
    searched = [stage for stage in stages if stage.role == "searches"]
    others = programs - {stage.program for stage in searched}
    if said and others <= _PREPARE and len(searched) == 1:
        search = searched[0]
        if search.program not in _PRINTS and not {"diff", "grep"} & {*search.arguments[:3]}:
            return said if _SOUNDS_BAD.search(said) else ""
    is_short = _find_last_role(stages) != "searches" and said.count("\n") < 4
    return said if is_short and _SOUNDS_BAD.search(said) else ""


# Without one of them, or words of a shell in the output, the status of a command is its own.
_JOINS = re.compile(r"[|;&>`]|\\n|\n|\$\(|-c |exec|ssh|rtk|/tasks/")
_SHELL_SAYS = ("line ", "not found", "syntax error", "timed out")


def _may_mask_failure(command: str, text: str) -> bool:
    """Return, without parsing the command, whether it may mask a failure.

    `command` may also be the JSON that contains it.
    """
    if "$?" in command or "PIPESTATUS" in command or _PATTERNS["lead_line"].match(text):
        return True
    if _shows_http_error(command, text) or _crashed(text):
        return True
    if _PATTERNS["ends_badly"].match(text.rstrip()[-400:].rpartition("\n")[2]):
        return True
    if text[:1] == "{" or _POWERSHELL.search(text[:_END_CHARS] + text[-_END_CHARS:]):
        return True
    tail = "\n".join(text[-TAIL_CHARS:].rsplit("\n", 2 * TAIL_LINES)[-2 * TAIL_LINES :])
    if command and not _JOINS.search(command) and not any(sign in tail for sign in _SHELL_SAYS):
        return False
    head = text[:_END_CHARS] + "\n" if "head" in command and len(tail) < len(text) else ""
    return bool(_MAY_COMPLAIN.candidates(head + tail))


def _shows_http_error(command: str, text: str) -> bool:
    """Check whether `curl` says that what it asked for is missing, or the server failed."""
    if "curl" not in command or _WANTS_ERROR.search(command):
        return False
    for label in _PATTERNS["http_status"].findall(command) if "_code}" in command else ():
        label = label.rpartition("\\n")[2]
        before = re.escape(label) if label.strip() else r"(?m)^\s{0,8}"
        codes = re.findall(rf"{before}(\d{{3}})\b", text[-TAIL_CHARS:])
        if codes and all(map(_PATTERNS["http_error"].fullmatch, codes)):
            return True
    body = _ERROR_BODY.search(text[:HEAD_CHARS])
    return body is not None and not (
        _PATTERNS["own_service"].search(command) and _PATTERNS["refusal"].search(text, body.start())
    )


_STREAM = re.compile(r'StreamOutput \{ text: "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\([\\ntr\"'])")
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}
_SAYS_MISSING = frozenset({"", "command", "not", "found"})
_WORD_ENDS = re.compile(r"[:\s;|&()'\"\u2018\u2019]+")


class _Part(NamedTuple):
    """A stage of a command line, the pipeline it is in, and whether its status gets lost."""

    pipeline: int
    stage: Stage
    loses: bool


def _find_masked_failures(command: str, text: str, shows_status: bool = True) -> set[str]:
    """Return the categories of a failure of a command whose exit status reports success.

    Without `shows_status` the result says nothing of the status, so that all of it may be lost.
    """
    shows_status = shows_status and not ("rtk " in command and _PATTERNS["swallows"].search(command))
    # A line of the command itself was echoed.
    lines = [line for line in _take_last_lines(text) if line.strip() not in command]
    lead = _PATTERNS["lead_line"].match(text)
    if not lines and not lead:
        return set()
    last = lines[-1] if lines else text.strip()
    pipelines = parse_command(command)
    parts = [
        _Part(at, stage, not shows_status or loses_status(pipelines, at, number))
        for at, pipeline in enumerate(pipelines)
        for number, stage in enumerate(pipeline.stages)
    ]
    stages = [part.stage for part in parts]
    timed_out = _PATTERNS["timed_out"]
    if timed_out.match(text) or (timed_out.match(last) and _find_last_role(stages) == "runs"):
        return {"command_error"}
    has_fallback = any(pipeline.then == "||" for pipeline in pipelines)
    # What complains before it prints is far from the end where `head` cut that off.
    top = [text.partition("\n")[0]] if any(stage.program == "head" for stage in stages) else []
    found = _find_complaints([*top, *lines], parts, command, has_fallback)
    # What speaks first prints its own text.
    leads = next((stage.role for stage in stages if stage.role != "quiet"), "") == "runs"
    if lead and (lead[1] or leads):
        shown = set(classify(text[:HEAD_CHARS]))
        first = next((part.loses for part in parts if part.stage.role == "runs"), False)
        if not lead[2]:
            # What ends with its result went on.
            found |= set() if last[0] in "{\u2713" else {"command_error"} | (shown & _COMPLAINED)
        # A program that catches an exception may show it, and a shell goes on after one.
        elif "traceback" in command or not shows_status or first:
            found |= shown & (_SIGNATURE | _COMPLAINED)
    record = _POWERSHELL.search(text)
    if record and (leads or record.start() < _END_CHARS):
        found |= {"command_error"} | (set(classify(text[:HEAD_CHARS])) & _COMPLAINED)
    if _shows_http_error(command, text):
        found |= {"command_error"}
    speaker = _find_last_speaker(parts)
    if speaker is None:
        is_own = _PATTERNS["task_output"].search(command)
        shown = set(classify("\n".join(lines[-SCRIPT_TAIL_LINES:]))) if is_own else set()
        return found | (shown - _NOT_OF_A_COMMAND if shown & _SIGNATURE else set())
    program = speaker.stage.program
    scripted, wants_error = (_PATTERNS["scripted"].fullmatch(program), _WANTS_ERROR.search(command))
    if text[:1] == "{" and not wants_error and decode_status("", text).failed:
        found |= {"command_error"}
    # A script that is given inline may show texts of others.
    is_file = not scripted or "." in "".join(speaker.stage.arguments[:1])
    if is_file and _crashed(text) and "traceback" not in command:
        found |= set(classify(text[-_END_CHARS:])) - _NOT_OF_A_COMMAND
    may_end_badly = not (_PATTERNS["prints_text"].search(program) or wants_error)
    gives_up = {"command_error"} if may_end_badly and _PATTERNS["ends_badly"].match(last) else set()
    if not speaker.loses:
        return found | gives_up
    shows_code = "$?" in command or "PIPESTATUS" in command
    if shows_code and any(map(_PATTERNS["code_line"].fullmatch, lines[-3:])):
        found |= {"command_error"}
    signature = _SIGNATURE
    prints = scripted or _PATTERNS["prints_text"].search(program)
    if prints and not _PATTERNS["is_check"].search(" ".join(speaker.stage.arguments)[:200]):
        # Its output may be any text; only the end of it may be its own error.
        lines, signature = lines[-SCRIPT_TAIL_LINES:], frozenset({"runtime_exception"})
    elif any(part.stage.program == "head" for part in parts if part.pipeline == speaker.pipeline):
        found |= set(classify(text[:_END_CHARS])) & _CHECKED
    end = "\n".join(lines)
    shown = set(classify(end)) - _NOT_OF_A_COMMAND
    provoked = not shown & (_CHECKED | {"command_error"}) and _PASSED.search(end)
    if shown & signature and not provoked:
        return found | shown
    return found or gives_up


def _take_last_lines(text: str) -> list[str]:
    lines = text[-TAIL_CHARS:].rsplit("\n", 2 * TAIL_LINES)
    filled = [line for line in lines[1:] if line.strip()]
    if len(filled) < TAIL_LINES:
        filled = [line for line in text[-TAIL_CHARS:].split("\n") if line.strip()]
    return filled[-TAIL_LINES:]


def _find_complaints(lines: list[str], parts: list[_Part], command: str, has_fallback: bool) -> set[str]:
    """Classify the lines in which a program of this command, its script or the shell complains."""
    found: set[str] = set()
    stages = [part.stage for part in parts]
    losing = {part.stage.program for part in parts if part.loses}
    looks = has_fallback and all(stage.role != "runs" for stage in stages)
    for line in lines:
        match = _PATTERNS["speaker"].match(line) if ": " in line else None
        if not match or not (match[1] == "fatal" or _SOUNDS_BAD.search(match[2])):
            continue
        # A look for something may provide for its absence.
        if _PATTERNS["closed"].search(match[2]) or (looks and "o such" in match[2]):
            continue
        if _is_own(match[1], match[2], line, stages, losing, command):
            found |= (set(classify(line)) - _NOT_OF_A_COMMAND) or {"command_error"}
    return found


def _is_own(speaker: str, words: str, line: str, stages: list[Stage], losing: set[str], command: str) -> bool:
    name = speaker.rsplit("/", 1)[-1]
    if name in _SHELLS:
        about = set(_WORD_ENDS.split(words))
        called = _WORD_ENDS.split(command) if "not found" in words else ()
        said = {*called, *(stage.program for stage in stages)} - _SAYS_MISSING
        return "syntax error" in words or bool(about & said)
    if name in {"fatal", "error"}:
        return "git" in losing or _PATTERNS["asks_git"].search(command) is not None
    if line.startswith(("Error response from daemon", "Error from server")):
        return not losing.isdisjoint({"docker", "podman", "kubectl"}) or "docker" in command
    if name in losing:
        # What may not be read is passed over by these.
        return name not in _WALKS or "ermission denied" not in words
    ran = {word.removeprefix("./") for s in stages for word in (s.program, *s.arguments)}
    is_script = _PATTERNS["in_script"].match(line[len(speaker) + 1 :])
    return speaker.removeprefix("./") in ran and bool(is_script)


def _find_last_speaker(parts: list[_Part]) -> _Part | None:
    """Return the program that printed the end of the output, None for a reader.

    A viewer may show what another program wrote to a file before.
    """
    for at in range(max((part.pipeline for part in parts), default=-1), -1, -1):
        here = [part for part in parts if part.pipeline == at]
        if running := [part for part in here if part.stage.role == "runs"]:
            return running[-1]
        if here[0].stage.role == "quiet":
            continue
        shown = set(here[0].stage.arguments)
        before = [part for part in parts if part.pipeline < at]
        for number, part in sorted(enumerate(before), key=lambda one: -one[1].pipeline):
            behind = (one for one in before[number:] if one.pipeline == part.pipeline)
            wrote = {file for one in behind for file in one.stage.targets}
            if part.stage.role == "runs" and wrote & shown:
                return part
        return None
    return None


def _find_last_role(stages: list[Stage]) -> str:
    """Role of the program whose status counts; what is quiet does not fail."""
    return next((stage.role for stage in reversed(stages) if stage.role != "quiet"), "quiet")
