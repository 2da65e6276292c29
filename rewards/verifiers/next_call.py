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
| what is missing is searched for by its name where no name of it was shown | |

What was wanted is known from the failed call and from the one that worked: a change counts when its
words overlap with theirs by at least half (F1 of the words taken out and put in).
"""

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pimono_sdpo.replay.calls import find_path, find_text, read_edits, read_patch
from pimono_sdpo.replay.workspace import Workspace, load_workspace
from pimono_sdpo.shell import Stage, parse_command
from rewards.verifiers import replay, tool_calls
from rewards.verifiers.call_formats import Call
from rewards.verifiers.rubric import BadSpec, VerifierResult, failed, passed, skipped

NAME = "next_call"
INVALID, UNRELATED, MISSING, BREAKS, OTHER, LOOKS = 0.1, 0.1, 0.1, 0.3, 0.4, 0.5
# F1 of the words of two changes, and of two command lines, which are shorter.
ALIKE, SAME_WORDS = 0.5, 0.7
_NO_WORD = re.compile(r"['\"\\]|\d?&?>>?\s*(?:&\d|/dev/null)")
_WORD = re.compile(r"\w+|[^\w\s]")
_LOOKERS = frozenset("ls find fd rg grep egrep tree cat head tail sed wc stat file awk less nl git bat".split())
_NAVIGATES = frozenset("cd pushd export set source true : echo printf sleep".split())
# Programs of POSIX and the shell, which no machine with a shell lacks.
_STANDARD = (
    _LOOKERS - {"fd", "rg", "tree", "git", "bat"}
    | _NAVIGATES
    | set("cp mv rm mkdir touch sort uniq cut tr xargs command type test pwd env dirname".split())
)
_LOOK_UP = frozenset({"which", "type", "command", "ls", "find", "whereis"})
_CHANGES = frozenset({"edit", "write", "multi_edit", "apply_patch"})
Words = Counter[str]


class Step:
    """The spec of a row: what was wanted, and what was there."""

    def __init__(self, spec: dict[str, Any]) -> None:
        try:
            self.goal: dict[str, Any] = spec["goal"]
            self.kind: str = self.goal["kind"]
            self.workspace: Workspace = load_workspace(spec["workspace"])
            self.references = [
                Call(call["name"], call["args"]) for call in (spec["failed_call"], spec["resolved_call"]) if call
            ]
            self.failed = self.references[0] if spec["failed_call"] else None
            self.paths = {self.absolute(path) for path in spec["paths"]}
            self.programs = _STANDARD | {*spec["programs"]}
        except (KeyError, TypeError, AttributeError) as found:
            raise BadSpec(f"the row is not of `filter --unit step` ({found!r})") from found
        self.paths |= set(self.workspace.files)
        self.folders = {parent for path in self.paths for parent in _parents(path)}
        folder = _find_folder(self.failed)
        goal = str(self.goal.get("path") or "")
        is_inside = folder and not goal.startswith(("/", "$", "~")) and goal != folder
        self.path = self.absolute(f"{folder}/{goal}" if is_inside else goal) if goal else ""
        self.spec = spec

    def absolute(self, path: str) -> str:
        """Return a path as the files are known by it."""
        return self.workspace.absolute(path.strip() or "/")

    def exists(self, path: str) -> bool | None:
        """Whether a path exists, None if the session does not tell."""
        path = self.absolute(path)
        if self.kind == "path" and (path == self.path or path.startswith(f"{self.path}/")):
            return False
        return True if path in self.paths or path in self.folders else None


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Judge the call of a completion, decoded with its special tokens."""
    if not spec.get("goal"):
        return _verify_outcome(completion, spec)
    step = Step(spec)
    valid = tool_calls.verify(completion, spec)
    if valid.status != "passed":
        share = INVALID * (valid.score or 0.0)
        return valid if valid.score is None else _fail(valid.feedback, share)
    calls = tool_calls.calls_of(completion, spec)
    if len(calls) != 1 or not isinstance(calls[0].arguments, dict):
        return _fail("Make one call.", 0.0)
    call = calls[0]
    if step.failed and _repeats(call, step.failed, step):
        return _fail("This call has failed already.", 0.0)
    if _does_nothing(call):
        return _fail("The call does nothing.", 0.0)
    judge = JUDGES.get(step.kind)
    if judge is None:
        return skipped(NAME, "The session does not tell what the right call is.")
    return judge(call, step, completion)


