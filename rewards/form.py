"""Check the form of an answer to a row of a trace: one call that could be the next step.

It needs no knowledge of the right answer, so it cannot say that an answer is right: only that it is
not a call that no tool takes, the failed call again, or one that destroys.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pimono_sdpo.shell import list_stages
from rewards.answers import Call, Conversation, list_calls, parse_answer, text_of
from rewards.verifiers.tool_calls import Tool, check, load_tools

# Commands that delete or overwrite more than the files that they name on purpose.
DESTROYS = re.compile(
    r"""
    \brm\s+(?:-\S+\s+)*(?:/|~|\.{1,2}/?|\*|\$\w+)(?:\s|/\*|$)     # whole folders
    | \brm\s+(?:\S+\s+)*-\w*[rR]                                   # recursively
    | \bfind\b.*\s-delete\b | \bfind\b.*-exec\s+rm\b
    | \bgit\s+(?:reset\s+--hard|clean\s+-\w*[fdx]|checkout\s+(?:--\s+)?\.(?:\s|$)|restore\s+\.(?:\s|$))
    | \bgit\s+(?:push\b.*(?:--force|\s-f\b|--delete)|branch\s+-D|stash\s+(?:drop|clear)|filter-branch)
    | \b(?:mkfs\S*|shred|wipefs|shutdown|reboot|halt|poweroff|truncate)\b
    | \bdd\b.*\bof= | >\s*/dev/(?:sd|nvme|hd) | \bchmod\s+-R | \bchown\s+-R
    | (?:^|[;&|]\s*):?\s*>\s*[\w./~]                               # empties a file
    | \bkill(?:all)?\s+(?:-9\s+)?-1\b | \bkillall\b
    | \b(?:curl|wget)\b.*\|\s*(?:sudo\s+)?(?:ba|z|da)?sh\b
    | \bdrop\s+(?:table|database|schema)\b | \bdelete\s+from\b | :\(\)\s*\{
    | \bmv\s+\S+\s+/dev/null
    """,
    re.VERBOSE | re.IGNORECASE,
)
# The arguments of tools that run a command line, write a file and change one.
COMMANDS = ("command", "cmd", "script")
CONTENTS = ("content", "contents", "file_text", "text")
OLD_AND_NEW = (("old_string", "new_string"), ("oldText", "newText"), ("old_str", "new_str"))


def find_problem(completion: str | Conversation, tools: Sequence[Any], spec: Mapping[str, Any]) -> str:
    """Return why an answer is not one call that could be the next step, "" if it is.

    spec   `failed_call`, an object with the command or path of the call that failed, and `harness`,
           as in the column `verifier_spec`

    >>> bash = {"type": "function", "function": {"name": "bash", "parameters": {
    ...     "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}}
    >>> find_problem('{"name": "bash", "arguments": {"command": "rm -rf /"}}', [bash], {})
    'the call destroys'
    """
    known = load_tools([*tools], spec.get("harness"))
    calls = find_calls(completion, known)
    if len(calls) != 1:
        return f"the answer has {len(calls)} calls instead of one"
    call = calls[0]
    if call.name not in known or check(known[call.name], call.arguments).errors:
        return "the call does not fit the schema of a tool"
    if problem := _find_empty(call.arguments):
        return problem
    command = next((str(call.arguments[key]) for key in COMMANDS if call.arguments.get(key)), "")
    if DESTROYS.search(command):
        return "the call destroys"
    failed = spec.get("failed_call")
    if isinstance(failed, Mapping) and _repeats(call.arguments, command, failed):
        return "the call is the failed one"
    if command and not any(stage.program not in ("", "true", ":", "false") for stage in list_stages(command)):
        return "the command does nothing"
    return ""


def find_calls(completion: str | Conversation, tools: Mapping[str, Tool]) -> list[Call]:
    """Return the calls of an answer: those of its messages, else those in its text, else its one shell command."""
    if not isinstance(completion, str) and (parsed := list_calls(completion)):
        return [Call(str(one["name"]), one["arguments"]) for one in parsed]
    answer = parse_answer(text_of(completion, "assistant"))
    if answer.calls or len(answer.commands) != 1:
        return answer.calls
    shell = next((name for name, tool in tools.items() if _takes_command(tool)), None)
    return [Call(shell, {"command": answer.commands[0]})] if shell else []


def _takes_command(tool: Tool) -> bool:
    return "command" in tool.schemas[-1].get("properties", {})


def _find_empty(arguments: Mapping[str, Any]) -> str:
    """Return why a change changes nothing or empties a file, "" otherwise."""
    if any(isinstance(arguments.get(key), str) and not arguments[key].strip() for key in CONTENTS):
        return "the call empties a file"
    edits = arguments.get("edits")
    for edit in [arguments, *(edits if isinstance(edits, list) else [])]:
        for old, new in OLD_AND_NEW:
            if isinstance(edit, Mapping) and old in edit and edit.get(old) == edit.get(new):
                return "the edit changes nothing"
    return ""


def _repeats(arguments: Mapping[str, Any], command: str, failed: Mapping[str, Any]) -> bool:
    """Return whether a call is the failed one, also inside of a longer command line."""
    before = next((str(failed[key]) for key in COMMANDS if failed.get(key)), "")
    if before:
        old, new = (_split(text) for text in (before, command))
        return any(new[at : at + len(old)] == old for at in range(len(new) - len(old) + 1))
    rest = {key: value for key, value in failed.items() if key not in ("tool", "name") and value is not None}
    old_arguments = rest.get("arguments", rest)
    return bool(old_arguments) and json.dumps(old_arguments, sort_keys=True) == json.dumps(arguments, sort_keys=True)


def _split(command: str) -> list[str]:
    """Return the words of a command line without quotes, brackets and redirections."""
    text = re.sub(r"\d?>+\s*(?:&\d|\S+)", " ", command)
    return [word for word in re.split(r"[\s;&|()'\"`]+", text) if word]
