"""Follow a session's reads, writes, edits and commands to know its files at any point.

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


REST_MINUTES = 30
# A shorter line may occur in many places of a file.
MIN_LINE = 12
TRUNCATED = re.compile(r"\[(?:Showing|Truncated|Full output|Output truncated)[^\]]{0,300}\]\s*\Z")
# Code in a message; the first MIN_LINE characters tell which lines it may be of.
_QUOTED = re.compile(r"\"[^\"\n]{16,200}\"|`[^`\n]{16,200}`|'[^'\n]{16,200}'")
# Claude Code tells of what changed while it ran.
_MODIFIED = re.compile(r"Note: ([^\n]+?) was modified, either by the user or by a linter")
_UNREAD = re.compile(r"has not been read yet|modified since read|unexpectedly modified")
# A user who says that they changed something themselves, or pastes a diff of it.
_CHANGED_BY_HAND = re.compile(
    r"(?i)\A(?:done|fixed)\b|\bI(?:'ve| have| just| already| manually){0,3} (?:changed|edited|fixed"
    r"|updated|added|removed|deleted|modified|renamed|replaced|moved|reverted|restored)\b"
    r"|(?m:^(?:diff --git|\+\+\+ |@@ -\d))"
)
_OF_FILES = frozenset({"read", "write", "edit"})
_NUMBER = re.compile(r"(?m)^ *\d{1,7}\t")
_LINE = re.compile(r"(?m)^ *\d{1,7}[→\t](.+)")


def learn_shown(file: File, shown: Shown) -> None:
    """Learn the lines that a read or a command has shown."""
    if shown.first_line:
        file.see_lines(shown.runs[0], shown.first_line, shown.is_end)
    else:
        for run in shown.runs:
            file.see(run, is_whole=False)


@dataclass
class Workspace:
    """The files of a session by absolute path, as far as it has seen them.

    What a command may have changed is stale.
    """

    cwd: str
    files: dict[str, File] = field(default_factory=dict)
    tools: FileTools = pi.HARNESS.files
    last_heard: str = ""
    # The last call was answered in no time: a history that was copied into this file when the session was resumed.
    is_copied: bool = False

    def file(self, path: str) -> File:
        """Return what is known of a file; a relative path is resolved in the workspace."""
        return self.files.setdefault(self.absolute(path), File())

    def absolute(self, path: str) -> str:
        """Return an absolute path; it may begin with `$HOME` or `$WORKSPACE`, as redacted.

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
        """Predict how a patch of several files ends."""
        outcomes: list[Outcome | None] = []
        if any(patch.kind == "Bad" for patch in patches):
            return "invalid"
        for patch in patches:
            file = self.files.get(self.absolute(patch.path))
            known = file.predict_lines(patch.hunks) if file else None
            outcomes.append("ok" if patch.kind == "Add" else known)
        if "not_found" in outcomes:
            return "not_found"
        return None if None in outcomes else "ok"

    def patched(self, patches: Sequence[Patch]) -> None:
        """Learn from a patch that was applied."""
        for patch in patches:
            file = self.file(patch.path)
            if patch.kind == "Add":
                file.write(patch.text)
            elif patch.kind == "Delete":
                file.forget()
            else:
                if file.holds([hunk.old for hunk in patch.hunks]):
                    file.confirm()
                file.apply_lines(patch.hunks)
                if patch.target:
                    self.files[self.absolute(patch.target)] = self.files.pop(self.absolute(patch.path))

    def observe(self, call: Event, result: Event) -> None:
        """Learn from a call that was answered."""
        if is_refusal(result.text) or is_veto(result.text):
            return
        self.is_copied = self.tools.reads_first and call.timestamp == result.timestamp != ""
        given = decode_arguments(call)
        path = find_path(given)
        # Not every harness calls it `command`, nor every version the tool `bash`.
        command = find_text(given, "command", "cmd", "input") if call.tool_name not in _OF_FILES else ""
        if command or call.tool_name == "bash":
            cwd, self.cwd = self.cwd, find_text(given, "workdir") or self.cwd
            # The tools of a server wrap what a command has printed.
            self.ran(command, result, is_wrapped="__" in call.tool_name)
            self.cwd = cwd
        elif call.tool_name == "read" and path:
            if not has_failed(result):
                self._read(path, given, result)
        elif call.tool_name == "write" and path and isinstance(given.get("content"), str):
            if not result.is_error:
                self.file(path).write(given["content"])
        elif call.tool_name == "edit":
            self._edited(given, result)
        elif call.tool_name == "grep":
            self._hint(path, result.text)
        elif call.tool_name.startswith("gsd_"):
            self._spoil(".gsd")
        elif not is_read_only(call.tool_name) or call.tool_name == "write":
            self.spoil_all()

    def _edited(self, given: dict[str, Any], result: Event) -> None:
        path, edits = find_path(given), read_edits(given)
        patches = read_patch(given)
        if patches:
            if not has_failed(result):
                self.patched(patches)
            for patch in patches:
                file = self.file(patch.path)
                file.is_past = has_failed(result)
                if has_failed(result) and len(patches) == 1:
                    file.note_missing(patch.hunks, result.text)
        elif not path:
            self.spoil_all()
        elif not edits and not has_failed(result):
            self.file(path).age()
        else:
            file = self.file(path)
            predicted = file.predict(edits, apply_in_turn(given))
            if has_failed(result):
                file.note_missing(edits, result.text)
                if predicted == "ok" and not _UNREAD.search(result.text[:200]):
                    file.forget()  # what is known of the file is wrong
                return
            if predicted not in {None, "ok"}:
                file.forget()
            olds = [normalise_line_ends(edit.old) for edit in edits]
            # Where files have to be read first, an edit is refused when the file has changed since.
            if self.tools.reads_first or file.holds(olds):
                file.confirm()
            file.held = None
            if all(olds):
                file.apply(edits)
                if file.whole is not None and any(line not in file.whole for line in _LINE.findall(result.text)):
                    file.age(certainly=True)
            else:
                file.age()
            self._hint(path, result.text)

    def _read(self, path: str, given: dict[str, Any], result: Event) -> None:
        file, shown = self.file(path), parse_read(given, result.text, self.tools)
        if shown:
            learn_shown(file, shown)
        if shown is None or not shown.first_line:
            self._hint(path, result.text)

    def ran(self, command: str, result: Event, is_wrapped: bool = False) -> None:
        """Learn from a command that has run."""
        if "*** Begin Patch" in command and (patches := read_patch({"input": command})):
            if not has_failed(result):
                self.patched(patches)
            return
        if not self.tools.reads_first and _DRIVE.match(_use_slashes(self.cwd)):
            # PowerShell prints what is not ASCII in another encoding.
            result = msgspec.structs.replace(result, text=_NOT_ASCII.sub("\ufffd", result.text))
        changes = find_changes(command, result.text, self._show)
        self._note(changes)
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

    def _show(self, name: str) -> str | None:
        """Return the text of a script, as far as the session knows it."""
        return next((f.whole for path, f in self.files.items() if posixpath.basename(path) == name), None)

    def _hint(self, command: str, output: str) -> None:
        for path, text in find_shown_lines(command, output).items():
            self.file(path).hint(text)

    def _note(self, changes: Changes) -> None:
        if changes.anything:
            self.spoil_all()
        for name in changes.names:
            self._spoil(name)

    def spoil_all(self) -> None:
        """Mark all files as stale."""
        for file in self.files.values():
            file.age()

    def _spoil(self, name: str) -> None:
        """Mark the files that a word of a command may name: a file, a folder or a pattern."""
        if any(sign in name for sign in "*?[${`"):
            self.spoil_all()
            return
        path = self.absolute(name)
        tail = ("/" + name.lstrip("./~")).rstrip("/")
        for known, file in self.files.items():
            is_below = known.startswith(f"{path}/") or (tail and f"{tail}/" in known)
            if known == path or is_below or (tail and known.endswith(tail)):
                file.age(certainly=True)

    def lose(self, tool_name: str, given: dict[str, Any]) -> None:
        """Mark what a call with an unknown outcome may have changed."""
        path = find_path(given)
        if tool_name in _OF_FILES and path:
            if tool_name != "read":
                self.file(path).age(certainly=True)
        elif tool_name == "bash":
            self._note(find_changes(find_text(given, "command"), ""))
        elif not is_read_only(tool_name):
            self.spoil_all()

    def hear(self, event: Event) -> None:
        """Learn from an event that is not a call."""
        if event.kind == "bash":
            self.ran(event.arguments, event)
        elif event.kind == "user":
            for file in self.files.values():
                file.is_past = True
            # Somebody else may have worked on the files while the session rested.
            rested = _count_minutes(self.last_heard, event.timestamp) >= REST_MINUTES
            if rested or self.is_copied or _CHANGED_BY_HAND.search(event.text):
                self.spoil_all()
            for quoted in map(str.strip, _QUOTED.findall(event.text)):
                for file in self.files.values():
                    # What is almost in the file was changed by hand.
                    if any(quoted[:MIN_LINE] in text for text in file.texts) and not any(
                        quoted in text for text in file.texts
                    ):
                        file.age(certainly=True)
        elif note := _MODIFIED.match(event.text):
            self.file(note[1]).age(certainly=True)
        self.last_heard = event.timestamp or self.last_heard


