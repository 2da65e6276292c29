"""Calls of an edit tool in a completion, applied in order to the files in memory.

Read are `edit`, `edit_file` and `str_replace` with the old and the new text, one pair or a list
`edits` of pairs, in the formats of `rewards.verifiers.last_write`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rewards.verifiers.candidate import Candidate, Refusal, changed_files, refused_path
from rewards.verifiers.last_write import calls

TOOLS = ("edit", "edit_file", "str_replace")
_PATHS = ("path", "file_path", "file")
_OLD = ("oldText", "old_text", "old_str", "old_string")
_NEW = ("newText", "new_text", "new_str", "new_string")


class Edit(NamedTuple):
    """A text to be replaced, and where in the completion the call stands."""

    at: int
    path: str
    old: str
    new: str


def edits(completion: str) -> Iterator[Edit]:
    """Yield every complete replacement, in order of the calls."""
    for at, name, given in sorted(calls(completion), key=lambda call: call[0]):
        pairs = given.get("edits", [given])
        path = _first(given, _PATHS)
        if name not in TOOLS or path is None or not isinstance(pairs, list):
            continue
        for pair in pairs:
            if isinstance(pair, dict):
                old, new = _first(pair, _OLD), _first(pair, _NEW)
                if old is not None and new is not None:
                    yield Edit(at, path.removeprefix("./"), old, new)


def edited(completion: str, spec: Mapping[str, Any]) -> Candidate | Refusal:
    """Return the files after every edit, or why one of them fails."""
    files = dict(spec["files"])
    found = list(edits(completion))
    if not found:
        return Refusal("no_patch", "The answer calls no edit tool with an old and a new text.")
    for edit in found:
        if refused := refused_path(edit.path, spec):
            return refused
        if edit.path not in files:
            return Refusal("file_unknown", f"There is no file {edit.path}; name one that is there.")
        times = files[edit.path].count(edit.old) if edit.old else 0
        if times == 0:
            why = f"Could not find the exact text in {edit.path}; copy it from the file as it is."
            return Refusal("context_not_found", why)
        if times > 1:
            why = f"Found {times} occurrences of the text in {edit.path}; give more of its lines."
            return Refusal("ambiguous", why)
        files[edit.path] = files[edit.path].replace(edit.old, edit.new)
    return changed_files(spec["files"], files)


def _first(given: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((given[name] for name in names if isinstance(given.get(name), str)), None)
