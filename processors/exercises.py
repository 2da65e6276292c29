"""Make an exercise of each tool call that failed, and of corrections by the user if asked to.

The prompt is the conversation up to the turn that failed; a verifier judges what the model does
there (`rewards.verifiers.next_call`). What went wrong, and what resolved it, is for the teacher.

reads   session_id, source, trace, bytes_not_utf8
writes  one row per failed call or correction
drops   no_call (no call of the agent failed), refused (the user, a hook or a sandbox stopped the
        call), not_decidable (a test, a build or a service failed, a program is missing, or no later
        call tells what was right: the file was found nowhere, or was there), not_a_mistake (looking
        was right), not_in_prompt (the prompt lacks what a right call needs), repeated (two such rows)

`goal` of the `verifier_spec` says what a call should do at this step: docs/tutorials/exercises.md.
"""

import json
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from datasets import Features, Value

from pimono_sdpo.replay.calls import (
    changed_words,
    decode_arguments,
    find_path,
    find_text,
    is_veto,
    list_hunks,
    overlap,
    read_edits,
    read_patch,
)
from pimono_sdpo.replay.commands import find_changes, find_shown_file, parse_once
from pimono_sdpo.replay.initial_state import InitialState
from pimono_sdpo.replay.workspace import Workspace, is_read_only
from pimono_sdpo.schema import EVIDENCE, Finding
from pimono_sdpo.stage import FlatMap, Row
from pimono_sdpo.text import shorten, shorten_at_paragraphs
from pimono_sdpo.traces.events import Event, has_failed
from pimono_sdpo.traces.harness import find_harness
from pimono_sdpo.traces.parse import read_trace
from processors.corrections.features import strip_wrapper
from processors.evidence import (
    LEAD_IN_CHARS,
    count_row,
    find_evidence,
    gather_history,
    hash_messages,
    spell_out,
    stands_alone,
)
from processors.judge import Judge
from processors.outcome import is_command
from processors.redact import identify
from processors.rollouts.conversation import find_problem
from processors.rollouts.sessions import infer_tools
from processors.rows import PROMPT_CHARS

Json = dict[str, Any]
TOKEN_CHARS = 4
REQUEST_MARK = "[request]\n"
# Of one result or one text among the arguments of an earlier call.
RESULT_CHARS, ARGUMENT_CHARS, PLAN_CHARS = 3000, 600, 1200
FILE_CHARS = 30_000
MOST_PATHS, MOST_AFTER = 300, 20
# Words of a command that looks at one place: a pattern, and the place.
MOST_WORDS = 2
# Shorter lines, such as a brace, are in every file.
MIN_LINE, MANY = 8, 0.5
# Names that are no words of prose.
_RARE = re.compile(r"[a-z][A-Z]|[A-Za-z]{3}[-_]|[-_][A-Za-z]{3}|\A[A-Z][a-z]{5}")
_NAMES = re.compile(rf"`|\w\.\w{{2,4}}\b|{_RARE.pattern}")
# Results that may say what is next, and calls that may have to do with it.
LAST, NEAR = 2, 4
# Rows of one kind from one session.
MOST_ALIKE = 2
# Of the words of two changes of which the later one is meant to replace the earlier one.
MIN_ALIKE = 0.5
# The same of a change that was only quoted wrongly, and of its new words those that were said.
MIN_SAME, MIN_KNOWN = 0.8, 0.8
_CHANGES = frozenset({"edit", "write", "multi_edit"})
# A file at the end of a line; so many of them are a listing.
_LISTED, MANY_FILES = re.compile(r"(?m)[\w-]\.\w{1,5}$"), 6
_NUMBER = re.compile(r"(?m)^ *\d{1,7}[→\t]")
_NOT_FOUND = re.compile(
    r"Could not find (?:the exact text|edits\[)|String to replace not found|Failed to find expected lines"
)
_AMBIGUOUS = re.compile(r"Found \d+ (?:occurrences of |matches of the string)")
_UNREAD = re.compile(r"not been read yet|modified since|[Rr]ead (?:it|the file) (?:first|again)|must read")
_PLACES = {"~": "~", "$HOME": "~", "$WORKSPACE/..": ".."}
_CHANGED = re.compile(r"modified since|unexpectedly modified")
_NO_TOOL = re.compile(r"\ATool \S+ not found|No such tool available")
_IS_FOLDER = re.compile(r"EISDIR|[Ii]s a directory")
_NO_PATH = re.compile(
    r"(?:access|open|stat|read) ?['\"\u2018]?([^'\"\u2019\n]{1,300})['\"\u2019]?: No such file"
    r"|no such file or directory(?:, \w+)?:? '?([^'\n]{1,300})'?"
    r"|: '?\"?([^'\":\n]{1,300})['\"]?: No such file or directory"
    r"|can't open file '([^'\n]{1,300})'",
    re.IGNORECASE,
)
# Programs that are given a file because it is thought to be there.
_USES = frozenset("cat head tail sed cd source bash sh node python python3".split())
_LOOKS = _USES | frozenset("ls find fd tree glob grep rg dir gci get-childitem".split())
# What expects that a call may fail.
_HEDGES = re.compile(r"\|\||/dev/null")
_BINARY = re.compile(r"\.(?:png|jpe?g|gif|webp|pdf|docx?|xlsx?)$", re.IGNORECASE)
# The last ones are named by the harness in a prompt that sessions do not record.
_NO_FILE = re.compile(r"[\n<>{}|]|\A[^A-Za-z]*\Z|(?:MEMORY|HEARTBEAT|CLAUDE|AGENTS|SOUL|USER)\.md$|[/\\]memory[/\\]")
_OUTCOMES = frozenset({"test_or_assertion", "build_lint_compile", "runtime_exception"})
_REFUSED = frozenset({"policy_block", "permission_auth"})