def _count_minutes(start: str, stop: str) -> float:
    """Return the time between two timestamps, 0 if one of them cannot be read."""
    try:
        return (datetime.fromisoformat(stop) - datetime.fromisoformat(start)).total_seconds() / 60
    except (ValueError, TypeError):  # not recorded, or only one with a time zone
        return 0.0


_DRIVE = re.compile(r"[A-Za-z]:/")
# The first bytes of an emoji become letters.
_NOT_ASCII = re.compile(r"[^\x00-\x7f]|dY(?=[\"'?Z-]|[^\x00-\x7f])")


def _use_slashes(path: str) -> str:
    """Write a path of Windows in one way."""
    path = path.replace("\\", "/")
    return path[0].lower() + path[1:] if _DRIVE.match(path) else path


def _find_home(cwd: str) -> str:
    parts = cwd.split("/")
    if parts[1:2] in (["home"], ["Users"]) and len(parts) > 2:
        return "/".join(parts[:3])
    return "/root" if parts[1:2] == ["root"] else "$HOME"


def load_workspace(state: dict[str, Any]) -> Workspace:
    """Load a workspace from JSON; raises KeyError or TypeError for anything else."""
    files = {path: File(known["whole"], list(known["pieces"])) for path, known in state["files"].items()}
    for path, known in state["files"].items():
        if known["stale"]:
            files[path].age()
    return Workspace(state["cwd"], files)
