"""Find the files that a command line shows, and those that it may have changed."""

import re
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pimono_sdpo.shell import MAX_CHARS, Pipeline, Stage, parse_command

# A line with its number, and the name of its file if several were searched.
_NUMBERED = re.compile(r"(?:(?P<file>[^\s:]{1,300}?\.\w{1,10})[:-])?\s*(?P<at>\d{1,7})[:\t→|-](?P<text>.*)")
_WORDS_OF = re.compile(r"[^\s'\"`;|&<>=,]+")
_NAMED = re.compile(r".{0,300}\.[A-Za-z]\w{0,15}(?![\w.])")


def find_shown_lines(command: str, output: str) -> dict[str, str]:
    """Return the lines that a command has shown, by the files that they may come from.

    >>> find_shown_lines("cd src && grep -n 'let' a.ts", "3:let a = 1;")
    {'src/a.ts': 'let a = 1;'}
    """
    lines_of: dict[str, list[str]] = {}
    last = 0
    for line in output.split("\n"):
        if match := _NUMBERED.match(line):
            lines = lines_of.setdefault(match["file"] or "", [])
            if lines and int(match["at"]) != last + 1:
                # There are other lines in between.
                lines.append("\ufffd")
            lines.append(match["text"])
            last = int(match["at"])
        else:
            lines_of.setdefault("", []).append(line)
    words = map(_NAMED.match, _WORDS_OF.findall(command[:MAX_CHARS]))
    named = dict.fromkeys(match[0] for match in words if match)
    folder = _split_folder(command)[0]
    texts = {name: "\n".join(lines) for name, lines in lines_of.items()}
    nameless = texts.pop("", "")
    texts = {name: nameless for name in named if nameless.strip()} | texts
    return {_join_path(folder, name): text for name, text in texts.items()}


class Shows(NamedTuple):
    """A file that a command shows, from the line `first` to `last` or to its end."""

    path: str
    first: int = 1
    last: int | None = None
    is_numbered: bool = False


_RANGE = re.compile(r"(\d{1,7}),(\d{1,7})p")
# head -n 9, Get-Content -TotalCount 9, Select-Object -Skip 3 -First 9
_COUNTS = re.compile(r"(?i)-(n|lines|skip|first|head|totalcount)\Z")


def find_shown_file(command: str) -> Shows | None:
    """Return the file that a command shows, and which lines of it; None if it shows none.

    >>> find_shown_file("cd /app && cat src/a.ts"), find_shown_file("nl -ba a.ts | sed -n '1,9p'")
    (Shows(path='/app/src/a.ts', first=1, last=None, is_numbered=False), Shows(path='a.ts', first=1, last=9, is_numbered=True))
    """  # noqa: E501
    folder, pipelines = _split_folder(command.replace("\\", "/") if "Get-Content" in command else command)
    if len(pipelines) != 1 or any(stage.targets for stage in pipelines[0].stages):
        return None
    names: list[str] = []
    first, last, is_numbered = 1, None, False
    allowed = {"cat", "nl", "sed", "head", "Get-Content"}
    for stage in pipelines[0].stages:
        if stage.program not in allowed:
            return None
        allowed = {"sed", "head", "Select-Object"}
        is_numbered |= stage.program == "nl"
        counts: dict[str, int] = {}
        for before, word in pairwise(("", *stage.arguments, "")):
            option, lines = _COUNTS.match(before), _RANGE.fullmatch(word)
            if option and word.isdigit():
                counts[option[1].lower()] = int(word)
            elif stage.program == "sed" and lines:
                first, last = int(lines[1]), int(lines[2])
            elif word.startswith("-"):
                if not re.fullmatch(r"(?i)-(?:ba|raw|path|encoding)", word) and not _COUNTS.match(word):
                    return None
            elif word and before.lower() != "-encoding":
                names.append(word)
        if stage.program == "sed" and last is None:
            return None
        if counts:
            first = counts.pop("skip", 0) + 1
            last = first - 1 + next(iter(counts.values())) if counts else last
    if len(names) != 1 or not first:
        return None
    return Shows(_join_path(folder, names[0]), first, last, is_numbered)


