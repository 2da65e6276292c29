"""What a command line may have changed: nothing, files it names, or anything."""

import re
from dataclasses import dataclass, field
from functools import lru_cache

from pimono_sdpo.shell import Pipeline, Stage, parse

# Programs that leave the sources as they are, though they run code: tests, builds, servers.
_LEAVES_SOURCES = frozenset(
    """tsc vitest jest mocha pytest cargo go make node deno python python3 bun tsx curl gh docker
    kubectl ssh sleep timeout ps kill pkill tmux npx npm pnpm yarn git java mvn gradle rustc
    gcc g++ cc clang xcodebuild swift dotnet mypy pyright""".split()
)
_REWRITES = re.compile(
    r"\b(?:fmt|format|prettier|fix|codegen|generate|release|version|sync|migrate)\b|--write|-w\b"
)
# They may format what they check, and say so when they did.
_CHECKS = re.compile(r"\b(?:check|lint|biome|eslint|ruff|commit)\b")
_FIXED = re.compile(
    r"\b(?:[Ff]ixed|[Ff]ormatted|[Rr]eformatted|[Mm]odified) [1-9]\d* files?"
    r"|[1-9]\d* files? reformatted"
    r"|\b(?:pre-commit|lint-staged|husky)\b"
)
_GIT_CHANGES = frozenset(
    """checkout switch restore reset stash pull merge rebase cherry-pick revert apply am
    clean worktree mv rm""".split()
)
_EDITORS = frozenset("code vim vi nvim nano emacs subl open cursor zed".split())
_WRITERS = frozenset(
    "mv cp rm sed perl patch truncate touch ln install dd tee rsync unzip tar".split()
)
_FOUND = re.compile(r"(?:(?P<file>[^\s:]{1,300}\.\w{1,10}):)?\d{1,7}:(?P<text>.*)")
_INLINE = re.compile(r"<<|\s-(?:c|e)\b")
_WRITES = re.compile(
    r"open\(|[Ww]rite|unlink|rename|remove|rmtree|mkdir|copy|move|exec|spawn|system|subprocess|\$`"
)


@dataclass
class Changes:
    """What may have changed: files named, those edited before (by a formatter), or any."""

    names: set[str] = field(default_factory=set)
    formatted: bool = False
    anything: bool = False


def changes_of(command: str, output: str) -> Changes:
    """Say what a command line may have changed, with what it printed."""
    changes = Changes()
    for pipeline in _parsed(command):
        # Where the output was cut it may have said more.
        is_told = len(pipeline.stages) == 1 and not pipeline.stages[0].targets
        for stage in pipeline.stages:
            changes.names.update(stage.targets)
            if _is_check(stage):
                changes.formatted |= not is_told or bool(_FIXED.search(output))
                continue
            found = _changed_by_stage(stage, command)
            changes.anything |= found is None
            changes.names |= found or set()
    return changes


def _is_check(stage: Stage) -> bool:
    words = " ".join((stage.program, *stage.arguments[:3]))
    return stage.role == "runs" and bool(_CHECKS.search(words))


def _changed_by_stage(stage: Stage, command: str) -> set[str] | None:
    words = {word for word in stage.arguments if not word.startswith("-")}
    if stage.program == "git":
        is_new_branch = {"-b", "-c"} & set(stage.arguments[1:2])
        return None if _GIT_CHANGES & set(stage.arguments[:3]) and not is_new_branch else set()
    if stage.program in _EDITORS:
        return words
    if stage.program in _WRITERS:
        in_place = stage.program not in {"sed", "perl"} or "-i" in " ".join(stage.arguments)
        return words if in_place else set()
    if stage.role != "runs":
        return set()
    text = " ".join((stage.program, *stage.arguments))
    if stage.program not in _LEAVES_SOURCES or _REWRITES.search(text):
        return None
    if stage.program in {"python", "python3", "node", "deno", "bun", "tsx"}:
        # Code that stands in the line says whether it writes; a script's code is not to be seen.
        may_write = _WRITES.search(command) if _INLINE.search(command) else words
        return None if may_write else set()
    return set()


def copies_of(command: str) -> list[tuple[str, str]]:
    """Return the files a command line copies or moves, from and to.

    >>> copies_of("cd a && cp x.ts y.ts; rm z")
    [('a/x.ts', 'a/y.ts')]
    """
    folder, found = "", []
    for pipeline in _parsed(command):
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


def _in_folder(command: str) -> tuple[str, list[Pipeline]]:
    """Take `cd FOLDER &&` off the front of a single command."""
    pipelines = _parsed(command)
    if len(pipelines) == 2 and pipelines[0].then == "&&" and len(pipelines[0].stages) == 1:
        first = pipelines[0].stages[0]
        if first.program == "cd" and len(first.arguments) == 1:
            return first.arguments[0], pipelines[1:]
    return "", pipelines


@lru_cache(maxsize=8)
def _parsed(command: str) -> list[Pipeline]:
    """Parse a command once for all that is asked of it; nobody changes what is returned."""
    return parse(command)


def _joined(folder: str, name: str) -> str:
    return name if not folder or name.startswith("/") else f"{folder.rstrip('/')}/{name}"
