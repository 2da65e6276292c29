"""Check whether the next call after a failed one achieves what the failed call was for.

spec   as `filter --unit step` writes it: tools, format, workspace and paths (the files that existed),
       goal, failed_call, resolved_call (the call that worked later, if any), targets (other files that
       serve the step: the session used them next, or later where the prompt names them), places (the
       folder that `~` stands for), earlier (hashes of the calls of the prompt: failed, shown)
score  as docs/tutorials/exercises.md describes; None where the session proves neither success nor failure

A row of a session or an episode has no goal: there each call must be valid, must differ from the
failed one and name existing files; its edits must apply, and the files must still parse.
"""

import re
import tomllib
from collections.abc import Container, Iterable, Iterator
from itertools import pairwise, takewhile
from pathlib import Path, PurePosixPath
from typing import Any

from pimono_sdpo.replay.calls import (
    changed_words,
    find_path,
    find_text,
    hash_call,
    list_hunks,
    overlap,
    read_edits,
    read_patch,
)
from pimono_sdpo.replay.commands import find_changes
from pimono_sdpo.replay.files import Edit
from pimono_sdpo.replay.workspace import CHANGING, Workspace, load_workspace, split_name
from pimono_sdpo.shell import Stage, parse_command
from rewards.verifiers import replay as replay_verifier
from rewards.verifiers import tool_calls
from rewards.verifiers.call_formats import Call
from rewards.verifiers.rubric import BadSpec, VerifierResult, failed, passed, skipped

NAME = "next_call"
# Scores of failures.
INVALID, WRONG, BREAKS, LOOKS = 0.1, 0.1, 0.3, 0.5
# Letters of a part of a name that counts as a search for it; places that a call may look at.
MIN_PART_LETTERS, MAX_PLACES, MAX_LINES = 5, 12, 100_000
# F1 of the words of two changes, comments included; share of its lines that a rewritten file keeps.
MIN_OVERLAP, MIN_KEPT = 0.7, 0.5
_QUOTES_AND_REDIRECTIONS = re.compile(r"['\"\\]|\d?&?>>?\s*(?:&\d|/dev/null)")
_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_TERMS = {name: frozenset(words.split()) for name, words in _TABLE.items()}
_LOOKERS, _READERS, _MATCHERS, _LISTERS = (_TERMS[name] for name in ("lookers", "readers", "matchers", "listers"))
_SEARCHERS = (_MATCHERS - {"fd"}) | _TERMS["finders"]
# The programs that do the same as tools, by what the tools do.
_EQUIVALENT_PROGRAMS = {"lists": "ls", "searches": "rg", "reads": "sed"}
# For these goals only a call that prints lines of a file shows what is needed.
_CONTENT = frozenset({"read", "change"})
_HIDES_LINES = re.compile(r"(?<!\S)(?:-[a-zA-Z]{0,9}[clLq]\w{0,9}|--(?:count|quiet|files\S*))(?!\S)")
_COUNT_OF_ZERO = re.compile(r"(?<!\S)-[-a-zA-Z]*[ =]?0(?!\S)")
_FOLLOWS = re.compile(r"(?<!\S)(?:-[a-zA-Z]*[fF]\w*|--follow\S*)(?!\S)")
_SED_PRINT = re.compile(r"(?:(\d{1,9})|/([^/]{1,99})/)(?:,[^p;]{0,99})?p")
_TAKES_VALUE = re.compile(r"-[a-zA-Z]{0,9}[ABCm]|--(?:after-|before-)?context|--max-count")
_ALL_FILES = re.compile(r"[/\\]\*(?:\.\w+)?\Z")
_CHANGE_TOOLS = frozenset({"edit", "write", "multi_edit", "apply_patch"})
# Options and code with which lookers write files or run other programs.
_WRITES = re.compile(
    r"\bfind\b.*\s-f(?:print|ls)|\btree\b.*\s-o\b|\brg\b.*\s--pre\b|\bgit\b.*\s(?:--output\b|rm\s)"
    r"|\bg?awk\b.*(?:\bsystem\s*\(|\bprintf?\b[^{}]*>\s*[\w\"(]|\|\s*\")|\bg?sed\b.*(?:^|[\s'\";}/\dg$])[we] +[^\s/]"
)
# Programs that run commands on another machine; command substitutions.
_REMOTE = re.compile(r"\b(?:ssh|docker|podman|kubectl)\b")
_SUBSTITUTION = re.compile(r"\$\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)|`([^`]*)`")