def _split_folder(command: str) -> tuple[str, list[Pipeline]]:
    """Return the folder of a leading `cd FOLDER &&`, or "", and the pipelines after it."""
    pipelines = parse_once(command)
    if len(pipelines) == 2 and pipelines[0].then == "&&" and len(pipelines[0].stages) == 1:
        first = pipelines[0].stages[0]
        if first.program == "cd" and len(first.arguments) == 1:
            return first.arguments[0], pipelines[1:]
    return "", pipelines


@lru_cache(maxsize=8)
def parse_once(command: str) -> list[Pipeline]:
    """Parse a command and cache the result, which callers must not change."""
    return parse_command(command)


def _join_path(folder: str, name: str) -> str:
    """Return a path relative to a folder as a path relative to the folder's parent."""
    return name if not folder or name.startswith("/") else f"{folder.rstrip('/')}/{name}"


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_WORDS = {name: frozenset(_TABLE[name].split()) for name in _TABLE if isinstance(_TABLE[name], str)}
_PATTERNS = {name: re.compile("|".join(alternatives)) for name, alternatives in _TABLE["patterns"].items()}
_IN_PLACE = {program: re.compile(option) for program, option in _TABLE["in_place"].items()}
_PACKAGES = re.compile(rf"\b(?:{'|'.join(sorted(_WORDS['packages']))})\b")
_READING_TARGET = re.compile(
    rf"(?::?[\w-]+:)*(?:(?:assemble|bundle|compile)\w*|(?:{'|'.join(sorted(_WORDS['reading_targets']))})(?::[\w-]+)*)"
)


def find_git_changes(arguments: Sequence[str]) -> set[str] | None:
    """Return the files that a git command may have changed, None if it may be any file.

    >>> find_git_changes(("checkout", "--", "a.ts"))
    {'a.ts'}
    """
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] in _WORDS["git_options_with_value"] else 1
    words = arguments[at:]
    if not words or words[0] not in _WORDS["git_changes"]:
        return set()
    subcommand, rest = words[0], list(words[1:])
    named = {word for word in rest if not word.startswith("-")}
    if subcommand == "reset":
        return None if {"--hard", "--merge", "--keep"} & set(rest) else set()
    if subcommand == "restore":
        return named or None
    if subcommand in {"checkout", "switch"}:
        return set(rest[rest.index("--") + 1 :]) if "--" in rest else None
    if subcommand in {"rm", "mv"}:
        return set() if "--cached" in rest else named
    return None


@dataclass
class Changes:
    """The files that a command line may have changed: those with these `names`, or `anything`."""

    names: set[str] = field(default_factory=set)
    anything: bool = False


# Returns the text of a script by its name, None if it is unknown.
FindScript = Callable[[str], str | None]


def find_changes(command: str, output: str, find_script: FindScript = lambda path: None) -> Changes:
    """Find the files that a command line may have changed, given its output."""
    changes = Changes()
    # Only the beginning of a long command is parsed.
    changes.anything = len(command) > MAX_CHARS or _runs_for_each(command) or bool(_PATTERNS["hidden"].search(command))
    for pipeline in parse_once(command):
        for stage in pipeline.stages:
            changes.anything |= _is_script(stage)
            changes.anything |= stage.program in _WORDS["runners"] and bool(_PATTERNS["says_fixed"].search(output))
            changes.names.update(stage.targets)
            if stage.role == "runs" and _PATTERNS["checks"].search(" ".join((stage.program, *stage.arguments[:3]))):
                changes.anything |= _may_format(stage, output)
                continue
            names = _find_stage_changes(stage, command, find_script)
            changes.anything |= names is None
            changes.names |= names or set()
    return changes


def _is_script(stage: Stage) -> bool:
    """Return whether a stage runs a script, or another program, that may change any file."""
    if stage.program not in _WORDS["runners"]:
        return False
    words = [
        word
        for before, word in pairwise(("", *stage.arguments))
        if not word.startswith("-") and before not in _WORDS["runner_options_with_value"]
    ]
    if stage.program in {"npm", "pnpm", "yarn"} and words[:1] in (["run"], ["run-script"]):
        words = words[1:]
    if stage.program == "docker":
        return bool({"run", "exec"} & set(words[:2]))
    return bool(words) and not _READING_TARGET.fullmatch(words[0]) and stage.program != "cargo"


