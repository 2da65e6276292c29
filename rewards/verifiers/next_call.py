"""Judge the next call at a step that failed: whether it does what the failed call was for.

spec   as `filter --unit step` writes it: tools, format, workspace and paths (what was there), goal,
       failed_call, resolved_call (what worked later, if anything did)
score  by the table; None where the session does not tell

A row of a session or an episode has no goal: there each call must be valid, another than the one
that failed, and name files that are there; its edits must apply, and the files still parse.

| the call | score |
|---|---|
| cannot be read, is of an unknown tool, or has arguments that do not fit | 0.0 to 0.1 |
| is the one that failed, with other white space or words around it | 0.0 |
| does nothing, or has nothing to do with the goal | 0.1 |
| names what is missing again, or an edit that does not apply or breaks the file | 0.1 to 0.3 |
| makes another change to the file than was wanted | 0.4 |
| looks at what the goal is about: reads the file to edit, searches for what was shown | 0.5 |
| does what the failed call was for: the wanted change applies, the wanted path exists, or | 1.0 |
| what is missing is searched for by its name where the prompt does not show it; where the file had | |
| to be read first, or was a folder: looks at it, with any tool or command | |

What was wanted is known from the failed call and from the one that worked: a change counts when its
words overlap with theirs by at least half (F1 of the words taken out and put in).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

from pimono_sdpo.replay.calls import Words, changed_words, find_path, find_text, overlap, read_edits, read_patch
from pimono_sdpo.replay.commands import find_changes
from pimono_sdpo.replay.workspace import Workspace, load_workspace
from pimono_sdpo.shell import Stage, parse_command
from rewards.verifiers import replay, tool_calls
from rewards.verifiers.call_formats import Call
from rewards.verifiers.rubric import BadSpec, VerifierResult, failed, passed, skipped

NAME = "next_call"
INVALID, UNRELATED, MISSING, BREAKS, OTHER, LOOKS = 0.1, 0.1, 0.1, 0.3, 0.4, 0.5
# Letters of a part of a name that is looked for.
LONG = 5
# F1 of the words of two changes, and of two command lines, which are shorter.
ALIKE, SAME_WORDS = 0.5, 0.7
_NO_WORD = re.compile(r"['\"\\]|\d?&?>>?\s*(?:&\d|/dev/null)")
_LOOKERS = frozenset(
    "ls find fd rg grep egrep tree cat head tail sed wc stat file awk less nl git bat"
    " dir type more findstr gc gci get-content get-childitem select-string select-object".split()
)
_LISTERS = frozenset("ls tree find fd glob dir gci get-childitem".split())
_NAVIGATES = frozenset("cd pushd set-location export set source true : echo printf sleep".split())
_CHANGES = frozenset({"edit", "write", "multi_edit", "apply_patch"})
_LOOKED_AT = frozenset({"path", "read", "folder"})
# Options and code by which programs that look write files or run others.
_WRITES = re.compile(
    r"\bfind\b.*\s-f(?:print|ls)|\btree\b.*\s-o\b|\brg\b.*\s--pre\b|\bgit\b.*\s(?:--output\b|rm\s)"
    r"|\bg?awk\b.*(?:\bsystem\s*\(|\bprintf?\b[^{}]*>\s*[\w\"(]|\|\s*\")|\bg?sed\b.*(?:^|[\s'\";}/\dg$])[we] +[^\s/]"
)
_COMMENT = re.compile(r"^\+?[ \t]*(?:#(?!include|define|if|endif)|//).*\n?", re.MULTILINE)


class Step:
    """The spec of a row: what was wanted, and what was there. A row of a session has no goal."""

    def __init__(self, spec: dict[str, Any], completion: str) -> None:
        self.spec, self.completion = spec, completion
        if not spec.get("goal"):
            nothing = dict.fromkeys(("failed_call", "resolved_call", "workspace"))
            spec = {**nothing, "paths": [], **spec, "goal": {"kind": ""}}
        try:
            self.goal: dict[str, Any] = spec["goal"]
            self.kind: str = self.goal["kind"]
            self.workspace: Workspace = load_workspace(spec["workspace"] or {"cwd": "", "files": {}})
            recorded = [spec["failed_call"], spec["resolved_call"]]
            self.references = [
                Call(one.get("name", one.get("tool", "")), one.get("args", {"command": one.get("command")}))
                for one in recorded
                if one
            ]
            self.failed = self.references[0] if recorded[0] else None
            self.paths = {self.absolute(path) for path in spec["paths"]} | set(self.workspace.files)
        except (KeyError, TypeError, AttributeError) as found:
            raise BadSpec(f"the row is not of `filter --unit step` ({found!r})") from found
        goal = str(self.goal.get("path") or "")
        self.path = self.absolute(_inside(_find_folder(self.failed), goal)) if goal else ""
        # What the call that worked names is there, whether it was shown or not.
        self.resolved = {self.absolute(path) for one in self.references[1:] for path in _paths(one, self)}
        self.paths |= self.resolved
        self.folders = {parent for path in self.paths for parent in _parents(path)}

    def absolute(self, path: str) -> str:
        """Return a path as the files are known by it."""
        return self.workspace.absolute(path.strip() or "/")

    def exists(self, path: str) -> bool | None:
        """Whether a path exists, None if the session does not tell."""
        path = self.absolute(path)
        if self.kind == "path" and (path == self.path or path.startswith(f"{self.path}/")):
            return False
        return True if path in self.paths or path in self.folders else None

    def replayed(self) -> VerifierResult:
        """Return what `replay` says of the completion; a failure as one of this verifier."""
        found = replay.verify(self.completion, self.spec)
        return _fail(found.feedback, BREAKS * (found.score or 0.0)) if found.status == "failed" else found


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Judge the call of a completion, decoded with its special tokens."""
    step = Step(spec, completion)
    valid = tool_calls.verify(completion, spec if step.kind else {**spec, "call": "optional"})
    if valid.status != "passed":
        return valid if valid.score is None else _fail(valid.feedback, INVALID * valid.score)
    calls = tool_calls.calls_of(completion, spec)
    if step.kind and len(calls) != 1:
        return _fail("Make one call.", 0.0)
    if any(step.failed and _repeats(call, step.failed, step) for call in calls):
        return _fail("This call has failed already.", 0.0)
    if all(map(_does_nothing, calls)):
        return _fail("The call does nothing.", 0.0)
    if step.kind in _LOOKED_AT and _may_change(calls[0]) and not any(map(_may_change, step.references)):
        return _fail(f"{step.goal['path']} was to be looked at.", UNRELATED)
    if not step.kind:
        if (applied := step.replayed()).status == "failed":
            return applied
        named = [step.exists(path) for call in calls for path in _paths(call, step)]
        return passed(NAME) if applied.status == "passed" or (named and all(named)) else _unknown()
    return JUDGES[step.kind](calls[0], step) if step.kind in JUDGES else _unknown()