class Step:
    """The goal of a step and the files that existed, from the spec of a row; a row of a session has no goal."""

    def __init__(self, spec: dict[str, Any], completion: str) -> None:
        self.spec, self.completion = spec, completion
        if not spec.get("goal"):
            defaults = dict.fromkeys(("failed_call", "resolved_call", "workspace"))
            spec = {**defaults, "paths": [], **spec, "goal": {"kind": ""}}
        try:
            self.goal: dict[str, Any] = spec["goal"]
            self.kind: str = self.goal["kind"]
            self.state: dict[str, Any] = spec["workspace"] or {"cwd": "", "files": {}}
            self.workspace: Workspace = load_workspace(self.state)
            self.references = [
                Call(call.get("name", call.get("tool", "")), call.get("args", {"command": call.get("command")}))
                for call in (spec["failed_call"], spec["resolved_call"])
                if call
            ]
            self.failed = self.references[0] if spec["failed_call"] else None
            self.paths = {self.absolute(path) for path in spec["paths"]} | set(self.workspace.files)
        except (KeyError, TypeError, AttributeError) as error:
            raise BadSpec(f"The row was not written by `filter --unit step` ({error!r}).") from error
        goal = str(self.goal.get("path") or "")
        self.path = self.absolute(_join(_find_folder(self.failed) if self.failed else "", goal)) if goal else ""
        # The paths that the resolved call names exist, whether the session has shown them or not.
        uses = [
            call for call in self.references[1:] if _LISTERS.isdisjoint(stage.program for stage in _list_stages(call))
        ]
        resolved = [path for call in uses for path in _find_paths(call, self)]
        own = () if self.kind == "path" else (self.path,)
        targets = (*resolved, *spec.get("targets", ()), *own)
        self.targets = {self.absolute(path) for path in targets} - {self.absolute(".")}
        self.paths |= self.targets
        files = [self.workspace.files[path] for path in self.targets & self.workspace.files.keys()]
        texts = [text for file in files for text in file.texts]
        for call in self.references:
            path = find_path(call.arguments)
            # What an edit would insert is not in the file.
            olds = [hunk.old for hunk in list_hunks(call.arguments)]
            texts += olds or [str(value) for value in call.arguments.values() if str(value) != path]
        names = [PurePosixPath(path).name for path in self.targets] if self.kind in _CONTENT else self.paths
        self.text = "\n".join([*texts, *names]).lower()
        lengths = [MAX_LINES if file.whole is None else file.whole.count("\n") + 1 for file in files]
        self.lines = range(1, max(lengths, default=MAX_LINES) + 1)
        self.folders = {parent for path in self.paths for parent in _list_parents(path)}
        is_change = self.failed is not None and self.failed.name in _CHANGE_TOOLS
        self.changes = self.kind == "change" or (self.kind == "path" and is_change)
        self.above = {self.absolute("."), *_list_parents(self.absolute(".")), "/"}

    def absolute(self, path: str) -> str:
        """Return the absolute form of a path, as in `paths` and `targets`."""
        path = path.strip() or "/"
        path = f"{self.workspace.cwd}/{path}" if path.startswith("..") else path
        for short, folder in self.spec.get("places", {}).items():
            if f"{path}/".startswith(f"{short}/"):
                path = folder + path.removeprefix(short)
        return self.workspace.absolute(path)

    def knows(self, pattern: str) -> bool:
        """Whether one of the alternatives of a pattern occurs in the known text of the files to look at."""
        plain = re.sub(r"\[[^]]*\]|\{[\d,]*\}|\\[A-Za-z]|\\(?!\|)|[\^$.*+?()]", " ", pattern.lower()[:999])
        options = [option.split() for option in re.split(r"\\?\|", plain)]
        return any(option and all(word in self.text for word in option) for option in options)

    def exists(self, path: str) -> bool | None:
        """Whether a path exists, None if it is unknown."""
        path = self.absolute(path)
        if self.is_missing(path):
            return False
        return True if path in self.paths or path in self.folders else None

    def is_missing(self, path: str) -> bool:
        """Whether an absolute path is the one that did not exist, or below it."""
        return self.kind == "path" and f"{path}/".startswith(f"{self.path}/")

    def replay(self) -> VerifierResult:
        """Return the result of the verifier `replay`; a failure becomes one of this verifier."""
        result = replay_verifier.verify(self.completion, self.spec)
        return _fail(result.feedback, BREAKS * (result.score or 0.0)) if result.status == "failed" else result