def gather_exercises(
    row: Row,
    prompt_chars: int,
    judge: Judge | None = None,
    recorder: Sequence[str] | None = (),
    corrections: bool = False,
) -> list[dict[str, Any]]:
    """Return a row for each failure, and correction if asked for, of a session; at least one."""
    trace = read_trace(row["trace"] or b"")
    events, first_place = trace.events, Workspace(trace.cwd)
    evidence = find_evidence(events, judge)
    matched, requests, described = evidence.matched, evidence.requests, evidence.described
    identity, secrets = identify(row["trace"], trace, recorder) if any(described.values()) else (recorder, [])
    called = {result: call for call, result in matched.items()}
    harness = find_harness(trace.harness)
    files = InitialState(events, matched, trace.cwd, harness.files, len(events))
    tools = _list_tools(events, matched, trace.harness)
    found = [(request, item) for request in requests for item in described.get(request.index, ())]
    found.sort(key=lambda one: _find_begin(one[1], events, called))
    # A row has the same number whether corrections are rows or not.
    wanted: list[tuple[int, Event | None, Finding | None]] = [
        (number, *one) for number, one in enumerate(found) if corrections or one[1]["kind"] == "failure"
    ]
    failed = {item["event_index"] for _, item in found if item["kind"] == "failure"}
    answers = {call: events[at] for call, at in matched.items() if at not in failed}
    worked = {call: one for call, one in answers.items() if not has_failed(one) and not is_veto(one.text)}
    made: list[dict[str, Any]] = []
    alike: Counter[str] = Counter()
    before = 0
    for number, request, item in wanted or [(0, None, None)]:
        begin = _find_begin(item, events, called) if item else 0
        stop = item["event_index"] + 1 if item and item is not wanted[-1][2] else len(events)
        problem: str | None = trace.problem
        prompt, exercise, known = "", None, []
        if item is None or request is None:
            problem = problem or "no_evidence"
        else:
            before_it = reversed(events[item["request"] : item["event_index"]])
            changes = (one for one in before_it if one.kind == "tool_call" and one.tool_name in _CHANGES | {"bash"})
            call = events[begin] if item["kind"] == "failure" else next(changes, None)
            prompt = spell_out(request, events)
            place = Workspace(call.cwd if call and call.cwd else trace.cwd)
            folder = trace.cwd if place.absolute(".") == first_place.absolute(".") else place.cwd
            goal = _find_goal(item, call)
            if isinstance(goal, str):
                problem = goal
            else:
                path = str(goal.get("path", ""))
                is_failure, resolver = item["kind"] == "failure", None
                plan = _find_plan(events, matched, begin) if is_failure else ""
                turns = _list_turns(events, matched, request, begin, prompt_chars)
                shown = _Prompt(turns, plan, place)
                if call and goal["kind"] == "change" and _is_guess(call, path, item["text"], shown):
                    goal |= {"kind": "read", "guessed": True}
                if call and is_failure:
                    resolver = _find_resolver(events, worked, item, call, goal, place)
                    item = _hide_resolver(item, resolver, matched)
                known = files.files_at(begin, item["event_index"], path and place.absolute(path), FILE_CHARS)
                is_later = any(called.get(at, begin) < begin < at for at in failed - {item["event_index"]})
                if is_later:
                    problem = "not_decidable"
                elif is_failure:
                    problem = _find_fault(goal, call, resolver, shown, item["text"])
                    is_made = any(_makes(one, path) for one in events[begin + 1 :] if one.kind == "tool_call")
                    by_others = _CHANGED.search(item["text"]) and not _has_changed(events[:begin], worked, place, path)
                    if (goal["kind"] == "path" and is_made) or by_others:
                        problem = "not_a_mistake"
                    alike[goal["kind"]] += not problem
                    if alike[goal["kind"]] > MOST_ALIKE:
                        problem = problem or "repeated"
                targets = (
                    []
                    if problem or goal["kind"] == "folder"
                    else _list_targets(events, worked, begin, resolver, shown, path)
                )
                exercise = {
                    "cwd": trace.cwd,
                    "folder": folder,
                    "tools": tools,
                    "turns": turns,
                    "plan": plan,
                    "goal": goal,
                    "targets": targets,
                    "failed_call": _describe_call(call),
                    "resolved_call": _describe_call(resolver),
                    "paths": files.known_paths[:MOST_PATHS],
                    # Other ways to write the folders that a path may begin with.
                    "places": {short: first_place.absolute(of) for short, of in _PLACES.items()},
                }
        made.append(
            {
                "harness": trace.harness,
                "session_id": row["session_id"] or trace.session_id,
                "source": row["source"],
                "episode": number,
                "cwd": trace.cwd,
                "identity": identity,
                "secrets": secrets,
                "prompt": prompt,
                "history": [],
                "request": begin,
                # A slip is what an exercise is made of.
                "findings": [{**item, "request": begin, "excuse": item["excuse"].replace("slip", "")}] if item else [],
                "continued": bool(item and item["resolved_at"]),
                # Whether something else resolved it is not known.
                "tools": [item["next"].partition(" ")[0]] if item else [],
                "workspace": [one._asdict() for one in known],
                "problem": problem,
                "worth": 0.0,
                "is_best": True,
                "fingerprints": hash_messages(events[begin : begin + 1]) if item else [],
                **count_row(events[before:stop], evidence, row, trace, not made),
                "exercise": json.dumps(exercise),
            }
        )
        before = max(before, stop)
    return made


