"""Apply the diff of a completion to files in memory, or say why not.

spec  as in `rewards.verifiers.candidate`; truncated: whether the completion was cut, None or absent
      when nobody knows; end: the token at the end of the completion, which is no part of it

A hunk is placed by the lines it shows. Line ends, and whether a file ends with a newline, stay as
they are in the file unless the diff says otherwise with `\\ No newline at end of file`.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rewards.verifiers.candidate import (
    Candidate,
    Refusal,
    changed_files,
    files_of,
    refused_path,
    unsafe_path,
)
from rewards.verifiers.codex_patches import has_envelope, read_envelopes
from rewards.verifiers.diffs import FileDiff, Hunk, read_diff
from rewards.verifiers.hunk_matching import locate, looked
from rewards.verifiers.rubric import VerifierResult, failed, passed

NAME = "patch"
LOCATED_SHARE = 0.5


@dataclass(slots=True)
class _Change:
    """What a diff wants of one file; `target` is "" when it deletes it, `source` when it is new."""

    source: str
    target: str
    hunks: list[Hunk]
    deleted: bool = False


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Tell whether the diff of a completion applies; metrics: `files` changed."""
    applied = apply_patch(completion, spec)
    if isinstance(applied, Candidate):
        return passed(NAME, files=float(len(applied.changed)))
    unreadable = applied.failure in ("no_patch", "malformed", "truncated")
    return failed(
        NAME,
        "malformed_output" if unreadable else "patch_apply",
        f"{applied.failure}: {applied.why}",
        LOCATED_SHARE * applied.located,
    )


def apply_patch(completion: str, spec: Mapping[str, Any]) -> Candidate | Refusal:
    """Return the files after the diff of a completion; raises ValueError for a spec without."""
    before = files_of(spec)
    text = completion.removesuffix(spec.get("end", ""))
    read = read_envelopes if has_envelope(text) else read_diff
    diffs = read(text, spec.get("truncated"))
    if isinstance(diffs, Refusal):
        return diffs
    changes = _changes(diffs, spec)
    if isinstance(changes, Refusal):
        return changes
    after = dict(before)
    problem: Refusal | None = None
    located = total = 0
    for change in changes:
        total += len(change.hunks)
        text = before.get(change.source, "")
        edits = _placed(change, text)
        located += sum(1 for place in edits if not isinstance(place, Refusal))
        problem = problem or next((e for e in edits if isinstance(e, Refusal)), None)
        if problem is None:
            problem = _write(change, text, [e for e in edits if isinstance(e, int)], after)
    if problem:
        return replace(problem, located=located / total if total else 0.0)
    return changed_files(before, after)


def _changes(diffs: Sequence[FileDiff], spec: Mapping[str, Any]) -> list[_Change] | Refusal:
    """Bring the diffs of one file together, under names that may be written."""
    changes: dict[str, _Change] = {}
    for diff in diffs:
        if not (diff.hunks or diff.renamed or diff.deleted):
            continue
        names = _names(diff, spec["files"])
        if isinstance(names, Refusal):
            return names
        source, target = names
        if source and source not in spec["files"]:
            return unsafe_path(source) or _unknown(source, spec["files"])
        for name in filter(None, names):
            if refused := refused_path(name, spec):
                return refused
        there = changes.setdefault(source or target, _Change(source, target, []))
        if there.target != target or there.source != source:
            return Refusal(
                "ambiguous",
                f"The diff does two different things to {source or target}; write one diff per "
                "file.",
            )
        there.hunks += diff.hunks
        there.deleted |= diff.deleted
    if len({change.target for change in changes.values() if change.target}) != sum(
        1 for change in changes.values() if change.target
    ):
        return Refusal("ambiguous", "Two diffs write the same file; write one diff per file.")
    return list(changes.values())