def verify(completion: str, spec: dict[str, Any]) -> VerifierResult:
    """Check the call of a completion, which was decoded with its special tokens."""
    step = Step(spec, completion)
    valid = tool_calls.verify(completion, spec if step.kind else {**spec, "call": "optional"})
    if valid.status != "passed":
        return valid if valid.score is None else _fail(valid.feedback, INVALID * valid.score)
    calls = tool_calls.parse_calls(completion, spec)
    if step.kind and len(calls) != 1:
        return _fail("Make one call.", 0.0)
    if any(step.failed and _repeats(call, step.failed, step) for call in calls):
        return _fail("This call has already failed.", 0.0)
    if all(map(_does_nothing, calls)):
        return _fail("The call does nothing.", 0.0)
    if not step.kind:
        if (replayed := step.replay()).status == "failed":
            return replayed
        exist = [step.exists(path) for call in calls for path in _find_paths(call, step)]
        return passed(NAME) if replayed.status == "passed" or (exist and all(exist)) else _undecided()
    if step.kind == "correction":
        return _undecided()
    if calls[0] in step.references:
        return passed(NAME)
    earlier, own = spec.get("earlier") or {}, hash_call(calls[0].name, calls[0].arguments)
    if own in earlier.get("failed", ()):
        return _fail("This call has already failed.", 0.0)
    if own in earlier.get("shown", ()):
        return skipped(NAME, "The result of this call is already shown.")
    return (_check_change if step.changes and calls[0].name in _CHANGE_TOOLS else _check_look)(calls[0], step)


def _fail(feedback: str, score: float = WRONG) -> VerifierResult:
    return failed(NAME, "tool_schema_validation", feedback, score)


def _undecided() -> VerifierResult:
    return skipped(NAME, "The result of this call is not known from the session.")


def _check_change(call: Call, step: Step) -> VerifierResult:
    """Check an edit or a write after one that failed."""
    paths = [patch.path for patch in read_patch(call.arguments)] or [find_path(call.arguments)]
    names = set(map(step.absolute, paths))
    if any(map(step.is_missing, names)):
        return _fail(f"{step.goal['path']} does not exist.")
    if step.path and step.targets.isdisjoint(names):
        return _undecided()
    if _loses_text(call, step):
        return _fail("This may delete parts of the file that must be kept.")
    if (replayed := step.replay()).status == "failed":
        return replayed
    change, *expected = (_read_change(one, step) for one in (call, *step.references))
    is_part = all(any(edit in reference for reference in expected) for edit in change)
    adds, *expected_adds = (any(new for _, new in edits) for edits in (change, *expected))
    if call.name != "write" and not adds and all(expected_adds) and not is_part:
        return _fail("The change must add something.")
    is_decided = replayed.status == "passed" or call.name == "write"
    return passed(NAME) if is_decided and _matches_reference(call, step) else _undecided()


def _is_unambiguous(call: Call, step: Step) -> bool:
    """Whether each edit replaces one text, or all occurrences as the resolved call does."""
    resolved = [edit for reference in step.references[1:] for edit in read_edits(reference.arguments)]
    known = step.workspace.files.get(step.path)
    # If the failed edit would apply to the known parts of the file, too little of it is known.
    is_partial = known is not None and known.predict(read_edits(step.references[0].arguments)) == "ok"
    return all(
        any(one.everywhere if edit.everywhere else one.old in edit.old or not is_partial for one in resolved)
        for edit in read_edits(call.arguments)
    )


