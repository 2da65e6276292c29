"""Follow a session's reads, writes, edits and commands to know the content of its files at any point.

As JSON: {"cwd": "/w", "files": {"/w/a.ts": {"whole": "...", "pieces": [...], "stale": false}}}
"""

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from pimono_sdpo.replay.calls import (
    Patch,
    Shown,
    apply_in_turn,
    decode_arguments,
    find_path,
    find_text,
    is_veto,
    parse_read,
    read_edits,
    read_patch,
)
from pimono_sdpo.replay.commands import Changes, find_changes, find_shown_file, find_shown_lines
from pimono_sdpo.replay.files import File, Outcome, normalise_line_ends
from pimono_sdpo.traces.events import Event, has_failed
from pimono_sdpo.traces.harness import HARNESSES, pi
from pimono_sdpo.traces.harness.base import FileTools
from pimono_sdpo.traces.harness.blocks import is_refusal

_KNOWN = re.compile("|".join(h.files.read_only for h in HARNESSES if h.files.read_only))
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LOOKS = frozenset(
    "search fetch lookup get list status read find query show view message wait await stdin ask".split()
)
CHANGING = frozenset(
    """set update write patch edit delete remove create forget rid move rename apply insert replace
    save add put append modify change fix format run exec execute sync commit checkout restore reset
    upload download install generate copy make revert undo merge budget and then or""".split()
)


def is_read_only(name: str) -> bool:
    """Return whether a tool changes no files, judging by the words of its name.

    >>> [is_read_only(name) for name in ("getStatus", "set_target", "get_rid_of", "mcp__fs__list")]
    [True, False, False, True]
    """
    if _KNOWN.fullmatch(name):
        return True
    words = split_name(name)
    return not CHANGING & words and not _LOOKS.isdisjoint(words)


def split_name(name: str) -> set[str]:
    """Return the words of a tool's name."""
    return {word.lower() for word in _WORD.findall(name)}


# After a longer pause, somebody may have changed the files.
PAUSE_MINUTES = 30
# A shorter line may occur in many places of a file.
MIN_LINE = 12
TRUNCATED = re.compile(r"\[(?:Showing|Truncated|Full output|Output truncated)[^\]]{0,300}\]\s*\Z")
# Code in a message; it is matched with lines of files by its first MIN_LINE characters.
_QUOTED = re.compile(r"\"[^\"\n]{16,200}\"|`[^`\n]{16,200}`|'[^'\n]{16,200}'")
# Claude Code's note about a file that changed during the session.
_MODIFIED = re.compile(r"Note: ([^\n]+?) was modified, either by the user or by a linter")
_UNREAD = re.compile(r"has not been read yet|modified since read|unexpectedly modified")
# The user says that they changed something themselves, or pastes a diff.
_CHANGED_BY_HAND = re.compile(
    r"(?i)\A(?:done|fixed)\b|\bI(?:'ve| have| just| already| manually){0,3} (?:changed|edited|fixed"
    r"|updated|added|removed|deleted|modified|renamed|replaced|moved|reverted|restored)\b"
    r"|(?m:^(?:diff --git|\+\+\+ |@@ -\d))"
)
_FILE_TOOLS = frozenset({"read", "write", "edit"})
_NUMBER = re.compile(r"(?m)^ *\d{1,7}\t")
_LINE = re.compile(r"(?m)^ *\d{1,7}[→\t](.+)")


def learn_shown(file: File, shown: Shown) -> None:
    """Learn the lines that a read or a command showed."""
    if shown.first_line:
        file.see_lines(shown.runs[0], shown.first_line, shown.is_end)
    else:
        for run in shown.runs:
            file.see(run, is_whole=False)