def _names(diff: FileDiff, files: Mapping[str, str]) -> tuple[str, str] | Refusal:
    old, new = diff.old, diff.new
    if old is None or new is None:
        if len(files) != 1:
            return Refusal(
                "file_unknown",
                "The diff names no file; begin it with `--- a/path` and `+++ b/path`.",
            )
        (only,) = files
        return only, only
    if diff.renamed:
        return old, new
    bare = {name.removeprefix("./") for name in (old, new) if name}
    if old.startswith("a/") and new.startswith("b/"):
        old, new = old[2:], new[2:]
    elif not old and new.startswith("b/") and new not in files:
        new = new[2:]
    elif not new and old.startswith("a/") and old not in files:
        old = old[2:]
    elif old and new and not bare & set(files):
        old, new = _without_prefix(old), _without_prefix(new)
    old, new = old.removeprefix("./"), new.removeprefix("./")
    if old and new and old != new:
        # `--- x.py.orig`, `+++ x.py`: what is written is what the second name says.
        return (new, new) if new in files or old not in files else (old, old)
    return old, new


def _without_prefix(name: str) -> str:
    return name[2:] if name.startswith(("a/", "b/")) else name


def _unknown(path: str, files: Mapping[str, str]) -> Refusal:
    near = difflib.get_close_matches(path, list(files), n=1, cutoff=0.3)
    told = f"; did you mean `{near[0]}`?" if near else "."
    return Refusal("file_unknown", f"There is no file `{path}` in the workspace{told}")


def _placed(change: _Change, text: str) -> list[int | Refusal]:
    lines = looked([line for line, _ in _split(text)])
    name = change.source or change.target
    return [locate(hunk, lines, name) for hunk in change.hunks]


def _write(
    change: _Change, text: str, places: Sequence[int], after: dict[str, str]
) -> Refusal | None:
    name = change.source or change.target
    if not change.source and change.target in after:
        return Refusal(
            "context_not_found",
            f"The file {name} exists already, the diff creates it; write a diff of what is there.",
        )
    if change.target != change.source and change.target in after:
        return Refusal("ambiguous", f"The diff moves a file onto {change.target}, which exists.")
    pieces = sorted(zip(places, change.hunks, strict=True), key=lambda piece: piece[0])
    result = _edited(text, pieces)
    if result is None:
        return Refusal(
            "ambiguous", f"Two hunks change the same lines of {name}; write each change once."
        )
    if not change.target and result and not change.deleted:
        return Refusal(
            "context_not_found",
            f"The diff deletes {name} but does not show all of its lines; show them all.",
        )
    after.pop(change.source, None)
    if change.target:
        after[change.target] = result
    return None


def _split(text: str) -> list[tuple[str, str]]:
    """Return lines and their ends, "" for a last line without newline."""
    parts = text.split("\n")
    lines = [(part[:-1], "\r\n") if part.endswith("\r") else (part, "\n") for part in parts[:-1]]
    return [*lines, (parts[-1], "")] if parts[-1] else lines


def _edited(text: str, pieces: Sequence[tuple[int, Hunk]]) -> str | None:
    """Return the text after the hunks, in order of their places; None when they overlap."""
    lines = _split(text)
    crlf = sum(1 for _, end in lines if end == "\r\n")
    usual = "\r\n" if crlf * 2 > len(lines) else "\n"
    out: list[tuple[str, str]] = []
    at = 0
    ends_open = bool(lines) and not lines[-1][1]
    for place, hunk in pieces:
        if place < at:
            return None
        out += lines[at:place]
        at = place
        for line in hunk.lines:
            if line.tag == "+":
                out.append((line.text, usual))
            else:
                if line.tag == " ":
                    out.append(lines[at])
                at += 1
            if line.tag != " " and at == len(lines):
                ends_open = _open_end(hunk, ends_open)
    out += lines[at:]
    closed = [(line, end or usual) for line, end in out]
    joined = "".join(line + end for line, end in closed)
    return joined[: -len(closed[-1][1])] if ends_open and closed else joined


def _open_end(hunk: Hunk, was: bool) -> bool:
    """Tell whether the file lacks a last newline after a hunk that reaches its end."""
    marked = {line.tag for line in hunk.lines if line.marked}
    if not marked:
        return was
    return "+" in marked or " " in marked