def _check_look(call: Call, step: Step) -> VerifierResult:
    """Check a call that does not change the wanted file: it looks at files, or runs a command that was not found."""
    looked, read = (set(map(step.absolute, _find_paths(call, step, of))) for of in ((), _READERS))
    goal, command = step.goal["path"], _get_command(call)
    programs = _list_programs(call)
    if _destroys(call) and not any(map(_destroys, step.references)):
        return _undecided() if _deletes_only_others(call, step) else _fail("This may delete files that must be kept.")
    if _loses_text(call, step):
        return _fail(f"{goal} must be kept.")
    if _may_change(call):
        if step.goal.get("guessed") and call.name in _CHANGE_TOOLS - {"write"} and step.replay().status != "failed":
            # The harness allows an edit of a file that was not read, if its text happens to be right.
            return _undecided()
        names = find_changes(command.replace("$WORKSPACE/", ""), "").names
        changes = set(map(step.absolute, names)) if command else looked
        if command and step.kind == "read":
            # A command may make the wanted change without looking, or change other files.
            is_allowed = step.path not in changes or _shares_words(command, step)
        else:
            is_allowed = step.changes or changes.isdisjoint(step.paths | {step.path} if command else {step.path})
        # If the failed command may have changed something, so may the same command elsewhere.
        may_run = any(_may_change(one) for one in step.references if one.name not in _CHANGE_TOOLS)
        is_allowed = is_allowed or (may_run and not any(map(step.is_missing, changes)))
        is_wrong = not is_allowed or _WRITES.search(command)
        return _fail(f"Look at {goal}; do not change files.") if is_wrong else _undecided()
    printing = [
        (folder, stage)
        for folder, stage, later in _walk_stages(call)
        if all(_prints(one, step) for one in (stage, *later))
    ]
    patterns = [pattern for _, stage in printing for pattern in _split_arguments(stage)[0]]
    listed = set(_find_listed_folders(printing, step))
    if any(map(step.is_missing, looked | {step.absolute(folder) for folder, _, _ in _walk_stages(call) if folder})):
        # Another part of the command may still find the missing file.
        may_find = patterns and _looks_for_missing(patterns, set(), step)
        return _undecided() if may_find else _fail(f"{goal} does not exist.")
    if read & step.folders or (step.kind == "folder" and step.path in read):
        return _fail("This is a folder.")
    is_broad = len(looked | listed) + len(_split_names(" ".join(patterns))) > MAX_PLACES
    if programs - _LOOKERS - _TERMS["navigates"] or is_broad:
        return _undecided()
    shown = set(_find_shown_paths(printing, step))
    inside = [path for path in shown | listed if step.kind == "folder" and f"{path}/".startswith(f"{step.path}/")]
    if step.targets & shown or (inside and all(map(step.exists, inside))):
        return _fail("This only looks at the file; now make the change.", LOOKS) if step.changes else passed(NAME)
    if step.kind != "change" and _looks_for_missing(patterns, listed, step):
        return _fail("Use what was already found.", LOOKS) if step.goal.get("shown") else passed(NAME)
    is_aimless = listed and looked | listed <= {step.absolute("."), "/"} and not patterns
    return _fail(f"Look at {goal}.") if is_aimless and step.kind != "path" else _undecided()


def _shares_words(command: str, step: Step) -> bool:
    """Whether a command appends to a file, deletes lines by number, or shares a word with the intended edit."""
    edits = [edit for one in step.references for edit in read_edits(one.arguments)]
    words = {word for edit in edits for word in re.findall(r"\w{3,}", f"{edit.old} {edit.new}")}
    own = set(re.findall(r"\w+", command.replace("/dev/null", ""))) - set(re.findall(r"\w+", step.path))
    return ">>" in command or not words or bool(words & own) or re.search(r"\b\d+(?:,\d+)?d\b", command) is not None


