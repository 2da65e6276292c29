"""Predict how a session's edits end, each before its result is looked at."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pimono_sdpo.replay.calls import (
    decode_arguments,
    find_path,
    find_text,
    is_invalid,
    is_veto,
    read_edits,
    read_patch,
)
from pimono_sdpo.replay.files import Edit, Outcome
from pimono_sdpo.replay.workspace import Workspace
from pimono_sdpo.traces.events import Event, has_failed
from pimono_sdpo.traces.harness import pi
from pimono_sdpo.traces.harness.base import FileTools
from pimono_sdpo.traces.harness.blocks import is_refusal
from pimono_sdpo.traces.parse import match_results


class Prediction(NamedTuple):
    """How an edit was expected to end, None where the session does not tell, and how it ended.

    `reason` says why nothing was expected, "" where something was; `shown` whether the session had
    shown every line that the edit replaces together with the file's name, or its schema decides;
    `certain` whether nothing has happened since that may have changed the file.
    """

    event_index: int
    expected: Outcome | None
    failed: bool
    reason: str
    shown: bool
    certain: bool


def predictions(events: Sequence[Event], cwd: str, tools: FileTools = pi.HARNESS.files) -> Iterator[Prediction]:
    """Predict every answered edit of a session before its result is looked at."""
    workspace = Workspace(cwd, tools=tools)
    matched = match_results(tuple(events))
    seen: dict[str, set[str]] = defaultdict(set)
    called = {result: events[call] for call, result in matched.items()}
    edited = {_name(path) for event in events for path, _ in _find_edits(event)}
    for event in events:
        if event.kind in {"tool_result", "bash"}:
            call = called.get(event.index, event)
            lines: list[str] = []
            for name in edited & _names(f"{call.arguments}\n{event.text}"):
                lines = lines or list(_read_lines(event.text))
                seen[name].update(lines)
        if event.kind != "tool_call":
            workspace.hear(event)
        elif event.index in matched:
            result = events[matched[event.index]]
            if not event.on_active_branch:
                # The files may have been brought back since.
                workspace.lose(event.tool_name, decode_arguments(event))
                continue
            stopped = is_refusal(result.text) or is_veto(result.text)
            if event.tool_name == "edit" and not stopped:
                certain = workspace.predict(event)
                expected = certain or workspace.predict(event, trusting=True)
                reason = "" if expected else _reason(workspace, event)
                is_shown, is_certain = _is_shown(event, seen), bool(certain)
                yield Prediction(event.index, expected, has_failed(result), reason, is_shown, is_certain)
            given = decode_arguments(event)
            for path, edit in _find_edits(event):
                seen[_name(path)].update(_read_lines(edit.new))
            seen[_name(find_path(given))].update(_read_lines(find_text(given, "content")))
            workspace.observe(event, result)
        elif event.tool_name in {"read", "edit", "write", "bash"}:
            # Broken off, it may have been done all the same.
            workspace.lose(event.tool_name, decode_arguments(event))


def _find_edits(call: Event) -> list[tuple[str, Edit]]:
    if call.tool_name != "edit":
        return []
    given = decode_arguments(call)
    patched = [(patch.path, hunk) for patch in read_patch(given) for hunk in patch.hunks]
    return patched or [(find_path(given), edit) for edit in read_edits(given)]


def _name(path: str) -> str:
    return re.split(r"[/\\]", path)[-1]


def _names(text: str) -> set[str]:
    return {_name(path) for path in re.split(r"[\s'\"`;|&<>=,:]+", text) if "." in path}


def _read_lines(text: str) -> Iterator[str]:
    """Yield the lines of a text without the numbers that a harness puts before them."""
    for line in text.split("\n"):
        yield re.sub(r"^\s*\d{1,7}[→\t:|]", "", line).strip()


def _is_shown(call: Event, seen: Mapping[str, set[str]]) -> bool:
    given = decode_arguments(call)
    if is_invalid(given):
        return True
    edits = _find_edits(call)
    return bool(edits) and all(
        line in seen.get(_name(path), ())
        for path, edit in edits
        for line in map(str.strip, edit.old.split("\n"))
        if line
    )


def _reason(workspace: Workspace, call: Event) -> str:
    given = decode_arguments(call)
    file = workspace.files.get(workspace.absolute(find_path(given)))
    if read_patch(given):
        return "the patch has lines that were not seen"
    if not read_edits(given):
        return "the call is none of replacing texts"
    if file is None:
        return "the file was never seen"
    if not file.is_known:
        return "a command may have changed the file"
    return "the text may stand where the file is unknown"


def dump_workspace(workspace: Workspace) -> dict[str, Any]:
    """Return what is known as JSON; files that something may have changed are stale."""
    files = {
        path: {"whole": file.whole, "pieces": file.pieces if file.is_known else file.older, "stale": not file.is_known}
        for path, file in sorted(workspace.files.items())
    }
    return {"cwd": workspace.cwd, "files": files}
