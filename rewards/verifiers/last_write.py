"""Check the last complete file that a completion writes.

spec   as in `rewards.verifiers.candidate`
score  1.0 if a whole file is written to a path that may be written, else 0.0

A write is a call of `write`, `write_file` or `create_file` as JSON, with Gemma's delimiters or as
XML. A call that never closes does not count.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rewards.answers import find_calls
from rewards.verifiers.candidate import Candidate, Refusal, changed_files, files_of, refused_path
from rewards.verifiers.rubric import VerifierResult, failed, passed

NAME = "last_write"
TOOLS = ("write", "write_file", "create_file")
MAX_TIMES = 3  # a file may be drafted, not repeated to fill an answer

_CONTENTS = ("content", "contents", "file_text", "text")
PATHS = ("path", "file_path", "file")


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
    category = "malformed_output" if written.failure in ("no_patch", "truncated") else "patch_apply"
    return failed(NAME, category, f"{written.failure}: {written.why}")


def last_write(completion: str, spec: Mapping[str, Any]) -> Candidate | Refusal:
    """Return the files after the last write, and it alone; ValueError for a spec without files."""
    files = files_of(spec)
    if spec.get("truncated"):
        why = "The answer was cut off at its maximum length; write a shorter file, to its end."
        return Refusal("truncated", why)
    written = sorted(writes(completion))
    if not written:
        return Refusal("no_patch", "The answer writes no file; write it whole with one call of a write tool.")
    found = written[-1]
    times = sum(write.path == found.path for write in written)
    if times > MAX_TIMES:
        return Refusal("ambiguous", f"The answer writes {found.path} {times} times; write the file once, whole.")
    path = found.path.removeprefix("./")
    if refused := refused_path(path, spec):
        return refused
    return changed_files(files, {**files, path: found.content})


def writes(completion: str) -> Iterator[Write]:
    """Yield every complete write, format by format."""
    for call in find_calls(completion):
        path, content = find_text(call.arguments, PATHS), find_text(call.arguments, _CONTENTS)
        if call.name in TOOLS and path is not None and content is not None:
            yield Write(call.at, path, content)


def find_text(given: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Return the first text among the arguments of these names."""
    return next((given[name] for name in names if isinstance(given.get(name), str)), None)
