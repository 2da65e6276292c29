"""Predict how a session's edits end, each before its result is looked at."""

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

# Of an edit, `unread` that the harness wants its file to be read before.
Foretold = Outcome | Literal["unread"]
MAX_HEARD = 20_000
_UNREAD = re.compile(r"has not been read yet|modified since read|unexpectedly modified")
# Claude Code tells of what changed while it ran, and of the file that the user looks at.
_SHARES = re.compile(r"Note: [^\n]+? was modified, either by the user or by a linter|<ide_opened_file>")
# Claude Code checks these against its schema.
_SETTINGS = re.compile(r"/\.claude/settings(?:\.local)?\.json$")
# Other sessions write them, too.
_SHARED = re.compile(r"/\.openclaw/.*\bmemory/|/\.claude/CLAUDE\.md$")
# It has read these itself.
_MEMORIES = frozenset({"MEMORY.md", "CLAUDE.md", "CLAUDE.local.md"})
# Claude Code puts this where a session was resumed.
_RESUMED = "No response requested."
_SPLIT = re.compile(r"[\s'\"`;|&<>=,:()/\\@]+")
_DRIVE = re.compile(r"[A-Za-z]:/")
# With one of them a call is another kind of edit: a patch, the cell of a notebook, or named as some versions do.
_OTHER_EDITS = frozenset({"input", "patch", "diff", "new_source", "cell_id", "old_text"})
_OF_TEXTS = frozenset(name for harness in HARNESSES for name in harness.files.edit or ())


def is_invalid(given: dict[str, Any]) -> bool:
    """Whether a call lacks the file or a text to replace, so that every harness refuses it."""
    if read_edits(given):
        return not find_path(given)
    several = given.get("edits")
    # Editing by the numbers of lines is another kind, too.
    of_lines = isinstance(several, list) and any(
        isinstance(one, dict) and _OF_TEXTS.isdisjoint(one) for one in several
    )
    return _OTHER_EDITS.isdisjoint(given) and not of_lines


@dataclass
class Standing:
    """How a harness sees a file: read with its tools, refused until it is read, written by somebody else."""

    is_read: bool = False
    is_refused: bool = False
    is_contested: bool = False