def _destroys(call: Call) -> bool:
    """Whether a command deletes files or uncommitted changes."""
    for stage in _list_all_stages(call) if _is_command(call) else ():
        arguments = set(map(str.lower, stage.arguments))
        is_find = stage.program in {"find", "fd"} and {"-delete", *_TERMS["destroyers"]} & arguments
        is_git = stage.program == "git" and _TERMS["git_losing"].intersection(stage.arguments[:3])
        if stage.program in _TERMS["destroyers"] or is_find or is_git:
            return True
    return False


def _deletes_only_others(call: Call, step: Step) -> bool:
    """Whether a command deletes only single, named files of the workspace that the step does not need."""
    needed, workspace = step.targets | {step.path}, step.absolute(".")
    if _SUBSTITUTION.search(_get_command(call)):
        return False
    for folder, stage, _ in _walk_stages(call):
        if stage.program in (_LOOKERS - {"find", "fd", "git"}) | _TERMS["navigates"]:
            continue
        words = " ".join(stage.arguments).replace("$WORKSPACE/", "")
        if stage.program not in {"rm", "del", "remove-item"} or re.search(r"[*?$`{]|(?<!\S)-\w*[rR]", words):
            return False
        paths = [step.absolute(_join(folder, word)) for word in _split_arguments(stage)[1]]
        if not (all(path.startswith(f"{workspace}/") for path in paths) and needed.isdisjoint(paths)):
            return False
    return True


def _list_all_stages(call: Call) -> list[Stage]:
    """Return the programs of a command line, including those of command substitutions."""
    stages = _list_stages(call)
    for groups in _SUBSTITUTION.findall(_get_command(call)):
        stages += _list_all_stages(Call("", {"command": "".join(groups)}))
    return stages


def _list_programs(call: Call) -> set[str]:
    """Return the programs that a call runs, also on other machines, with the arguments of git unless it looks."""
    programs = set(_REMOTE.findall(_get_command(call)))
    for stage in _list_all_stages(call):
        is_look = stage.program != "git" or not _TERMS["git_looking"].isdisjoint(stage.arguments[:3])
        programs.add(stage.program if is_look else " ".join((stage.program, *stage.arguments)))
    return programs


def _prints(stage: Stage, step: Step) -> bool:
    """Whether a program prints the content of its files or what it finds, as far as is known."""
    words, (patterns, _) = " ".join(stage.arguments), _split_arguments(stage)
    if stage.targets or stage.program in _TERMS["counters"]:
        return False
    if stage.program == "git":
        return not {"ls-files", "ls-tree", "grep"}.isdisjoint(stage.arguments)
    if _is_search(stage):
        is_shown = not (step.kind in _CONTENT and _HIDES_LINES.search(words))
        return is_shown and (step.kind == "path" or any(map(step.knows, patterns)))
    code = next((word for word in stage.arguments if word[:1] != "-"), "")
    if stage.program == "sed":
        # The lines that remain without -n are not known.
        is_quiet = re.search(r"(?<!\S)-(?:[a-zA-Z]*n|-quiet|-silent)", words)
        return is_quiet is not None and any(
            int(at) in step.lines if at else step.knows(text) for at, text in _SED_PRINT.findall(code)
        )
    if stage.program == "awk":
        return re.search(r"print|NR|^/", code) is not None
    return stage.program not in _READERS or not (_COUNT_OF_ZERO.search(words) or _FOLLOWS.search(words))


def _is_search(stage: Stage) -> bool:
    return stage.program in _SEARCHERS and "--files" not in stage.arguments


def _find_shown_paths(printing: Iterable[tuple[str, Stage]], step: Step) -> Iterator[str]:
    """Yield the paths whose existence or content a call shows, whichever the step needs."""
    for folder, stage in printing:
        if step.kind not in _CONTENT or _is_search(stage) or stage.program in _READERS:
            words = [step.absolute(_join(folder, word)) for word in _split_arguments(stage)[1]]
            paths = [word for word in words if not re.search(r"[*?]", word)]
            yield from paths
            # A glob of the whole workspace, or of several folders, does not count either.
            folders = {word: str(PurePosixPath(word).parent) for word in words if word not in paths}
            globs = [word for word, of in folders.items() if of not in step.above and not re.search(r"[*?]", of)]
            if stage.program in _READERS:
                yield from (target for target in step.targets for glob in globs if PurePosixPath(target).match(glob))
            if _is_search(stage) and step.kind in _CONTENT:
                # A search of the whole workspace does not count: it would fit every step.
                below = [f"{path}/" for path in paths if path not in step.above]
                yield from (target for target in step.targets if target.startswith(tuple(below)))


