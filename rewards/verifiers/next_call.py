"""Judge the next call at a step that failed: whether it does what the failed call was for.

spec   as `filter --unit step` writes it: tools, format, workspace and paths (what was there), goal,
       failed_call, resolved_call (what worked later, if anything did), targets (other files that serve
       the step: the session used them next, or later where the prompt names them), places (what `~` is)
score  as docs/tutorials/exercises.md says; None where the session decides neither for nor against the call

A row of a session or an episode has no goal: there each call must be valid, another than the one
that failed, and name files that are there; its edits must apply, and the files still parse.
"""

import re
import tomllib
from collections.abc import Container, Iterable, Iterator
from itertools import pairwise, takewhile
from pathlib import Path, PurePosixPath
from typing import Any

from pimono_sdpo.replay.calls import changed_words, find_path, find_text, overlap, read_edits, read_patch
from pimono_sdpo.replay.commands import find_changes
from pimono_sdpo.replay.files import Edit
from pimono_sdpo.replay.workspace import CHANGING, Workspace, load_workspace, split_name
from pimono_sdpo.shell import Stage, parse_command
from rewards.verifiers import replay, tool_calls
from rewards.verifiers.call_formats import Call
from rewards.verifiers.rubric import BadSpec, VerifierResult, failed, passed, skipped