def _find_begin(item: Finding, events: Sequence[Event], called: Mapping[int, int]) -> int:
    """Return the failed call, or the end of the message that the corrected turn answered."""
    at = item["event_index"]
    if item["kind"] == "failure":
        return called.get(at, at)
    users = (n for n in range(at - 1, -1, -1) if events[n].kind == "user")
    return next(users, item["request"]) + 1


def _find_goal(item: Finding, call: Event | None) -> Json | str:
    """Return what a call at this step should do, or why that cannot be said."""
    if item["kind"] == "correction":
        return {"kind": "correction"}
    if call is None or call.kind != "tool_call":
        return "no_call"
    given, categories, text = decode_arguments(call), set(item["categories"]), item["text"]
    path = find_path(given)
    if is_veto(text):
        return "refused"
    if is_command(call.tool_name, item["target"]) or _find_command(call):
        return _find_command_goal(item)
    if _REFUSED & categories and not _IS_FOLDER.search(text):
        return "refused"
    if call.tool_name in _CHANGES:
        patches = read_patch(given)
        path = patches[0].path if len(patches) == 1 else path
        if _OUTCOMES & categories:
            return "not_decidable"
        if path and _UNREAD.search(text):
            return {"kind": "read", "path": path}
        if path and "missing_file_or_command" in categories:
            return {"kind": "path", "path": path}
        return {"kind": "change", "path": path} if len(patches) < 2 else "not_decidable"
    if path and _IS_FOLDER.search(text):
        return {"kind": "folder", "path": path}
    if path and "missing_file_or_command" in categories:
        return {"kind": "path", "path": path}
    return "not_decidable"