def _looks_for_missing(patterns: list[str], listed: set[str], step: Step) -> bool:
    """Whether a call searches for the missing file by its name, or lists a folder where it was or may be."""
    name, others = PurePosixPath(step.path).stem, set(map(_stem, step.targets))
    # Searching for one of the longer parts of the name is enough.
    parts = [part.lower() for part in re.split(r"[\W_]+|(?<=[a-z])(?=[A-Z])", name) if len(part) >= MIN_PART_LETTERS]
    for pattern in patterns:
        if ({name.lower()} | others) & _split_names(pattern) or any(part in pattern.lower() for part in parts):
            return True
    parents = _list_parents(step.path)
    nearest = next((parent for parent in parents if parent in step.folders), "")
    near = parents[: parents.index(nearest) + 1] if nearest else parents[:2]
    near += [folder for path in step.targets for folder in _list_parents(path)[:1]]
    # Listing the workspace itself does not count: it would fit every step.
    return step.kind == "path" and bool(listed & {*near} - {step.absolute(".")})


def _split_arguments(stage: Stage) -> tuple[list[str], list[str]]:
    """Return the patterns that a program searches for, and the paths that it is given."""
    words = [
        word
        for option, word in pairwise(("", *stage.arguments))
        if word[:1] != "-" and not (_is_search(stage) and _TAKES_VALUE.fullmatch(option))
    ]
    if stage.program == "find":
        places = list(takewhile(lambda word: not word.startswith("-"), stage.arguments))
        return words[len(places) :], places
    if stage.program in {"sed", "awk"}:
        return [], words[1:]
    if stage.program in _MATCHERS and "--files" not in stage.arguments:
        return words[:1], words[1:]
    if stage.program in _LOOKERS - _READERS:
        return [word for word in words if stage.program in _TERMS["finders"] or re.search(r"[*?\[]", word)], words
    return [], words


def _find_listed_folders(printing: Iterable[tuple[str, Stage]], step: Step) -> Iterator[str]:
    """Yield the folders that a call lists; for a glob, the folder before its first wildcard."""
    for folder, stage in printing:
        words = _split_arguments(stage)[1] or ["."]
        if stage.program in _READERS - {"sed"}:
            # `cat docs/*` shows what is in a folder, too; the tool `read`, which counts as `sed`, does not.
            words = [word for word in words if _ALL_FILES.search(word)]
        if stage.program in _LISTERS | _READERS - {"sed"} or "--files" in stage.arguments:
            for word in words:
                place = re.split(r"[^/\\]*[*?]", _join(folder, word))[0]
                yield step.absolute(place.rstrip("/\\") or ".")


def _is_command(call: Call) -> bool:
    return not {"command", "cmd"}.isdisjoint(call.arguments)


def _get_command(call: Call) -> str:
    return find_text(call.arguments, "command", "cmd")


def _find_action(call: Call) -> str:
    """Return what a tool does, judging by its name and arguments: change, reads, searches or lists; "" if unknown."""
    words = split_name(call.name)
    if _is_command(call):
        return ""
    if call.name in _CHANGE_TOOLS or CHANGING & words or "content" in call.arguments or read_edits(call.arguments):
        return "change"
    return next((action for action in _EQUIVALENT_PROGRAMS if words & _TERMS[action]), "")


def _does_nothing(call: Call) -> bool:
    """Whether a call cannot change or show anything."""
    edits = read_edits(call.arguments) if call.name in _CHANGE_TOOLS else []
    if edits and all(edit.old == edit.new for edit in edits):
        return True
    return _is_command(call) and all(
        stage.program in _TERMS["navigates"] | {"sleep"} and {*stage.targets} <= {"/dev/null"}
        for stage in _list_stages(call)
    )