NAME = "next_call"
INVALID, WRONG, BREAKS, LOOKS = 0.1, 0.1, 0.3, 0.5
# Letters of a part of a name that is looked for, and places of a call that looks everywhere.
LONG, MANY, MOST_LINES = 5, 12, 100_000
# F1 of the words of two changes with their comments; what of a file another text of it keeps.
ALIKE, KEPT = 0.7, 0.5
_NO_WORD = re.compile(r"['\"\\]|\d?&?>>?\s*(?:&\d|/dev/null)")
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_IS = {name: frozenset(words.split()) for name, words in _TABLE.items()}
_LOOKERS, _READERS, _MATCHERS, _LISTERS = (_IS[name] for name in ("lookers", "readers", "matchers", "listers"))
_GREPS = (_MATCHERS - {"fd"}) | _IS["finders"]
# The programs that do the same as tools.
_PROGRAMS = {"lists": "ls", "searches": "rg", "reads": "sed"}
# Only what prints lines of a file shows what is to be changed.
_CONTENT = frozenset({"read", "change"})
_NO_LINES = re.compile(r"(?<!\S)(?:-[a-zA-Z]{0,9}[clLq]\w{0,9}|--(?:count|quiet|files\S*))(?!\S)")
_NONE = re.compile(r"(?<!\S)-[-a-zA-Z]*[ =]?0(?!\S)")
_FOLLOWS = re.compile(r"(?<!\S)(?:-[a-zA-Z]*[fF]\w*|--follow\S*)(?!\S)")
_PRINTS = re.compile(r"(?:(\d{1,9})|/([^/]{1,99})/)(?:,[^p;]{0,99})?p")
_TAKES_VALUE = re.compile(r"-[a-zA-Z]{0,9}[ABCm]|--(?:after-|before-)?context|--max-count")
_CHANGES = frozenset({"edit", "write", "multi_edit", "apply_patch"})
# Options and code by which programs that look write files or run others.
_WRITES = re.compile(
    r"\bfind\b.*\s-f(?:print|ls)|\btree\b.*\s-o\b|\brg\b.*\s--pre\b|\bgit\b.*\s(?:--output\b|rm\s)"
    r"|\bg?awk\b.*(?:\bsystem\s*\(|\bprintf?\b[^{}]*>\s*[\w\"(]|\|\s*\")|\bg?sed\b.*(?:^|[\s'\";}/\dg$])[we] +[^\s/]"
)
# What runs on another machine, and what is run to be put into a command line.
_ELSEWHERE = re.compile(r"\b(?:ssh|docker|podman|kubectl)\b")
_NESTED = re.compile(r"\$\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)|`([^`]*)`")


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
            self.state: dict[str, Any] = spec["workspace"] or {"cwd": "", "files": {}}
            self.workspace: Workspace = load_workspace(self.state)
            recorded = [spec["failed_call"], spec["resolved_call"]]
            self.references = [
                Call(one.get("name", one.get("tool", "")), one.get("args", {"command": one.get("command")}))
                for one in recorded
                if one
            ]
            self.failed = self.references[0] if recorded[0] else None
            self.paths = {self.absolute(path) for path in spec["paths"]} | set(self.workspace.files)
        except (KeyError, TypeError, AttributeError) as found:
            raise BadSpec(f"The row is not of `filter --unit step` ({found!r}).") from found
        goal = str(self.goal.get("path") or "")
        self.path = self.absolute(_inside(_find_folder(self.failed), goal)) if goal else ""
        # What the call that worked names is there, whether it was shown or not.
        uses = [one for one in self.references[1:] if _LISTERS.isdisjoint(stage.program for stage in _stages(one))]
        worked = [path for one in uses for path in _paths(one, self)]
        own = () if self.kind == "path" else (self.path,)
        targets = (*worked, *spec.get("targets", ()), *own)
        self.targets = {self.absolute(path) for path in targets} - {self.absolute(".")}
        self.paths |= self.targets
        known = [self.workspace.files[path] for path in self.targets & self.workspace.files.keys()]
        given = [(one.arguments, str(value)) for one in self.references for value in one.arguments.values()]
        texts = [text for file in known for text in file.texts] + [text for of, text in given if text != find_path(of)]
        names = [PurePosixPath(path).name for path in self.targets] if self.kind in _CONTENT else self.paths
        self.text = "\n".join([*texts, *names]).lower()
        lengths = [MOST_LINES if file.whole is None else file.whole.count("\n") + 1 for file in known]
        self.lines = range(1, max(lengths, default=MOST_LINES) + 1)
        self.folders = {parent for path in self.paths for parent in _parents(path)}
        is_change = self.failed is not None and self.failed.name in _CHANGES
        self.changes = self.kind == "change" or (self.kind == "path" and is_change)
        self.above = {self.absolute("."), *_parents(self.absolute(".")), "/"}

    def absolute(self, path: str) -> str:
        """Return a path as the files are known by it."""
        path = path.strip() or "/"
        path = f"{self.workspace.cwd}/{path}" if path.startswith("..") else path
        for short, folder in self.spec.get("places", {}).items():
            if f"{path}/".startswith(f"{short}/"):
                path = folder + path.removeprefix(short)
        return self.workspace.absolute(path)

    def knows(self, pattern: str) -> bool:
        """Whether one of the alternatives of a pattern occurs in what is known of the files to look at."""
        plain = re.sub(r"\[[^]]*\]|\{[\d,]*\}|\\[A-Za-z]|\\(?!\|)|[\^$.*+?()]", " ", pattern.lower()[:999])
        options = [option.split() for option in re.split(r"\\?\|", plain)]
        return any(option and all(word in self.text for word in option) for option in options)

    def exists(self, path: str) -> bool | None:
        """Whether a path exists, None if the session does not tell."""
        path = self.absolute(path)
        return False if self.is_missing(path) else True if path in self.paths or path in self.folders else None

    def is_missing(self, path: str) -> bool:
        """Whether an absolute path is the one that did not exist, or below it."""
        return self.kind == "path" and f"{path}/".startswith(f"{self.path}/")

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
    if not step.kind:
        if (applied := step.replayed()).status == "failed":
            return applied
        named = [step.exists(path) for call in calls for path in _paths(call, step)]
        return passed(NAME) if applied.status == "passed" or (named and all(named)) else _unknown()
    if step.kind == "correction":
        return _unknown()
    if calls[0] in step.references:
        return passed(NAME)
    return (_judge_change if step.changes and calls[0].name in _CHANGES else _judge_look)(calls[0], step)


def _fail(feedback: str, score: float = WRONG) -> VerifierResult:
    return failed(NAME, "tool_schema_validation", feedback, score)


def _unknown() -> VerifierResult:
    return skipped(NAME, "The session does not show how this would end.")


def _judge_change(call: Call, step: Step) -> VerifierResult:
    """Judge an edit or a write where one failed."""
    paths = [patch.path for patch in read_patch(call.arguments)] or [find_path(call.arguments)]
    names = set(map(step.absolute, paths))
    if any(map(step.is_missing, names)):
        return _fail(f"{step.goal['path']} does not exist.")
    if step.path and step.targets.isdisjoint(names):
        return _unknown()
    if _loses_text(call, step):
        return _fail("This may lose what was to be kept of the file.")
    if (applied := step.replayed()).status == "failed":
        return applied
    own, *wanted = (_read_change(one, step) for one in (call, *step.references))
    is_part = all(any(one in change for change in wanted) for one in own)
    adds, *all_add = (any(new for _, new in change) for change in (own, *wanted))
    if call.name != "write" and not adds and all(all_add) and not is_part:
        return _fail("Something was to be put in.")
    is_decided = applied.status == "passed" or call.name == "write"
    return passed(NAME) if is_decided and _is_wanted(call, step) else _unknown()