class _Turn(NamedTuple):
    """A call as the prompt shows it, or words of the user."""

    tool: str
    said: str
    shown: str
    ok: bool


class _Prompt:
    """What the prompt of a row shows."""

    def __init__(self, turns: Sequence[Json], plan: str, place: Workspace) -> None:
        self.place = place
        first, *self.turns = [_read_turn(turn) for turn in turns]
        self.plan = _use_slashes(shorten(plan, PLAN_CHARS))
        request = first.shown.rpartition(REQUEST_MARK)[2]
        self.asked = "\n".join([request, *(turn.shown for turn in self.turns if not turn.tool)])
        self.shown = "\n".join(turn.shown for turn in self.turns if turn.tool and turn.ok)
        # What a call that failed was given need not exist.
        self.text = "\n".join([first.shown, self.asked, self.shown, *(turn.said for turn in self.turns if turn.ok)])

    def wants(self, path: str) -> bool:
        """Whether a file or a folder is named: by the plan, or where that names nothing, by what came before."""
        name = _name(path)
        stem = name.rpartition(".")[0] or name
        before = "" if _NAMES.search(self.plan) else self.asked
        if _RARE.search(stem):
            last = "\n".join(turn.shown for turn in self.turns[-LAST:])
            return _has_word(stem, f"{self.plan}\n{before}\n{before and last}")
        return f"{name}/" in self.plan if stem == name else name in f"{self.plan}\n{before}"

    def names(self, path: str) -> bool:
        """Whether a file is named by the user, by the plan or by what came last."""
        near = (f"{turn.said}\n{'' if _is_listing(turn.shown) else turn.shown}" for turn in self.turns[-NEAR:])
        *_, folder, name = f"/{self.place.absolute(path)}".split("/")
        mention = rf"([^\s/'\"`]*/)?(?<![\w-]){re.escape(name)}(?![\w-])"
        folders = {one.lstrip("(") for one in re.findall(mention, "\n".join([self.asked, self.plan, *near]))}
        # Other folders have files of the same name.
        return not folders.isdisjoint({"", "./", "../", f"{folder}/".lstrip("(")})

    def has_used(self, path: str) -> bool:
        """Whether a call that worked was given a file."""
        return any(turn.ok and turn.tool and _has_word(_name(path), turn.said) for turn in self.turns)

    def shows(self, path: str, other: str) -> bool:
        """Whether a path was shown by what sets it apart from another one, or was listed in its folder."""
        parts = path.split("/")
        tails = ("/".join(parts[-count:]) for count in range(2, len(parts)))
        tail = next((one for one in tails if not other.endswith(one)), "")
        # A tree names the folder itself.
        is_listed = tail.count("/") == 1 and any(
            turn.ok and _has_word(parts[-1], turn.shown) and _has_word(parts[-2], f"{turn.said}\n{turn.shown}")
            for turn in self.turns
        )
        return bool(tail) and (tail in self.text or is_listed)


def _read_turn(turn: Json) -> _Turn:
    call = turn.get("call") or {"name": "", "args": {}}
    said = "\n".join(shorten(one, ARGUMENT_CHARS) for one in call["args"].values() if isinstance(one, str))
    shown = (
        _NUMBER.sub("", shorten(turn["result"], RESULT_CHARS))
        if "call" in turn
        else shorten_at_paragraphs(turn["text"], PROMPT_CHARS)
    )
    return _Turn(call["name"], _use_slashes(said), _use_slashes(shown), turn.get("ok", True))


def _is_listing(text: str) -> bool:
    """Whether a result lists files; that one is among many does not say that it is next."""
    return len(_LISTED.findall(text)) >= MANY_FILES


def _use_slashes(text: str) -> str:
    return re.sub(r"\\{1,2}", "/", text)


def _join_drive(path: str) -> str:
    return re.sub(r"\A/([a-z])/", r"\1:/", path.lower())


def _has_word(word: str, text: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text, re.ASCII) is not None


