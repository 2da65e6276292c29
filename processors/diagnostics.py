"""Find the failures that tools and the environment reported in a session, event by event.

A result counts if it is marked as an error or has an exit code other than 0, or if a chained or
piped command ends in a failure signature although it reports success. Text that was merely read
never counts, nor do provider outages, interrupts by the user and searches without matches.
"""

import re
from collections.abc import Sequence

from pimono_sdpo.failures import (
    EVICTED,
    INTERRUPT,
    PROVIDER_ERROR,
    SAYS_PASSED,
    SOUNDS_BAD,
    VETO_PROSE,
    classify,
    may_fail,
)
from pimono_sdpo.schema import Diagnostic
from pimono_sdpo.shell import Pipeline, Stage, loses_status, parse_command
from pimono_sdpo.traces.events import Event, decode_json

MIXED_TAIL_LINES = 25
HEAD_LINES = 8
HEAD_CHARS, TAIL_CHARS = 20_000, 40_000
_END_CHARS = 2_000
_BROKEN_OFF = 130
_TIMED_OUT_CODE = 124
# Interrupted by the user; ended by `head`.
_NO_VERDICT = frozenset({_BROKEN_OFF, 141})

_TRAILER = re.compile(
    r"(?<!\n)\n*\[(?:Showing (?:lines|last|first)|(?:Output|Result) truncated|Truncated"
    r"|(?:Full|Raw) output)[^\]\n]{0,400}\]\s*",
    re.IGNORECASE,
)
_LEADER = re.compile(r"Total output lines: \d{1,9}\n\s*")
_MAY_TRAIL = re.compile(r"\[(?:Showing|Output|Result|Truncated|Full|Raw)", re.IGNORECASE)
_EXIT_HEAD = re.compile(
    r"(?:Error: )?(?:Exit code:? -?\d{1,9}\b|Command failed \(exit code: -?\d{1,9}\))"
)
_EXIT_TAIL = re.compile(
    r"(?:\(no output\)\s{1,4})?(?:\[Process|Command) exited with code -?\d{1,9}\]?\s*\Z"
)
_EXIT_CHARS = 100
# After these a tool quotes its arguments.
_QUOTED = re.compile(r"\n(?:String: |Received arguments:|Current content|Input: |```|<<<<<<<)")
_PATCH_QUOTED = re.compile(r"(?:expected lines|context)[^\n]{0,400}:\n")
_FILE_TOOLS = frozenset("read edit write ls grep find glob".split())
# These tools fail in few known ways; other words in their results are a veto by an extension.
_WITH_VETOES = frozenset({"bash", "edit", "write"})
_OWN_TO_CALLS = frozenset(
    "tool_schema_validation missing_file_or_command permission_auth command_error"
    " build_lint_compile".split()
)
# Their output may be anything, but their complaints fit into a few lines.
_TALKERS = frozenset(
    "gh glab psql mysql sqlite3 redis-cli docker podman kubectl npm pnpm yarn pip pip3 brew aws"
    " systemctl tmux adb unzip tar".split()
)


def find_diagnostics(events: Sequence[Event]) -> list[Diagnostic]:
    """Return the diagnostics of a session in order; `text` is cleaned, not shortened."""
    calls: dict[str, str] = {}
    found: list[Diagnostic] = []
    for event in events:
        if event.kind == "tool_call" and event.tool_name == "bash":
            calls[event.call_id] = event.arguments
        called = event.arguments if event.kind == "bash" else calls.get(event.call_id, "")
        if not _may_tell(event, called):
            continue
        text = _strip_notices(event.text)
        command = called if event.kind == "bash" else _read_command(called)
        if event.kind == "assistant":
            categories = _classify_turn(text)
        else:
            categories = _classify_event(event, command, text)
        if categories:
            found.append(
                {
                    "categories": sorted(categories),
                    "text": text,
                    "tool_name": event.tool_name,
                    "command": command,
                    "event_index": event.index,
                }
            )
    return found


def _may_tell(event: Event, called: str) -> bool:
    """Rule out most of the events that cannot be failures."""
    if not event.on_active_branch:
        return False
    if event.kind == "assistant":
        return event.stop_reason == "error"
    if event.kind not in {"tool_result", "bash"}:
        return False
    if event.is_error or event.exit_code:
        return True
    return event.tool_name == "bash" and may_mask_failure(called, event.text)


