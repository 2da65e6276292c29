"""Follow a session's reads, writes, edits and commands, to know its files before each edit."""

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pimono_sdpo.harness.event import Event, decoded
from pimono_sdpo.replay.changes import changes_of, copies_of, lines_by, shown_by
from pimono_sdpo.replay.files import Edit, File, Outcome
from pimono_sdpo.trace import match_results

_MORE = re.compile(
    r"\n\n(?:\[(?:\d+ more lines in file|Showing lines \d+-\d+ of \d+)[^\]\n]{0,200}\]"
    r"|\.\.\. \(\d+ more lines[^)\n]{0,200}\))\s*\Z"
)
# A shorter line is found in many places of a file.
MIN_LINE = 12
_TRUNCATED = re.compile(r"\[(?:Showing|Truncated|Full output|Output truncated)[^\]]{0,300}\]\s*\Z")


class Prediction(NamedTuple):
    """How an edit was expected to end, None where the session does not tell, and how it ended."""

    event_index: int
    expected: Outcome | None
    failed: bool


@dataclass
class Workspace:
    """The files of a session by absolute path, as far as it has seen them."""

    cwd: str
    files: dict[str, File] = field(default_factory=dict)

    def file(self, path: str) -> File:
        """Return what is known of a file; a relative path begins at the workspace."""
        return self.files.setdefault(self.absolute(path), File())

    def absolute(self, path: str) -> str:
        """Return where a path leads."""
        return posixpath.normpath(posixpath.join(self.cwd, path.removeprefix("@")))

    def observe(self, call: Event, result: Event) -> None:
        """Learn from a call that was answered."""
        given = arguments(call)
        path = _text(given, "path") or _text(given, "file_path")
        if call.tool_name == "bash":
            self._ran(_text(given, "command"), result)
        elif not path:
            return
        elif call.tool_name == "write":
            if not result.is_error:
                self.file(path).write(_text(given, "content"))
        elif call.tool_name == "edit":
            if not result.is_error:
                self.file(path).apply(edits_of(given))
        elif call.tool_name == "read" and not result.is_error:
            self._read(path, given, result.text)

    def _read(self, path: str, given: dict[str, Any], shown: str) -> None:
        rest = _MORE.search(shown)
        begins = (given.get("offset") or 1) == 1
        text = shown[: rest.start()] if rest else shown
        limit = given.get("limit")
        # Whatever the harness says, what is as long as was asked for may go on.
        ends = not isinstance(limit, int) or text.count("\n") + 1 < limit
        self.file(path).see(text, is_whole=begins and ends and not rest)

    def _ran(self, command: str, result: Event) -> None:
        changes = changes_of(command, result.text)
        for file in self.files.values():
            file.is_stale |= changes.anything
            if changes.formatted:
                file.format()
        for name in changes.names:
            self._spoil(name)
        for source, target in copies_of(command) if not result.is_error else ():
            # A command that changed anything else has made both stale.
            known = self.file(source)
            if not changes.anything and (known.whole is not None or known.pieces):
                self.files[self.absolute(target)] = replace(
                    known, pieces=list(known.pieces), is_stale=False
                )
        for name, line in lines_by(command, result.text):
            file = self.file(name)
            if not file.is_stale and len(line.strip()) >= MIN_LINE:
                file.see(line, is_whole=False)
        shown = shown_by(command)
        if shown and not result.is_error and not _TRUNCATED.search(result.text):
            self.file(shown[0]).see(result.text, is_whole=shown[1])

    def _spoil(self, name: str) -> None:
        """Mark what a word of a command may name: a file, a folder of files, or a pattern."""
        path = self.absolute(name)
        tail = "/" + name.lstrip("./")
        for known, file in self.files.items():
            is_named = known == path or known.startswith(f"{path}/") or known.endswith(tail)
            file.is_stale = file.is_stale or is_named or any(sign in name for sign in "*?[${")


def edits_of(given: dict[str, Any]) -> list[Edit]:
    """Return the edits of a call in any of the tool's generations; none when it is malformed."""
    several = given.get("edits")
    if isinstance(several, str):
        several = decoded(several)
    several = several if isinstance(several, list) else [given]
    return [
        Edit(edit["oldText"], edit["newText"])
        for edit in several
        if isinstance(edit, dict)
        and isinstance(edit.get("oldText"), str)
        and isinstance(edit.get("newText"), str)
    ]


def predictions(events: Sequence[Event], cwd: str) -> Iterator[Prediction]:
    """Predict every answered edit of a session before its result is looked at."""
    workspace = Workspace(cwd)
    matched = match_results(tuple(events))
    for event in events:
        if event.kind == "bash":
            workspace._ran(event.arguments, event)
        if event.kind != "tool_call" or event.index not in matched or not event.on_active_branch:
            continue
        result = events[matched[event.index]]
        if event.tool_name == "edit":
            given = arguments(event)
            expected = workspace.file(_text(given, "path")).predict(edits_of(given))
            yield Prediction(event.index, expected, result.is_error)
        workspace.observe(event, result)


def arguments(call: Event) -> dict[str, Any]:
    """Decode a call's arguments; what is no object has none."""
    given = decoded(call.arguments)
    return given if isinstance(given, dict) else {}


def _text(given: dict[str, Any], name: str) -> str:
    value = given.get(name)
    return value if isinstance(value, str) else ""