def _find_fault(goal: Json, call: Event | None, resolver: Event | None, prompt: _Prompt, error: str) -> str | None:
    """Return why the prompt does not tell that another call was right, and which; None if it does."""
    kind, path, place = goal["kind"], goal["path"], prompt.place
    if call is None or resolver is None or resolver.arguments == call.arguments:
        # The same call worked later: it was not what was wrong.
        return "not_decidable"
    whole = place.absolute(path)
    if kind != "change":
        goal["shown"] = prompt.shows(whole, "")
    if kind in {"folder", "path"} and "/".join(whole.split("/")[-2:]) in prompt.asked:
        return "not_a_mistake"
    if kind == "folder":
        return None if whole != place.absolute(".") and prompt.wants(path) else "not_in_prompt"
    if kind == "change":
        return None if _is_determined(call, resolver, prompt, error) else "not_in_prompt"
    if kind == "read":
        # What is written may well be new, or not worth reading.
        if call.tool_name == "write" or _NO_FILE.search(path) or _was_shown(call, prompt):
            return "not_a_mistake"
        return None if prompt.names(path) else "not_in_prompt"
    words = [
        [word for word in stage.arguments if not word.startswith("-")]
        for one in parse_once(_find_command(call))
        for stage in one.stages
        if stage.program in _USES
    ]
    # Others look whether something is there, or look in several places.
    uses = call.tool_name in _CHANGES | {"read"} or any(path in one and len(one) <= MOST_WORDS for one in words)
    if not uses or _NO_FILE.search(path) or _BINARY.search(path) or prompt.shows(whole, ""):
        return "not_a_mistake"
    others = [place.absolute(one) for one in _list_used(resolver, _USES)]
    if _join_drive(whole) in map(_join_drive, others):
        # Only the spelling of the drive differs.
        return "not_a_mistake"
    goal["shown"] = any(_is_alike(one, whole) and prompt.shows(one, whole) for one in others)
    # What the agent is about to do is given, too.
    is_given = _name(path) in prompt.asked or "/".join(whole.split("/")[-2:]) in prompt.plan
    if is_given and not goal["shown"]:
        return "not_a_mistake"
    return None if prompt.wants(path) else "not_in_prompt"


def _is_determined(call: Event, resolver: Event, prompt: _Prompt, error: str) -> bool:
    """Whether the prompt has the text to edit and says what to put in, so that only the quoting was wrong."""
    given, own = decode_arguments(resolver), decode_arguments(call)
    old, wrong = ("\n".join(hunk.old for hunk in list_hunks(one)) for one in (given, own))
    lines = [_use_slashes(line.strip()) for line in old.split("\n")]
    new = [word[1:].lower() for word in changed_words(given) if re.fullmatch(r"\+\w{3,}", word)]
    said = "\n".join([prompt.asked, prompt.plan, *(turn.shown for turn in prompt.turns[-1:])]).lower()
    is_said = bool(new) and sum(word in said for word in new) >= MIN_KNOWN * len(new)
    is_same = not wrong or overlap(changed_words(own), changed_words(given)) >= MIN_SAME
    # That a text is there twice can be seen only where it is shown twice, or another edit was refused for it.
    wrong = _use_slashes(wrong.strip())
    is_absent = wrong not in prompt.shown and not _AMBIGUOUS.search(error)
    is_twice = any(turn.shown.count(wrong) > 1 or _AMBIGUOUS.search(turn.shown) for turn in prompt.turns)
    is_seen = is_absent or not wrong or is_twice
    return (
        bool(prompt.plan)
        and is_said
        and is_same
        and is_seen
        and any(lines)
        and all(line in prompt.text for line in lines)
    )


def _was_shown(call: Event, prompt: _Prompt) -> bool:
    """Whether the prompt shows the lines that an edit replaces, or many of them."""
    old = "\n".join(hunk.old for hunk in list_hunks(decode_arguments(call)))
    lines = [line for line in map(str.strip, _use_slashes(old).split("\n")) if len(line) > MIN_LINE]
    shown = "\n".join(turn.shown for turn in prompt.turns)
    return sum(line in prompt.text or line in shown for line in lines) >= MANY * len(lines)