def _strip_notices(text: str) -> str:
    """Remove the notices of a harness about truncated text."""
    text = text.strip()
    leader = _LEADER.match(text)
    text = text[leader.end() :] if leader else text
    end = text[-_END_CHARS:]
    if not _MAY_TRAIL.search(end):
        return text
    return (text[:-_END_CHARS] + _TRAILER.sub("\n", end)).strip()


def _classify_turn(text: str) -> set[str]:
    """Classify a turn that ended in an error: the provider's fault, or that of invalid calls."""
    is_own = len(text) < 600 and not PROVIDER_ERROR.search(text)
    return set(classify(text)) & {"tool_schema_validation"} if is_own else set()


def _classify_event(event: Event, command: str, text: str) -> set[str]:
    is_bash = event.tool_name == "bash"
    failed = event.is_error or (event.kind == "tool_result" and is_bash and bool(event.exit_code))
    if not failed:
        return find_masked_failures(command, text) if is_bash else set()
    if EVICTED.fullmatch(text[:500]) or _is_interrupt_or_outage(event, text):
        return set()
    output = _cut_to_ends(text)
    if is_bash and event.exit_code is not None:
        return _classify_command(event.exit_code, parse_command(command), command, output)
    return _classify_call(event.tool_name, output) if output.strip() else set()


def _is_interrupt_or_outage(event: Event, text: str) -> bool:
    if event.exit_code not in {None, _BROKEN_OFF}:
        return False
    is_outage = event.tool_name not in _FILE_TOOLS and PROVIDER_ERROR.search(text[:400])
    return bool(is_outage or INTERRUPT.search(text[:400]) or text.endswith("Command aborted"))


def _cut_to_ends(text: str) -> str:
    """Return head and tail of a long text, cut at line ends, without the line of the exit code."""
    if len(text) > HEAD_CHARS + TAIL_CHARS:
        head = text[:HEAD_CHARS].rpartition("\n")[0]
        text = head + "\n" + text[-TAIL_CHARS:].partition("\n")[2]
    first = _EXIT_HEAD.match(text)
    text = text[first.end() :] if first else text
    return text[:-_EXIT_CHARS] + _EXIT_TAIL.sub("", text[-_EXIT_CHARS:])


def _classify_call(tool_name: str, output: str) -> set[str]:
    """Classify a failed call: refused by the harness, malformed, or impossible."""
    if _says_it_passed(output):
        return set()
    head = "\n".join(_QUOTED.split(output[:4000], maxsplit=1)[0].split("\n")[:HEAD_LINES])
    head = _PATCH_QUOTED.split(head, maxsplit=1)[0] if tool_name in _FILE_TOOLS else head
    if "policy_block" in classify(head):
        return {"policy_block"}
    found = set(classify(head if tool_name in _FILE_TOOLS else output)) - {"policy_block"}
    if tool_name in _WITH_VETOES and not found & _OWN_TO_CALLS and VETO_PROSE.search(head):
        return {"policy_block"}
    return found or {"other_marked_error"}


def _classify_command(
    exit_code: int, pipelines: list[Pipeline], command: str, output: str
) -> set[str]:
    stages = [stage for pipeline in pipelines for stage in pipeline.stages]
    if stages and all(stage.role != "runs" for stage in stages):
        own = _find_own_words(stages, output)
        silenced = "2>/dev/null" in command or "&>/dev/null" in command
        if not own and (exit_code == 1 or (silenced and exit_code == 2)):
            return set()
        return {"command_error"} | (set(classify(own)) - NOT_OF_A_COMMAND - SIGNATURE)
    if any(pipeline.stages[0].role in {"reads", "searches"} for pipeline in pipelines):
        output = "\n".join(output.rstrip().split("\n")[-MIXED_TAIL_LINES:])
    found = set(classify(output)) - NOT_OF_A_COMMAND
    found |= {"missing_file_or_command"} if exit_code == 127 else set()
    if not found and exit_code == 1 and find_last_role(stages) == "searches":
        return set()
    if not found and (exit_code in _NO_VERDICT or _says_it_passed(output)):
        return set()
    if not found and exit_code == _TIMED_OUT_CODE and not IS_CHECK.search(command[:2000]):
        # A server or a watcher that was meant to be stopped.
        return set()
    return {"command_error"} | found


