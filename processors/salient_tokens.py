"""Find the salient tokens of a failure: files, codes and names that a good answer would mention."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pimono_sdpo.prefilter import read_patterns

MAX_TERMS = 32
MAX_PER_KIND = 8
MAX_PER_FILE = 3
MAX_LENGTH = 64
MAX_LINE = 500
_SCAN_CHARS = 20_000


class Kind(NamedTuple):
    """A kind of token; its pattern is tried only on words that contain the faster `needle`."""

    pattern: re.Pattern[str]
    needle: re.Pattern[str]


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_SHARED = {name: text for name, text in _TABLE.items() if isinstance(text, str)}
_NAMED, _NAMES = (re.compile(read_patterns(_SHARED)[name]) for name in ("named", "names"))
_IN_NAMED = (
    *("not found", " module", " package", "nknown ", "recogni", "nexpected ", "nvalid ", "llegal "),
    *("such ", "issing script"),
)
KINDS = tuple(
    Kind(re.compile(one["pattern"]), re.compile(one["needle"]))
    for one in (read_patterns({**_SHARED, **kind}) for kind in _TABLE["kinds"])
)
_WINDOWS_PATH = re.compile(r"(?:(?<![A-Za-z])[A-Za-z]:|\$(?:HOME|WORKSPACE))(?:\\{1,4}[\w.@-]{1,64}){1,20}")
_DRIVE = re.compile(r"\A[A-Za-z]:/+")
# A line about the inside of an interpreter, which is the same for every failure.
_INTERNAL = re.compile(
    r"\bnode:[\w/]{1,80}:\d|/lib/python3\.\d|/(?:site|dist)-packages/|<frozen |/rustc/"
    r"|/(?:go|libexec)/src/runtime/|/go/pkg/mod/|\.next/(?:server|static)/|\.p(?:yx|xi)\b|[/\\]_deps[/\\]"
    r"|(?:\bat|\u276f) [^\n]{0,200}node_modules[/\\]|^At line:\d"
    r"|\+ (?:CategoryInfo|FullyQualifiedErrorId)\b|^\s*requireStack: |\bPython[3.][\w.]{1,40}[/\\]+Lib[/\\]"
    r"|\(<anonymous>\)|\bCMakeFiles/[\w./-]{1,200}build\.make:\d|\bfrom /usr/(?:local/)?(?:include|lib)/"
    # A frame of a library in a browser's console; a line of the browser's own log.
    r"|(?:\bat |@)[^\n]{0,200}(?:\b(?:react-dom|scheduler|zone|jquery|vue-router)[\w.-]{0,40}"
    r"|\.(?:development|production|min|esm-bundler))\.m?js:\d|\[(?:\d{1,9}(?::\d{1,9})?:)?\d{4}/\d{6}[\d.]{0,8}:[A-Z]{4,8}\d?:[\w/.-]{1,200}[(:]\d"
    # A frame of the libraries of Elixir.
    r"|^\s*\((?:elixir|ex_unit|mix|logger|phoenix|plug|ecto|cowboy|bandit|db_connection)\w* \d[\w.-]*\) lib/"
    r"|^\s*(?:at |\[\w{1,40}: )?(?:System|Microsoft|javax?|jdk|sun|org\.junit|kotlin)\.[\w.$`<>+|]{1,200}[(\[]"
)
# The source lines that a traceback shows below a frame.
_FRAME_SOURCE = re.compile(
    r"(?m)^ *File [^\n]{0,300}(?:/lib/python3\.\d|-packages/|<frozen |Python[3.][\w.]{1,40}[/\\]+Lib[/\\])"
    r"[^\n]*(?:\n {4,}(?! *File )[^\n]*){1,2}"
)
# A frame of a traceback that only imports the file of the next one.
_IMPORTS = re.compile(
    r"(?m)^ *(?:File [^\n]{1,300}, line \d+,|[^\s:]{1,300}:\d+:) in <module>\n[> ] *(?:from|import) [^\n]*\n"
    r"(?:[ ^~]+\n)?(?= *(?:File |[^\s:]{1,300}:\d))"
)
# One of them is in every such line.
_IN_INTERNAL = (
    *("node:", "/lib/python3.", "-packages/", "<frozen ", "/rustc/", "/src/runtime/", "node_modules", "/go/pkg/mod/"),
    *(".next/", "_deps", ") lib/", ".pyx", ".pxi"),
    *("CategoryInfo", "FullyQualified", "At line:", "requireStack", "/Lib/", "\\Lib\\", "<anonymous>)"),
    *("System.", "Microsoft.", "java", "jdk.", "sun.", "org.junit.", "kotlin."),
    *("build.make:", "from /usr/", "js:", ":ERROR:", ":WARNING:", ":INFO:", ":FATAL:", ":VERBOSE"),
)
# What a line of an output says went wrong, or where.
_MESSAGE = re.compile(
    r"(?i)error|exception|fail|fatal|panic|cannot|\b(?:no|not|must|already)\b(?!-)|n't\b|unknown|unrecogni"
    r"|expected|missing|invalid|illegal|denied|refus|require|undefined|conflict"
    r"|[\u2717\u2718\u2a2f\u00d7]|\.\w{1,5}:\d+|\", line \d"
)
# Source, lists, warnings and passing tests that an output repeats; PowerShell marks the source by a plus.
_ECHO = re.compile(
    r"[+-](?: |\w+ [{*'\"])|>? ?\d+ ?[|\u2502]|[\u2713\u2714] |import |from \S+ import|const |let "
    r"|create mode |\[plugins\]|\*\*\* |@@|hint: |(?:\[[\d:.]{5,15}\] )?(?:npm )?(?:WARN|[Ww]arn(?:ing)?)\b"
)
# What PowerShell adds to an error, cut where the line is full.
_WRAPPED = re.compile(r"(?m)^ +\+ (?:CategoryInfo|FullyQualifiedErrorId)[^\n]*(?:\n {1,4}[^\s+][^\n]*){0,3}")
# The names of types and fields in the debug output of a struct or in JSON, and the lines that a patch lacks.
_STRUCT = re.compile(
    r"(?<=[{,])\s?\"\w{1,64}\"\s?:| \[\".*|\b[A-Z]\w{0,64}(?:\(| \{)"
    r"|(?:(?<=[{,] )|(?<=\{))[a-z_]{1,64}: (?:[A-Z]\w{0,64}\b)?"
)
_WORD_END = re.compile(r"[ \n]")
_REDACTED = re.compile(r"\[REDACTED:\w{1,40}\]")
# What a channel says of the sender of a message.
_METADATA = re.compile(r"(?ms)^\w[\w ]{0,40} \(untrusted[^\n]{0,80}:\s{0,4}```json.*?```|\[message_id: [\w-]{1,80}\]")
# A word whose end is cut off, the parameter of a route, and what stands for a real path or address.
_UNREAL = re.compile(
    r"[\w./@:-]+(?:\.{3}|\u2026)(?!\S)|(?<=/)(?:\[{1,2}[.\w]{1,64}\]{1,2}|:[A-Za-z]\w{0,63})"
    r"|[\w./-]{0,64}\bpath/to/[\w./-]*|[\w.+-]{1,64}@example\.[a-z]{2,4}"
)
_IN_UNREAL = ("...", "\u2026", "/[", "/:", "path/to/", "@example.")
_PLACE = re.compile(r"^.*\$(?:workspace|home)/")
_EDGE = re.compile(r"\A(?!--\w)(?:[/@-]|\.(?!\w)){1,64}|[./@-]{1,64}\Z")
# Hashes, ids and what redaction or a cut left of them; versions.
_RANDOM = re.compile(
    r"\Av?\d+(?:\.\d+)+\Z|(?:\A|[^a-z0-9])(?=[a-z]*\d)[0-9a-f]{6,64}(?![a-z0-9])|(?=[a-z]*\d[a-z]+\d)[a-z0-9]{16}"
    r"|\A__\w{1,60}__\Z|\A(?:line|char|block|col|column|zsh|bash|sh|eval|cd):\d|\Ato(?:be|equal|contain|have|match|throw)"
    # The set-up of tests, which is in every backtrace.
    r"|(?:\A|/)(?:(?:rails|spec|test)_helper\.rb|conftest\.py|(?:spec|tests?)/support/[\w./-]{1,64})(?::\d+)?\Z"
)
_GENERIC = frozenset(
    """
    error errors exception file node_modules package.json package-lock.json index.ts index.js node.js utf-8
    dev/null content-type application/json appdata iphone ipad github powershell in_progress exec_command
    write_stdin apply_patch createprocess createprocesscommon exit_code is_error env:1 sessionid sessionkey
    tool_use_id message_id status_code remoteexception nativecommanderror triggeruncaughtexception oldtext newtext
    old_string new_string sigint sigterm peeroptional windowsapps pythonsoftwarefoundation src lib app bin test
    tests spec python python3 node npm pytest path file name type key value data config index main chat auth
    message foreach run call invoke execute parameter tools util platform api nope linuxseccomp fatalerror
    stacktrace errorcapturestacktrace
    """.split()
)


def find_salient_tokens(texts: Iterable[str], limit: int = MAX_TERMS) -> list[str]:
    """Return lower-cased distinct tokens, the most concrete kind first, in order of appearance.

    >>> find_salient_tokens(["at node:internal/promises:332\\n readConfig(src/a.ts:3)"])
    ['src/a.ts:3', 'src/a.ts', 'readconfig']
    """
    # One scan for all texts: no token contains the separator or depends on it.
    read = "\0\n".join(_drop_noise(text[:_SCAN_CHARS]) for text in texts)
    telling = (line for line in read.split("\n") if any(sign in line for sign in _IN_NAMED))
    named = (match[1] or match[2] for match in _NAMED.finditer("\n".join(telling)))
    terms: dict[str, None] = {}
    for tokens in (named, *(find_tokens(kind, read) for kind in KINDS)):
        new: dict[str, None] = {}
        for token in tokens:
            term = _EDGE.sub("", _PLACE.sub("", token.lower()))
            if term not in terms and term not in new and _is_telling(term):
                new[term] = None
                if len(new) == MAX_PER_KIND:
                    break
        files = [term.rpartition(":")[0] for term in new]
        alike = (file and files[:number].count(file) >= MAX_PER_FILE for number, file in enumerate(files))
        terms |= {term: None for term, is_further in zip(new, alike, strict=True) if not is_further}
    return list(terms)[:limit]


def select_messages(text: str, all_lines: bool = False) -> str:
    """Return the lines that say what went wrong, or all that repeat no source without such a line.

    >>> select_messages("> 3 | sumOf(x)\\nsum_of is ready\\nfailed: Io(Error { kind: NotFound })")
    'failed:   })'
    """
    text = _drop_noise(_WRAPPED.sub("", text[:_SCAN_CHARS]))
    lines = [one for one in text.splitlines() if not _ECHO.match(one.lstrip())]
    telling = [one for one in lines if all_lines or _MESSAGE.search(one)] or lines
    return "\n".join(_STRUCT.sub("", one) if " { " in one or ' ["' in one or '":' in one else one for one in telling)


def find_names(commands: Iterable[str], limit: int = MAX_PER_KIND) -> list[str]:
    """Return the packages and files of command lines, lower-cased.

    >>> find_names(["npx -y @acme/cli@latest build --fast lib/a.vue"])
    ['@acme/cli', 'lib/a.vue']
    """
    found = (_NAMES.findall(_drop_noise(text)) for text in commands)
    terms = (_PLACE.sub("", token.lower()).strip("./") for names in found for token in names)
    return [*dict.fromkeys(filter(_is_telling, terms))][:limit]


def _drop_noise(text: str) -> str:
    # A longer line is minified code, whose names say nothing about the failure.
    if ":\\" in text or "$HOME\\" in text or "$WORKSPACE\\" in text:
        text = _WINDOWS_PATH.sub(lambda m: _DRIVE.sub("", re.sub(r"\\+", "/", m[0])), text)
    lines = text.replace("\\n", "\n").split("\n")
    text = "\n".join(line for line in lines if len(line) < MAX_LINE)
    text = _IMPORTS.sub("", text) if "in <module>" in text else text
    if shown := [sign for sign in _IN_INTERNAL if sign in text]:
        lines = _FRAME_SOURCE.sub("", text).split("\n")
        text = "\n".join(
            line for line in lines if not (any(sign in line for sign in shown) and _INTERNAL.search(line))
        )
    text = _METADATA.sub("", text) if "[message_id:" in text or "(untrusted" in text else text
    if any(sign in text for sign in _IN_UNREAL):
        # The pattern is slow where it finds nothing, and no match spans lines.
        lines = text.split("\n")
        found = (any(sign in line for sign in _IN_UNREAL) for line in lines)
        cleaned = (_UNREAL.sub("", one) if has else one for one, has in zip(lines, found, strict=True))
        text = "\n".join(cleaned)
    return _REDACTED.sub("", text) if "[REDACTED" in text else text


def find_tokens(kind: Kind, text: str) -> Iterator[str]:
    """Yield what the pattern finds, word by word; no token contains a space."""
    at = 0
    while hit := kind.needle.search(text, at):
        start = hit.start()
        start = max(text.rfind(" ", at, start), text.rfind("\n", at, start), at - 1) + 1
        # Include the character after the word, which a pattern may look at.
        end = _WORD_END.search(text, hit.end())
        at = end.end() if end else len(text)
        yield from kind.pattern.findall(text, start, at)


def _is_telling(term: str) -> bool:
    return (
        2 <= len(term) <= MAX_LENGTH
        and term not in _GENERIC
        and "redacted" not in term
        # A frame inside a dependency is the same for every failure that passes through it.
        and "node_modules" not in term
        and not _RANDOM.search(term)
    )
