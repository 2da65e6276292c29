"""Reconstruct the files of a workspace at the time of a request.

A row's prompt ends with the request, so the files must be those before any change by the recorded
answer. What the session saw before the request is known from replay. Files that the answer reads
later had the same content at the request, unless something may have changed them in between; its
calls are followed until the next message of the user, or until any file may have changed.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pimono_sdpo.replay.calls import decode_arguments, find_path, find_text, parse_read, read_edits, read_patch
from pimono_sdpo.replay.commands import find_changes, find_shown_file
from pimono_sdpo.replay.files import File
from pimono_sdpo.replay.workspace import MIN_LINE, TRUNCATED, Workspace, is_read_only, learn_shown
from pimono_sdpo.traces.events import Event, has_failed
from pimono_sdpo.traces.harness.base import FileTools
from pimono_sdpo.traces.harness.blocks import is_refusal

# The most characters of a row's files and their paths; files nearest to the failure come first.
MAX_CHARS = 6_000
MIN_PART = 200
# How many events are followed before and after a request.
MOST_BEFORE, MOST_AFTER = 20, 30
_READERS = (
    r"(?:cd|ls|cat|head|tail|grep|rg|wc|pwd|echo|tree|stat|file|which|sort|uniq|cut|nl|du|sed -n"
    r"|git (?:status|diff|log|show|branch|remote|blame|ls-files|rev-parse))\b"
)
# Most commands only read; this pattern recognises them ten times as fast as parsing.
_ONLY_LOOKS = re.compile(
    rf"\s*{_READERS}[^|;&<>`$\n]*(?:(?:\||&&|;)\s*{_READERS}[^|;&<>`$\n]*|2>&1\s*|2>/dev/null\s*){{0,8}}"
)
_SHOWS = re.compile(r"(?:cd [^&;|]{1,200}&&\s*)?(?:cat|sed -n) [^|;&<>]*")
_PATTERN = re.compile(r"[*?\[${`]")


class Known(NamedTuple):
    """What is known of one file: its whole text, or some of its lines."""

    path: str
    whole: bool
    texts: list[str]


# A call that shows a file, its arguments and its result.
Showing = tuple[Event, dict[str, Any], Event]


class InitialState:
    """The files at each request of a session; requests must be visited in order."""

    def __init__(
        self,
        events: Sequence[Event],
        matched: Mapping[int, int],
        cwd: str,
        tools: FileTools,
        most_before: int = MOST_BEFORE,
    ) -> None:
        """Start before the first event; follow at most `most_before` events up to each request."""
        self._most_before = most_before
        self._events, self._matched = events, matched
        self._before = Workspace(cwd, tools=tools)
        self._position = 0
        self._skipped: list[int] = []
        # The paths of all files that were known to exist at the last request, nearest to the failure first.
        self.known_paths: list[str] = []

    def skip(self, request: int) -> None:
        """Visit a request whose files are not needed; its events are read only if a later request needs them."""
        self._skipped.append(request)

    def files_at(self, request: int, failure: int, first: str = "", chars: int = MAX_CHARS) -> list[Known]:
        """Return the files at a request, up to `chars` characters, given the indexes of the request and the failure.

        The file `first` comes first, then the others by their distance from the failure.
        """
        near = [request]
        while self._skipped and near[-1] - self._skipped[-1] <= self._most_before:
            near.append(self._skipped.pop())
        self._skipped.clear()
        for visited in reversed(near):
            self._follow(visited)
        seen: dict[str, list[Showing]] = {path: [] for path, file in self._before.files.items() if file.is_known}
        seen |= self._look_ahead(request)

        first_path = self._before.absolute(first) if first else ""

        def distance(path: str) -> tuple[bool, int, str]:
            distances = (abs(call.index - failure) for call, _, _ in seen[path])
            return path != first_path, min(distances, default=failure - request), path

        self.known_paths = sorted(seen, key=distance)
        kept = []
        for path in self.known_paths:
            file = self._before.files.get(path, File()).copy()
            for call, arguments, result in seen[path]:
                _learn(call, arguments, result.text, self._before.tools, file)
            if known := _trim_to(chars - len(path), path, file):
                kept.append(known)
                chars -= len(path) + sum(map(len, known.texts))
            if chars < MIN_PART:
                break
        return kept

    def _follow(self, request: int) -> None:
        """Learn what the session saw up to a request."""
        begin = max(self._position, request - self._most_before)
        if begin > self._position:
            # The events in between may have changed any file.
            self._before.files.clear()
        for event in self._events[begin:request]:
            if event.kind != "tool_call":
                self._before.observe_event(event)
            elif _is_harmless(event):
                continue
            elif event.index in self._matched and event.on_active_branch:
                self._before.observe(event, self._events[self._matched[event.index]])
            else:
                self._before.observe_unanswered(event.tool_name, decode_arguments(event))
        self._position = max(self._position, request)

    def _look_ahead(self, request: int) -> dict[str, list[Showing]]:
        """Return, by path, the later calls that show a file as it was at the request."""
        seen: dict[str, list[Showing]] = {}
        changed, suffixes = set[str](), tuple[str, ...]()
        for event in self._events[request + 1 : request + 1 + MOST_AFTER]:
            if event.kind in {"user", "bash", "custom_message"}:
                break
            if event.kind != "tool_call" or _is_harmless(event):
                continue
            result_index = self._matched.get(event.index)
            result = self._events[result_index] if result_index is not None else None
            arguments = decode_arguments(event)
            path = _find_file(event, arguments)
            path = self._before.absolute(path) if path else ""
            may_have_changed = path in changed or path.endswith(suffixes) or any(f"{one}/" in path for one in suffixes)
            shows = event.tool_name != "write" and event.on_active_branch and bool(path) and not may_have_changed
            if shows and result and not has_failed(result) and not is_refusal(result.text):
                seen.setdefault(path, []).append((event, arguments, result))
            if event.tool_name in {"edit", "write"} and path:
                changed.add(path)
            elif event.tool_name == "bash":
                changes = find_changes(find_text(arguments, "command"), result.text if result else "")
                if changes.anything or any(map(_PATTERN.search, changes.names)):
                    break
                names = ("/" + name.lstrip("./~").rstrip("/") for name in changes.names)
                suffixes += tuple(name for name in names if name != "/")
            elif event.tool_name != "read":
                break
        return seen


def _is_harmless(call: Event) -> bool:
    """Return whether a call neither shows nor changes a file, like most commands."""
    if call.tool_name != "bash":
        return call.tool_name != "read" and is_read_only(call.tool_name)
    command = find_text(decode_arguments(call), "command")
    return bool(_ONLY_LOOKS.fullmatch(command)) and not _SHOWS.fullmatch(command)


def _find_file(call: Event, arguments: dict[str, Any]) -> str:
    """Return the file that a call shows or changes, or ""."""
    if call.tool_name != "bash":
        patches = read_patch(arguments)
        return patches[0].path if len(patches) == 1 else find_path(arguments)
    command = find_text(arguments, "command")
    shown = find_shown_file(command) if _SHOWS.fullmatch(command) else None
    return shown.path if shown else ""


def _learn(call: Event, arguments: dict[str, Any], text: str, tools: FileTools, file: File) -> None:
    """Learn the content of a file from a later call that shows it unchanged."""
    if call.tool_name == "edit":
        hunks = [hunk for patch in read_patch(arguments) for hunk in patch.hunks]
        for edit in hunks or read_edits(arguments):
            # The old text of an edit occurs once.
            if len(edit.old.strip()) >= MIN_LINE and file.whole is None and not edit.everywhere:
                file.see(edit.old, is_whole=False)
    elif call.tool_name == "read" or (not tools.trims_output and not TRUNCATED.search(text)):
        lines = find_shown_file(find_text(arguments, "command")) if call.tool_name == "bash" else None
        if lines:
            arguments = {"offset": lines.first, "limit": lines.last and lines.last + 1 - lines.first}
        if shown := parse_read(arguments, text, tools):
            learn_shown(file, shown)


def _trim_to(chars: int, path: str, file: File) -> Known | None:
    """Return as many whole lines of a file as fit into `chars` characters, None for less than MIN_PART."""
    if not file.is_known:
        return None
    parts = []
    for text in file.texts:
        if len(text) > chars:
            text = text[: max(chars, 0)].rpartition("\n")[0]
            if len(text) < MIN_PART:
                continue
        chars -= len(text)
        parts.append(text)
    return Known(path, parts == [file.whole], parts) if parts else None