def _is_guess(call: Event, path: str, error: str, prompt: _Prompt) -> bool:
    """Whether an edit of a file that is named was made up: the prompt shows nothing of the text that it replaces."""
    hunks = list_hunks(decode_arguments(call))
    new, old = (
        {" ".join(line.split()) for text in texts for line in _use_slashes(text).split("\n")}
        for texts in ([hunk.new for hunk in hunks], [hunk.old for hunk in hunks])
    )
    shown = " ".join("\n".join([prompt.text, *(turn.shown for turn in prompt.turns)]).split())
    is_shown = prompt.has_used(path) or any(line in shown for line in old - new if len(line) > MIN_LINE)
    return _NOT_FOUND.search(error) is not None and prompt.wants(path) and not is_shown


def _has_changed(events: Sequence[Event], worked: Container[int], place: Workspace, path: str) -> bool:
    """Whether the agent itself changed a file by a command after it had last read or edited it."""
    for call in reversed(events):
        if call.kind == "tool_call":
            is_it = place.absolute(find_path(decode_arguments(call)) or "/") == place.absolute(path)
            if is_it and call.index in worked and not is_read_only(call.tool_name):
                return call.tool_name not in _CHANGES
            if is_it and call.index in worked and call.tool_name == "read":
                return False
            names = find_changes(_find_command(call), "").names
            if any(_is_same(_use_slashes(path), _use_slashes(name)) for name in names):
                return True
    return False


def _makes(event: Event, path: str) -> bool:
    """Whether a call makes a file that was missing before."""
    given = decode_arguments(event)
    made = [find_path(given)] if event.tool_name == "write" else [patch.path for patch in read_patch(given)]
    made += [one for line in parse_once(_find_command(event)) for stage in line.stages for one in stage.targets]
    return any(_is_same(path, one) for one in made)


def _list_used(event: Event, programs: Container[str]) -> list[str]:
    """Return the paths that a call works on, with the folder that a command changes to."""
    given, folder = decode_arguments(event), ""
    found = [find_path(given), *(patch.path for patch in read_patch(given) if patch.kind != "Delete")]
    found += [find_text(given, "pattern")] if programs is _LOOKS else []
    for pipeline in parse_once(_find_command(event)):
        for stage in pipeline.stages:
            if stage.program == "cd" and stage.arguments:
                folder = _join(folder, stage.arguments[0])
            elif stage.program.lower() in programs:
                found += [_join(folder, word) for word in stage.arguments if not word.startswith("-")]
    return [path for path in found if path]


def _join(folder: str, path: str) -> str:
    return path if not folder or re.match(r"[/~$]|[A-Za-z]:", path) else f"{folder}/{path}"


def _is_same(path: str, other: str) -> bool:
    """Whether two paths may be of one file, one of them perhaps without its folder."""
    return bool(path and other) and (path == other or path.endswith(f"/{other}") or other.endswith(f"/{path}"))


def _is_alike(path: str, wanted: str) -> bool:
    """Whether a path is of a file of the same name elsewhere, with another ending, or in a folder of that name."""
    stem, wanted_stem = (_use_slashes(one).rpartition(".")[0] for one in (path, wanted))
    is_other = _name(path) == _name(wanted) and not _is_same(path, wanted)
    folder = _use_slashes(path).rpartition("/")[0]
    return is_other or (path != wanted and wanted_stem != "" and wanted_stem in {stem, folder})


def _find_command(call: Event) -> str:
    return find_text(decode_arguments(call), "command", "cmd")


def _find_command_goal(item: Finding) -> Json | str:
    """Return the goal after a command named a program or a path that is missing."""
    if "missing_file_or_command" not in item["categories"] or _OUTCOMES & {*item["categories"]}:
        return "refused" if _REFUSED & {*item["categories"]} else "not_decidable"
    text = item["text"][-4000:]
    for match in _NO_PATH.finditer(text):
        path = next(filter(None, match.groups()), "").strip()
        if path and path in item["target"] and re.search(r"\w", path):
            return "not_a_mistake" if _HEDGES.search(item["target"]) else {"kind": "path", "path": path}
    return "not_decidable"


def _describe_call(call: Event | None) -> Json | None:
    return {"name": call.tool_name, "args": decode_arguments(call)} if call else None


