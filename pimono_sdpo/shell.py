"""Parse command lines into pipelines of programs, to find which program an output or exit status comes from.

Words, quotes, heredocs and operators are recognised; nothing is expanded. shell.toml lists the programs.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

MAX_CHARS = 20_000
MAX_DEPTH = 3

# What a program does: `runs` prints its own output, `reads` prints the content of files, `searches` does
# so too and exits with 1 without a match, `quiet` prints little and rarely fails.
Role = Literal["runs", "reads", "searches", "quiet"]


class Stage(NamedTuple):
    """One program of a pipeline; `targets` are the files that it writes its output to."""

    program: str
    arguments: tuple[str, ...]
    targets: tuple[str, ...]
    role: Role


class Pipeline(NamedTuple):
    """Stages joined by `|`, and the operator after the last one."""

    stages: tuple[Stage, ...]
    then: str


_TOKEN = re.compile(
    r"""(?P<blank>(?:[ \t\r]|\\\r?\n)+)
    |<<-?[ \t]*(?P<quote>['"]?)(?P<heredoc>[\w.-]+)(?P=quote)
    |(?P<condition>\[\[\s[^\n]{0,1000}?\s\]\])
    |(?P<redirect>&>>?|\d?(?:<<<|<>|>\||>>|>&|<&|>|<))
    |(?P<operator>\|\||\|&|\||&&|&|;;|;|\n)
    |(?P<comment>[()]|\#[^\n]*)
    |(?P<word>(?:[^\s'"\\`$|&;<>()]++|'[^']*+(?:'|\Z)|"(?:[^"\\]|\\.)*+(?:"|\Z)
      |`[^`]*+(?:`|\Z)|\\.|\$(?!\()|\\\Z)++)
    |(?P<substitution>\$\()""",
    re.VERBOSE | re.DOTALL,
)
_NESTED = re.compile(r"'[^']*+(?:'|\Z)|\"(?:[^\"\\]|\\.)*+(?:\"|\Z)|\\.|[()]", re.DOTALL)
_QUOTES = re.compile(r"""'([^']*)'?|"((?:[^"\\]|\\.)*+)"?|\\(.)""", re.DOTALL)
# A Windows path, in which a backslash does not quote.
_WINDOWS = re.compile(r"(?:[A-Za-z]:|\$(?:env:)?\w+|\.{1,2})\\|[\w.-]+\\\w")
_WRITES = frozenset({">", ">>", ">|", "1>", "1>>", "&>", "&>>"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=.*", re.DOTALL)
_VALUE = re.compile(r"\d+(?:\.\d+)?[smhd]?|\{\}")

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_QUIET, _SEARCHES, _READS, _WRAPPERS, _TAKES_VALUE, _RUN_BY, _KEYWORDS, _SHELLS, _QUIET_OF_GIT = (
    frozenset(_TABLE[name].split())
    for name in "quiet searches reads wrappers options_with_value runners keywords shells quiet_of_git".split()
)
_READING_SUBCOMMANDS = {program: frozenset(names.split()) for program, names in _TABLE["reading_subcommands"].items()}


# Several rules look at each command, and commands are often repeated.
@lru_cache(maxsize=512)
def parse_command(command: str, depth: int = 0) -> list[Pipeline]:
    """Split a command line into pipelines, including commands inside `bash -c`, `ssh HOST` etc.

    >>> found = parse_command("cd a && CI=1 npm test 2>&1 | tail -5")
    >>> [[stage.program for stage in pipeline.stages] for pipeline in found]
    [['cd'], ['npm', 'tail']]
    """
    done: list[Pipeline] = []
    stages: tuple[Stage, ...] = ()
    for words, targets, operator in _split_commands(command[:MAX_CHARS]):
        words = _strip_wrappers(words)
        within = _find_inner_command(words) if depth < MAX_DEPTH else ""
        inner = parse_command(within, depth + 1) if within else []
        if inner:
            done += inner[:-1]
            stages += inner[-1].stages
        elif words:
            stages += (_build_stage(words, targets),)
        if operator not in {"|", "|&"} and stages:
            done.append(Pipeline(stages, operator))
            stages = ()
    return [*done, Pipeline(stages, "")] if stages else done


def list_stages(command: str) -> list[Stage]:
    """Return the programs of a command line in order."""
    return [stage for pipeline in parse_command(command) for stage in pipeline.stages]


def only_reads(command: str) -> bool:
    """Return whether a command line only reads."""
    stages = list_stages(command)
    return bool(stages) and all(stage.role != "runs" for stage in stages)


def loses_status(pipelines: list[Pipeline], at: int, stage: int) -> bool:
    """Return whether a stage may fail while the whole command line succeeds."""
    words = [word for p in pipelines for s in p.stages if s.program == "set" for word in s.arguments]
    is_piped = stage < len(pipelines[at].stages) - 1 and "pipefail" not in words
    exits_on_error = any(re.fullmatch(r"-\w*e\w*", word) for word in words)
    safe = {"&&", ";", "\n"} if exits_on_error else {"&&"}
    return is_piped or pipelines[at].then == "&" or any(pipeline.then not in safe for pipeline in pipelines[at:-1])


def _split_commands(command: str) -> Iterator[tuple[list[str], tuple[str, ...], str]]:
    """Yield each command's words, the files it writes, and the operator after it."""
    words: list[str] = []
    targets: list[str] = []
    heredocs: list[str] = []
    redirect, joined, at = "", False, 0
    while at < len(command):
        token = _TOKEN.match(command, at)
        kind = token.lastgroup if token else "word"
        start, at = at, token.end() if token else at + 1
        if kind == "substitution":
            at = _find_closing(command, at)
        if kind in {"word", "substitution", "condition"}:
            text = "[[" if kind == "condition" else _unquote(command[start:at])
            if redirect:
                targets += [text] if redirect in _WRITES else []
            elif joined and words:
                words[-1] += text
            else:
                words.append(text)
            redirect, joined = "", not redirect
            continue
        joined = False
        if kind == "redirect" and token:
            redirect = token.group(0)
        elif token and token.group("heredoc"):
            heredocs.append(token.group("heredoc"))
        elif kind == "operator" and token:
            yield words, tuple(targets), token.group(0)
            words, targets, redirect = [], [], ""
            if token.group(0) == "\n":
                for end in heredocs:
                    last = re.compile(rf"^\s*?{re.escape(end)}\s*?$", re.M).search(command, at)
                    at = last.end() + 1 if last else len(command)
                heredocs = []
    yield words, tuple(targets), ""


def _unquote(word: str) -> str:
    """Return a word as the shell passes it to the program."""
    return word if _WINDOWS.match(word) else _QUOTES.sub(r"\1\2\3", word)


def _find_closing(command: str, at: int) -> int:
    """Return the position after the parenthesis that closes the one before `at`."""
    depth = 1
    for match in _NESTED.finditer(command, at):
        depth += {"(": 1, ")": -1}.get(match.group(0), 0)
        if depth == 0:
            return match.end()
    return len(command)


def _strip_wrappers(words: list[str]) -> list[str]:
    """Remove assignments, keywords and programs that only start another program."""
    at, wrapper = 0, ""
    while at < len(words):
        word = words[at].rsplit("/", 1)[-1]
        if wrapper == "command" and word in {"-v", "-V"}:
            return ["which", *words[at + 1 :]]
        if wrapper == "rtk" and word in {"test", "err", "proxy"}:
            at += 1
            continue
        if word in _WRAPPERS or (word in _RUN_BY and words[at + 1 : at + 2] in (["run"], ["exec"])):
            at += word in _RUN_BY
            wrapper = word
        elif wrapper and words[at].startswith("-"):
            at += words[at] in _TAKES_VALUE
        elif not (word in _KEYWORDS or _ASSIGNMENT.fullmatch(words[at]) or (wrapper and _VALUE.fullmatch(word))):
            break
        at += 1
    return words[at:]


def _find_inner_command(words: list[str]) -> str:
    """Return the command line given to a shell, a remote shell or a container, or ""."""
    if len(words) < 2:
        return ""
    program, arguments = words[0].rsplit("/", 1)[-1], words[1:]
    if program in _SHELLS:
        flags = [at for at, word in enumerate(words[:-1]) if re.fullmatch(r"-\w*c", word)]
        return words[flags[0] + 1] if flags else ""
    if program in {"cmd", "cmd.exe"} and re.fullmatch("//?[cC]", arguments[0]):
        return shlex.join(arguments[1:]) if len(arguments) > 2 else " ".join(arguments[1:])
    if program == "eval":
        return " ".join(arguments)
    if program in {"docker", "podman", "kubectl"} and "exec" in arguments:
        arguments = arguments[arguments.index("exec") + 1 :]
    elif program != "ssh":
        return ""
    if "--" in arguments:
        return " ".join(arguments[arguments.index("--") + 1 :])
    # Options, some with a value, then the host or the container.
    while arguments and arguments[0].startswith("-"):
        takes_value = arguments[0] in {"-p", "-i", "-o", "-l", "-F", "-J", "-u", "-w", "-e", "-n"}
        arguments = arguments[1 + takes_value :]
    inner = arguments[1:]
    # A shell gets its words unchanged; any other command was quoted once more.
    if len(inner) > 2 and inner[0].rsplit("/", 1)[-1] in _SHELLS:
        return _find_inner_command(inner)
    return " ".join(inner)


def _build_stage(words: list[str], targets: tuple[str, ...]) -> Stage:
    program, arguments = words[0].rsplit("/", 1)[-1], tuple(words[1:])
    role = _find_role(program, arguments)
    if program == "tee":
        targets += arguments
    elif targets and role == "reads":
        # Its output goes to a file, so it shows nothing.
        role = "quiet"
    return Stage(program, arguments, targets, role)


def _find_role(program: str, arguments: tuple[str, ...]) -> Role:
    plain = [word for word in arguments if not word.startswith("-")]
    if program == "git":
        plain = plain[1:] if "-C" in arguments or "-c" in arguments else plain
        subcommand = plain[0] if plain else "help"
        if subcommand in _QUIET_OF_GIT:
            return "quiet"
        if subcommand in {"show", "cat-file", "worktree"}:
            return "reads"
        return "searches" if subcommand in _READING_SUBCOMMANDS["git"] else "runs"
    if program in _QUIET:
        return "quiet"
    if program in _SEARCHES:
        return "searches"
    subcommands = _READING_SUBCOMMANDS.get(program, frozenset())
    plain = plain[1:] if plain[:1] == ["compose"] else plain
    is_reader = program in _READS or (plain and plain[0] in subcommands)
    return "reads" if is_reader else "runs"