def _may_format(stage: Stage, output: str) -> bool:
    """Return whether a linter or formatter may have rewritten files, by its output or its options."""
    formats = _PATTERNS["formats"].search(" ".join((stage.program, *stage.arguments)))
    says_so = _PATTERNS["fixed"].search(output) or _PATTERNS["hooks"].search(output)
    return bool(says_so or (formats and "--check" not in stage.arguments and "--diff" not in stage.arguments))


def _runs_for_each(command: str) -> bool:
    """Return whether a program runs on files that the command line does not name."""
    # Searching a long script for the pattern would take longer than everything else.
    is_possible = any(word in command for word in ("xargs", "-exec", "-delete", "-ok"))
    runs = is_possible and _PATTERNS["for_each"].search(command)
    return bool(runs) and not _PATTERNS["reads_each"].search(command)


def _find_stage_changes(stage: Stage, command: str, find_script: FindScript) -> set[str] | None:
    """Return the names of the files that a program may have changed, None if it may be any file."""
    words = {word for word in stage.arguments if word and not word.startswith("-")}
    if stage.program == "git":
        return find_git_changes(stage.arguments)
    if stage.program == "gh":
        return None if _WORDS["github_checks_out"] & set(stage.arguments[:3]) else set()
    if stage.program == "cp" and "-t" not in stage.arguments:
        return set([word for word in stage.arguments if not word.startswith("-")][-1:])
    if stage.program in _WORDS["writers"]:
        option = _IN_PLACE.get(stage.program)
        is_written = option is None or any(map(option.match, stage.arguments))
        return words - _find_code(stage) if is_written else set()
    if stage.program in _WORDS["unpack"]:
        return None
    if stage.role != "runs":
        return set()
    text = " ".join((stage.program, *stage.arguments))
    program, rest = stage.program, list(stage.arguments)
    if program in _WORDS["rewriters"] or _PATTERNS["rewrites"].search(text):
        return None
    if program == "npx":
        at = next((at for at, word in enumerate(rest) if not word.startswith("-")), len(rest))
        program, rest = "".join(rest[at : at + 1]).partition("@")[0], rest[at + 1 :]
        if program not in {*_WORDS["npx_leaves_sources"], *_WORDS["interpreters"]}:
            return None
    if program in _WORDS["interpreters"]:
        if _PATTERNS["inline"].search(command):
            return find_written(command)
        program = next((word for word in rest if not word.startswith("-")), "")
    if program not in _WORDS["runners"] and _PATTERNS["script"].search(program):
        # The code of a script is unknown unless the session has shown it.
        code = find_script(program)
        return None if code is None else find_written(code)
    changes_manifests = stage.program in _WORDS["package_managers"] and _PACKAGES.search(text)
    return set(_WORDS["manifests"]) if changes_manifests else set()


def _find_code(stage: Stage) -> set[str]:
    """Return the arguments of sed and perl that are certainly code rather than files."""
    words = [word for word in stage.arguments if word]
    if stage.program not in {"sed", "gsed", "perl"}:
        return set()
    scripts = {after for word, after in pairwise(words) if re.fullmatch(r"-[A-Za-z]*e", word)}
    if scripts or stage.program == "perl" or any(re.match(r"-\w*[ef]|--", word) for word in words):
        return scripts
    return set([word for word in words if not word.startswith("-")][:1])


def find_written(code: str) -> set[str] | None:
    r"""Return the string literals in code that may be names of files it writes, None if it may write any file.

    >>> sorted(find_written("python3 -c \"open('a.ts', 'w').write('x')\""))
    ['a.ts', 'x']
    """
    if not _PATTERNS["writes"].search(code):
        return set()
    # It lists folders or builds paths.
    if _PATTERNS["any_path"].search(code):
        return None
    literals = _PATTERNS["literal"].findall(_PATTERNS["no_name"].sub("", code))
    return {name for groups in literals for name in groups if name}