def _find_resolver(
    events: Sequence[Event], worked: Mapping[int, Event], item: Finding, call: Event, goal: Json, place: Workspace
) -> Event | None:
    """Return the first of the next calls that worked and does what the goal says, or the same call if it does."""
    kind, wanted, own = goal["kind"], goal.get("path", ""), decode_arguments(call)
    wanted_words = changed_words(own) if read_edits(own) or read_patch(own) else None
    whole, search = place.absolute(wanted or "."), None
    for event in events[item["event_index"] + 1 : max(item["event_index"] + MOST_AFTER, item["resolved_at"] or 0)]:
        if event.kind == "user":
            break
        if event.index not in worked:
            continue
        given = decode_arguments(event)
        paths = [patch.path for patch in read_patch(given) if patch.kind != "Delete"] or [find_path(given)]
        if (event.tool_name, given) == (call.tool_name, own):
            return event
        is_it, is_change = any(_is_same(one, wanted) for one in paths), event.tool_name in _CHANGES
        match kind:
            case "read":
                printed = find_shown_file(_find_command(event))
                does = (is_it and event.tool_name == "read") or (
                    printed and _is_same(place.absolute(printed.path), whole)
                )
            case "change":
                is_alike = not wanted_words or overlap(wanted_words, changed_words(given)) >= MIN_ALIKE
                does = is_change and (is_it or not wanted) and is_alike
            case "path":
                # What a command makes was not there.
                used = [one for one in _list_used(event, _USES) if is_change or not _makes(event, one)]
                is_other = any(_is_alike(one, wanted) for one in used)
                does = is_change == (call.tool_name in _CHANGES) and is_other
                is_there = f"{place.absolute(find_path(given) or '/')}/".startswith(f"{whole}/")
                if is_there and event.tool_name in _CHANGES | {"read", "ls"}:
                    # What failed did not run where we think.
                    return call
                programs = {stage.program.lower() for one in parse_once(_find_command(event)) for stage in one.stages}
                is_search = event.tool_name in _LOOKS or not programs.isdisjoint(_LOOKS - _USES)
                found = worked[event.index].text.replace(wanted, "")
                if is_search and _has_word(_name(whole).partition(".")[0], found):
                    search = search or event
            case _:
                used = [] if is_change else _list_used(event, _LOOKS)
                does = any(f"{place.absolute(one)}/".startswith(f"{whole}/") for one in used)
        if does:
            return event
    return search


def _list_targets(
    events: Sequence[Event], worked: Mapping[int, Event], at: int, resolver: Event | None, prompt: _Prompt, path: str
) -> list[str]:
    """Return other files that serve a step: used for the same plan, or later where the prompt names them."""
    whole, found, is_same_plan = prompt.place.absolute(path or "."), list[str](), True
    name = re.escape(_name(path))
    # A path with blanks has a line of its own.
    file = re.compile(rf"(?m)^[/~.$][^\n'\":]*/{name}$|(?:\b[A-Za-z]:)?[\w$~./\\][^\s'\":]*[/\\]{name}(?![\w.-])")
    for event in events[max(at - NEAR, 0) : at + MOST_AFTER]:
        if event.kind == "user" and event.index > at:
            break
        is_same_plan &= event.index < at or event.kind != "assistant" or not event.text.strip()
        # The agent had not yet seen the results of calls of the same turn.
        if event.index in worked and worked[event.index].index > at:
            used = [one for one in _list_used(event, _USES) if "." in _name(one)]
            # A search shows where the file is.
            for one in used or (file.findall(worked[event.index].text)[:NEAR] if event is resolver else ()):
                absolute = prompt.place.absolute(one)
                serves = is_same_plan or prompt.names(one) or _is_alike(absolute, whole)
                if serves and absolute != whole and not prompt.has_used(one):
                    found.append(one)
        is_same_plan &= event is not resolver
    return list(dict.fromkeys(found))


def _hide_resolver(item: Finding, resolver: Event | None, matched: Mapping[int, int]) -> Finding:
    """Say what resolved a failure, without the call that did."""
    at, by, tool = (matched[resolver.index], item["resolved_by"], resolver.tool_name) if resolver else (None, "", "")
    is_other = at == item["resolved_at"] and not by.startswith(tool)
    return {**item, "resolved_at": at, "resolved_by": by if is_other or not at else f"another call of {tool}"}