def _fail(feedback: str, score: float) -> VerifierResult:
    return failed(NAME, "tool_schema_validation", feedback, score)


def _unknown() -> VerifierResult:
    return skipped(NAME, "The session does not tell how this would end.")


def _change(call: Call, step: Step) -> VerifierResult:
    """Judge what is done where an edit or a write of a file failed."""
    if call.name not in _CHANGES:
        targets = {step.absolute(target) for stage in _stages(call) for target in stage.targets}
        return _unknown() if step.path in targets else _look(call, step)
    names = [patch.path for patch in read_patch(call.arguments)] or [find_path(call.arguments)]
    if step.path and step.path not in map(step.absolute, names):
        return _fail(f"The file to change is {step.goal['path']}.", UNRELATED)
    if call.name == "write" and not any(one.name == "write" for one in step.references):
        known = step.workspace.files.get(step.path)
        if known is None or known.whole is None:
            return _fail("Writing the whole file may lose what was not seen of it.", UNRELATED)
    if (applied := step.replayed()).status == "failed":
        return applied
    if not _is_wanted(call, step):
        return _fail("The call changes something else than was wanted.", OTHER)
    return passed(NAME) if applied.status == "passed" or call.name == "write" else _unknown()


def _read(call: Call, step: Step) -> VerifierResult:
    """Judge what is done where the harness wants a file to be read first."""
    is_it = step.absolute(find_path(call.arguments)) == step.path
    if call.name in _CHANGES and is_it:
        return _fail(f"{step.goal['path']} must be read before it is changed.", MISSING)
    looked = _look(call, step)
    return passed(NAME) if (call.name == "read" and is_it) or looked.score == LOOKS else looked