def _says_it_passed(output: str) -> bool:
    """Check for output of an extension that contradicts the mark as an error."""
    return bool(SAYS_PASSED.search(output)) and not SOUNDS_BAD.search(output)


def _find_own_words(stages: list[Stage], output: str) -> str:
    """Return the lines that viewers, searches or the shell wrote themselves."""
    programs = {stage.program for stage in stages}
    names = "|".join(re.escape(program[:40]) for program in sorted(programs))
    own = re.compile(
        rf"^(?:(?:\S{{0,80}}/)?(?:{names}|bash|zsh|sh|dash|fatal|[Ee]rror|ERROR|usage)(?: error)?:"
        r"|(?:regex parse error|rg|ssh|scp|[\w.@-]{1,80}: Permission denied|Connection \w{1,20})\b"
        r"|HTTP [45]\d\d|Command timed out)[^\n]*",
        re.MULTILINE,
    )
    lines = [match.group(0) for match in own.finditer(output)]
    if not lines and programs & _TALKERS and output.strip().count("\n") < 4:
        lines = [output] if SOUNDS_BAD.search(output) else []
    return "\n".join(lines)


def _read_command(arguments: str) -> str:
    """Return the command line of a bash call, "" if its arguments are broken."""
    value = decode_json(arguments)
    command = value.get("command") if isinstance(value, dict) else None
    return command if isinstance(command, str) else ""


TAIL_LINES = 15
SCRIPT_TAIL_LINES = 6
_TIMED_OUT = re.compile(r"(?:Error: )?Command timed out after \d")
_CODE_LINE = re.compile(
    r"\W{0,8}(?:[a-z]{1,12}[ _-])?(?:exit|rc|status|code|ret)[a-z]{0,8}(?:[ _-]code)?\W{1,4}"
    r"[1-9]\d{0,2}\W{0,8}",
    re.IGNORECASE,
)
_SCRIPTED = re.compile(r"(?:python|node|ruby|perl|php|bun|deno|tsx|ts-node|osascript)[\d.]*")
_PRINTS_TEXT = re.compile(
    r"(?:\A|[-_.])(?:read|fetch|search|get|show|view|browse|scrape|query|list|print|dump|logs?"
    r"|extract|content|crawl|find)(?:[-_.]|\Z)"
)
IS_CHECK = re.compile(r"test|spec|check|lint|build|compile|tsc|verify", re.IGNORECASE)
_CHECKED = frozenset({"test_or_assertion", "build_lint_compile"})
SIGNATURE = _CHECKED | {"runtime_exception", "command_error"}
_COMPLAINED = frozenset({"missing_file_or_command", "permission_auth"})
_SUSPICIOUS = SIGNATURE | _COMPLAINED
_CHANGERS = frozenset("cp mv rm mkdir chmod chown ln touch".split())
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "-bash"})
_IN_SCRIPT = re.compile(r" (?:line )?\d{1,6}: ")
NOT_OF_A_COMMAND = frozenset({"policy_block", "tool_schema_validation"})


def may_mask_failure(command: str, text: str) -> bool:
    """Return, without parsing the command, whether it may mask a failure.

    `command` may also be the JSON that contains it.
    """
    if "$?" in command or "PIPESTATUS" in command:
        return True
    tail = "\n".join(text[-TAIL_CHARS:].rsplit("\n", 2 * TAIL_LINES)[-2 * TAIL_LINES :])
    return "timed out" in tail or "not found" in tail or may_fail(tail, _SUSPICIOUS)


