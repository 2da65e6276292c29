"""Read patches as Codex's `apply_patch` takes them, between `*** Begin Patch` and `*** End Patch`.

| line | what |
|---|---|
| `*** Add File: path` | a new file, each line begins with `+` |
| `*** Delete File: path` | the file goes |
| `*** Update File: path` | hunks follow; `*** Move to: path` renames it, too |
| `@@ def f(x):` | begins a hunk that stands below such a line; several narrow it down |
| `*** End of File` | the hunk reaches the file's end |
"""

import re
from collections.abc import Iterator, Sequence

from rewards.verifiers.candidate import Refusal
from rewards.verifiers.diffs import FileDiff, Hunk, Line, lines_of
from rewards.verifiers.last_write import calls

BEGIN, END = "*** Begin Patch", "*** End Patch"
TOOLS = ("apply_patch", "applypatch")
_INPUTS = ("input", "patch", "patchText", "command")
_FILE = re.compile(r"\*\*\* (Add|Delete|Update) File: ?(.+)")
_MOVE = "*** Move to: "
_AT_END = "*** End of File"
MAX_SHOWN = 120
MAX_ABOVE = 10


def has_envelope(text: str) -> bool:
    """Tell whether a text has a patch of this kind, its own or in a call."""
    return BEGIN in text and next(_patches(text), None) is not None


def read_envelopes(text: str, truncated: bool | None) -> list[FileDiff] | Refusal:
    """Return the changes of every patch of a text; `truncated` as for `read_diff`."""
    if truncated:
        return _cut()
    files: list[FileDiff] = []
    for patch in _patches(text):
        problem = _read(patch, files)
        if problem:
            return problem
    return files or _malformed("The patch changes no file; begin with `*** Update File: path`.")


def _patches(text: str) -> Iterator[list[str]]:
    """Yield the lines of each patch, with its first and, when there is one, its last."""
    given = [
        value
        for _, name, arguments in calls(text)
        if name in TOOLS
        for value in (_text(arguments.get(key)) for key in _INPUTS)
        if BEGIN in value
    ]
    for one in given or [text]:
        patch: list[str] = []
        indent = ""
        for line in lines_of(one):
            if not patch and line.strip() == BEGIN:
                # A fence in a list is indented.
                indent = line[: line.index("*")]
                patch.append(BEGIN)
            elif patch:
                patch.append(line.removeprefix(indent))
            if patch and line.strip() == END:
                yield patch
                patch = []
        if patch:
            yield patch


def _text(value: object) -> str:
    if isinstance(value, list):
        return next((one for one in value if isinstance(one, str) and BEGIN in one), "")
    return value if isinstance(value, str) else ""


def _read(patch: Sequence[str], files: list[FileDiff]) -> Refusal | None:
    if patch[-1].strip() != END:
        return _cut()
    at = 1
    while at < len(patch) - 1:
        header = _FILE.fullmatch(patch[at].strip())
        if header is None:
            if not patch[at].strip():
                at += 1
                continue
            return _malformed(
                f"The line `{patch[at][:MAX_SHOWN]}` belongs to no file; begin each with "
                "`*** Update File: path`, `*** Add File: path` or `*** Delete File: path`."
            )
        stop = next((n for n in range(at + 1, len(patch)) if _is_header(patch[n])), len(patch) - 1)
        found = _file(header[1], header[2].strip(), patch[at + 1 : stop])
        if isinstance(found, Refusal):
            return found
        files.append(found)
        at = stop
    return None


def _is_header(line: str) -> bool:
    return line.startswith("*** ") and bool(_FILE.fullmatch(line.strip()) or line.strip() == END)


def _file(what: str, path: str, lines: Sequence[str]) -> FileDiff | Refusal:
    if what == "Delete":
        if any(line.strip() for line in lines):
            return _malformed(f"What follows `*** Delete File: {path}` is no part of it.")
        return FileDiff(path, "", deleted=True)
    if what == "Add":
        added = [line for line in lines if line.strip() or line.startswith("+")]
        odd = next((line for line in added if not line.startswith("+")), None)
        if odd is not None:
            return _malformed(
                f"The line `{odd[:MAX_SHOWN]}` of the new file {path} does not begin with `+`."
            )
        return FileDiff("", path, [Hunk(None, None, [Line("+", line[1:]) for line in added])])
    return _updated(path, lines)


def _updated(path: str, lines: Sequence[str]) -> FileDiff | Refusal:
    file = FileDiff(path, path)
    hunk: Hunk | None = None
    for line in lines:
        if line.startswith(_MOVE) and hunk is None:
            file.new, file.renamed = line[len(_MOVE) :].strip(), True
        elif line.strip() == _AT_END and hunk:
            hunk.at_end = True
        elif line.startswith("@@"):
            above = line[2:].strip().removesuffix("@@").strip()
            if hunk is None or hunk.lines:
                hunk = Hunk(None, None)
                file.hunks.append(hunk)
            hunk.above = (*hunk.above, *([above] if above else []))[-MAX_ABOVE:]
        elif line[:1] in ("", " ", "+", "-"):
            if hunk is None:
                hunk = Hunk(None, None)
                file.hunks.append(hunk)
            hunk.lines.append(Line(line[:1] or " ", line[1:]))
        else:
            return _malformed(
                f"The line `{line[:MAX_SHOWN]}` inside a hunk of {path} begins with none of "
                "space, `+`, `-`; begin each line of a hunk with one of them."
            )
    for one in file.hunks:
        while one.lines and one.lines[-1] == Line(" ", ""):
            one.lines.pop()
    file.hunks = [one for one in file.hunks if one.lines]
    if not file.hunks and not file.renamed:
        return _malformed(f"The patch changes nothing in {path}; write the lines that change.")
    return file


def _malformed(why: str) -> Refusal:
    return Refusal("malformed", why)


def _cut() -> Refusal:
    return Refusal(
        "truncated", f"The patch ends before `{END}`; write a smaller patch, to its end."
    )
