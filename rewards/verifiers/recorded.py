"""Tell which recorded commands can be repeated, and how, on files that are known only in part."""

import re
import shlex
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pimono_sdpo.shell import Pipeline, Stage, parse

Kind = Literal["moves", "lines", "whole"]
MAX_COMMAND = 20_000

_MOVES = frozenset({"mv", "cp", "rm"})
_STEPS = frozenset({"cd", "true", "pwd", ":", "mkdir", "set"})
_SAYS = frozenset({"echo", "printf"})
_EDITS = frozenset({"sed", "perl", "cat", "tee", "python3", "python"})
_BSD = re.compile(r"(\bsed\s+(?:-[nE]+\s+)*)-i\s+(?:''|\"\")(?=\s)")
# In these, macOS's and GNU's expressions differ.
_ODD = re.compile(r"\\[^.\\/|()\[\]{}*$^&1-9\"'#@-]|\[\[")
_SUBSTITUTION = re.compile(
    r"s(?P<sign>[/|#,@!~])(?:(?!(?P=sign)|[\\\n]).|\\[^n\n])*(?P=sign)"
    r"(?:(?!(?P=sign)|[\\\n]).|\\[^n\n])*(?P=sign)[gI\d]*"
)
_IN_PLACE = re.compile(r"-[nErsz]*i[nErsz]*|--in-place|-p?i(?:\.bak)?|-i?p?i?e?")
# They look at what is not there, hide what went wrong, or end otherwise every time.
_UNSURE = re.compile(
    r"\$\(|`|\$RANDOM|<\(|2>|&>|\|\||\bif\b|\[\s+!?\s*-|\btest -|https?:|\bdate\b|\bsudo\b"
    r"|\bwhile\b|\bfind\b|\bxargs\b|\bsource\b"
)
_UNSURE_CODE = re.compile(
    r"glob|listdir|walk|iterdir|scandir|subprocess|system|popen|exec|exists|is_?file|is_?dir|try\b"
    r"|except|random|time|urllib|requests|socket|input\(|stdin|environ|argv|suppress|getcwd|open\(\S+\)\.close"
)
_PLACE_OF_SYSTEM = re.compile(
    r"(?:^|[\s=\"'(<>])/(?!dev/null|tmp/)(?:[\w.-]+/)*[\w.-]+(?=[\s\"');|&<>]|$)"
)
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([\w.-]+)\1[^\n]*\n.*?\n\s*\2[ \t]*(?=\n|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Recorded:
    """How to repeat a command.

    `places` are the beginnings of absolute paths in it, `folders` were there, `names` are files it
    needs whatever they hold. `rest` are its last programs, which are not run.
    """

    command: str
    kind: Kind
    places: tuple[str, ...]
    folders: tuple[str, ...]
    names: tuple[str, ...]
    rest: str

    def has_place(self, path: str) -> bool:
        """Tell whether a file can lie below the folder of a run."""
        return path.startswith(self.places)


def recorded(command: str, cwd: str) -> Recorded | None:
    """Say how to repeat a command that has run in a folder; None when it cannot be."""
    shell_text = _HEREDOC.sub("", command)
    if len(command) > MAX_COMMAND or not cwd.startswith("/") or _UNSURE.search(shell_text):
        return None
    pipelines = parse(command)
    stages = [stage for pipeline in pipelines for stage in pipeline.stages]
    last = max((at for at, stage in enumerate(stages) if _changes(stage)), default=-1)
    written = {target for stage in stages for target in stage.targets}
    if last < 0 or not all(_may_run(stage, command, written) for stage in stages[: last + 1]):
        return None
    later = [stage for stage in stages[last + 1 :] if stage.program not in {*_STEPS, *_SAYS}]
    if any(stage.targets for stage in later):
        return None
    stubs = {stage.program for stage in later}
    running = {stage.program for stage in stages[: last + 1]}
    if stubs & running or not all(re.fullmatch(r"[A-Za-z][\w-]*", stub) for stub in stubs):
        return None
    changing = [stage for stage in stages if _changes(stage)]
    is_bsd = bool(_BSD.search(command))
    if is_bsd and any(_ODD.search(word) for stage in changing for word in stage.arguments):
        return None
    places = _places(cwd)
    rest = shell_text
    for place in places:
        rest = rest.replace(place, "")
    if any(s.program not in {"sed", "perl"} for s in changing) and _PLACE_OF_SYSTEM.search(rest):
        return None
    kind = _kind(changing)
    folders, names = _needed(pipelines, cwd, kind)
    if kind == "moves" and _moves_folders(changing):
        return None
    prefix = "".join(f"{stub}() {{ :; }}; " for stub in sorted(stubs))
    text = _BSD.sub(r"\1-i", command) if is_bsd else command
    return Recorded(
        prefix + text,
        kind,
        places,
        folders,
        names,
        "; ".join(shlex.join([stage.program, *stage.arguments]) for stage in later),
    )


def _places(cwd: str) -> tuple[str, ...]:
    parts = cwd.split("/")
    is_home = parts[1] in {"home", "Users"} and len(parts) > 2
    return ("/".join(parts[:3]) + "/" if is_home else cwd.rstrip("/") + "/", "/tmp/")


def _changes(stage: Stage) -> bool:
    """Tell whether a program that may be run here changes files."""
    if any(target != "/dev/null" for target in stage.targets) or stage.program in {*_MOVES, "tee"}:
        return True
    if stage.program in {"sed", "perl"}:
        return _is_in_place(stage)
    return stage.program in {"python3", "python"}


def _is_in_place(stage: Stage) -> bool:
    options = [word for word in stage.arguments if re.fullmatch(r"-[A-Za-z0-9.]+|--in-place", word)]
    return any(re.match(r"-[A-Za-z0-9]*i|--in-place", option) for option in options)


def _may_run(stage: Stage, command: str, written: set[str]) -> bool:
    if stage.program in {"python3", "python"}:
        is_inline = stage.arguments in {(), ("-",)} or stage.arguments[:1] == ("-c",)
        is_inline |= len(stage.arguments) == 1 and stage.arguments[0] in written
        return is_inline and not _UNSURE_CODE.search(command)
    return stage.program in {*_MOVES, *_STEPS, *_SAYS, *_EDITS}


def _kind(changing: list[Stage]) -> Kind:
    if all(stage.program in _MOVES and not stage.targets for stage in changing):
        return "moves"
    if all(_is_substitution(stage) and not stage.targets for stage in changing):
        return "lines"
    return "whole"


def _is_substitution(stage: Stage) -> bool:
    expressions = _expressions(stage)
    return bool(expressions) and all(
        _SUBSTITUTION.fullmatch(part.strip())
        for expression in expressions
        for part in re.split(r";(?=\s*s[/|#,@!~])", expression)
    )


def _expressions(stage: Stage) -> list[str]:
    """The expressions of a sed or perl in place; none when it has any option but the usual."""
    if stage.program not in {"sed", "perl"}:
        return []
    words = [word for word in stage.arguments if word]
    given = [after for word, after in pairwise(words) if word in {"-e", "-pe"}]
    options = [word for word in words if re.fullmatch(r"-[A-Za-z]{1,4}", word)]
    if any(not _IN_PLACE.fullmatch(option) for option in options):
        return []
    if given:
        return given
    plain = [word for word in words if not word.startswith("-")]
    return plain[:1] if stage.program == "sed" else []


def _needed(
    pipelines: list[Pipeline], cwd: str, kind: Kind
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The folders a command goes to, and the files it names."""
    folder, folders, names = cwd, [], []
    for pipeline in pipelines:
        for stage in pipeline.stages:
            words = [word for word in stage.arguments if word and not word.startswith("-")]
            if stage.program == "cd" and len(words) == 1 and not re.search(r"[$*?~]", words[0]):
                folder = words[0] if words[0].startswith("/") else f"{folder}/{words[0]}"
                folders.append(folder)
            if kind == "whole" or not _changes(stage):
                continue
            skipped = _expressions(stage)
            words = words[:-1] if stage.program in {"mv", "cp"} else words
            names += [
                word if word.startswith("/") else f"{folder}/{word}"
                for word in words
                if word not in skipped and re.fullmatch(r"[\w./@+-]*\.\w{1,5}", word)
            ]
    return tuple(folders), tuple(names)


def _moves_folders(changing: list[Stage]) -> bool:
    """Where a folder goes depends on whether there is one of that name."""
    for stage in changing:
        options = "".join(word for word in stage.arguments if word.startswith("-"))
        words = [word for word in stage.arguments if not word.startswith("-")]
        if stage.program == "rm":
            continue
        if re.search(r"[rRa]", options) or not all(
            "." in word.rsplit("/", 1)[-1] for word in words[:-1]
        ):
            return True
    return False
