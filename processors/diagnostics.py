"""Find what the environment reported as wrong, event by event.

A result counts when it is marked as an error or has an exit code other than 0, and when a chained
or piped command ends in a failure signature although it reports success. Text that was merely read
never counts; nor do provider outages, user interrupts and searches that found nothing.
"""

import re
from collections.abc import Sequence

import msgspec

from pimono_sdpo.failures import (
    EVICTED,
    INTERRUPT,
    PROVIDER_ERROR,
    SAYS_PASSED,
    SOUNDS_BAD,
    VETO_PROSE,
    classify,
)
from pimono_sdpo.harness.event import Event
from pimono_sdpo.schema import Diagnostic
from processors.shell import Pipeline, Stage, loses_status, parse

TAIL_LINES = 15
SCRIPT_TAIL_LINES = 6
MIXED_TAIL_LINES = 25
HEAD_LINES = 8
HEAD_CHARS, TAIL_CHARS = 20_000, 40_000
_END_CHARS = 2_000
_BROKEN_OFF = 130
_TIMED_OUT_CODE = 124
# Broken off by the user; ended by `head`.
_NO_VERDICT = frozenset({_BROKEN_OFF, 141})

_TRAILER = re.compile(
    r"(?<!\n)\n*\[(?:Showing (?:lines|last|first)|(?:Output|Result) truncated|Truncated"
    r"|(?:Full|Raw) output)[^\]\n]{0,400}\]\s*",
    re.IGNORECASE,
)
_LEADER = re.compile(r"Total output lines: \d{1,9}\n\s*")
_EXIT_LINE = re.compile(
    r"\A(?:Error: )?(?:Exit code:? -?\d{1,9}\b|Command failed \(exit code: -?\d{1,9}\))"
    r"|(?:\(no output\)\s{1,4})?(?:\[Process|Command) exited with code -?\d{1,9}\]?\s*\Z"
)
_TIMED_OUT = re.compile(r"(?:Error: )?Command timed out after \d")
_CODE_LINE = re.compile(
    r"\W{0,8}(?:[a-z]{1,12}[ _-])?(?:exit|rc|status|code|ret)[a-z]{0,8}(?:[ _-]code)?\W{1,4}"
    r"[1-9]\d{0,2}\W{0,8}",
    re.IGNORECASE,
)
# Behind these a tool quotes what it was given.
_QUOTED = re.compile(r"\n(?:String: |Received arguments:|Current content|Input: |```|<<<<<<<)")
_PATCH_QUOTED = re.compile(r"(?:expected lines|context)[^\n]{0,400}:\n")
_FILE_TOOLS = frozenset("read edit write ls grep find glob".split())
# Tools that say why they failed in few known ways; an extension's veto has words of its own.
_WITH_VETOES = frozenset({"bash", "edit", "write"})
_OWN_TO_CALLS = frozenset(
    "tool_schema_validation missing_file_or_command permission_auth command_error"
    " build_lint_compile".split()
)
_SCRIPTED = re.compile(r"(?:python|node|ruby|perl|php|bun|deno|tsx|ts-node|osascript)[\d.]*")
_PRINTS_TEXT = re.compile(
    r"(?:\A|[-_.])(?:read|fetch|search|get|show|view|browse|scrape|query|list|print|dump|logs?"
    r"|extract|content|crawl|find)(?:[-_.]|\Z)"
)
_IS_CHECK = re.compile(r"test|spec|check|lint|build|compile|tsc|verify", re.IGNORECASE)
_CHECKED = frozenset({"test_or_assertion", "build_lint_compile"})
_SIGNATURE = _CHECKED | {"runtime_exception", "command_error"}
_NOT_OF_A_COMMAND = frozenset({"policy_block", "tool_schema_validation"})
# What they print may be anything; what they complain about fits into a few lines.
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
        if not _may_tell(event):
            continue
        text = _cleaned(event.text)
        if event.kind == "assistant":
            categories = _broken_turn(text)
        elif event.kind == "bash":
            categories = _categories(event, event.arguments, text)
        else:
            categories = _categories(event, _command(calls.get(event.call_id, "")), text)
        if categories:
            found.append(
                {
                    "categories": sorted(categories),
                    "text": text,
                    "tool_name": event.tool_name,
                    "event_index": event.index,
                }
            )
    return found


def _may_tell(event: Event) -> bool:
    """Sort out, without a look at the text, most of what can be no failure."""
    if not event.on_active_branch:
        return False
    if event.kind == "assistant":
        return event.stop_reason == "error"
    if event.kind not in {"tool_result", "bash"}:
        return False
    return event.is_error or event.tool_name == "bash"


