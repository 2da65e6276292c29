"""Decode from its text how a call ended, for tools that set no flag, by tool family.

Runners (background jobs, batches) report exit codes and states; what shows files prints the texts
of others, so that only a short result that is nothing but an error counts; all other tools say it
in fields of JSON or in leading words such as `Error:` and `ENOENT`.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pimono_sdpo.prefilter import Guarded, compile_patterns
from pimono_sdpo.traces.events import decode_json

Family = Literal["runs", "shows", "acts"]

_PATTERNS = compile_patterns(Path(__file__).with_name("wording.toml"), "status")
_EDIT_COMPLAINT, _STATE = Guarded(_PATTERNS["edit_complaint"]), Guarded(_PATTERNS["state"])
_CODE = Guarded(_PATTERNS["code"])
MAX_CHARS = 20_000
_HEAD, SHORT = 400, 1000
_NAME_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_RUNS = frozenset(
    """bash shell sh exec execute run runner process terminal command commands cmd stdin wait job
    jobs batch parallel background bg test tests build script eval python node poll output
    """.split()
)
_SHOWS = frozenset("read reader grep find ls list glob view cat open".split())
# A line that reports an exit code has little else before and behind it.
_BEFORE, _WORDS_BEFORE, _BEHIND = 60, 4, 40
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
    text = _unwrap_parts(text)
    if family == "shows" and text[:1] != "{":
        return FAILED if len(text) < SHORT and _PATTERNS["lead"].match(text) else PASSED
    fields = decode_json(text) if text[:1] == "{" and len(text) < MAX_CHARS else None
    if isinstance(fields, dict):
        # A file may hold anything; the harness's own error has the name of the tool.
        return _decode_fields(fields) if family != "shows" or "tool" in fields else PASSED
    if tool in _CHANGES:
        complains = "\n" in text and _EDIT_COMPLAINT.search(text[:MAX_CHARS])
        return FAILED if complains or _PATTERNS["lead"].match(text[:_HEAD]) else PASSED
    # Beyond its head, what is no runner shows texts of others.
    shown = text[: MAX_CHARS if family == "runs" else _HEAD]
    code = next(filter(None, _list_codes(shown)), None) if family == "runs" else None
    if code is not None or _STATE.search(shown):
        return Status(True, code)
    return FAILED if _PATTERNS["lead"].match(text[:_HEAD]) else PASSED


def _unwrap_parts(text: str) -> str:
    """Return the text of a result that is a JSON array of content parts; any other as it is.

    >>> _unwrap_parts('[{"type": "text", "text": "Timed out"}]')
    'Timed out'
    """
    if text[:2] != "[{" or len(text) >= MAX_CHARS:
        return text
    parts = decode_json(text)
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        return text
    texts = [part.get("text") for part in parts if part.get("type") in ("text", "input_text")]
    return "\n".join(one for one in texts if isinstance(one, str)) or text


def _list_codes(text: str) -> Iterator[int]:
    """Yield the exit codes of the lines that report one and little else."""
    for match in _CODE.finditer(text):
        begin = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.end())
        before = text[begin : match.start()]
        behind = (end if end >= 0 else len(text)) - match.end()
        # A script that is shown says `exit 1` itself.
        is_statement = re.match(r"exit (?=\d)", match[0])
        if before[-1:] in {".", "-"} or (is_statement and _PATTERNS["before_statement"].search(before)):
            continue
        if len(before) <= _BEFORE and len(before.split()) <= _WORDS_BEFORE and behind <= _BEHIND:
            yield int(match[1])


def _decode_fields(fields: dict[str, Any]) -> Status:
    """Decode the fields of a result in JSON, and of what it is wrapped around, perhaps as text."""
    for inner in (fields, *(fields[key] for key in _INNER_KEYS if key in fields)):
        if isinstance(inner, str) and inner[:1] == "{":
            inner = decode_json(inner)
        if not isinstance(inner, dict):
            continue
        code = next((c for key in _CODE_KEYS if type(c := inner.get(key)) is int), None)
        error = inner.get("error")
        message = error if isinstance(error, str) and len(inner) <= _FEW_FIELDS else ""
        streams = (inner.get("stdout"), inner.get("stderr"))
        message = message or "\n".join(text for text in streams if text and isinstance(text, str))
        refused = any(inner.get(key) is False for key in ("success", "ok", "successful", "valid"))
        marked = inner.get("isError") is True or inner.get("is_error") is True
        status = inner.get("status", "")
        is_http = type(status) is int and status in _HTTP_ERRORS
        in_error = str(status).lower() in _STATES and ("tool" in inner or bool(error))
        # Another source answered, with nothing.
        instead = inner.get("fallback")
        lacks = isinstance(instead, dict) and bool(instead.get("reason")) and not inner.get("results")
        is_gone = re.search(r"/404\b", str(inner.get("url", ""))[:300]) is not None
        said = lacks or is_gone or (bool(error) and isinstance(error, str | dict))
        if code or refused or marked or is_http or in_error or said:
            return Status(True, code, message)
    return PASSED
