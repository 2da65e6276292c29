"""Check the last complete file that a completion writes.

spec   as in `rewards.verifiers.candidate`
score  1.0 if a whole file is written to a path that may be written, else 0.0

A write is a call of `write`, `write_file` or `create_file` as JSON, with Gemma's delimiters or as
XML, or `cat > path <<'EOF'` in a shell. A call that never closes does not count.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rewards.verifiers.candidate import Candidate, Refusal, changed_files, files_of, refused_path
from rewards.verifiers.rubric import VerifierResult, failed, passed

NAME = "last_write"
TOOLS = ("write", "write_file", "create_file")
MAX_CHARS = 400_000
MAX_OBJECTS = 400
MAX_TIMES = 3  # a file may be drafted, not repeated to fill an answer

_NAMES = ("name", "tool", "tool_name")
_ARGUMENTS = ("arguments", "args", "input", "parameters")
_CONTENTS = ("content", "contents", "file_text", "text")
_PATHS = ("path", "file_path", "file")
# Each opening is looked up with its end by `_between`: a pattern of both is quadratic in openings.
_GEMMA = re.compile(r"call:(\w+)\{"), "<tool_call|>"
_GEMMA_TEXT = re.compile(r'(?<!\w)(\w+):<\|"\|>'), '<|"|>'
_XML = re.compile(r"<function=(\w+)>"), "</function>"
_XML_TEXT = re.compile(r"<parameter=(\w+)>\n?"), "</parameter>"
_HEREDOC = re.compile(
    r"^[ \t]*cat[ \t]*(?:>[ \t]*(?P<path>[^\s<>|;&]+)[ \t]*)?<<[ \t]*(?P<quote>['\"]?)(?P<end>\w+)"
    r"(?P=quote)[ \t]*(?:>[ \t]*(?P<after>[^\s<>|;&]+)[ \t]*)?\n",
    re.MULTILINE,
)
_ENDING = re.compile(r"^(\w+)[ \t]*$", re.MULTILINE)
_EXPANDED = re.compile(r"[$`\\]")


class Write(NamedTuple):
    """A file written, and where in the completion."""

    at: int
    path: str
    content: str


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Tell whether a completion writes a whole file that it may write."""
    written = last_write(completion, spec)
    if isinstance(written, Candidate):
        return passed(NAME, files=1.0)
    unreadable = written.failure in ("no_patch", "truncated")
    category = "malformed_output" if unreadable else "patch_apply"
    return failed(NAME, category, f"{written.failure}: {written.why}")


def last_write(completion: str, spec: Mapping[str, Any]) -> Candidate | Refusal:
    """Return the files after the last write, and it alone; ValueError for a spec without files."""
    files = files_of(spec)
    if spec.get("truncated"):
        return Refusal(
            "truncated",
            "The answer was cut off at its maximum length; write a shorter file, to its end.",
        )
    written = sorted(writes(completion))
    if not written:
        return Refusal(
            "no_patch", "The answer writes no file; write it whole with one call of a write tool."
        )
    found = written[-1]
    times = sum(1 for write in written if write.path == found.path)
    if times > MAX_TIMES:
        return Refusal(
            "ambiguous",
            f"The answer writes {found.path} {times} times; write the file once, whole.",
        )
    path = found.path.removeprefix("./")
    if refused := refused_path(path, spec):
        return refused
    return changed_files(files, {**files, path: found.content})


def writes(completion: str) -> Iterator[Write]:
    """Yield every complete write, format by format."""
    for at, name, given in calls(completion):
        path = next((given[key] for key in _PATHS if isinstance(given.get(key), str)), None)
        content = next((given[key] for key in _CONTENTS if isinstance(given.get(key), str)), None)
        if name in TOOLS and path is not None and content is not None:
            yield Write(at, path, content)
    yield from _catted(completion[:MAX_CHARS])


def calls(completion: str) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Yield place, name and arguments of every complete call, format by format."""
    text = completion[:MAX_CHARS]
    for at, name, body in _between(text, *_GEMMA):
        if body.endswith("}"):
            yield at, name, {key: value for _, key, value in _between(body, *_GEMMA_TEXT)}
    for at, name, body in _between(text, *_XML):
        texts = _between(body, *_XML_TEXT)
        yield at, name, {key: value.removesuffix("\n") for _, key, value in texts}
    for at, value in _objects(text):
        function = value.get("function")
        call_of = function if isinstance(function, dict) else value
        named = next((call_of[k] for k in _NAMES if isinstance(call_of.get(k), str)), function)
        if isinstance(named, str):
            yield at, named, _mapping(next((call_of[k] for k in _ARGUMENTS if k in call_of), None))


def _between(text: str, opening: re.Pattern[str], end: str) -> Iterator[tuple[int, str, str]]:
    """Yield place, name and body from each opening to the next end, in linear time."""
    stop = at = 0
    while stop >= 0 and (found := opening.search(text, at)):
        at = found.end()
        if stop < at:
            stop = text.find(end, at)
        if stop >= 0:
            yield found.start(), found[1], text[at:stop]
            at = stop + len(end)


def _catted(text: str) -> Iterator[Write]:
    endings: dict[str, list[int]] = {}
    for line in _ENDING.finditer(text):
        endings.setdefault(line[1], []).append(line.start())
    at = 0
    while heredoc := _HEREDOC.search(text, at):
        at = heredoc.end()
        ends = endings.get(heredoc["end"], [])
        if (next_end := bisect_left(ends, at)) == len(ends):
            continue
        body, at = text[at : ends[next_end]], ends[next_end]
        path = heredoc["path"] or heredoc["after"]
        # The shell would expand an unquoted one to something unknown.
        if path and (heredoc["quote"] or not _EXPANDED.search(body)):
            yield Write(heredoc.start(), path.strip("'\""), body)


def _mapping(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        first = next(_objects(given[:MAX_CHARS], 1), None)
        given = first[1] if first and first[0] == 0 else None
    return given if isinstance(given, dict) else {}


def _objects(text: str, most: int = MAX_OBJECTS) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the outermost JSON objects of a text, after at most so many tries."""
    decoder = json.JSONDecoder(strict=False)
    at, tries = text.find("{"), 0
    while at >= 0 and tries < most:
        tries += 1
        end = at + 1
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):  # not JSON, or nested to no purpose
            pass
        else:
            yield at, value
        at = text.find("{", end)