def _cleaned(text: str) -> str:
    """Cut off what a harness says about the length of the text."""
    text = text.strip()
    leader = _LEADER.match(text)
    text = text[leader.end() :] if leader else text
    end = text[-_END_CHARS:]
    return (text[:-_END_CHARS] + _TRAILER.sub("\n", end)).strip() if "[" in end else text


def _broken_turn(text: str) -> set[str]:
    """A turn that ended in an error is the provider's, unless the harness gave up on the calls."""
    is_own = len(text) < 600 and not PROVIDER_ERROR.search(text)
    return set(classify(text)) & {"tool_schema_validation"} if is_own else set()


def _categories(event: Event, command: str, text: str) -> set[str]:
    is_bash = event.tool_name == "bash"
    failed = event.is_error or (event.kind == "tool_result" and is_bash and bool(event.exit_code))
    if not failed:
        return _hidden(command, text) if is_bash else set()
    if EVICTED.fullmatch(text[:500]) or _is_interrupt_or_outage(event, text):
        return set()
    told = _ends(text)
    if is_bash and event.exit_code is not None:
        return _failed_command(event.exit_code, parse(command), command, told)
    return _failed_call(event.tool_name, told) if told.strip() else set()


def _is_interrupt_or_outage(event: Event, text: str) -> bool:
    if event.exit_code not in {None, _BROKEN_OFF}:
        return False
    is_outage = event.tool_name not in _FILE_TOOLS and PROVIDER_ERROR.search(text[:400])
    return bool(is_outage or INTERRUPT.search(text[:400]) or text.endswith("Command aborted"))


def _ends(text: str) -> str:
    """The head and the tail of a long text, cut at line ends."""
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        return _EXIT_LINE.sub("", text)
    head = text[:HEAD_CHARS].rpartition("\n")[0]
    tail = text[-TAIL_CHARS:].partition("\n")[2]
    return f"{head}\n{_EXIT_LINE.sub('', tail)}"


def _failed_call(tool_name: str, told: str) -> set[str]:
    """A call that failed as such: refused by the harness, malformed, or not possible."""
    if _says_it_passed(told):
        return set()
    head = "\n".join(_QUOTED.split(told[:4000], maxsplit=1)[0].split("\n")[:HEAD_LINES])
    head = _PATCH_QUOTED.split(head, maxsplit=1)[0] if tool_name in _FILE_TOOLS else head
    if "policy_block" in classify(head):
        return {"policy_block"}
    found = set(classify(head if tool_name in _FILE_TOOLS else told)) - {"policy_block"}
    if tool_name in _WITH_VETOES and not found & _OWN_TO_CALLS and VETO_PROSE.search(head):
        return {"policy_block"}
    return found or {"other_marked_error"}


def _failed_command(exit_code: int, pipelines: list[Pipeline], command: str, told: str) -> set[str]:
    stages = [stage for pipeline in pipelines for stage in pipeline.stages]
    if stages and all(stage.role != "runs" for stage in stages):
        own = _own_words(stages, told)
        silenced = "2>/dev/null" in command or "&>/dev/null" in command
        if not own and (exit_code == 1 or (silenced and exit_code == 2)):
            return set()
        return {"command_error"} | (set(classify(own)) - _NOT_OF_A_COMMAND - _SIGNATURE)
    if any(pipeline.stages[0].role in {"reads", "searches"} for pipeline in pipelines):
        told = "\n".join(told.rstrip().split("\n")[-MIXED_TAIL_LINES:])
    found = set(classify(told)) - _NOT_OF_A_COMMAND
    found |= {"missing_file_or_command"} if exit_code == 127 else set()
    if not found and exit_code == 1 and _last(stages) == "searches":
        return set()
    if not found and (exit_code in _NO_VERDICT or _says_it_passed(told)):
        return set()
    if not found and exit_code == _TIMED_OUT_CODE and not _IS_CHECK.search(command[:2000]):
        # A server or a watcher, tried out for a while.
        return set()
    return {"command_error"} | found


def _last(stages: list[Stage]) -> str:
    """Role of the program whose status counts; what is quiet does not fail."""
    return next((stage.role for stage in reversed(stages) if stage.role != "quiet"), "quiet")


def _says_it_passed(told: str) -> bool:
    """Output that an extension put in the place of the command's own may contradict the mark."""
    return bool(SAYS_PASSED.search(told)) and not SOUNDS_BAD.search(told)