def _verify_outcome(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Judge the calls of an answer to a request by what the session recorded after it."""
    recorded = spec.get("failed_call") or {}
    given = {"command": recorded.get("command", "")}
    failed_call = {"name": recorded.get("tool", ""), "args": given} if recorded else None
    rest: dict[str, Any] = {"resolved_call": None, "paths": [], "programs": []}
    workspace = spec.get("workspace") or {"cwd": "", "files": {}}
    step = Step({**spec, **rest, "workspace": workspace, "failed_call": failed_call, "goal": {"kind": ""}})
    valid = tool_calls.verify(completion, {**spec, "call": "optional"})
    if valid.status != "passed":
        return valid if valid.score is None else _fail(valid.feedback, INVALID * valid.score)
    calls = tool_calls.calls_of(completion, spec)
    if any(step.failed and _repeats(call, step.failed, step) for call in calls):
        return _fail("This call has failed already.", 0.0)
    if all(map(_does_nothing, calls)):
        return _fail("The calls do nothing.", 0.0)
    applied = replay.verify(completion, spec)
    if applied.status == "failed":
        return _fail(applied.feedback, BREAKS * (applied.score or 0.0))
    named = [step.exists(path) for call in calls for path in _paths(call, step)]
    return passed(NAME) if applied.status == "passed" or (named and all(named)) else _unknown()


def _fail(feedback: str, score: float) -> VerifierResult:
    return failed(NAME, "tool_schema_validation", feedback, score)


def _unknown() -> VerifierResult:
    return skipped(NAME, "The session does not tell how this would end.")


def _change(call: Call, step: Step, completion: str) -> VerifierResult:
    """Judge what is done where an edit or a write of a file failed."""
    if call.name not in _CHANGES:
        return _look(call, step)
    names = [patch.path for patch in read_patch(call.arguments)] or [find_path(call.arguments)]
    if step.path and step.path not in map(step.absolute, names):
        return _fail(f"The file to change is {step.goal['path']}.", UNRELATED)
    if call.name == "write" and not any(one.name == "write" for one in step.references):
        known = step.workspace.files.get(step.path)
        if known is None or known.whole is None:
            return _fail("Writing the whole file may lose what was not seen of it.", UNRELATED)
    applied = replay.verify(completion, step.spec)
    if applied.status == "failed":
        return _fail(applied.feedback, BREAKS * (applied.score or 0.0))
    wanted = _is_wanted(call, step)
    if not wanted:
        return _fail("The call changes something else than was wanted.", OTHER)
    is_write = call.name == "write"
    return passed(NAME) if applied.status == "passed" or is_write else _unknown()


def _read(call: Call, step: Step, completion: str) -> VerifierResult:
    """Judge what is done where the harness wants a file to be read first."""
    if call.name in _CHANGES and step.absolute(find_path(call.arguments)) == step.path:
        return _fail(f"{step.goal['path']} must be read before it is changed.", MISSING)
    if call.name == "read" and step.absolute(find_path(call.arguments)) == step.path:
        return passed(NAME)
    return _look(call, step)


def _path(call: Call, step: Step, completion: str) -> VerifierResult:
    """Judge what is done where a path did not exist."""
    is_change = step.failed is not None and step.failed.name in _CHANGES
    if call.name in _CHANGES and not is_change:
        return _fail(f"{step.goal['path']} was to be looked at.", UNRELATED)
    name = _stem(step.path)
    named = list(_paths(call, step))
    if how := _searches(call, step, name):
        is_best = how == "by name" and not step.goal.get("shown")
        return passed(NAME) if is_best else _fail("Use what this finds.", LOOKS)
    writes = {"cp", "mv", "tee", "touch"} & {stage.program for stage in _stages(step.failed)}
    made = [w for stage in _stages(call) if stage.program == "mkdir" for w in stage.arguments]
    if writes and {step.path, *_parents(step.path)} & set(map(step.absolute, made)):
        is_all = _overlap(_rest(call, step), _rest(step.failed, step)) >= SAME_WORDS
        return passed(NAME) if is_all else _fail("Now do the rest.", LOOKS)
    if any(step.exists(one) is False for one in named):
        return _fail(f"{step.goal['path']} does not exist.", MISSING)
    resolved = [one for ref in step.references[1:] for one in _paths(ref, step)]
    aims = [one for one in named if _stem(step.absolute(one)) == name]
    aims += [one for one in named if step.absolute(one) in map(step.absolute, resolved)]
    if is_change and aims:
        applied = replay.verify(completion, step.spec)
        if applied.status == "failed":
            return _fail(applied.feedback, BREAKS * (applied.score or 0.0))
        if call.name not in _CHANGES or not _is_wanted(call, step):
            return _fail("Now make the change.", LOOKS if call.name == "read" else UNRELATED)
    rest = _rest(step.failed, step)
    is_same = rest.total() >= 2 and _overlap(_rest(call, step), rest) >= SAME_WORDS
    if aims or is_same:
        known = [step.exists(one) for one in (aims or named)]
        return passed(NAME) if all(known) else _unknown()
    return _fail(f"This has nothing to do with {step.goal['path']}.", UNRELATED)


def _folder(call: Call, step: Step, completion: str) -> VerifierResult:
    """Judge what is done where a folder was taken for a file."""
    below = [one for one in _paths(call, step) if step.absolute(one).startswith(f"{step.path}/")]
    if call.name not in _CHANGES and any(step.absolute(one) == step.path for one in _paths(call, step)):
        return _fail("It is a folder.", MISSING) if call.name == "read" else passed(NAME)
    if below and call.name not in _CHANGES:
        return passed(NAME) if all(map(step.exists, below)) else _unknown()
    return _fail(f"This does not look into {step.goal['path']}.", UNRELATED)


def _program(call: Call, step: Step, completion: str) -> VerifierResult:
    """Judge what is done where a program did not exist."""
    missing = step.goal["program"]
    programs = {stage.program for stage in _stages(call)}
    if missing in programs:
        return _fail(f"{missing}: command not found", MISSING)
    if programs & _LOOK_UP and missing in _words(str(call.arguments)):
        return _fail(f"Use what this says of {missing}.", LOOKS)
    if max(_overlap(_rest(call, step), _rest(one, step)) for one in step.references) < SAME_WORDS:
        return _fail(f"This does not do what {missing} was to do.", UNRELATED)
    resolved = {stage.program for one in step.references[1:] for stage in _stages(one)}
    alike = resolved - _STANDARD | {name for name in programs if _is_like(name, missing)}
    if not programs & alike and programs <= _STANDARD:
        return _fail(f"This does not do what {missing} was to do.", UNRELATED)
    known = programs <= step.programs | resolved
    return passed(NAME) if programs & alike and known else _unknown()


def _is_like(program: str, missing: str) -> bool:
    """Whether a program is another version of one, or searches as it does."""
    versions = [re.sub(r"[\d.]+$", "", name) for name in (program, missing)]
    searches = missing in {"rg", "ag", "ack", "fd"} and program in {"grep", "find", "rg", "fd"}
    return versions[0] == versions[1] or searches


def _call(call: Call, step: Step, completion: str) -> VerifierResult:
    """Judge what is done where the arguments of a call did not fit."""
    if all(call.name != one.name for one in step.references) or not _is_wanted(call, step):
        return _fail("Make the call that was refused, with arguments that fit.", UNRELATED)
    failed, *resolved = (one.arguments for one in step.references)
    if not resolved:
        return _unknown()
    put_right = [key for key in {**failed, **resolved[0]} if failed.get(key) != resolved[0].get(key)]
    is_right = any(
        _overlap(*(Counter(_WORD.findall(str(one.get(key)))) for one in (call.arguments, resolved[0]))) >= ALIKE
        and call.arguments.get(key) != failed.get(key)
        for key in put_right
    )
    return passed(NAME) if is_right else _fail("The arguments that did not fit are there still.", UNRELATED)


JUDGES: dict[str, Callable[[Call, Step, str], VerifierResult]] = {
    "change": _change,
    "read": _read,
    "path": _path,
    "folder": _folder,
    "program": _program,
    "call": _call,
}


def _look(call: Call, step: Step) -> VerifierResult:
    """Judge a call that can at best look at the file of the goal."""
    shows = [
        stage
        for stage in _stages(call)
        if stage.program in _LOOKERS - {"ls", "find", "git"}
        and not (stage.targets or any(word.startswith("-i") for word in stage.arguments[:1]))
    ]
    named = [find_path(call.arguments)] if call.name in {"read", "grep"} else []
    named += [word for stage in shows for word in stage.arguments]
    if step.path and step.path in map(step.absolute, named):
        return _fail(f"Now use what {step.goal['path']} shows.", LOOKS)
    return _fail("This has nothing to do with the change that was wanted.", UNRELATED)


def _searches(call: Call, step: Step, name: str) -> str:
    """Return how a call looks for what is missing: "by name", in the "workspace", or not: ""."""
    stages = _stages(call)
    if any(stage.program not in _LOOKERS | _NAVIGATES or stage.targets for stage in stages):
        return ""
    lists = call.name in {"ls", "glob", "find"} or any(
        stage.program in {"ls", "tree", "find", "fd"} for stage in stages
    )
    finds = lists or call.name == "grep" or any(s.program in {"rg", "git"} for s in stages)
    given = [word for stage in stages if stage.program in _LOOKERS for word in stage.arguments]
    given += [value for value in call.arguments.values() if isinstance(value, str) and not stages]
    if finds and any(name in _words(word) and step.absolute(word) != step.path for word in given if name):
        return "by name"
    above = _parents(step.path)
    nearest = next((one for one in above if one in step.folders), "")
    listed = {step.absolute(word) for word in given} & {*above[:1], nearest} if lists else set()
    # Every step could list its workspace.
    return "workspace" if step.absolute(".") in listed else "by name" if listed else ""


def _does_nothing(call: Call) -> bool:
    """Whether a call cannot change or show anything."""
    edits = read_edits(call.arguments)
    if edits and call.name in _CHANGES and all(edit.old == edit.new for edit in edits):
        return True
    if not find_text(call.arguments, "command", "cmd"):
        return False
    return all(stage.program in _NAVIGATES for stage in _stages(call))


def _repeats(call: Call, before: Call, step: Step) -> bool:
    """Whether a call is one that failed, with other white space or with more around it."""
    command, failed_command = (_normal(one) for one in (call, before))
    if failed_command:
        folder = _find_folder(call)
        is_elsewhere = folder != _find_folder(before) and step.exists(folder)
        return f" {failed_command} " in f" {command} " and not is_elsewhere
    if call.name != before.name:
        return False
    if call.name in _CHANGES:
        # Only replay knows whether other white space is what was missing.
        return bool(call.arguments == before.arguments)
    kept = [{key: value for key, value in one.arguments.items() if key in before.arguments} for one in (call, before)]
    same_path = find_path(call.arguments) and (
        step.absolute(find_path(call.arguments)) == step.absolute(find_path(before.arguments))
    )
    if same_path and step.kind in {"path", "folder"}:
        return True
    kept = [one.arguments for one in (call, before)] if step.kind == "call" else kept
    return "".join(str(kept[0]).split()) == "".join(str(kept[1]).split())


def _normal(call: Call) -> str:
    """Return the words of a command line without quotes, redirections and how it is spaced."""
    command = find_text(call.arguments, "command", "cmd")
    return " ".join(_NO_WORD.sub(" ", command.replace(";", " ; ")).split())


def _find_folder(call: Call | None) -> str:
    """Return the folder that a command changes to first, or that it is given."""
    stages = _stages(call)
    inside = stages and stages[0].program == "cd" and stages[0].arguments
    return inside[0] if inside else find_text(call.arguments, "workdir", "cwd") if call else ""


def _stages(call: Call | None) -> list[Stage]:
    command = find_text(call.arguments, "command", "cmd") if call else ""
    return [stage for pipeline in parse_command(command) for stage in pipeline.stages]


def _paths(call: Call, step: Step) -> Iterator[str]:
    """Yield what a call names that may be a path."""
    if path := find_path(call.arguments):
        yield path
    yield from (patch.path for patch in read_patch(call.arguments))
    folder = _find_folder(call)
    for stage in _stages(call):
        for word in stage.arguments:
            is_path = re.search(r"[/\\]|\.\w", word) or _stem(word) == _stem(step.path)
            if word.startswith("-") or " " in word or not is_path:
                continue
            is_inside = folder and word != folder and not word.startswith(("/", "$", "~"))
            yield f"{folder}/{word}" if is_inside else word


def _parents(path: str) -> list[str]:
    """Return the folders above a path, the nearest first."""
    found = []
    while (above := posixpath.dirname(path)) not in {path, "", "/"}:
        found.append(above)
        path = above
    return found


def _stem(path: str) -> str:
    """Return the name of a file without its folder and ending, in lower case."""
    name = posixpath.basename(path)
    return (name.rsplit(".", 1)[0] or name).lower()


def _words(text: str) -> set[str]:
    """Return the names in a text, with and without their endings, in lower case."""
    names = {re.sub(r"^\W+|\W+$", "", one) for one in re.split(r"[\s/\\*'\"|(){}]+", text)}
    return {name.lower() for name in names} | {_stem(name) for name in names}


def _rest(call: Call | None, step: Step) -> Words:
    """Return what a command line is about, without what is missing and without options."""
    missing = {step.goal.get("path"), step.goal.get("program"), step.path}
    words = [word for stage in _stages(call) for word in (stage.program, *stage.arguments)]
    common = _STANDARD | _LOOKERS | missing
    return Counter(word for word in words if word not in common and not word.startswith("-"))


def _is_wanted(call: Call, step: Step) -> bool:
    own = _wanted_words(call)
    return any(_overlap(own, _wanted_words(one)) >= ALIKE for one in step.references)


def _wanted_words(call: Call) -> Words:
    """Return the words that a call takes out (-) and puts in (+), or those of its arguments."""
    edits = read_edits(call.arguments)
    edits = edits or [hunk for patch in read_patch(call.arguments) for hunk in patch.hunks]
    if not edits:
        return Counter(_WORD.findall(" ".join(_texts(call.arguments))))
    words: Words = Counter()
    for edit in edits:
        old, new = Counter(_WORD.findall(edit.old)), Counter(_WORD.findall(edit.new))
        words.update({f"-{word}": count for word, count in (old - new).items()})
        words.update({f"+{word}": count for word, count in (new - old).items()})
    return words or Counter(word for edit in edits for word in _WORD.findall(edit.new))


def _texts(value: Any) -> Iterator[str]:
    inner: Iterable[Any] = value.values() if isinstance(value, dict) else ()
    inner = value if isinstance(value, list) else inner
    if not isinstance(value, dict | list):
        yield str(value)
    for one in inner:
        yield from _texts(one)


def _overlap(one: Words, other: Words) -> float:
    """Return the F1 of two bags of words."""
    total = one.total() + other.total()
    return 2 * (one & other).total() / total if total else 0.0