def _path(call: Call, step: Step) -> VerifierResult:
    """Judge what is done where a path did not exist."""
    is_change = step.failed is not None and step.failed.name in _CHANGES
    if call.name in _CHANGES and not is_change:
        return _fail(f"{step.goal['path']} was to be looked at.", UNRELATED)
    name = _stem(step.path)
    named = list(_paths(call, step))
    if how := _searches(call, step, name):
        is_best = how == "by name" and not step.goal.get("shown")
        return passed(NAME) if is_best else _fail("Use what this finds.", LOOKS)
    if any(step.exists(one) is False for one in named):
        return _fail(f"{step.goal['path']} does not exist.", MISSING)
    # Of the same name, or with another ending in the same folder.
    alike = [one for one in named if _stem(step.absolute(one)) == name]
    ours = {str(PurePosixPath(step.path).parent), PurePosixPath(step.path).suffix}
    aims = [one for one in alike if ours & {str(PurePosixPath(step.absolute(one)).parent), PurePosixPath(one).suffix}]
    aims += [one for one in named if step.absolute(one) in step.resolved]
    runs = {stage.program for stage in _stages(call)} - _LOOKERS - _NAVIGATES
    if aims and runs - {stage.program for one in step.references for stage in _stages(one)}:
        return _fail(f"{step.goal['path']} was to be looked at.", UNRELATED)
    if is_change and aims:
        if (applied := step.replayed()).status == "failed":
            return applied
        if call.name not in _CHANGES or not _is_wanted(call, step):
            return _fail("Now make the change.", LOOKS if call.name == "read" else OTHER)
    rest = _rest(step.failed, step)
    is_same = rest.total() >= 2 and overlap(_rest(call, step), rest) >= SAME_WORDS
    if aims or is_same:
        return passed(NAME) if all(map(step.exists, aims or named)) else _unknown()
    return _fail(f"This has nothing to do with {step.goal['path']}.", UNRELATED)


def _folder(call: Call, step: Step) -> VerifierResult:
    """Judge what is done where a folder was taken for a file."""
    named = [*_paths(call, step), *_listed(call)]
    below = [one for one in named if step.absolute(one).startswith(f"{step.path}/")]
    if call.name not in _CHANGES and any(step.absolute(one) == step.path for one in named):
        return _fail("It is a folder.", MISSING) if call.name == "read" else passed(NAME)
    if below and call.name not in _CHANGES:
        return passed(NAME) if all(map(step.exists, below)) else _unknown()
    return _fail(f"This does not look into {step.goal['path']}.", UNRELATED)


JUDGES: dict[str, Callable[[Call, Step], VerifierResult]] = {
    "change": _change,
    "read": _read,
    "path": _path,
    "folder": _folder,
}


def _look(call: Call, step: Step) -> VerifierResult:
    """Judge a call that can at best look at the file of the goal."""
    named = [find_path(call.arguments)] if call.name in {"read", "grep"} else []
    for folder, stage in _walk(call):
        if stage.program in _LOOKERS - {"ls", "find", "git"} and not _may_change(call):
            named += [_inside(folder, word) for word in stage.arguments]
    if step.path and step.path in map(step.absolute, named):
        return _fail(f"Now use what {step.goal['path']} shows.", LOOKS)
    return _fail("This has nothing to do with the change that was wanted.", UNRELATED)


