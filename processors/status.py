"""Decode from its text how a call ended, for tools that set no flag, by tool family.

Runners (background jobs, batches) report exit codes and states; what shows files prints the texts
of others, so that only a short result that is nothing but an error counts; all other tools say it
in fields of JSON or in leading words such as `Error:` and `ENOENT`.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, NamedTuple

from pimono_sdpo.traces.events import decode_json

Family = Literal["runs", "shows", "acts"]

MAX_CHARS = 20_000
_HEAD, SHORT = 400, 1000
_NAME_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_RUNS = frozenset(
    """bash shell sh exec execute run runner process terminal command commands cmd stdin wait job
    jobs batch parallel background bg test tests build script eval python node poll output
    """.split()
)
_SHOWS = frozenset("read reader grep find ls list glob view cat open".split())
_ERROR_WORDS = r"crashed|failed|failure|error(?:ed)?|timed?[ _-]?out|fatal"
_LEAD = re.compile(
    r"[^\w#]{0,12}(?:#{1,4} Error\n|(?:[Tt]ool |[A-Z]\w{0,40} )?(?:[Ee]rror|ERROR)\b"
    r"(?: [a-z]\w{0,40}){0,4}\W{0,3}[:\]>(]"
    r"|(?:Failed|failed|Unable|unable) to \w|E[A-Z]{3,14}\b[:,]|ERR_[A-Z]|MCP error\b"
    r"|Traceback \(most|[A-Za-z_.]{0,60}(?:Error|Exception): |panic: |fatal: "
    r"|(?:Unknown|No such|No active) (?:tool|command|action|option|agent|session|process)\b"
    r"|Validation (?:failed|error)\b"
    r"|(?:[A-Z]\w{1,20}(?: \w{1,20}){0,3}|[a-z]{1,20}_\w{1,30}) failed(?: \(\w{1,20}\))?: "
    r"|Invalid (?:argument|param|input|request)|Permission denied|Access denied|No such file"
    rf"|(?:Command|Process|Tool|Execution|Request|Operation|Script)\b[^\n]{{0,80}}?"
    rf"\b(?:{_ERROR_WORDS}|not found|exited with (?:code|status) [1-9]))"
)
_CODE = re.compile(
    r"\b(?:exit(?:ed)?|rc|return(?:ed)?|returncode)(?:[ _-]?(?:with|code|status)){0,3}"
    r"[^\w.]{1,4}(-?\d{1,9})\b(?!\.\d)",
    re.IGNORECASE,
)
# A script that is shown says `exit 1` itself.
_STATEMENT = re.compile(r"exit (?=\d)")
_BEFORE_STATEMENT = re.compile(r"(?:[|&;{:@]|\b(?:then|else|do)|^[\s\d+-]*)\s*\Z")
# A line that reports an exit code has little else before and behind it.
_BEFORE, _WORDS_BEFORE, _BEHIND = 60, 4, 40
_STATE = re.compile(
    rf"^\W{{0,8}}(?:exit |job |process )?(?:status|state|outcome|result)\W{{1,6}}"
    rf"(?:{_ERROR_WORDS})\b",
    re.IGNORECASE | re.MULTILINE,
)
_MAY_STATE = re.compile(r"(?i:exit|stat|outcome|return|result|\brc\b)")
# What a harness adds behind the confirmation of an edit.
_COMPLAINT = re.compile(
    r"^(?![ \t]*\d{1,6}[\t\u2192| ]|[^\n]{0,80}ixed \d)[^\n]{0,80}?\b"
    r"(?:[1-9]\d{0,4} (?:lint )?(?:issue|error|problem)(?:s\b|\(s\)|\b)"
    r"[^\n]{0,40}(?:fix|found|detected|:)|errors? detected in )",
    re.IGNORECASE | re.MULTILINE,
)
_CHANGES = frozenset({"edit", "write"})
_CODE_KEYS = ("exit_code", "exitCode", "returncode", "return_code")
_INNER_KEYS = ("metadata", "result", "details", "data")
_STATES = frozenset("crashed failed failure error errored timeout timed_out fatal".split())
_HTTP_ERRORS = range(400, 600)
# With more fields than that, the message alone would lose what happened.
_FEW_FIELDS = 4


class Status(NamedTuple):
    """What a text says of its call: whether it failed, the exit code and the message, if any."""

    failed: bool
    exit_code: int | None = None
    message: str = ""


PASSED, FAILED = Status(False), Status(True)


@cache
def find_family(tool: str) -> Family:
    """Return the family of a tool by the words of its name.

    >>> find_family("bg_output"), find_family("read"), find_family("edit")
    ('runs', 'shows', 'acts')
    """
    words = {word.lower() for word in _NAME_WORD.findall(tool)}
    if words & _RUNS:
        return "runs"
    return "shows" if words & _SHOWS else "acts"


def decode_status(tool: str, text: str) -> Status:
    """Return what an unmarked result says of its call.

    >>> decode_status("job_output", "exit=2 after 3 s")
    Status(failed=True, exit_code=2, message='')
    """
    family = find_family(tool)
    if family == "shows" and text[:1] != "{":
        return FAILED if len(text) < SHORT and _LEAD.match(text) else PASSED
    fields = decode_json(text) if text[:1] == "{" and len(text) < MAX_CHARS else None
    if isinstance(fields, dict):
        # A file may hold anything; the harness's own error has the name of the tool.
        return _decode_fields(fields) if family != "shows" or "tool" in fields else PASSED
    if tool in _CHANGES:
        complains = "\n" in text and _COMPLAINT.search(text[:MAX_CHARS])
        return FAILED if complains or _LEAD.match(text[:_HEAD]) else PASSED
    # Beyond its head, what is no runner shows texts of others.
    shown = text[: MAX_CHARS if family == "runs" else _HEAD]
    if _MAY_STATE.search(shown):
        code = next(filter(None, _list_codes(shown)), None) if family == "runs" else None
        if code is not None or _STATE.search(shown):
            return Status(True, code)
    return FAILED if _LEAD.match(text[:_HEAD]) else PASSED


def _list_codes(text: str) -> Iterator[int]:
    """Yield the exit codes of the lines that report one and little else."""
    for match in _CODE.finditer(text):
        begin = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.end())
        before = text[begin : match.start()]
        behind = (end if end >= 0 else len(text)) - match.end()
        if before[-1:] in {".", "-"} or (
            _STATEMENT.match(match[0]) and _BEFORE_STATEMENT.search(before)
        ):
            continue
        if len(before) <= _BEFORE and len(before.split()) <= _WORDS_BEFORE and behind <= _BEHIND:
            yield int(match[1])


def _decode_fields(fields: dict[str, Any]) -> Status:
    """Decode the fields of a result in JSON, and of what it is wrapped around."""
    for inner in (fields, *(fields[key] for key in _INNER_KEYS if key in fields)):
        if not isinstance(inner, dict):
            continue
        code = next((c for key in _CODE_KEYS if type(c := inner.get(key)) is int), None)
        error = inner.get("error")
        message = error if isinstance(error, str) and len(inner) <= _FEW_FIELDS else ""
        refused = any(inner.get(key) is False for key in ("success", "ok", "successful", "valid"))
        status = inner.get("status")
        refused = refused or (type(status) is int and status in _HTTP_ERRORS)
        marked = inner.get("isError") is True or inner.get("is_error") is True
        state = str(inner.get("status", "")).lower()
        in_error = state in _STATES and ("tool" in inner or bool(error))
        if code or refused or marked or in_error or (error and isinstance(error, str | dict)):
            return Status(True, code, message)
    return PASSED
