"""Compare tool calls by what they do: the same tool, target and intent, however they are quoted or described."""

import json
import posixpath
import re
import shlex
from collections.abc import Mapping
from typing import Any

from pimono_sdpo.edits import Edit, find_path, find_text, read_edits, read_patch

# Arguments that say why a call is made, or where it is shown, and change nothing that it does.
_ASIDE = frozenset("description purpose explanation reason justification title intent tabId tab_id call_id".split())
_SHELL = ("command", "cmd", "script")
# The output of errors goes to the same place.
_JOINED = frozenset({"2>&1"})


def normalise_action(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a text that is equal for two calls that do the same.

    >>> one = normalise_action("bash", {"command": "git  status 2>&1", "description": "Look"})
    >>> one == normalise_action("bash", {"command": "git status"})
    True
    """
    given = {key: value for key, value in arguments.items() if key not in _ASIDE}
    if command := find_text(given, *_SHELL):
        rest = {key: value for key, value in given.items() if key not in _SHELL}
        return json.dumps([name, _split_words(command), rest], sort_keys=True, ensure_ascii=False)
    path = posixpath.normpath(find_path(given)) if find_path(given) else ""
    if patches := read_patch(given):
        return json.dumps([name, [[patch.path, _list_texts(patch.hunks)] for patch in patches]], ensure_ascii=False)
    if path and (edits := read_edits(given)):
        return json.dumps([name, path, _list_texts(edits)], ensure_ascii=False)
    if path:
        given = {key: path if value == find_path(given) else value for key, value in given.items()}
    return json.dumps([name, given], sort_keys=True, ensure_ascii=False, default=str)


def _split_words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError:  # an open quote, which the shell would refuse as well
        words = command.split()
    return [word for word in words if word not in _JOINED]


def _list_texts(edits: Any) -> list[list[str]]:
    return [[edit.old.rstrip(), edit.new.rstrip()] for edit in edits]


def list_edits(arguments: Mapping[str, Any]) -> list[Edit]:
    """Return the edits of a call of any harness; a file that is written whole replaces an empty text."""
    given = dict(arguments)
    if patches := read_patch(given):
        return [edit for patch in patches for edit in patch.hunks]
    content = given.get("content")
    return [Edit("", content)] if isinstance(content, str) else read_edits(given)


def describe_change(name: str, arguments: Mapping[str, Any]) -> str:
    r"""Describe what a call does: its command, or its file with the lines that it removes and adds.

    >>> print(describe_change("edit", {"path": "a.ts", "oldText": "let x\nlet y", "newText": "let x\nconst y"}))
    edit a.ts
    -let y
    +const y
    """
    given = dict(arguments)
    if command := find_text(given, *_SHELL):
        return f"{name} {command}"
    paths = [patch.path for patch in read_patch(given)] or [find_path(given)]
    edits = list_edits(given)
    if not any(paths):
        return f"{name} {json.dumps(arguments, ensure_ascii=False)}"
    lines = []
    for edit in edits:
        old, new = edit.old.split("\n") if edit.old else [], edit.new.split("\n") if edit.new else []
        lines += [f"-{line}" for line in old if line not in new] + [f"+{line}" for line in new if line not in old]
    return "\n".join([f"{name} {' '.join(paths)}", *lines])


_SILENCES = re.compile(
    r"\|\|\s*(?:true|:|echo\b|exit 0)|\|\s*(?:head|tail|grep|rg|cat)\b|2>\s*/dev/null|&>\s*/dev/null"
    r"|;\s*(?:true|echo)\b|\bset \+e\b|--no-verify\b|--no-gpg-sign\b|\bHUSKY=0|--skip-\w+|-DskipTests"
    r"|--force\b|--exit-zero\b|SilentlyContinue"
)
_RISKS = re.compile(
    r"\b(?:rm|rmdir|unlink|kill|pkill|killall|drop|truncate)\b|--(?:force|hard|delete|no-\w+|skip\w*|yes|allow-\w+)\b"
    r"|\bgit \S+(?: \S+)* -[fD]\b|\bdelete\b",
    re.IGNORECASE,
)


def adds_silencer(failed: str, worked: str) -> bool:
    """Check that a command line hides a failure, or skips a check, that another one would have shown.

    >>> adds_silencer("npm test", "npm test || true"), adds_silencer("npm test | tail", "npm test -- a | tail")
    (True, False)
    """
    hides = [{" ".join(found.split()) for found in _SILENCES.findall(command)} for command in (failed, worked)]
    return not hides[1] <= hides[0]


def is_risky(action: str) -> bool:
    """Check for an action that deletes, forces or skips a check."""
    return _RISKS.search(action) is not None