def _may_change(call: Call) -> bool:
    """Whether a call may change files."""
    command = _get_command(call)
    changes = find_changes(command, "")
    is_change = changes.anything or changes.names - {"/dev/null"} or _WRITES.search(command)
    return _find_action(call) == "change" or bool(is_change)


def _repeats(call: Call, failed_call: Call, step: Step) -> bool:
    """Whether a call is the failed one, possibly with different white space or additions."""
    # Compare command lines without quotes, redirections and spacing.
    lines = (_get_command(one).replace(";", " ; ") for one in (call, failed_call))
    command, failed_command = (" ".join(_QUOTES_AND_REDIRECTIONS.sub(" ", line).split()) for line in lines)
    if failed_command:
        folder = _find_folder(call)
        is_elsewhere = folder != _find_folder(failed_call) and step.exists(folder)
        return f" {failed_command} " in f" {command} " and not is_elsewhere
    if call.name != failed_call.name:
        return False
    if call.name in _CHANGE_TOOLS:
        # Different white space may be the correction; `replay` decides.
        return bool(call.arguments == failed_call.arguments)
    path, failed_path = (find_path(one.arguments) for one in (call, failed_call))
    if path and step.absolute(path) == step.absolute(failed_path) and step.kind in {"path", "folder"}:
        return True
    common = {key: value for key, value in call.arguments.items() if key in failed_call.arguments}
    return "".join(str(common).split()) == "".join(str(failed_call.arguments).split())


def _find_folder(call: Call) -> str:
    """Return the folder in which the last program of a command runs, "" for the working folder."""
    folders = [folder for folder, _, _ in _walk_stages(call)]
    return folders[-1] if folders else ""


def _walk_stages(call: Call) -> Iterator[tuple[str, Stage, list[Stage]]]:
    """Yield the programs of a command line, each with its folder and the programs after it in the pipeline."""
    folder = find_text(call.arguments, "workdir", "cwd")
    for stages in _list_pipelines(call):
        for at, stage in enumerate(stages, 1):
            if stage.program in {"cd", "pushd", "set-location"} and stage.arguments:
                folder = _join(folder, stage.arguments[-1])
            yield folder, stage, stages[at:]


def _list_pipelines(call: Call) -> list[list[Stage]]:
    """Return the programs of a command line, or the program that is equivalent to a tool."""
    if _is_command(call):
        # PowerShell ignores case.
        return [
            [stage._replace(program=stage.program.lower()) for stage in pipeline.stages]
            for pipeline in parse_command(_get_command(call))
        ]
    path, action, arguments = find_path(call.arguments), _find_action(call), call.arguments
    pattern, words = find_text(arguments, "pattern", "query"), [path] * bool(path)
    if action == "reads":
        words = ["-n", f"{(arguments.get('offset') or 1) if arguments.get('limit') != 0 else 0}p", *words]
    elif action == "searches":
        words = ["-l"] * (arguments.get("output_mode", "content") != "content") + [pattern, *words]
    elif action == "lists":
        words = [_join(path, pattern)]
    return [[Stage(_EQUIVALENT_PROGRAMS.get(action, ""), tuple(words), (), "reads")]]


def _list_stages(call: Call) -> list[Stage]:
    return [stage for stages in _list_pipelines(call) for stage in stages]


def _find_paths(call: Call, step: Step, programs: Container[str] = ()) -> Iterator[str]:
    """Yield the words of a call that may be paths; with `programs`, only the arguments of these programs."""
    yield from (patch.path for patch in read_patch(call.arguments))
    for folder, stage, _ in _walk_stages(call):
        for word in _split_arguments(stage)[1]:
            is_path = re.search(r"[/\\]|\.\w", word) or _stem(word) == _stem(step.path) or not _is_command(call)
            if is_path and stage.program != "cd" and (not programs or stage.program in programs):
                yield _join(folder, word)


