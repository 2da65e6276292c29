"""What a command line runs once the scripts of packages are put in its place."""

import json
import posixpath
from collections.abc import Mapping
from typing import NamedTuple

from pimono_sdpo.replay.commands import parsed
from pimono_sdpo.shell import Stage

MAX_DEPTH = 5
_MANAGERS = frozenset({"npm", "pnpm", "yarn", "bun"})
_RUN = frozenset({"run", "run-script"})
_OWN = frozenset({"test", "start"})


class Step(NamedTuple):
    """A program and the folder it runs in, "" for the workspace."""

    folder: str
    stage: Stage


def scripts_in(texts: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the scripts of every package.json, by its folder."""
    found = {}
    for path, text in texts.items():
        if posixpath.basename(path) == "package.json":
            try:
                scripts = json.loads(text).get("scripts")
            except (ValueError, AttributeError):
                continue  # broken, as sessions leave it: nothing is known of it
            if isinstance(scripts, dict):
                found[posixpath.dirname(path)] = {k: v for k, v in scripts.items() if v}
    return found


def steps_of(
    command: str, scripts: Mapping[str, Mapping[str, str]], cwd: str, depth: int = 0
) -> list[Step] | None:
    """Return what a command line runs, one after the other; None where that is not to be told.

    >>> packages = {"": {"check": "biome check --write . && tsc"}}
    >>> [step.stage.program for step in steps_of("npm run check | tail -3", packages, "/w")]
    ['biome', 'tsc', 'tail']
    """
    return _steps(command, scripts, f"{cwd}/", "", depth)


def _steps(
    command: str, scripts: Mapping[str, Mapping[str, str]], root: str, folder: str, depth: int
) -> list[Step] | None:
    steps: list[Step] = []
    if depth > MAX_DEPTH:
        return None
    for pipeline in parsed(command):
        for stage in pipeline.stages:
            if stage.program == "cd":
                target = stage.arguments[0] if len(stage.arguments) == 1 else "~"
                inside = _below(target, root, folder)
                if inside is None:
                    return None
                folder = inside
            elif stage.program in _MANAGERS and (name := _script(stage)):
                known = scripts.get(folder, {})
                if name not in known:
                    return None
                for one in (f"pre{name}", name, f"post{name}"):
                    inner = _steps(known.get(one, ""), scripts, root, folder, depth + 1)
                    if inner is None:
                        return None
                    steps += inner
            else:
                steps.append(Step(folder, stage))
    return steps


def _script(stage: Stage) -> str:
    """The script a package manager is asked for, "" for none; of other packages it is none."""
    words = stage.arguments
    if words[:1] and words[0] in _RUN:
        return words[1] if len(words) == 2 else ""
    return words[0] if len(words) == 1 and words[0] in _OWN else ""


def _below(target: str, root: str, folder: str) -> str | None:
    path = posixpath.normpath(posixpath.join(root, folder, target))
    if target.startswith("~") or "$" in target or not f"{path}/".startswith(root):
        return None
    return path.removeprefix(root.rstrip("/")).strip("/")
