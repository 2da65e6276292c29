"""Find the names of who recorded a session, and of the machine, and replace them in texts.

A name counts only where something says whose it is: the home folder, the settings of git, an author
whose name or address fits the home folder, a prompt, `uname`. What is also an ordinary word, or an
account of many machines such as `test`, stays.
"""

import os
import pwd
import re
import socket
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path

import msgspec

from pimono_sdpo.prefilter import compile_patterns
from pimono_sdpo.text import replace_surrogates

USER, HOST = "$USER", "$HOST"
# So many uses of a part of a name in small letters show that it is an ordinary word.
WORD_USES = 3
KINDS = {USER: "user_name", HOST: "host_name"}
_ORDINARY = compile_patterns(Path(__file__).with_name("wording.toml"), "identity")["ordinary"]
# Not below another folder, but for a drive; a character of JSON may be escaped before it.
_HOME = re.compile(rb"(?:(?<![\w.$~@)}-])|(?<=\\[bfnrt])|(?<=/[A-Za-z]))/(?:Users|home)/([\w.-]{3,64})")
_NAME = rb"((?:[^<>\"'\\\n=(){};,&|$]|\\u[0-9a-f]{4}){3,60})"
_AUTHOR = re.compile(rb"Author: +" + _NAME + rb" <([\w.+-]{1,64})@")
# Git prints it on a line of its own, and receives it in quotes; in code this is an attribute.
_TOLD = rb"(?:(?<=config )|(?<=lobal )|(?<=local ))user\.name +\\?[\"']"
_PRINTED = rb"(?:(?<=\\n)|(?<=\"))user\.name="
_SETTING = re.compile(rb"(?:" + _PRINTED + rb"|" + _TOLD + rb")" + _NAME + rb"[\"'\\]")
_UNAME = re.compile(rb"(?:Linux|Darwin) ([\w-]{3,60})[\w.-]* \d+\.\d[\w.+~-]* (?:#|Darwin)")
# Git says so where neither `user.email` nor the host's domain is known.
_NO_ADDRESS = b"auto-detect email address (got '"
_GOT = re.compile(re.escape(_NO_ADDRESS) + rb"([^@'\\]{1,64})@([\w-]{3,60})\.\(none\)")


def find_own_names() -> list[str]:
    """Return the names of this machine and of its user, as `find_identity` does."""
    account = pwd.getpwuid(os.getuid())
    host = socket.gethostname().partition(".")[0]
    return _list_names([account.pw_name, *_spell(account.pw_gecos.partition(",")[0])], [host])


def find_identity(
    trace: str | bytes, user: str, own: Sequence[str] = (), commands: Sequence[str] | None = None
) -> list[str]:
    """Return the names in a session, each behind its placeholder and `=`, the longest first.

    `trace` is its JSONL, `user` whom its working directory belongs to or "", `own` are names that
    are known without it. What git and `uname` answer is searched for only where one of `commands`
    asks them, unless it is None.

    >>> find_identity(b"Author: Ann Lee <ann.lee@x.org>, annlee@anns-mac:~$", "annlee")
    ['$HOST=anns-mac', '$USER=Ann Lee', '$USER=annlee']
    """
    if isinstance(trace, str):
        trace = replace_surrogates(trace).encode()
    homes = (hit for start in (b"/Users/", b"/home/") for hit in _find(trace, start, _HOME))
    user = user or next((hit[1].decode() for hit in homes), "")
    users = [user]
    if commands is None or any("git " in one and " config" in one for one in commands):
        for hit in _find(trace, b"user.name", _SETTING):
            users += _spell(_decode(hit[1]), trace)
    hosts: list[str] = []
    for hit in _find(trace, _NO_ADDRESS, _GOT):
        users.append(_decode(hit[1]))
        hosts.append(hit[2].decode())
    hosts += (hit[1].decode() for hit in _find(trace, b"@", _prompt_of(user or "root")))
    for hit in _find(trace, b"Author: ", _AUTHOR) if user else ():
        name = _decode(hit[1])
        if _fits(user.lower(), name.lower(), hit[2].decode().lower()):
            users += _spell(name, trace)
    if b"uname" in trace if commands is None else any("uname" in one for one in commands):
        for system in (b"Linux ", b"Darwin "):
            hosts += (hit[1].decode() for hit in _find(trace, system, _UNAME))
    found = _list_names(users, hosts)
    return sorted({*found, *own}, key=lambda one: (-len(one), one))


