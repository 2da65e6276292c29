"""The last complete file that a completion writes, put into the files in memory.

Read are calls of a tool that writes (`write`, `write_file`, `create_file`) as JSON, with Gemma's
delimiters and as XML, and `cat > path <<'EOF'` of a shell. A call that never closes is no write.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rewards.verifiers.candidate import Candidate, Refusal, changed_files, files_of, refused_path
from rewards.verifiers.result import VerifierResult, failed, passed

NAME = "last_write"
TOOLS = ("write", "write_file", "create_file")
MAX_CHARS = 400_000
MAX_OBJECTS = 400
MAX_TIMES = 3  # a file may be drafted, not repeated to fill an answer

_NAMES = ("name", "tool", "tool_name")
_ARGUMENTS = ("arguments", "args", "input", "parameters")
_CONTENTS = ("content", "contents", "file_text", "text")
_PATHS = ("path", "file_path", "file")
_GEMMA = re.compile(r"call:(\w+)\{((?:(?!<tool_call\|>).)*)\}<tool_call\|>", re.DOTALL)
_GEMMA_TEXT = re.compile(r'(\w+):<\|"\|>((?:(?!<\|"\|>).)*)<\|"\|>', re.DOTALL)
_XML = re.compile(r"<function=(\w+)>((?:(?!</function>).)*)</function>", re.DOTALL)
_XML_TEXT = re.compile(r"<parameter=(\w+)>\n?((?:(?!</parameter>).)*?)\n?</parameter>", re.DOTALL)
_HEREDOC = re.compile(
    r"^[ \t]*cat[ \t]*(?:>[ \t]*(?P<path>[^\s<>|;&]+)[ \t]*)?<<[ \t]*(?P<quote>['\"]?)(?P<end>\w+)"
    r"(?P=quote)[ \t]*(?:>[ \t]*(?P<after>[^\s<>|;&]+)[ \t]*)?\n(?P<body>.*?)^(?P=end)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
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
        yield from _written(at, name, given)
    for heredoc in _HEREDOC.finditer(completion[:MAX_CHARS]):
        yield from _catted(heredoc)


def calls(completion: str) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Yield place, name and arguments of every complete call, format by format."""
    text = completion[:MAX_CHARS]
    for call in _GEMMA.finditer(text):
        yield call.start(), call[1], dict(_GEMMA_TEXT.findall(call[2]))
    for call in _XML.finditer(text):
        yield call.start(), call[1], dict(_XML_TEXT.findall(call[2]))
    for at, value in _objects(text):
        function = value.get("function")
        call_of = function if isinstance(function, dict) else value
        name = next((call_of[key] for key in _NAMES if isinstance(call_of.get(key), str)), function)
        given = next((call_of[key] for key in _ARGUMENTS if key in call_of), None)
        if isinstance(name, str):
            yield at, name, _mapping(given)


def _written(at: int, name: str, given: Mapping[str, Any]) -> Iterator[Write]:
    path = next((given[key] for key in _PATHS if isinstance(given.get(key), str)), None)
    content = next((given[key] for key in _CONTENTS if isinstance(given.get(key), str)), None)
    if name in TOOLS and path is not None and content is not None:
        yield Write(at, path, content)


def _catted(heredoc: re.Match[str]) -> Iterator[Write]:
    path = heredoc["path"] or heredoc["after"]
    # The shell would expand an unquoted one to what nobody here knows.
    if path and (heredoc["quote"] or not _EXPANDED.search(heredoc["body"])):
        yield Write(heredoc.start(), path.strip("'\""), heredoc["body"])


def _mapping(given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        given = next((value for at, value in _objects(given) if at == 0), None)
    return given if isinstance(given, dict) else {}


def _objects(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the outermost JSON objects of a text."""
    decoder = json.JSONDecoder(strict=False)
    at, tries = text.find("{"), 0
    while at >= 0 and tries < MAX_OBJECTS:
        tries += 1
        end = at + 1
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):  # not JSON, or nested to no purpose
            pass
        else:
            yield at, value
        at = text.find("{", end)