def _searches(call: Call, step: Step, name: str) -> str:
    """Return how a call looks for what is missing: "by name", in the "workspace", or not: ""."""
    stages = _stages(call)
    if any(stage.program not in _LOOKERS | _NAVIGATES or stage.targets for stage in stages):
        return ""
    programs = {call.name, *(stage.program for stage in stages)}
    lists = bool(programs & _LISTERS)
    of_git = {word for stage in stages if stage.program == "git" for word in stage.arguments}
    finds = lists or call.name == "grep" or bool(programs & {"rg", "grep", "findstr", "select-string"})
    finds = finds or bool(of_git & {"ls-files", "ls-tree", "grep"})
    given = [word for stage in stages if stage.program in _LOOKERS for word in stage.arguments]
    given += [value for value in call.arguments.values() if isinstance(value, str) and not stages]
    if finds and any(_has_part(word, name) and step.absolute(word) != step.path for word in given):
        return "by name"
    above = _parents(step.path)
    nearest = next((one for one in above if one in step.folders), "")
    near = above[: above.index(nearest) + 1] if nearest else above[:2]
    listed = {step.absolute(one) for one in _listed(call)} & {*near} if lists else set()
    # Every step could list its workspace.
    return "workspace" if step.absolute(".") in listed else "by name" if listed else ""


def _listed(call: Call) -> Iterator[str]:
    """Yield the folders that a call may list; a pattern lists the one before it."""
    for folder, stage in _walk(call):
        if stage.program in _LISTERS:
            words = [word for word in stage.arguments if not word.startswith("-")] or ["."]
            yield from (_inside(folder, _before_pattern(word)) for word in words)
    if not find_text(call.arguments, "command", "cmd"):
        folder, pattern = find_path(call.arguments), find_text(call.arguments, "pattern")
        yield folder or "."
        yield _inside(folder, _before_pattern(pattern))


def _before_pattern(word: str) -> str:
    return re.split(r"[^/\\]*[*?]", word)[0].rstrip("/\\") or "."


def _has_part(text: str, name: str) -> bool:
    """Whether a text names a file, or looks for a longer word of its name."""
    parts = [part for part in re.split(r"[\W_]+", name) if len(part) >= LONG]
    return name in _words(text) - {""} or any(part in text.lower() for part in parts)


def _does_nothing(call: Call) -> bool:
    """Whether a call cannot change or show anything."""
    edits = read_edits(call.arguments) if call.name in _CHANGES else []
    if edits and all(edit.old == edit.new for edit in edits):
        return True
    is_command = bool(find_text(call.arguments, "command", "cmd"))
    return is_command and all(s.program in _NAVIGATES and {*s.targets} <= {"/dev/null"} for s in _stages(call))


def _may_change(call: Call) -> bool:
    """Whether a call may change files."""
    command = find_text(call.arguments, "command", "cmd")
    changes = find_changes(command, "")
    is_more = changes.anything or changes.names - {"/dev/null"} or _WRITES.search(command)
    return call.name in _CHANGES or bool(is_more)


def _repeats(call: Call, before: Call, step: Step) -> bool:
    """Whether a call is one that failed, with other white space or with more around it."""
    # The words of the command lines, without quotes, redirections and how they are spaced.
    lines = (find_text(one.arguments, "command", "cmd").replace(";", " ; ") for one in (call, before))
    command, failed_command = (" ".join(_NO_WORD.sub(" ", line).split()) for line in lines)
    if failed_command:
        folder = _find_folder(call)
        is_elsewhere = folder != _find_folder(before) and step.exists(folder)
        return f" {failed_command} " in f" {command} " and not is_elsewhere
    if call.name != before.name:
        return False
    if call.name in _CHANGES:
        # Only replay knows whether other white space is what was missing.
        return bool(call.arguments == before.arguments)
    path, path_before = (find_path(one.arguments) for one in (call, before))
    if path and step.absolute(path) == step.absolute(path_before) and step.kind in {"path", "folder"}:
        return True
    kept = call.arguments
    if step.kind != "call":
        kept = {key: value for key, value in kept.items() if key in before.arguments}
    return "".join(str(kept).split()) == "".join(str(before.arguments).split())


