"""Which files the words of a command line name: those it shows, copies, or means by a pattern."""

import re
from fnmatch import fnmatchcase
from functools import lru_cache

from pimono_sdpo.shell import Pipeline, parse

_FOUND = re.compile(r"(?:(?P<file>[^\s:]{1,300}\.\w{1,10}):)?\d{1,7}:(?P<text>.*)")


def copies_of(command: str) -> list[tuple[str, str]]:
    """Return the files a command line copies or moves, from and to.

    >>> copies_of("cd a && cp x.ts y.ts; rm z")
    [('a/x.ts', 'a/y.ts')]
    """
    folder, found = "", []
    for pipeline in parsed(command):
        stage = pipeline.stages[0]
        if stage.program == "cd" and len(stage.arguments) == 1:
            folder = _joined(folder, stage.arguments[0])
        names = [word for word in stage.arguments if not word.startswith("-")]
        if stage.program in {"cp", "mv"} and len(names) == 2:
            found.append((_joined(folder, names[0]), _joined(folder, names[1])))
    return found


def lines_by(command: str, output: str) -> list[tuple[str, str]]:
    """Return the lines a search has shown, with the file each is of.

    >>> lines_by("grep -n 'let' a.ts", "3:let a = 1;")
    [('a.ts', 'let a = 1;')]
    """
    folder, pipelines = _in_folder(command)
    stages = pipelines[0].stages if len(pipelines) == 1 else ()
    if not stages or stages[0].program not in {"grep", "rg"}:
        return []
    if any(stage.program not in {"grep", "rg", "head", "tail", "sort"} for stage in stages):
        return []
    last = stages[0].arguments[-1] if stages[0].arguments else ""
    found = []
    for line in output.split("\n"):
        match = _FOUND.fullmatch(line)
        if match and (match["file"] or last):
            found.append((_joined(folder, match["file"] or last), match["text"]))
    return found


def shown_by(command: str) -> tuple[str, bool] | None:
    """Return the file whose text a command shows, and whether all of it; None when it is no file's.

    >>> shown_by("cd /app && cat src/a.ts"), shown_by("sed -n '1,9p' a.ts"), shown_by("ls")
    (('/app/src/a.ts', True), ('a.ts', False), None)
    """
    folder, pipelines = _in_folder(command)
    if len(pipelines) != 1 or len(pipelines[0].stages) != 1:
        return None
    stage = pipelines[0].stages[0]
    if stage.targets:
        return None
    if stage.program == "cat" and len(stage.arguments) == 1:
        return _joined(folder, stage.arguments[0]), True
    is_range = stage.program == "sed" and stage.arguments[:1] == ("-n",)
    if is_range and len(stage.arguments) == 3 and re.fullmatch(r"\d+,\d+p", stage.arguments[1]):
        return _joined(folder, stage.arguments[2]), False
    return None


def may_match(pattern: str, path: str) -> bool:
    """Tell whether a pattern of a shell may stand for a path, or for a folder that it is in.

    >>> may_match("../src/*.ts", "/w/src/a.ts"), may_match("*.html", "/w/src/a.ts")
    (True, False)
    """
    wanted = [part for part in pattern.split("/") if part not in {"", ".", "..", "~"}]
    if not wanted or re.search(r"[${`!]|\*\*|/\.\.|\[\^", pattern.lstrip("./")):
        return True
    parts = path.split("/")
    windows = (parts[at : at + len(wanted)] for at in range(len(parts) - len(wanted) + 1))
    return any(all(map(fnmatchcase, window, wanted)) for window in windows)


def _in_folder(command: str) -> tuple[str, list[Pipeline]]:
    """Take `cd FOLDER &&` off the front of a single command."""
    pipelines = parsed(command)
    if len(pipelines) == 2 and pipelines[0].then == "&&" and len(pipelines[0].stages) == 1:
        first = pipelines[0].stages[0]
        if first.program == "cd" and len(first.arguments) == 1:
            return first.arguments[0], pipelines[1:]
    return "", pipelines


@lru_cache(maxsize=8)
def parsed(command: str) -> list[Pipeline]:
    """Parse a command once for all that is asked of it; nobody changes what is returned."""
    return parse(command)


def _joined(folder: str, name: str) -> str:
    """Return where a name leads from a folder."""
    return name if not folder or name.startswith("/") else f"{folder.rstrip('/')}/{name}"