@dataclass
class Foretelling(Workspace):
    """A workspace that also follows what the harness asks for before it edits."""

    standings: defaultdict[str, Standing] = field(default_factory=lambda: defaultdict(Standing))
    is_begun: bool = False
    # The words of commands and of others: a file that they name may have been read for the agent.
    heard: set[str] = field(default_factory=set)
    # What was read before a resumption or a compaction is unknown.
    is_resumed: bool = False
    # The user, a linter or another session works on the same files.
    is_shared: bool = False
    # Some versions of Claude Code refuse every edit of a path such as C:/a.ts.
    takes_drives: bool | None = None

    def predict(self, call: Event) -> Foretold | None:
        """Predict how an edit ends; None if what is known does not decide it."""
        given = decode_arguments(call)
        if patches := read_patch(given):
            outcome = self.predict_patch(patches)
            # Codex does not look whether the user, who has spoken since, has changed a file.
            files = [file for patch in patches if (file := self.files.get(self.absolute(patch.path)))]
            return None if outcome == "ok" and any(file.is_doubtful for file in files) else outcome
        if is_invalid(given):
            return "invalid"
        path, edits = find_path(given), read_edits(given)
        if "REDACTED" in path:
            return None  # several files may be called so
        file, standing = self.files.get(self.absolute(path), File()), self.standings[self.absolute(path)]
        outcome = file.predict(edits, apply_in_turn(given))
        if self.tools.reads_first:
            if any(edit.old == edit.new for edit in edits):
                return "no_change"  # refused before the file is looked at
            name = _name(path)
            if (standing.is_refused and name not in self.heard) or (self.takes_drives is False and _DRIVE.match(path)):
                return "unread"
            if not standing.is_read or standing.is_refused:
                may_be_read = (
                    self.is_resumed or name in self.heard or name in _MEMORIES or not all(edit.old for edit in edits)
                )
                return None if may_be_read else "unread"
            if _DRIVE.match(path) and not self.takes_drives and outcome == "ok":
                return None
        # Some versions of Pi and OpenClaw refuse an empty text, edits as JSON, and what their schema lacks.
        several = given.get("edits")
        may_fail = not self.tools.reads_first and (
            not all(edit.new for edit in edits)
            or isinstance(several, str)
            or (isinstance(several, list) and ("file" in given or any(len(one) > 2 for one in several)))
        )
        is_others = self.is_shared or bool(_SHARED.search(self.absolute(path)))
        may_fail |= standing.is_contested or (file.is_doubtful and is_others)
        may_fail |= self.tools.reads_first and bool(_SETTINGS.search(self.absolute(path)))
        return None if outcome == "ok" and may_fail else outcome

    def observe(self, call: Event, result: Event) -> None:
        """Learn from a call that was answered."""
        if is_refusal(result.text) or is_veto(result.text):
            return
        given, name = decode_arguments(call), call.tool_name
        path = find_path(given)
        if name not in {"read", "write", "edit"}:
            # A command or another tool may have read what it names or shows; a subagent reads for itself.
            if not ("prompt" in given or is_read_only(name)):
                self.heard.update(_SPLIT.split(" ".join([*map(str, given.values()), result.text[:MAX_HEARD]])))
        elif path and not read_patch(given):
            standing = self.standings[self.absolute(path)]
            if name == "edit":
                self._stand(standing, path, given, result)
            elif not (has_failed(result) if name == "read" else result.is_error):
                standing.is_read, standing.is_refused = True, False
        super().observe(call, result)

    def _stand(self, standing: Standing, path: str, given: dict[str, Any], result: Event) -> None:
        if has_failed(result):
            if _DRIVE.match(path) and "unexpectedly modified" in result.text[:200]:
                self.takes_drives = False
            standing.is_refused = bool(_UNREAD.search(result.text[:200]))
            if standing.is_refused:
                self.heard.discard(_name(path))
            standing.is_contested = "modified" in result.text[:40]
            self.is_shared |= standing.is_contested
        elif read_edits(given):
            standing.is_read, standing.is_refused, standing.is_contested = True, False, False
            self.takes_drives = self.takes_drives or bool(_DRIVE.match(path)) or None

    def observe_unanswered(self, tool_name: str, given: dict[str, Any]) -> None:
        """Mark what a call with an unknown outcome may have changed."""
        path = find_path(given)
        if tool_name in {"read", "write", "edit"} and path:
            self.heard.add(_name(path))
            self.standings[self.absolute(path)].is_refused = False
        super().observe_unanswered(tool_name, given)

    def observe_event(self, event: Event) -> None:
        """Learn from an event that is not a call."""
        # What begins below an event that is not in it goes on with what another session has read.
        self.is_resumed |= not self.is_begun and bool(event.parent_id)
        self.is_begun = True
        shares = event.kind not in {"bash", "user"} and _SHARES.match(event.text)
        self.is_shared |= bool(shares)
        if self.is_copied if event.kind == "user" else event.kind == "compaction" or event.text == _RESUMED:
            # The session may have begun anew, which forgets what it has read.
            self.is_resumed = True
            for standing in self.standings.values():
                standing.is_read = False
        if event.kind in {"user", "compaction", "custom_message"}:
            self.heard.update(_SPLIT.split(event.text))
        super().observe_event(event)


class Prediction(NamedTuple):
    """How an edit was expected to end, None where the session does not tell, and how it ended.

    `reason` says why nothing was expected, "" where something was; `shown` whether the session had
    shown every line that the edit replaces together with the file's name, or its schema decides.
    """

    event_index: int
    expected: Foretold | None
    failed: bool
    reason: str
    shown: bool


def predictions(events: Sequence[Event], cwd: str, tools: FileTools = pi.HARNESS.files) -> Iterator[Prediction]:
    """Predict every answered edit of a session before its result is looked at."""
    workspace = Foretelling(cwd, tools=tools)
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
                # The files may have been brought back since.
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
            # Broken off, it may have been done all the same.
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