def _own_words(stages: list[Stage], told: str) -> str:
    """The lines in which viewers and searches, or the shell, speak for themselves."""
    programs = {stage.program for stage in stages}
    names = "|".join(re.escape(program[:40]) for program in sorted(programs))
    own = re.compile(
        rf"^(?:(?:\S{{0,80}}/)?(?:{names}|bash|zsh|sh|dash|fatal|[Ee]rror|ERROR|usage)(?: error)?:"
        r"|(?:regex parse error|rg|ssh|scp|[\w.@-]{1,80}: Permission denied|Connection \w{1,20})\b"
        r"|HTTP [45]\d\d|Command timed out)[^\n]*",
        re.MULTILINE,
    )
    lines = [match.group(0) for match in own.finditer(told)]
    if not lines and programs & _TALKERS and told.strip().count("\n") < 4:
        lines = [told] if SOUNDS_BAD.search(told) else []
    return "\n".join(lines)


def _hidden(command: str, text: str) -> set[str]:
    """What a command that reports success says at its end about a program whose status is lost."""
    # A line of the command itself was echoed, not reported.
    lines = [line for line in _last_lines(text) if line.strip() not in command]
    asks = "$?" in command or "PIPESTATUS" in command
    if not lines or not (asks or _is_suspicious("\n".join(lines))):
        return set()
    pipelines = parse(command)
    stages = [stage for pipeline in pipelines for stage in pipeline.stages]
    if _TIMED_OUT.match(text) or (_TIMED_OUT.match(lines[-1]) and _last(stages) == "runs"):
        return {"command_error"}
    if any("not found" in line and _is_missing(line, stages) for line in lines):
        return {"missing_file_or_command"}
    at = _speaks_last(pipelines)
    if at is None or not loses_status(pipelines, *at):
        return set()
    stage = pipelines[at[0]].stages[at[1]]
    told = {"command_error"} if asks and any(map(_CODE_LINE.fullmatch, lines[-3:])) else set()
    signature = _SIGNATURE
    prints_text = _SCRIPTED.fullmatch(stage.program) or _PRINTS_TEXT.search(stage.program)
    if prints_text and not _IS_CHECK.search(" ".join(stage.arguments)[:200]):
        # Its output may be any text; only its own end is not.
        lines, signature = lines[-SCRIPT_TAIL_LINES:], frozenset({"runtime_exception"})
    tail = "\n".join(lines)
    found = set(classify(tail)) - _NOT_OF_A_COMMAND
    if SAYS_PASSED.search(tail) and not found & (_CHECKED | {"command_error"}):
        return told
    return found | told if found & signature else told


def _last_lines(text: str) -> list[str]:
    lines = text[-TAIL_CHARS:].rsplit("\n", 2 * TAIL_LINES)
    filled = [line for line in lines[1:] if line.strip()]
    if len(filled) < TAIL_LINES:
        filled = [line for line in text[-TAIL_CHARS:].split("\n") if line.strip()]
    return filled[-TAIL_LINES:]


def _is_suspicious(tail: str) -> bool:
    """Tell, faster than reading the command, whether there is anything to look into."""
    if "timed out" in tail or "not found" in tail:
        return True
    return not _SIGNATURE.isdisjoint(classify(tail))


def _is_missing(line: str, stages: list[Stage]) -> bool:
    """Tell the shell's own complaint about a program of this very command."""
    said, _, rest = line.partition(":")
    words = set(re.split(r"[:\s]+", rest))
    return said.rsplit("/", 1)[-1] in {"bash", "sh", "zsh", "dash", "-bash"} and any(
        stage.program in words for stage in stages
    )


def _speaks_last(pipelines: list[Pipeline]) -> tuple[int, int] | None:
    """Position of the program that the end of the output comes from; None where it was read."""
    for at in range(len(pipelines) - 1, -1, -1):
        stages = pipelines[at].stages
        for number in range(len(stages) - 1, -1, -1):
            if stages[number].role == "runs":
                return at, number
        if stages[0].role != "quiet":
            return _written_by(pipelines[:at], stages[0])
    return None


def _written_by(pipelines: list[Pipeline], reader: Stage) -> tuple[int, int] | None:
    """Position of the program whose output a viewer shows that was put aside into a file."""
    for at in range(len(pipelines) - 1, -1, -1):
        for number, stage in enumerate(pipelines[at].stages):
            wrote = {file for part in pipelines[at].stages[number:] for file in part.targets}
            if stage.role == "runs" and wrote & set(reader.arguments):
                return at, number
    return None


def _command(arguments: str) -> str:
    """The command line of a bash call; arguments are whatever the model wrote."""
    try:
        value = msgspec.json.decode(arguments or "null")
    except (msgspec.DecodeError, RecursionError):
        # No JSON, or nested too deep to be read again from here: there is no command line.
        return ""
    command = value.get("command") if isinstance(value, dict) else None
    return command if isinstance(command, str) else ""
