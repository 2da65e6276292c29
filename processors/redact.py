"""Take out secrets and the recorder's paths before anything else sees the text.

reads   cwd, session_id, source, history, prompt, diagnostics, corrections
writes  the same without cwd, redactions (a kind per secret)
"""

import re
from collections.abc import Callable
from typing import Any

from datasets import Features, List, Value

from pimono_sdpo.schema import EVIDENCE
from pimono_sdpo.stage import Map, Row
from processors.secrets import take_out

_SLASH = r"(?:\\{0,2}/|%2[Ff])"
_HOME = re.compile(
    rf"(?<![A-Za-z0-9.$-])(?:{_SLASH}mnt)?(?:{_SLASH}[A-Za-z])?{_SLASH}(?:Users|home){_SLASH}"
    r"[\w.@+-]+"
    r"|(?<![A-Za-z0-9.-])/(?:root|data/data/com\.termux/files/home)(?![\w-])"
    r"|(?<![A-Za-z])[A-Za-z]:(?:\\{1,4}|/)Users(?:\\{1,4}|/)"
    r"(?:[\w.+-]+(?: [\w.+-]+)?(?=[\\/])|[\w.+-]+)"
)
_DASHED_HOME = re.compile(r"(?<![\w-])--?(?:Users|home)-[A-Za-z0-9._]+(?=[-/])")
_USER = re.compile(r"(?:/(?:Users|home)/|[A-Za-z]:[\\/]+Users[\\/]+)([\w.-]{3,64})")
_TEMPORARY = re.compile(r"(?:/private)?/var/folders/\w{2}/\w{8,64}(?:/[TC])?(?![\w-])")
_NO_WORKSPACE = frozenset({"", "/", "/home", "/Users", "/tmp", "/mnt"})


def redact_text(text: str, cwd: str) -> tuple[str, list[str]]:
    """Return the text without secrets and machine paths, and the kinds of secrets found.

    >>> redact_text("token hf_abcdefghijklmnopqrstuvwx in /home/ann/app/a.py", "/home/ann/app")
    ('token [REDACTED:huggingface_token] in $WORKSPACE/a.py', ['huggingface_token'])
    """
    text, kinds = take_out(text)
    for spelled in _spellings(cwd):
        if spelled in text:
            text = re.sub(
                rf"(?<![A-Za-z0-9.$-]){re.escape(spelled)}(?![\w-]|\.\w)", "$WORKSPACE", text
            )
    user = _USER.match(cwd)
    if user and user[1] in text:
        # Known by name, it is found where nothing else would tell: glued to a word, at a prompt.
        name = re.escape(user[1])
        text = re.sub(rf"/(?:Users|home)/{name}(?![\w-])", "$HOME", text)
        text = re.sub(rf"(?<![\w.-]){name}@[\w.-]{{1,80}}", "$USER@$HOST", text)
    if "/var/folders/" in text:
        text = _TEMPORARY.sub("$TMPDIR", text)
    if any(name in text for name in ("Users", "home", "/root")):
        text = _DASHED_HOME.sub("-HOME", _HOME.sub("$HOME", text))
    return text, kinds


def _spellings(cwd: str) -> list[str]:
    """The workspace as it is, and as it reads inside JSON."""
    cwd = cwd.rstrip("/\\")
    if cwd in _NO_WORKSPACE:
        return []
    return list(dict.fromkeys([cwd, cwd.replace("/", "\\/"), cwd.replace("\\", "\\\\")]))


def redact(row: Row) -> dict[str, Any]:
    """Redact every text that can reach a training row."""
    found: list[str] = []

    def clean(text: str) -> str:
        cleaned, kinds = redact_text(text, row["cwd"])
        found.extend(kinds)
        return cleaned

    return {
        "session_id": clean(row["session_id"]),
        "source": clean(row["source"]),
        "history": _each(row["history"], clean, "content"),
        "prompt": clean(row["prompt"]),
        "diagnostics": _each(row["diagnostics"], clean, "text"),
        "corrections": _each(row["corrections"], clean, "text", "span"),
        "redactions": found,
    }


def _each(
    items: list[dict[str, Any]], clean: Callable[[str], str], *texts: str
) -> list[dict[str, Any]]:
    return [{**item, **{name: clean(item[name]) for name in texts}} for item in items]


_TEXTS = ("session_id", "source", "history", "prompt", "diagnostics", "corrections")
STAGE = Map(
    redact,
    reads=("cwd", *_TEXTS),
    writes=Features(
        {**{name: EVIDENCE[name] for name in _TEXTS}, "redactions": List(Value("string"))}
    ),
    tallies=("redactions",),
)