@dataclass
class Workspace:
    """The files of a session by absolute path, as far as the session has seen them.

    Files that a command may have changed are stale.
    """

    cwd: str
    files: dict[str, File] = field(default_factory=dict)
    tools: FileTools = pi.HARNESS.files
    last_timestamp: str = ""
    # The last call and its result have the same time: they were copied from an older session that is resumed.
    is_copied: bool = False

    def file(self, path: str) -> File:
        """Return the state of a file; a relative path is relative to the workspace."""
        return self.files.setdefault(self.absolute(path), File())

    def absolute(self, path: str) -> str:
        """Return an absolute path; if it was redacted, it begins with `$HOME` or `$WORKSPACE`.

        >>> Workspace("/home/ann/app").absolute("~/a.ts")
        '/home/ann/a.ts'
        >>> Workspace("$WORKSPACE").absolute("$WORKSPACE/src/../a.ts")
        '$WORKSPACE/a.ts'
        >>> Workspace("C:\\\\app").absolute("src\\\\a.ts")
        'c:/app/src/a.ts'
        """
        path = _use_slashes(path.removeprefix("@"))
        if path == "~" or path.startswith("~/"):
            path = _find_home(self.cwd) + path[1:]
        if path.startswith(("$WORKSPACE", "$HOME", "$TMPDIR")):
            return posixpath.normpath(path)
        base = "" if _DRIVE.match(path) else _use_slashes(self.cwd)
        return posixpath.normpath(posixpath.join(base, path))

    def predict_patch(self, patches: Sequence[Patch]) -> Outcome | None:
        """Predict the outcome of a patch of several files."""
        if any(patch.kind == "Bad" for patch in patches):
            return "invalid"
        outcomes: list[Outcome | None] = []
        for patch in patches:
            file = self.files.get(self.absolute(patch.path))
            outcome = file.predict_lines(patch.hunks) if file else None
            outcomes.append("ok" if patch.kind == "Add" else outcome)
        if "not_found" in outcomes:
            return "not_found"
        return None if None in outcomes else "ok"

    def apply_patch(self, patches: Sequence[Patch]) -> None:
        """Apply a patch that the harness has applied."""
        for patch in patches:
            file = self.file(patch.path)
            if patch.kind == "Add":
                file.write(patch.text)
            elif patch.kind == "Delete":
                file.forget()
            else:
                if file.is_unchanged([hunk.old for hunk in patch.hunks]):
                    file.restore()
                file.apply_lines(patch.hunks)
                if patch.target:
                    self.files[self.absolute(patch.target)] = self.files.pop(self.absolute(patch.path))

    def observe(self, call: Event, result: Event) -> None:
        """Learn from a call and its result."""
        if is_refusal(result.text) or is_veto(result.text):
            return
        self.is_copied = self.tools.reads_first and call.timestamp == result.timestamp != ""
        arguments = decode_arguments(call)
        path = find_path(arguments)
        # Harnesses differ in the names of the tool and of its argument.
        command = find_text(arguments, "command", "cmd", "input") if call.tool_name not in _FILE_TOOLS else ""
        if command or call.tool_name == "bash":
            cwd, self.cwd = self.cwd, find_text(arguments, "workdir") or self.cwd
            # Tools of an MCP server put the output of a command into other text.
            self._observe_command(command, result, is_wrapped="__" in call.tool_name)
            self.cwd = cwd
        elif call.tool_name == "read" and path:
            if not has_failed(result):
                self._observe_read(path, arguments, result)
        elif call.tool_name == "write" and path and isinstance(arguments.get("content"), str):
            if not result.is_error:
                self.file(path).write(arguments["content"])
        elif call.tool_name == "edit":
            self._observe_edit(arguments, result)
        elif call.tool_name == "grep":
            self._hint(path, result.text)
        elif call.tool_name.startswith("gsd_"):
            self._mark_stale(".gsd")
        elif not is_read_only(call.tool_name) or call.tool_name == "write":
            self.mark_all_stale()

    def _observe_edit(self, arguments: dict[str, Any], result: Event) -> None:
        failed = has_failed(result)
        path, edits, patches = find_path(arguments), read_edits(arguments), read_patch(arguments)
        if patches:
            if not failed:
                self.apply_patch(patches)
            for patch in patches:
                file = self.file(patch.path)
                file.is_doubtful = failed
                if failed and len(patches) == 1:
                    file.note_not_found(patch.hunks, result.text)
            return
        if not path:
            self.mark_all_stale()
            return
        file = self.file(path)
        if not edits and not failed:
            file.mark_stale()
            return
        predicted = file.predict(edits, apply_in_turn(arguments))
        if failed:
            file.note_not_found(edits, result.text)
            if predicted == "ok" and not _UNREAD.search(result.text[:200]):
                file.forget()  # our state of the file is wrong
            return
        if predicted not in {None, "ok"}:
            file.forget()
        olds = [normalise_line_ends(edit.old) for edit in edits]
        # Harnesses that require a read first refuse the edit of a file that has changed since.
        if self.tools.reads_first or file.is_unchanged(olds):
            file.restore()
        file.last_known = None
        if all(olds):
            file.apply(edits)
            if file.whole is not None and any(line not in file.whole for line in _LINE.findall(result.text)):
                file.mark_stale(certainly=True)
        else:
            file.mark_stale()
        self._hint(path, result.text)

    def _observe_read(self, path: str, arguments: dict[str, Any], result: Event) -> None:
        file, shown = self.file(path), parse_read(arguments, result.text, self.tools)
        if shown:
            learn_shown(file, shown)
        if shown is None or not shown.first_line:
            self._hint(path, result.text)

    def _observe_command(self, command: str, result: Event, is_wrapped: bool = False) -> None:
        if "*** Begin Patch" in command and (patches := read_patch({"input": command})):
            if not has_failed(result):
                self.apply_patch(patches)
            return
        if not self.tools.reads_first and _DRIVE.match(_use_slashes(self.cwd)):
            # PowerShell prints characters other than ASCII in another encoding.
            result = msgspec.structs.replace(result, text=_NOT_ASCII.sub("\ufffd", result.text))
        self._mark_changes(find_changes(command, result.text, self._find_script))
        if is_wrapped:
            return
        self._hint(command, result.text)
        if self.tools.trims_output:
            return
        shown = find_shown_file(command)
        if shown and not result.is_error and not TRUNCATED.search(result.text):
            count = shown.last and shown.last + 1 - shown.first
            text = _NUMBER.sub("", result.text) if shown.is_numbered else result.text
            read = parse_read({"offset": shown.first, "limit": count}, text, self.tools)
            if read:
                learn_shown(self.file(shown.path), read)

    def _find_script(self, name: str) -> str | None:
        """Return the text of a script if the session has seen all of it."""
        return next((f.whole for path, f in self.files.items() if posixpath.basename(path) == name), None)

    def _hint(self, command: str, output: str) -> None:
        for path, text in find_shown_lines(command, output).items():
            self.file(path).hint(text)

    def _mark_changes(self, changes: Changes) -> None:
        if changes.anything:
            self.mark_all_stale()
        for name in changes.names:
            self._mark_stale(name)

    def mark_all_stale(self) -> None:
        """Mark all files as stale."""
        for file in self.files.values():
            file.mark_stale()

    def _mark_stale(self, name: str) -> None:
        """Mark the files that a word of a command may refer to: a file, a folder or a pattern."""
        if any(sign in name for sign in "*?[${`"):
            self.mark_all_stale()
            return
        path = self.absolute(name)
        tail = ("/" + name.lstrip("./~")).rstrip("/")
        for known, file in self.files.items():
            is_below = known.startswith(f"{path}/") or (tail and f"{tail}/" in known)
            if known == path or is_below or (tail and known.endswith(tail)):
                file.mark_stale(certainly=True)

    def observe_unanswered(self, tool_name: str, arguments: dict[str, Any]) -> None:
        """Mark the files that a call with an unknown result may have changed."""
        path = find_path(arguments)
        if tool_name in _FILE_TOOLS and path:
            if tool_name != "read":
                self.file(path).mark_stale(certainly=True)
        elif tool_name == "bash":
            self._mark_changes(find_changes(find_text(arguments, "command"), ""))
        elif not is_read_only(tool_name):
            self.mark_all_stale()

    def observe_event(self, event: Event) -> None:
        """Learn from an event other than a tool call."""
        if event.kind == "bash":
            self._observe_command(event.arguments, event)
        elif event.kind == "user":
            for file in self.files.values():
                file.is_doubtful = True
            paused = _count_minutes(self.last_timestamp, event.timestamp) >= PAUSE_MINUTES
            if paused or self.is_copied or _CHANGED_BY_HAND.search(event.text):
                self.mark_all_stale()
            for quoted in map(str.strip, _QUOTED.findall(event.text)):
                for file in self.files.values():
                    # If only the beginning of the quote is in the file, the line was changed by hand.
                    has_start = any(quoted[:MIN_LINE] in text for text in file.texts)
                    if has_start and not any(quoted in text for text in file.texts):
                        file.mark_stale(certainly=True)
        elif note := _MODIFIED.match(event.text):
            self.file(note[1]).mark_stale(certainly=True)
        self.last_timestamp = event.timestamp or self.last_timestamp