def _join(folder: str, path: str) -> str:
    """Return a path that is relative to a folder; an absolute path stays as it is."""
    is_absolute = re.match(r"[/$~\\]|[A-Za-z]:", path)
    return f"{folder}/{path}" if folder and path != folder and not is_absolute else path


def _list_parents(path: str) -> list[str]:
    """Return the folders above a path, the nearest first."""
    return [str(parent) for parent in PurePosixPath(path).parents][:-1]


def _stem(path: str) -> str:
    """Return the name of a file without its folder and suffix, in lower case."""
    return PurePosixPath(path).stem.lower()


def _split_names(text: str) -> set[str]:
    """Return the names in a text, with and without their suffixes, in lower case."""
    names = {re.sub(r"^\W+|\W+$", "", word) for word in re.split(r"[\s/\\*'\"|(){}]+", text)}
    return {name.lower() for name in names} | {_stem(name) for name in names}


def _matches_reference(call: Call, step: Step) -> bool:
    """Whether a call has the same result as a recorded one, or makes the same change if the file is partly known."""
    own = _apply(call, step)
    for reference in step.references:
        expected = _apply(reference, step)
        if own and expected:
            is_same = _read_code(own["new_string"], step) == _read_code(expected["new_string"], step)
        else:
            is_same = (
                not own and _is_unambiguous(call, step) and _read_change(call, step) == _read_change(reference, step)
            )
        words = changed_words(own or call.arguments)
        if is_same and overlap(words, changed_words(expected or reference.arguments)) >= MIN_OVERLAP:
            return True
    return False


def _apply(call: Call, step: Step) -> dict[str, Any] | None:
    """Return an edit or a write as an edit of the whole file, None if its result is not known."""
    workspace, known = load_workspace(step.state), step.workspace.files.get(step.path)
    check = replay_verifier.CHECKS.get(call.name)
    if check is None or known is None or known.whole is None or check(workspace, call) is not True:
        return None
    return {"old_string": known.whole, "new_string": workspace.file(step.path).whole}


def _read_code(text: str, step: Step) -> list[str]:
    """Return the tokens of a text, without comment lines and with all kinds of quotes made equal."""
    suffix = PurePosixPath(step.path).suffix
    if suffix not in {"", *_TERMS["texts"]}:
        text = re.sub(rf"(?m)^\+?[ \t]*{'#(?!!)' if suffix in _TERMS['hashes'] else '//'}.*\n?", "", text)
    # White space matters only where indentation is part of the code.
    indent = r"\n[ \t]*(?=\S)|" if suffix in _TERMS["indented"] else ""
    return re.findall(rf"{indent}\w+|[^\w\s]", re.sub(r"[\"`]", "'", text).strip())


def _read_change(call: Call, step: Step) -> list[tuple[list[str], list[str]]]:
    """Return the tokens that each edit of a call removes and adds, without the unchanged text around them."""
    changes = []
    for edit in list_hunks(call.arguments) or [Edit("", find_text(call.arguments, "content"))]:
        old, new = _read_code(edit.old, step), _read_code(edit.new, step)
        start = _count_same(old, new)
        end = _count_same(old[start:][::-1], new[start:][::-1])
        changes.append((old[start : len(old) - end], new[start : len(new) - end]))
    return sorted(changes)


def _count_same(one: list[str], other: list[str]) -> int:
    """Return the length of the common prefix of two lists of tokens."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _loses_text(call: Call, step: Step) -> bool:
    """Whether a call moves or deletes the file, or overwrites it without most of its lines or without knowing any."""
    arguments = call.arguments
    if _TERMS["removes"] & split_name(call.name):
        return step.path in {step.absolute(value) for value in arguments.values() if isinstance(value, str)}
    path, is_rewrite = step.absolute(find_path(arguments)), any("content" in one.arguments for one in step.references)
    if "content" not in arguments or path not in {step.path, *step.targets} or is_rewrite:
        return False
    known = step.workspace.files.get(path)
    lines, kept = (
        {line.strip() for line in text.split("\n")} - {""}
        for text in ((known and known.whole) or "", find_text(arguments, "content"))
    )
    return not lines or len(lines & kept) < MIN_KEPT * len(lines)
