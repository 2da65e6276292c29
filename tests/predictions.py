"""Predict the outcome of each edit of a session before reading its result."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pimono_sdpo.replay.calls import (
    apply_in_turn,
    decode_arguments,
    find_path,
    find_text,
    is_veto,
    read_edits,
    read_patch,
)
from pimono_sdpo.replay.files import Edit, File, Outcome
from pimono_sdpo.replay.workspace import Workspace, is_read_only
from pimono_sdpo.traces.events import Event, has_failed
from pimono_sdpo.traces.harness import HARNESSES, pi
from pimono_sdpo.traces.harness.base import FileTools
from pimono_sdpo.traces.harness.blocks import is_refusal
from pimono_sdpo.traces.parse import match_results

# `unread`: the harness refuses an edit until the file is read.
Predicted = Outcome | Literal["unread"]
MAX_SEARCHED = 20_000
_UNREAD = re.compile(r"has not been read yet|modified since read|unexpectedly modified")
# Claude Code's notes about a file that changed during the session, or that the user has open.
_SHARES = re.compile(r"Note: [^\n]+? was modified, either by the user or by a linter|<ide_opened_file>")
# Claude Code checks these against its schema.
_SETTINGS = re.compile(r"/\.claude/settings(?:\.local)?\.json$")
# Other sessions also write these.
_SHARED = re.compile(r"/\.openclaw/.*\bmemory/|/\.claude/CLAUDE\.md$")
# Claude Code itself reads these.
_MEMORIES = frozenset({"MEMORY.md", "CLAUDE.md", "CLAUDE.local.md"})
# Claude Code adds this message when a session is resumed.
_RESUMED = "No response requested."
_SPLIT = re.compile(r"[\s'\"`;|&<>=,:()/\\@]+")
_DRIVE = re.compile(r"[A-Za-z]:/")
# A call with one of these is another kind of edit: a patch, a notebook cell, or one with other argument names.
_OTHER_EDITS = frozenset({"input", "patch", "diff", "new_source", "cell_id", "old_text"})
_TEXT_ARGUMENTS = frozenset(name for harness in HARNESSES for name in harness.files.edit or ())


def is_invalid(given: dict[str, Any]) -> bool:
    """Return whether a call lacks the file or a text to replace, so that every harness refuses it."""
    if read_edits(given):
        return not find_path(given)
    several = given.get("edits")
    # Edits by line number are another kind as well.
    by_lines = isinstance(several, list) and any(
        isinstance(one, dict) and _TEXT_ARGUMENTS.isdisjoint(one) for one in several
    )
    return _OTHER_EDITS.isdisjoint(given) and not by_lines


@dataclass
class FileStatus:
    """The state of a file for the harness: read with its tools, refused until it is read, changed by somebody else."""

    is_read: bool = False
    is_refused: bool = False
    is_contested: bool = False


@dataclass
class PredictingWorkspace(Workspace):
    """A workspace that also tracks the conditions under which the harness accepts an edit."""

    statuses: defaultdict[str, FileStatus] = field(default_factory=lambda: defaultdict(FileStatus))
    has_begun: bool = False
    # Words of commands and messages; a file that they mention may have been read by the agent.
    mentioned: set[str] = field(default_factory=set)
    # The session was resumed or compacted, so it is unknown which files it had read.
    is_resumed: bool = False
    # The user, a linter or another session also changes the files.
    is_shared: bool = False
    # Some versions of Claude Code refuse all edits of paths such as C:/a.ts.
    accepts_drives: bool | None = None

    def predict(self, call: Event) -> Predicted | None:
        """Predict the outcome of an edit; None if what is known does not decide it."""
        given = decode_arguments(call)
        if patches := read_patch(given):
            outcome = self.predict_patch(patches)
            # Codex does not check whether the user has changed a file since.
            files = [file for patch in patches if (file := self.files.get(self.absolute(patch.path)))]
            return None if outcome == "ok" and any(file.is_doubtful for file in files) else outcome
        if is_invalid(given):
            return "invalid"
        path, edits = find_path(given), read_edits(given)
        if "REDACTED" in path:
            return None  # several files may have this name
        file, status = self.files.get(self.absolute(path), File()), self.statuses[self.absolute(path)]
        outcome = file.predict(edits, apply_in_turn(given))
        if self.tools.reads_first:
            if any(edit.old == edit.new for edit in edits):
                return "no_change"  # refused before the file is looked at
            name = _name(path)
            if (status.is_refused and name not in self.mentioned) or (
                self.accepts_drives is False and _DRIVE.match(path)
            ):
                return "unread"
            if not status.is_read or status.is_refused:
                may_be_read = (
                    self.is_resumed
                    or name in self.mentioned
                    or name in _MEMORIES
                    or not all(edit.old for edit in edits)
                )
                return None if may_be_read else "unread"
            if _DRIVE.match(path) and not self.accepts_drives and outcome == "ok":
                return None
        # Some versions of Pi and OpenClaw refuse an empty text, edits as JSON, and what their schema lacks.
        several = given.get("edits")
        may_fail = not self.tools.reads_first and (
            not all(edit.new for edit in edits)
            or isinstance(several, str)
            or (isinstance(several, list) and ("file" in given or any(len(one) > 2 for one in several)))
        )
        is_others = self.is_shared or bool(_SHARED.search(self.absolute(path)))
        may_fail |= status.is_contested or (file.is_doubtful and is_others)
        may_fail |= self.tools.reads_first and bool(_SETTINGS.search(self.absolute(path)))
        return None if outcome == "ok" and may_fail else outcome

    def observe(self, call: Event, result: Event) -> None:
        """Learn from a call and its result."""
        if is_refusal(result.text) or is_veto(result.text):
            return
        given, name = decode_arguments(call), call.tool_name
        path = find_path(given)
        if name not in {"read", "write", "edit"}:
            # A command or another tool may have read what it names or shows; a subagent reads for itself.
            if not ("prompt" in given or is_read_only(name)):
                self.mentioned.update(_SPLIT.split(" ".join([*map(str, given.values()), result.text[:MAX_SEARCHED]])))
        elif path and not read_patch(given):
            status = self.statuses[self.absolute(path)]
            if name == "edit":
                self._update_status(status, path, given, result)
            elif not (has_failed(result) if name == "read" else result.is_error):
                status.is_read, status.is_refused = True, False
        super().observe(call, result)

    def _update_status(self, status: FileStatus, path: str, given: dict[str, Any], result: Event) -> None:
        if has_failed(result):
            if _DRIVE.match(path) and "unexpectedly modified" in result.text[:200]:
                self.accepts_drives = False
            status.is_refused = bool(_UNREAD.search(result.text[:200]))
            if status.is_refused:
                self.mentioned.discard(_name(path))
            status.is_contested = "modified" in result.text[:40]
            self.is_shared |= status.is_contested
        elif read_edits(given):
            status.is_read, status.is_refused, status.is_contested = True, False, False
            self.accepts_drives = self.accepts_drives or bool(_DRIVE.match(path)) or None

    def observe_unanswered(self, tool_name: str, given: dict[str, Any]) -> None:
        """Mark the files that a call with an unknown result may have changed."""
        path = find_path(given)
        if tool_name in {"read", "write", "edit"} and path:
            self.mentioned.add(_name(path))
            self.statuses[self.absolute(path)].is_refused = False
        super().observe_unanswered(tool_name, given)

    def observe_event(self, event: Event) -> None:
        """Learn from an event other than a tool call."""
        # A session whose first event has a parent elsewhere continues another session, with the files it has read.
        self.is_resumed |= not self.has_begun and bool(event.parent_id)
        self.has_begun = True
        shares = event.kind not in {"bash", "user"} and _SHARES.match(event.text)
        self.is_shared |= bool(shares)
        if self.is_copied if event.kind == "user" else event.kind == "compaction" or event.text == _RESUMED:
            # The session may have started again without the files that it has read.
            self.is_resumed = True
            for status in self.statuses.values():
                status.is_read = False
        if event.kind in {"user", "compaction", "custom_message"}:
            self.mentioned.update(_SPLIT.split(event.text))
        super().observe_event(event)


class Prediction(NamedTuple):
    """The expected outcome of an edit, None if it is undecided, and whether the edit failed.

    `reason` says why the outcome is undecided, or ""; `shown` says whether the session had shown every
    line that the edit replaces together with the file's name, or whether the schema decides.
    """

    event_index: int
    expected: Predicted | None
    failed: bool
    reason: str
    shown: bool


def predictions(events: Sequence[Event], cwd: str, tools: FileTools = pi.HARNESS.files) -> Iterator[Prediction]:
    """Predict every answered edit of a session before reading its result."""
    workspace = PredictingWorkspace(cwd, tools=tools)
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
            workspace.observe_event(event)
        elif event.index in matched:
            result = events[matched[event.index]]
            if not event.on_active_branch:
                # The files may have been restored since.
                workspace.observe_unanswered(event.tool_name, decode_arguments(event))
                continue
            stopped = is_refusal(result.text) or is_veto(result.text)
            if event.tool_name == "edit" and not stopped:
                expected = workspace.predict(event)
                reason = "" if expected else _reason(workspace, event)
                yield Prediction(event.index, expected, has_failed(result), reason, _is_shown(event, seen))
            given = decode_arguments(event)
            for path, edit in _find_edits(event):
                seen[_name(path)].update(_read_lines(edit.new))
            seen[_name(find_path(given))].update(_read_lines(find_text(given, "content")))
            workspace.observe(event, result)
        elif event.tool_name in {"read", "edit", "write", "bash"}:
            # An interrupted call may have run anyway.
            workspace.observe_unanswered(event.tool_name, decode_arguments(event))


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