def _find_folder(call: Call | None) -> str:
    """Return the folder in which a command ends, or that it is given."""
    folders = [folder for folder, _ in _walk(call)]
    return folders[-1] if folders else ""


def _walk(call: Call | None) -> Iterator[tuple[str, Stage]]:
    """Yield the programs of a command line, each with the folder it runs in."""
    folder = find_text(call.arguments, "workdir", "cwd") if call else ""
    for stage in _stages(call):
        if stage.program in {"cd", "pushd", "set-location"} and stage.arguments:
            folder = _inside(folder, stage.arguments[-1])
        yield folder, stage


def _stages(call: Call | None) -> list[Stage]:
    command = find_text(call.arguments, "command", "cmd") if call else ""
    stages = [stage for pipeline in parse_command(command) for stage in pipeline.stages]
    # PowerShell does not tell upper from lower case.
    return [stage._replace(program=stage.program.lower()) for stage in stages]


def _paths(call: Call, step: Step) -> Iterator[str]:
    """Yield what a call names that may be a path."""
    if path := find_path(call.arguments):
        yield path
    yield from (patch.path for patch in read_patch(call.arguments))
    for folder, stage in _walk(call):
        for word in stage.arguments:
            is_path = re.search(r"[/\\]|\.\w", word) or _stem(word) == _stem(step.path)
            if is_path and not word.startswith("-") and stage.program != "cd":
                yield _inside(folder, word)


def _inside(folder: str, path: str) -> str:
    """Return a path as it is seen from outside of the folder that a command changes to."""
    is_whole = re.match(r"[/$~\\]|[A-Za-z]:", path)
    return f"{folder}/{path}" if folder and path != folder and not is_whole else path


def _parents(path: str) -> list[str]:
    """Return the folders above a path, the nearest first."""
    return [str(above) for above in PurePosixPath(path).parents][:-1]


def _stem(path: str) -> str:
    """Return the name of a file without its folder and ending, in lower case."""
    return PurePosixPath(path).stem.lower()


def _words(text: str) -> set[str]:
    """Return the names in a text, with and without their endings, in lower case."""
    names = {re.sub(r"^\W+|\W+$", "", one) for one in re.split(r"[\s/\\*'\"|(){}]+", text)}
    return {name.lower() for name in names} | {_stem(name) for name in names}


def _rest(call: Call | None, step: Step) -> Words:
    """Return what a command line is about, without what is missing and without options."""
    words = [word for stage in _stages(call) for word in (stage.program, *stage.arguments)]
    common = _NAVIGATES | _LOOKERS | {step.goal.get("path"), step.path}
    return Counter(word for word in words if word not in common and not word.startswith("-"))


def _is_wanted(call: Call, step: Step) -> bool:
    """Whether a change is near one that was made, also without the comments of both."""
    return any(_is_near(call.arguments, one.arguments, step) for one in step.references)


def _is_near(own: dict[str, Any], wanted: dict[str, Any], step: Step) -> bool:
    code, wanted_code = (changed_words(_without_comments(each, step)) for each in (own, wanted))
    is_code = any(word[0] == "+" for word in wanted_code)
    return overlap(changed_words(own), changed_words(wanted)) >= ALIKE and (
        not is_code or overlap(code, wanted_code) >= ALIKE
    )


def _without_comments(given: Any, step: Step) -> Any:
    """Return arguments without the lines of code that are comments."""
    if PurePosixPath(step.path).suffix in {"", ".md", ".txt", ".rst"}:
        return given
    if isinstance(given, dict):
        return {key: _without_comments(value, step) for key, value in given.items()}
    if isinstance(given, list):
        return [_without_comments(value, step) for value in given]
    return _COMMENT.sub("", given) if isinstance(given, str) else given