def _is_sure(call: Call, step: Step) -> bool:
    """Whether edits replace one text each, or all of them as the call that worked did."""
    worked = [edit for one in step.references[1:] for edit in read_edits(one.arguments)]
    given, known = step.references[0].arguments, step.workspace.files.get(step.path)
    # Where the failed edit would apply to what is known of the file, too little is known.
    is_partial = known is not None and known.predict(read_edits(given)) == "ok"
    return all(
        any(one.everywhere if edit.everywhere else one.old in edit.old or not is_partial for one in worked)
        for edit in read_edits(call.arguments)
    )


def _judge_look(call: Call, step: Step) -> VerifierResult:
    """Judge a call that can at best look, or run again what could not be found."""
    looked, read = (set(map(step.absolute, _paths(call, step, of))) for of in ((), _READERS))
    goal, command = step.goal["path"], find_text(call.arguments, "command", "cmd")
    programs = _list_programs(call)
    if _destroys(call) and not any(map(_destroys, step.references)):
        return _unknown() if _is_aside(call, step) else _fail("This may delete what was to be kept.")
    if _loses_text(call, step):
        return _fail(f"{goal} was to be kept.")
    if _may_change(call):
        names = find_changes(command.replace("$WORKSPACE/", ""), "").names
        changes = set(map(step.absolute, names)) if command else looked
        if command and step.kind == "read":
            # A command may make the wanted change, though blindly, or one of other files.
            is_kept = step.path not in changes or _shares_words(command, step)
        else:
            is_kept = step.changes or changes.isdisjoint(step.paths | {step.path} if command else {step.path})
        # Where the call that failed may have changed something, so may the same one elsewhere.
        may_run = any(_may_change(one) for one in step.references if one.name not in _CHANGES)
        is_kept = is_kept or (may_run and not any(map(step.is_missing, changes)))
        is_wrong = not is_kept or _WRITES.search(command)
        return _fail(f"{goal} was to be looked at.") if is_wrong else _unknown()
    seen = [(folder, one) for folder, one, after in _walk(call) if all(_prints(each, step) for each in (one, *after))]
    sought, listed = [word for _, stage in seen for word in _split_words(stage)[0]], set(_listed(seen, step))
    if any(map(step.is_missing, looked | {step.absolute(folder) for folder, _, _ in _walk(call) if folder})):
        # After it failed, another part of the command may find it.
        return _unknown() if sought and _searches(sought, set(), step) else _fail(f"{goal} does not exist.")
    if read & step.folders or (step.kind == "folder" and step.path in read):
        return _fail("This is a folder.")
    if programs - _LOOKERS - _IS["navigates"] or len(looked | listed) + len(_words(" ".join(sought))) > MANY:
        return _unknown()
    shown = set(_shown(seen, step))
    inside = [path for path in shown | listed if step.kind == "folder" and f"{path}/".startswith(f"{step.path}/")]
    if step.targets & shown or (inside and all(map(step.exists, inside))):
        return _fail(f"Now use what {goal} shows.", LOOKS) if step.changes else passed(NAME)
    if step.kind != "change" and _searches(sought, listed, step):
        return _fail("Use what this finds.", LOOKS) if step.goal.get("shown") else passed(NAME)
    is_aimless = listed and looked | listed <= {step.absolute("."), "/"} and not sought
    return _fail(f"{goal} is the one to look at.") if is_aimless and step.kind != "path" else _unknown()


def _shares_words(command: str, step: Step) -> bool:
    """Whether a command appends to a file, deletes lines by number, or has a word of the edit that was to be made."""
    edits = [edit for one in step.references for edit in read_edits(one.arguments)]
    words = {word for edit in edits for word in re.findall(r"\w{3,}", f"{edit.old} {edit.new}")}
    own = set(re.findall(r"\w+", command.replace("/dev/null", ""))) - set(re.findall(r"\w+", step.path))
    return ">>" in command or not words or bool(words & own) or re.search(r"\b\d+(?:,\d+)?d\b", command) is not None