def _count_minutes(start: str, stop: str) -> float:
    """Return the minutes between two timestamps, 0 if one of them cannot be read."""
    try:
        return (datetime.fromisoformat(stop) - datetime.fromisoformat(start)).total_seconds() / 60
    except (ValueError, TypeError):  # not recorded, or only one of them has a time zone
        return 0.0


_DRIVE = re.compile(r"[A-Za-z]:/")
# The first bytes of an emoji are printed as these letters.
_NOT_ASCII = re.compile(r"[^\x00-\x7f]|dY(?=[\"'?Z-]|[^\x00-\x7f])")


def _use_slashes(path: str) -> str:
    """Normalise the slashes and the drive letter of a Windows path."""
    path = path.replace("\\", "/")
    return path[0].lower() + path[1:] if _DRIVE.match(path) else path


def _find_home(cwd: str) -> str:
    parts = cwd.split("/")
    if parts[1:2] in (["home"], ["Users"]) and len(parts) > 2:
        return "/".join(parts[:3])
    return "/root" if parts[1:2] == ["root"] else "$HOME"


def load_workspace(state: dict[str, Any]) -> Workspace:
    """Load a workspace from JSON; raises KeyError or TypeError for anything else."""
    workspace = Workspace(state["cwd"])
    for path, known in state["files"].items():
        file = workspace.files[path] = File(known["whole"], list(known["pieces"]))
        if known["stale"]:
            file.mark_stale()
    return workspace