def find_masked_failures(command: str, text: str) -> set[str]:
    """Return the categories of a failure of a command whose exit status reports success."""
    # A line of the command itself was echoed.
    lines = [line for line in _take_last_lines(text) if line.strip() not in command]
    shows_code = "$?" in command or "PIPESTATUS" in command
    categories = classify("\n".join(lines))
    if not lines or not (shows_code or _is_suspicious(lines, categories)):
        return set()
    pipelines = parse_command(command)
    stages = [stage for pipeline in pipelines for stage in pipeline.stages]
    if _TIMED_OUT.match(text) or (_TIMED_OUT.match(lines[-1]) and find_last_role(stages) == "runs"):
        return {"command_error"}
    if any("not found" in line and _is_missing(line, stages) for line in lines):
        return {"missing_file_or_command"}
    at = _find_last_speaker(pipelines)
    if at is None or not loses_status(pipelines, *at):
        return _classify_complaints(lines[-3:], pipelines)
    stage = pipelines[at[0]].stages[at[1]]
    by_code = (
        {"command_error"} if shows_code and any(map(_CODE_LINE.fullmatch, lines[-3:])) else set()
    )
    signature = SIGNATURE
    prints_text = _SCRIPTED.fullmatch(stage.program) or _PRINTS_TEXT.search(stage.program)
    if prints_text and not IS_CHECK.search(" ".join(stage.arguments)[:200]):
        # Its output may be any text; only the end of it may be its own error.
        lines, signature = lines[-SCRIPT_TAIL_LINES:], frozenset({"runtime_exception"})
        categories = classify("\n".join(lines))
    found = set(categories) - NOT_OF_A_COMMAND
    if not found & signature:
        return by_code
    is_provoked = not found & (_CHECKED | {"command_error"}) and SAYS_PASSED.search(
        "\n".join(lines)
    )
    return by_code if is_provoked else found | by_code


def _take_last_lines(text: str) -> list[str]:
    lines = text[-TAIL_CHARS:].rsplit("\n", 2 * TAIL_LINES)
    filled = [line for line in lines[1:] if line.strip()]
    if len(filled) < TAIL_LINES:
        filled = [line for line in text[-TAIL_CHARS:].split("\n") if line.strip()]
    return filled[-TAIL_LINES:]


def _is_suspicious(lines: list[str], categories: list[str]) -> bool:
    """Return, without parsing the command, whether the last lines may show a failure."""
    if any("timed out" in line or "not found" in line for line in lines):
        return True
    return not _SUSPICIOUS.isdisjoint(categories)


def _is_missing(line: str, stages: list[Stage]) -> bool:
    """Check for a complaint of the shell about a program of this command, or in its script."""
    speaker, _, rest = line.partition(":")
    words = set(re.split(r"[:\s]+", rest))
    if speaker.rsplit("/", 1)[-1] in _SHELLS:
        return any(stage.program in words for stage in stages)
    script = speaker.removeprefix("./")
    ran = {word.removeprefix("./") for s in stages for word in (s.program, *s.arguments)}
    return script in ran and bool(_IN_SCRIPT.match(rest))


def _classify_complaints(lines: list[str], pipelines: list[Pipeline]) -> set[str]:
    """Classify the complaints of programs that are silent on success, unlike those that print."""
    found: set[str] = set()
    for at, pipeline in enumerate(pipelines):
        for number, stage in enumerate(pipeline.stages):
            if stage.program not in _CHANGERS or not loses_status(pipelines, at, number):
                continue
            own = (line for line in lines if line.startswith(f"{stage.program}: "))
            found.update(name for line in own for name in classify(line))
    return found & _COMPLAINED


def _find_last_speaker(pipelines: list[Pipeline]) -> tuple[int, int] | None:
    """Return the position of the program that printed the end of the output, None for a reader."""
    for at in range(len(pipelines) - 1, -1, -1):
        stages = pipelines[at].stages
        for number in range(len(stages) - 1, -1, -1):
            if stages[number].role == "runs":
                return at, number
        if stages[0].role != "quiet":
            return _find_writer(pipelines[:at], stages[0])
    return None


def _find_writer(pipelines: list[Pipeline], reader: Stage) -> tuple[int, int] | None:
    """Return the position of the program whose redirected output a viewer shows."""
    for at in range(len(pipelines) - 1, -1, -1):
        for number, stage in enumerate(pipelines[at].stages):
            wrote = {file for part in pipelines[at].stages[number:] for file in part.targets}
            if stage.role == "runs" and wrote & set(reader.arguments):
                return at, number
    return None


def find_last_role(stages: list[Stage]) -> str:
    """Role of the program whose status counts; what is quiet does not fail."""
    return next((stage.role for stage in reversed(stages) if stage.role != "quiet"), "quiet")