@lru_cache(maxsize=256)
def _prompt_of(user: str) -> re.Pattern[bytes]:
    # Unlike an address, a host at a prompt has no domain but that of a local network.
    domain = r"(?:\.(?:local|lan|home|internal))?(?=:[~/\\$]|[ \]])"
    # The single sign is found many times faster than the names before it.
    return re.compile(rf"(?:(?<=root)|(?<={re.escape(user)}))@([\w-]{{3,60}}){domain}".encode())


def _find(trace: bytes, start: bytes, pattern: re.Pattern[bytes]) -> Iterator[re.Match[bytes]]:
    """Yield the matches of a pattern, which is tried only where its beginning is found."""
    at = trace.find(start)
    while at >= 0:
        if found := pattern.match(trace, at):
            yield found
        at = trace.find(start, at + len(start))


def _decode(name: bytes) -> str:
    """Read a name as JSON spells it."""
    try:
        return msgspec.json.decode(b'"' + name + b'"', type=str).strip()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _spell(name: str, trace: bytes = b"") -> list[str]:
    """Return a full name, and those of its parts that are long and not used as words in the trace."""
    if " " not in name:
        return [name]
    return [name, *(part for part in name.split() if len(part) > 3 and not _is_word(part, trace))]


def _is_word(part: str, trace: bytes) -> bool:
    """Return whether a capitalised part of a name is often written in small letters, as a word is."""
    word = part.lower()
    if word == part or not word.isascii():
        return False
    as_word = re.compile(rb"(?<=[ (*])" + re.escape(word.encode()) + rb"s?(?=[ ,.;:!?)*])")
    return sum(1 for _ in islice(as_word.finditer(trace), WORD_USES)) == WORD_USES


def _fits(user: str, name: str, address: str) -> bool:
    """Return whether an author is the user by the name or the address, all in small letters."""
    parts = re.findall(r"\w+", name) or [name]
    joined = "".join(parts)
    spelled = {address, joined, *parts, parts[0][0] + parts[-1], parts[0] + parts[-1][0]}
    return re.sub(r"[\W_]", "", user) in {re.sub(r"[\W_]", "", one) for one in spelled}


def _list_names(users: Sequence[str], hosts: Sequence[str]) -> list[str]:
    named = [*((USER, name) for name in users), *((HOST, name) for name in hosts)]
    return [
        f"{placeholder}={name}"
        for placeholder, name in dict.fromkeys(named)
        if len(name) > 2 and not _ORDINARY.fullmatch(name)
    ]


def redact_identity(text: str, names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the text with placeholders for the names, and the kind of each that was there.

    >>> redact_identity("Ann says annotate, ann", ["$USER=ann"])
    ('$USER says annotate, $USER', ['user_name', 'user_name'])
    """
    kinds: list[str] = []
    for one in names:
        placeholder, _, name = one.partition("=")
        # A name as it is, and as a sentence begins with it.
        if name in text or name.capitalize() in text:
            text, count = _compile(name).subn(placeholder, text)
            kinds += [KINDS[placeholder]] * count
    return text, kinds


@lru_cache(maxsize=256)
def _compile(name: str) -> re.Pattern[str]:
    spelled = "|".join(map(re.escape, dict.fromkeys((name, name.capitalize()))))
    return re.compile(rf"(?<![^\W_])(?:{spelled})(?![^\W_])")
