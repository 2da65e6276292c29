"""Take out secrets, the recorder's paths and names before anything else sees the text.

reads   cwd, identity, secrets, history, prompt, findings, tools
writes  the same, redactions (a kind per secret)
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from datasets import Features, List, Value

from pimono_sdpo.prefilter import compile_patterns
from pimono_sdpo.schema import EVIDENCE
from pimono_sdpo.stage import Map, Row
from pimono_sdpo.text import shorten_line
from pimono_sdpo.traces.parse import Trace
from processors.identity import find_identity, redact_identity
from processors.secrets import find_secret_values, redact_known_secrets, redact_secrets

_PATTERNS = compile_patterns(Path(__file__).with_name("wording.toml"), "homes")
HOME, DASHED_HOME = _PATTERNS["home"], _PATTERNS["dashed_home"]
# One of them is in every path to a home folder.
_IN_HOMES = ("sers", "home", "/root")
_IN_DASHED_HOMES = ("-Users-", "-home-")
_PATH_STARTS = re.compile(r"(?<![A-Za-z0-9.$-])")
_PATH_ENDS = re.compile(r"(?![\w-]|\.\w)")
# A public key of SSH names who made it, and where.
_KEY_COMMENT = re.compile(
    r"\b((?:ssh-|ecdsa-|sk-)[\w@.-]{1,40} AAAA[A-Za-z0-9+/=]{20,2000} )[\w.-]{1,60}@[\w.-]{1,80}"
)
_NO_WORKSPACE = frozenset({"", "/", "/home", "/Users", "/tmp", "/mnt"})


# Names of tools, files and commands come again and again, and so does what a file holds.
_REMEMBERED = 20_000
STEP_CHARS = 200
# The workspace, and what `identify` returns.
Private = tuple[str, Sequence[str] | None, Sequence[str]]


def redact_text(
    text: str, cwd: str, identity: Sequence[str] | None = (), secrets: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """Return the text without secrets, machine paths and names, and the kinds of what was found.

    `identity` and `secrets` are what `identify` has found; None keeps user and host.

    >>> redact_text("token hf_abcdefghijklmnopqrstuvwx in /home/ann/app/a.py", "/home/ann/app")
    ('token [REDACTED:huggingface_token] in $WORKSPACE/a.py', ['huggingface_token'])
    """
    names = None if identity is None else tuple(identity)
    text, kinds = (_redact_again if len(text) <= _REMEMBERED else _redact)(text, cwd, names, tuple(secrets))
    return text, [*kinds]


def redact_json(value: Any, private: Private, found: list[str] | None = None) -> Any:
    """Redact a text, or all texts and keys of decoded JSON; `found` gets the kinds that occurred in texts."""
    if isinstance(value, str) and value:
        value, kinds = redact_text(value, *private)
        if found is not None:
            found += kinds
    if isinstance(value, list):
        return [redact_json(one, private, found) for one in value]
    if isinstance(value, dict):
        return {redact_text(key, *private)[0]: redact_json(one, private, found) for key, one in value.items()}
    return value


def _redact(text: str, cwd: str, names: tuple[str, ...] | None, secrets: tuple[str, ...]) -> tuple[str, list[str]]:
    text, kinds = redact_secrets(text)
    text, known = redact_known_secrets(text, secrets)
    spellings, user = read_workspace(cwd)
    for spelled in spellings:
        if spelled in text:
            text = redact_workspace(text, spelled)
    if user and user in text:
        text = _redact_user(text, user, keep=names is None)
    if names is not None and " AAAA" in text:
        text = _KEY_COMMENT.sub(r"\1$USER@$HOST", text)
    if "/var/folders/" in text:
        text = _PATTERNS["temporary"].sub("$TMPDIR", text)
    text, named = redact_identity(redact_homes(text), names or ())
    return text, [*kinds, *known, *named]


_redact_again = lru_cache(maxsize=512)(_redact)


def redact_workspace(text: str, spelled: str) -> str:
    """Replace the workspace by $WORKSPACE, without compiling a pattern for each session."""
    kept: list[str] = []
    done, at = 0, text.find(spelled)
    while at >= 0:
        end = at + len(spelled)
        is_whole = _PATH_STARTS.match(text, at) and _PATH_ENDS.match(text, end)
        if is_whole:
            kept += text[done:at], "$WORKSPACE"
            done = end
        at = text.find(spelled, end if is_whole else at + 1)
    return "".join([*kept, text[done:]])


def _redact_user(text: str, user: str, keep: bool) -> str:
    """Redact the user's name where only the name shows it: glued to a word, at a prompt."""
    name = re.escape(user)
    if any(f"{sign}{user}" in text for sign in "/\\~"):
        drive = r"(?:(?<![A-Za-z])[A-Za-z]:)?"
        home = rf"(?:{drive}[\\/]{{1,4}}(?:Users|home)[\\/]{{1,4}}|(?<![\w~])~){name}(?![\w-])"
        text = re.sub(home, "$HOME", text)
    if keep:
        return text
    if f"{user}@" in text:
        text = re.sub(rf"{name}@[\w.-]{{1,80}}", "$USER@$HOST", text)
    if "rw" in text or "r-" in text:
        for owner in (r"", r"\$USER\s{1,8}"):
            listed = rf"(?m)^({_PATTERNS['mode'].pattern}{owner}){name}(?=\s)"
            text = re.sub(listed, r"\1$USER", text)
    return text