def _destroys(call: Call) -> bool:
    """Whether a command deletes files, or what git has not got yet."""
    for stage in _list_run(call) if _is_command(call) else ():
        given = set(map(str.lower, stage.arguments))
        is_each = stage.program in {"find", "fd"} and {"-delete", *_IS["destroyers"]} & given
        is_lost = stage.program == "git" and _IS["loses_of_git"].intersection(stage.arguments[:3])
        if stage.program in _IS["destroyers"] or is_each or is_lost:
            return True
    return False


def _is_aside(call: Call, step: Step) -> bool:
    """Whether a command deletes single files of the workspace by their names, none that is to be looked at."""
    kept, here = step.targets | {step.path}, step.absolute(".")
    return not _NESTED.search(find_text(call.arguments, "command", "cmd")) and all(
        stage.program in {"rm", "del", "remove-item"}
        and not re.search(r"[*?$`{]|(?<!\S)-\w*[rR]", " ".join(stage.arguments).replace("$WORKSPACE/", ""))
        and all(one.startswith(f"{here}/") for one in given)
        and kept.isdisjoint(given)
        for folder, stage, _ in _walk(call)
        for given in [[step.absolute(_inside(folder, word)) for word in _split_words(stage)[1]]]
        if stage.program not in (_LOOKERS - {"find", "fd", "git"}) | _IS["navigates"]
    )


def _list_run(call: Call) -> list[Stage]:
    """Return the programs of a command line with those whose output is put into it."""
    nested = _NESTED.findall(find_text(call.arguments, "command", "cmd"))
    return _stages(call) + [stage for one in nested for stage in _list_run(Call("", {"command": "".join(one)}))]


def _list_programs(call: Call) -> set[str]:
    """Return the names of what a call runs, with what git does but for looking, and the way to other machines."""
    found = set(_ELSEWHERE.findall(find_text(call.arguments, "command", "cmd")))
    for stage in _list_run(call):
        is_look = stage.program != "git" or not _IS["looks_of_git"].isdisjoint(stage.arguments[:3])
        found.add(stage.program if is_look else " ".join((stage.program, *stage.arguments)))
    return found


def _prints(stage: Stage, step: Step) -> bool:
    """Whether a program prints what it is given or finds, as far as is known."""
    words, (patterns, _) = " ".join(stage.arguments), _split_words(stage)
    if stage.targets or stage.program in _IS["counters"]:
        return False
    if stage.program == "git":
        return not {"ls-files", "ls-tree", "grep"}.isdisjoint(stage.arguments)
    if _is_search(stage):
        is_shown = not (step.kind in _CONTENT and _NO_LINES.search(words))
        return is_shown and (step.kind == "path" or any(map(step.knows, patterns)))
    code = next((word for word in stage.arguments if word[:1] != "-"), "")
    if stage.program == "sed":
        # What is left without -n is not known.
        is_quiet = re.search(r"(?<!\S)-(?:[a-zA-Z]*n|-quiet|-silent)", words)
        return is_quiet is not None and any(
            int(at) in step.lines if at else step.knows(text) for at, text in _PRINTS.findall(code)
        )
    if stage.program == "awk":
        return re.search(r"print|NR|^/", code) is not None
    return stage.program not in _READERS or not (_NONE.search(words) or _FOLLOWS.search(words))


def _is_search(stage: Stage) -> bool:
    return stage.program in _GREPS and "--files" not in stage.arguments


def _shown(seen: Iterable[tuple[str, Stage]], step: Step) -> Iterator[str]:
    """Yield the paths of which a call shows what the step needs: that they are there, or what is in them."""
    for folder, stage in seen:
        if step.kind not in _CONTENT or _is_search(stage) or stage.program in _READERS:
            words = [word for word in _split_words(stage)[1] if not re.search(r"[*?]", word)]
            paths = [step.absolute(_inside(folder, word)) for word in words]
            yield from paths
            if _is_search(stage) and step.kind in _CONTENT:
                # Every step could search its workspace.
                below = [f"{path}/" for path in paths if path not in step.above]
                yield from (one for one in step.targets if one.startswith(tuple(below)))