def _name(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\").strip("'\""))[-1]


def _find_plan(events: Sequence[Event], matched: Mapping[int, int], begin: int) -> str:
    """Return what the agent said right before the call that failed."""
    said: list[str] = []
    for event in reversed(events[:begin]):
        if matched.get(event.index, 0) > begin:
            continue
        if event.kind == "assistant" and event.on_active_branch and event.text.strip():
            said.append(event.text.strip())
        elif event.kind in {"user", "tool_call", "tool_result"}:
            break
    return "\n\n".join(reversed(said))


def _list_tools(events: Sequence[Event], matched: Mapping[int, int], name: str) -> list[Json]:
    """Return the tools of the harness as it defines them, and others as the session used them."""
    steps = [
        {
            "kind": "tool_call",
            "ok": not has_failed(events[matched[event.index]]),
            "name": event.tool_name,
            "args": decode_arguments(event),
        }
        for event in events
        if event.kind == "tool_call" and event.index in matched and event.tool_name
    ]
    answers = {call: events[at].text[:200] for call, at in matched.items()}
    missing = {event.tool_name for event in events if _NO_TOOL.search(answers.get(event.index, ""))}
    own = {tool: one for tool, one in find_harness(name).tools.items() if tool not in missing}
    tools = []
    # A tool of the harness is there though none of its calls worked.
    for tool in infer_tools([{**step, "ok": step["ok"] or step["name"] in own} for step in steps], name):
        function = tool["function"]
        worked = [step for step in steps if step["ok"] and step["name"] == function["name"]]
        schemas = own[function["name"]].schemas if function["name"] in own else ()
        # Harnesses that write the same format may have tools of their own.
        known = [[{"function": {"name": function["name"], "parameters": schema}}] for schema in schemas]
        if known and all(any(find_problem(step, one) is None for one in known) for step in worked):
            function |= {"parameters": schemas[-1], "known": True}
        else:
            function["parameters"]["required"] = []
        tools.append(tool)
    return tools


def _list_turns(
    events: Sequence[Event], matched: Mapping[int, int], request: Event, begin: int, chars: int
) -> list[Json]:
    """Return the request and the last turns before an event that fit into so many characters.

    A turn is a `text` of the user, or a `call` with its `result`; redacted and cut later.
    """
    ask = spell_out(request, events)
    if not stands_alone(ask):
        lead = gather_history(events, request.index, LEAD_IN_CHARS)
        earlier = "\n\n".join(f"[{turn['role']} before]\n{turn['content']}" for turn in lead)
        ask = f"{earlier}\n\n{REQUEST_MARK}{ask}" if earlier else ask
    turns: list[Json] = []
    left = chars - min(len(ask), PROMPT_CHARS)
    for event in reversed(events[request.index + 1 : begin]):
        if not event.on_active_branch or event.is_subagent:
            continue
        if event.kind == "user" and event.text.strip():
            turns.append({"text": strip_wrapper(event.text)})
            left -= min(len(event.text), RESULT_CHARS)
        # The agent had not yet seen the results of calls of the same turn.
        elif event.kind == "tool_call" and event.index < matched.get(event.index, 0) < begin:
            result = events[matched[event.index]].text
            is_ok = not has_failed(events[matched[event.index]])
            turns.append({"call": _describe_call(event), "result": result, "ok": is_ok})
            left -= min(len(result), RESULT_CHARS) + min(len(event.arguments), ARGUMENT_CHARS)
        if left < 0:
            del turns[-1:]
            break
    return [{"text": ask}, *reversed(turns)]


def stage(
    prompt_tokens: int, judge: Judge | None = None, recorder: Sequence[str] | None = (), corrections: bool = False
) -> FlatMap:
    """Build the stage for prompts of so many tokens, counted as TOKEN_CHARS characters each."""
    return FlatMap(
        partial(
            gather_exercises,
            prompt_chars=prompt_tokens * TOKEN_CHARS,
            judge=judge,
            recorder=recorder,
            corrections=corrections,
        ),
        reads=("session_id", "source", "trace", "bytes_not_utf8"),
        writes=Features({**EVIDENCE, "exercise": Value("string")}),
        tallies=("counts", "volume", "drift"),
    )