def redact_homes(text: str) -> str:
    """Replace home folders by $HOME, searching only lines with words that may belong to one."""
    if not any(word in text for word in _IN_HOMES):
        return text
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if any(word in line for word in _IN_HOMES):
            # The pattern may need the end of the line before.
            lines[at] = HOME.sub("$HOME", f"\n{line}")[1:]
            if any(name in line for name in _IN_DASHED_HOMES):
                lines[at] = DASHED_HOME.sub("-HOME", lines[at])
    return "\n".join(lines)


def identify(
    session: str | bytes | None, trace: Trace, recorder: Sequence[str] | None
) -> tuple[list[str] | None, list[str]]:
    """Return the names to redact in a session, None to keep them, and the secrets that the user stated.

    `session` is its JSONL and `trace` what was read from it; `recorder` are names that are known,
    None to keep all.
    """
    stated = {value for e in trace.events if e.kind == "user" for value in find_secret_values(e.text)}
    if recorder is None:
        return None, sorted(stated)
    # A user may paste what a command has answered.
    commands = [e.text if e.kind == "user" else e.arguments for e in trace.events]
    return find_identity(session or b"", read_workspace(trace.cwd)[1], recorder, commands), sorted(stated)


@lru_cache(maxsize=64)
def read_workspace(cwd: str) -> tuple[list[str], str]:
    """Return the workspace as it is and as it is escaped in JSON, and the user it belongs to."""
    user = _PATTERNS["user"].match(cwd)
    cwd = cwd.rstrip("/\\")
    spellings = [cwd, cwd.replace("/", "\\/"), cwd.replace("\\", "\\\\"), cwd.replace("\\", "/")]
    spellings += [s[:1].lower() + s[1:] for s in spellings if s[1:2] == ":"]
    return [] if cwd in _NO_WORKSPACE else list(dict.fromkeys(spellings)), user[1] if user else ""


def redact(row: Row) -> dict[str, Any]:
    """Redact every text that can reach a training row; then shorten the calls after a failure."""
    found: list[str] = []
    known: set[str] = set()
    private = row["cwd"], row["identity"], row["secrets"]

    def clean(text: str) -> str:
        cleaned, kinds = redact_text(text, *private) if text else ("", [])
        if kinds:
            found.extend(kinds)
            known.update(find_secret_values(text))
        return cleaned

    cleaned = {name: _map_texts(row[name], clean) for name in _TEXTS}
    if known:
        # What is named in one text may stand in another without a name.
        values = tuple(sorted(known))
        cleaned = _map_texts(cleaned, lambda text: redact_known_secrets(text, values)[0])
    for item in cleaned["findings"]:
        # Not before, as half of a secret is not recognised.
        for name in ("next", "resolved_by"):
            item[name] = shorten_line(item[name], STEP_CHARS)
        # The words that showed a correction may begin or end within a secret.
        if item["span"].lower() not in item["text"].lower():
            item["span"] = ""
    return {**cleaned, "secrets": sorted(known.union(row["secrets"])), "redactions": found}


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: v if name in _OWN_WORDS else _map_texts(v, change) for name, v in value.items()}
    return [_map_texts(one, change) for one in value] if isinstance(value, list) else value


# Fields that hold none but words of ours, such as the names of categories.
_OWN_WORDS = frozenset({"kind", "status", "categories", "excuse", "fault", "rule", "role"})
_TEXTS = ("history", "prompt", "findings", "cwd", "tools")
STAGE = Map(
    redact,
    reads=("identity", "secrets", *_TEXTS),
    writes=Features({**{name: EVIDENCE[name] for name in ("secrets", *_TEXTS)}, "redactions": List(Value("string"))}),
    tallies=("redactions",),
)
