"""Find what the environment reported as wrong, event by event.

A result counts when it is marked as an error, or when a chained or piped command ends in a
failure signature although it reports success. Text that was merely read never counts; nor do
provider outages, user interrupts and searches that found nothing.
"""

import json
import re
from collections.abc import Sequence

from pimono_sdpo.failures import INTERRUPT, PROVIDER_ERROR, classify
from pimono_sdpo.harness.event import Event
from pimono_sdpo.schema import Diagnostic

TAIL_LINES = 15
_TRAILER = re.compile(
    r"(?<!\n)\n*\[(?:Showing lines|Showing last|Output truncated)[^\]\n]{0,400}\]\s*"
)
_EXIT_LINE = re.compile(r"(?<!\n)\n*Command exited with code \d+\s*$")
_LOOKED_THROUGH = re.compile(r"[A-Za-z_]\w*=.*|sudo|time|timeout|-?\d+s?|[({]")
_CHAINED = re.compile(r"\||;|&&|\n")
_SEARCH = frozenset({"grep", "rg", "egrep", "fgrep", "ag", "diff", "cmp", "test", "[", "which"})
_VIEWER = frozenset(
    "awk bat cat curl echo find gh git head jq less ls sed sort tail tree wc wget xxd".split()
)
_VIEWER_OR_SEARCH = _VIEWER | _SEARCH
_SIGNATURE = frozenset({"test_or_assertion", "build_lint_compile", "runtime_exception"})


def find_diagnostics(events: Sequence[Event]) -> list[Diagnostic]:
    """Return the diagnostics of a session in order; `text` is cleaned, not shortened."""
    commands = {
        event.call_id: _command(event.arguments)
        for event in events
        if event.kind == "tool_call" and event.tool_name == "bash"
    }
    found: list[Diagnostic] = []
    for event in events:
        if event.kind not in {"tool_result", "bash"} or not event.on_active_branch:
            continue
        command = event.arguments if event.kind == "bash" else commands.get(event.call_id, "")
        text = _TRAILER.sub("\n", event.text).strip()
        categories = _categories(event, command, text)
        if categories:
            found.append(
                {
                    "categories": categories,
                    "text": text,
                    "tool_name": event.tool_name,
                    "event_index": event.index,
                }
            )
    return found


def _categories(event: Event, command: str, text: str) -> list[str]:
    if event.is_error:
        if PROVIDER_ERROR.search(text) or INTERRUPT.search(text):
            return []
        if event.tool_name == "bash" and _is_empty_search(command, text, event.exit_code):
            return []
        categories = set(classify(text))
        if event.tool_name == "bash" and event.exit_code:
            categories.add("command_error")
        return sorted(categories or {"other_marked_error"})
    if event.tool_name == "bash" and _hides_its_exit_code(command):
        tail = "\n".join(text.splitlines()[-TAIL_LINES:])
        hidden = set(classify(tail))
        return sorted(hidden) if hidden & _SIGNATURE else []
    return []


def _is_empty_search(command: str, text: str, exit_code: int | None) -> bool:
    """A search that found nothing, or a diff that found something, exits with 1."""
    return (
        exit_code == 1
        and _programs(command)[-1:] != []
        and _programs(command)[-1] in _SEARCH
        and not set(classify(_EXIT_LINE.sub("", text)))
    )


def _hides_its_exit_code(command: str) -> bool:
    """True for a chain that runs something else than viewers, so that its status may be lost."""
    return bool(_CHAINED.search(command.strip())) and any(
        program not in _VIEWER_OR_SEARCH for program in _programs(command)
    )


def _programs(command: str) -> list[str]:
    """First word of each command in a chain; `cd` and assignments are looked through.

    >>> _programs("cd app && CI=1 npm test 2>&1 | tail -5")
    ['npm', 'tail']
    """
    programs = []
    for part in re.split(r"\|\|?|&&|;|\n", command):
        words = (word for word in part.split() if not _LOOKED_THROUGH.fullmatch(word))
        program = next(words, "cd").rsplit("/", 1)[-1]
        if program not in {"cd", "export", "set"}:
            programs.append(program)
    return programs


def _command(arguments: str) -> str:
    """The command line of a bash call; arguments are whatever the model wrote."""
    try:
        value = json.loads(arguments or "null")
    except RecursionError:
        # Nested too deep to be read again from here; such arguments hold no command line.
        return ""
    command = value.get("command") if isinstance(value, dict) else None
    return command if isinstance(command, str) else ""