def _searches(sought: list[str], listed: set[str], step: Step) -> bool:
    """Whether a call looks for what is missing by its name, or lists the folder where it was or may be."""
    name, others = PurePosixPath(step.path).stem, set(map(_stem, step.targets))
    # Longer words of the name are enough.
    parts = [part.lower() for part in re.split(r"[\W_]+|(?<=[a-z])(?=[A-Z])", name) if len(part) >= LONG]
    for word in sought:
        if ({name.lower()} | others) & _words(word) or any(part in word.lower() for part in parts):
            return True
    above = _parents(step.path)
    nearest = next((one for one in above if one in step.folders), "")
    near = above[: above.index(nearest) + 1] if nearest else above[:2]
    near += [folder for path in step.targets for folder in _parents(path)[:1]]
    # Every step could list its workspace.
    return step.kind == "path" and bool(listed & {*near} - {step.absolute(".")})


def _split_words(stage: Stage) -> tuple[list[str], list[str]]:
    """Return what a program searches for, and the places that it is given."""
    given = [("" if not _is_search(stage) else before, word) for before, word in pairwise(("", *stage.arguments))]
    words = [word for before, word in given if word[:1] != "-" and not _TAKES_VALUE.fullmatch(before)]
    if stage.program == "find":
        places = list(takewhile(lambda word: not word.startswith("-"), stage.arguments))
        return words[len(places) :], places
    if stage.program in {"sed", "awk"}:
        return [], words[1:]
    if stage.program in _MATCHERS and "--files" not in stage.arguments:
        return words[:1], words[1:]
    if stage.program in _LOOKERS - _READERS:
        return [word for word in words if stage.program in _IS["finders"] or re.search(r"[*?\[]", word)], words
    return [], words


def _listed(seen: Iterable[tuple[str, Stage]], step: Step) -> Iterator[str]:
    """Yield the folders that a call lists; a pattern lists the one before it."""
    for folder, stage in seen:
        if stage.program in _LISTERS or "--files" in stage.arguments:
            for word in _split_words(stage)[1] or ["."]:
                place = re.split(r"[^/\\]*[*?]", _inside(folder, word))[0]
                yield step.absolute(place.rstrip("/\\") or ".")


def _is_command(call: Call) -> bool:
    return not {"command", "cmd"}.isdisjoint(call.arguments)


def _acts(call: Call) -> str:
    """Return whether a tool changes, reads, searches or lists by its name or what it is given; "" if unknown."""
    words, given = split_name(call.name), call.arguments
    if _is_command(call):
        return ""
    if call.name in _CHANGES or CHANGING & words or "content" in given or read_edits(given):
        return "change"
    return next((act for act in _PROGRAMS if words & _IS[act]), "")


def _does_nothing(call: Call) -> bool:
    """Whether a call cannot change or show anything."""
    edits = read_edits(call.arguments) if call.name in _CHANGES else []
    if edits and all(edit.old == edit.new for edit in edits):
        return True
    return _is_command(call) and all(
        stage.program in _IS["navigates"] | {"sleep"} and {*stage.targets} <= {"/dev/null"} for stage in _stages(call)
    )


def _may_change(call: Call) -> bool:
    """Whether a call may change files."""
    command = find_text(call.arguments, "command", "cmd")
    changes = find_changes(command, "")
    is_more = changes.anything or changes.names - {"/dev/null"} or _WRITES.search(command)
    return _acts(call) == "change" or bool(is_more)


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
    kept = {key: value for key, value in call.arguments.items() if key in before.arguments}
    return "".join(str(kept).split()) == "".join(str(before.arguments).split())


def _find_folder(call: Call | None) -> str:
    """Return the folder in which a command ends, or that it is given."""
    folders = [folder for folder, _, _ in _walk(call)]
    return folders[-1] if folders else ""


def _walk(call: Call | None) -> Iterator[tuple[str, Stage, list[Stage]]]:
    """Yield the programs of a command line, each with the folder it runs in and those that get its output."""
    folder = find_text(call.arguments, "workdir", "cwd") if call else ""
    for stages in _pipelines(call):
        for at, stage in enumerate(stages, 1):
            if stage.program in {"cd", "pushd", "set-location"} and stage.arguments:
                folder = _inside(folder, stage.arguments[-1])
            yield folder, stage, stages[at:]


def _pipelines(call: Call | None) -> list[list[Stage]]:
    """Return the programs of a command line, or the one that does the same as a tool."""
    command = find_text(call.arguments, "command", "cmd") if call else ""
    if call is None or _is_command(call):
        # PowerShell does not tell upper from lower case.
        return [[one._replace(program=one.program.lower()) for one in pipe.stages] for pipe in parse_command(command)]
    path, act, given = find_path(call.arguments), _acts(call), call.arguments
    pattern, words = find_text(given, "pattern", "query"), [path] * bool(path)
    if act == "reads":
        words = ["-n", f"{(given.get('offset') or 1) if given.get('limit') != 0 else 0}p", *words]
    elif act == "searches":
        words = ["-l"] * (given.get("output_mode", "content") != "content") + [pattern, *words]
    elif act == "lists":
        words = [_inside(path, pattern)]
    return [[Stage(_PROGRAMS.get(act, ""), tuple(words), (), "reads")]]


def _stages(call: Call | None) -> list[Stage]:
    return [stage for stages in _pipelines(call) for stage in stages]


def _paths(call: Call, step: Step, programs: Container[str] = ()) -> Iterator[str]:
    """Yield what a call names that may be a path, all or as given to some programs."""
    yield from (patch.path for patch in read_patch(call.arguments))
    for folder, stage, _ in _walk(call):
        for word in _split_words(stage)[1]:
            is_path = re.search(r"[/\\]|\.\w", word) or _stem(word) == _stem(step.path) or not _is_command(call)
            if is_path and stage.program != "cd" and (not programs or stage.program in programs):
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


def _is_wanted(call: Call, step: Step) -> bool:
    """Whether a call leaves the file as one that was made does, or changes the same if the file is known in part."""
    own = _apply(call, step)
    for one in step.references:
        wanted = _apply(one, step)
        if own and wanted:
            is_same = _read_code(own["new_string"], step) == _read_code(wanted["new_string"], step)
        else:
            is_same = not own and _is_sure(call, step) and _read_change(call, step) == _read_change(one, step)
        words, wanted_words = (changed_words(given) for given in (own or call.arguments, wanted or one.arguments))
        if is_same and overlap(words, wanted_words) >= ALIKE:
            return True
    return False


def _apply(call: Call, step: Step) -> dict[str, Any] | None:
    """Return an edit or a write as an edit of the whole file, None where the session does not tell."""
    workspace, known = load_workspace(step.state), step.workspace.files.get(step.path)
    check = replay.CHECKS.get(call.name)
    if check is None or known is None or known.whole is None or check(workspace, call) is not True:
        return None
    return {"old_string": known.whole, "new_string": workspace.file(step.path).whole}


def _read_code(text: str, step: Step) -> list[str]:
    """Return the words of a text in their order, where quotes are alike, without the lines that are comments."""
    suffix = PurePosixPath(step.path).suffix
    if suffix not in {"", *_IS["texts"]}:
        text = re.sub(rf"(?m)^\+?[ \t]*{'#(?!!)' if suffix in _IS['hashes'] else '//'}.*\n?", "", text)
    # Elsewhere white space says nothing.
    indent = r"\n[ \t]*(?=\S)|" if suffix in _IS["indented"] else ""
    return re.findall(rf"{indent}\w+|[^\w\s]", re.sub(r"[\"`]", "'", text).strip())


def _read_change(call: Call, step: Step) -> list[tuple[list[str], list[str]]]:
    """Return what a call takes out and what it puts in there, whatever text is around it."""
    edits = read_edits(call.arguments) or [hunk for patch in read_patch(call.arguments) for hunk in patch.hunks]
    found = []
    for edit in edits or [Edit("", find_text(call.arguments, "content"))]:
        old, new = _read_code(edit.old, step), _read_code(edit.new, step)
        start = _count_same(old, new)
        end = _count_same(old[start:][::-1], new[start:][::-1])
        found.append((old[start : len(old) - end], new[start : len(new) - end]))
    return sorted(found)


def _count_same(one: list[str], other: list[str]) -> int:
    """Count the words with which two texts begin alike."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _loses_text(call: Call, step: Step) -> bool:
    """Whether a file is moved, deleted, or written anew without most of its lines, or without any of them known."""
    given = call.arguments
    if _IS["takes_away"] & split_name(call.name):
        return step.path in {step.absolute(value) for value in given.values() if isinstance(value, str)}
    path, wanted = step.absolute(find_path(given)), ("content" in one.arguments for one in step.references)
    if "content" not in given or path not in {step.path, *step.targets} or any(wanted):
        return False
    known = step.workspace.files.get(path)
    lines, kept = (
        {line.strip() for line in text.split("\n")} - {""}
        for text in ((known and known.whole) or "", find_text(given, "content"))
    )
    return not lines or len(lines & kept) < KEPT * len(lines)
