"""Find recoveries: a call that failed, or that the user overruled, and the later call that did the same and worked.

call        the same action done again, and working; only looks lie in between, and at most NEAR calls
fix         a test, a build or a linter failed, files were edited, and the same check passed; `chosen` is the
            first edit of a file that its output names, or of the only file that was edited
correction  the user overruled a change or a command; `chosen` is what replaced it, and stood

No recovery is an unchanged retry, an outage, a permission, a look around, a failure that was expected, or a
failure that is only silenced.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal

from pimono_sdpo.actions import adds_silencer, list_edits, normalise_action
from pimono_sdpo.edits import decode_arguments
from pimono_sdpo.failures import with_role
from pimono_sdpo.prefilter import compile_patterns
from pimono_sdpo.schema import Finding
from pimono_sdpo.shell import Stage, list_stages, only_reads
from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.parse import match_results
from processors.diagnostics import looks_failed
from processors.evidence import find_evidence
from processors.outcome import Step, is_command

Json = dict[str, Any]
Kind = Literal["call", "fix", "correction"]
PATTERNS = compile_patterns(Path(__file__).with_name("wording.toml"), "recoveries")
_CHECKS = with_role("check")
_CHANGES = frozenset({"edit", "write", "multi_edit"})
_FILE_TOOLS = frozenset({"read", "ls", "grep", "find", "glob"})
NO_LESSON = frozenset({"outside", "not_granted", "expected", "no_information"})
# Of the pairs that two readers judged, most that lie further apart or are less similar serve another intent.
NEAR, SIMILAR = 6, 0.4
# Comparing takes quadratic time, and messages name what is wrong at their ends.
_COMPARED, _HEAD, _TAIL = 1000, 1500, 500
_SCRIPT = 300
WORD = re.compile(r"[\w./@-]{4,}")


@dataclass(frozen=True)
class Recovery:
    """One recovery; `failed` is None if the user corrected an answer rather than a call.

    `at` is the event that reports the failure, and `error` its text. A `slip` was put right at once.
    """

    kind: Kind
    failed: Event | None
    at: int
    chosen: Event
    error: str
    categories: tuple[str, ...]
    is_slip: bool = False


def find_recoveries(events: tuple[Event, ...]) -> list[Recovery]:
    """Return the recoveries of a session in order; a call recovers only from the nearest failure."""
    items = [item for found in find_evidence(events, None).described.values() for item in found]
    failures = {item["event_index"]: item for item in items if item["kind"] == "failure"}
    corrections = {item["event_index"]: item for item in items if item["kind"] == "correction"}
    steps = _list_steps(events, failures)
    messages = [event.index for event in events if event.kind == "user" and event.on_active_branch]
    found: dict[int, Recovery] = {}
    for number, step in enumerate(steps):
        item = failures.get(step.ends)
        if item is None or item["excuse"] in NO_LESSON:
            continue
        stop = next((at for at in messages if at > step.ends), len(events))
        after = [one for one in steps[number + 1 :] if step.ends < one.begins < stop]
        recovery = _find_call(item, step, after, events) or _find_fix(item, step, after, events)
        if recovery:
            found[recovery.chosen.index] = recovery
    for index, item in corrections.items():
        following = [at for at in messages if at > index]
        if not following or following[0] not in corrections:
            stop = following[0] if following else len(events)
            if recovery := _find_replacement(item, steps, stop, events):
                found.setdefault(recovery.chosen.index, recovery)
    return [found[index] for index in sorted(found)]


def _list_steps(events: tuple[Event, ...], failures: dict[int, Finding]) -> list[Step]:
    """Return the answered calls of the active branch in order."""
    steps = []
    for index, ends in match_results(events).items():
        call, result = events[index], events[ends]
        if call.on_active_branch and not call.is_subagent:
            failed = ends in failures or result.is_error or bool(result.exit_code)
            steps.append(Step(index, ends, call.tool_name, call.arguments, failed))
    return sorted(steps, key=lambda step: step.begins)


def _find_call(item: Finding, step: Step, after: Sequence[Step], events: tuple[Event, ...]) -> Recovery | None:
    for later in after[:NEAR]:
        if _has_same_aim(item, step, later):
            if not _has_worked(later, events) or _is_no_repair(item, step, later, events):
                return None
            failed, chosen = events[step.begins], events[later.begins]
            kinds = tuple(item["categories"])
            return Recovery("call", failed, step.ends, chosen, item["text"], kinds, item["excuse"] == "slip")
        if not later.failed and not _is_look(later):
            return None
    return None


def _has_same_aim(item: Finding, step: Step, later: Step) -> bool:
    """Check for a call that tries what a failed one tried."""
    if PATTERNS["no_tool"].match(item["text"]):
        return measure_similarity(step.arguments, later.arguments) >= SIMILAR
    if later.tool != step.tool:
        return False
    if step.tool in _CHANGES | _FILE_TOOLS:
        return _name_file(step) == _name_file(later) != ""
    similarity = measure_similarity(step.target, later.target)
    if not is_command(step.tool, step.target):
        return similarity >= SIMILAR
    one, other = list_programs(step), list_programs(later)
    if PATTERNS["no_program"].search(item["text"]) or not one:
        return similarity >= SIMILAR
    # An unknown subcommand may be replaced; otherwise it says what a command is for.
    depth = 1 if PATTERNS["no_subcommand"].search(item["text"]) else 2
    return bool({name[:depth] for name in one} & {name[:depth] for name in other})


def list_programs(step: Step) -> list[tuple[str, ...]]:
    """Return name and subcommand of the programs that a command line runs."""
    return [_name_program(stage) for stage in list_stages(step.target) if stage.role == "runs"]


def _name_program(stage: Stage) -> tuple[str, ...]:
    plain = [word for word in stage.arguments[:2] if re.fullmatch(r"[a-z][\w:-]*", word)]
    return (stage.program.rstrip("0123456789."), *plain[:1])


def _find_path(step: Step) -> str:
    """Return the path of a call, the first one of a patch."""
    found = re.search(r"\*\*\* \w{1,10} File: ([^\n\\\"]{1,300})", step.arguments)
    return found[1] if found else step.target


def _name_file(step: Step) -> str:
    return re.split(r"[/\\]", _find_path(step).rstrip("/\\"))[-1]


def measure_similarity(one: str, other: str) -> float:
    """Return how similar the beginnings of two texts are, from 0 to 1."""
    return SequenceMatcher(None, one[:_COMPARED], other[:_COMPARED], autojunk=False).ratio()


def _looks_at_same(item: Finding, step: Step, later: Step) -> bool:
    """Check for a look at the same file or folder, with the same program unless it was missing."""
    programs = [{stage.program for stage in list_stages(one.target)} for one in (step, later)]
    is_same = PATTERNS["no_program"].search(item["text"]) is not None or not programs[0].isdisjoint(programs[1])
    return is_same and not list_names(step.target).isdisjoint(list_names(later.target))


def list_names(command: str) -> set[str]:
    """Return the names of files and folders in a command line, in small letters."""
    words = [word for stage in list_stages(command) for word in stage.arguments if not word.startswith("-")]
    return {re.split(r"[/\\]", word.rstrip("/\\"))[-1].lower() for word in words} - {""}


def _changes_file(step: Step) -> bool:
    return step.tool in _CHANGES or "*** Begin Patch" in step.arguments[:_TAIL]


def _is_look(step: Step) -> bool:
    """Check for a call that changes nothing."""
    shown = is_command(step.tool, step.target)
    return only_reads(step.target) if shown else step.tool in _FILE_TOOLS


def _has_worked(step: Step, events: tuple[Event, ...]) -> bool:
    text = events[step.ends].text
    is_bad = looks_failed(step.tool, step.arguments, text, has_passed=True) if not _is_look(step) else False
    return not (step.failed or is_bad or PATTERNS["undone"].search(text[:_TAIL]))


def _is_no_repair(item: Finding, step: Step, later: Step, events: tuple[Event, ...]) -> bool:
    """Check for a call that changes nothing of a failed one, hides its failure, looks around or has another intent."""
    failed, chosen = (normalise_event(events[one.begins]) for one in (step, later))
    if failed == chosen or measure_similarity(step.arguments, later.arguments) < SIMILAR:
        return True
    if step.tool in _CHANGES:
        added = [_list_added(one, events) for one in (step, later)]
        return all(added) and added[0].isdisjoint(added[1])
    if is_command(step.tool, step.target):
        asks = [set(PATTERNS["asks"].findall(one.target)) for one in (step, later)]
        if adds_silencer(step.target, later.target) or not asks[1] <= asks[0]:
            return True
        if _is_look(step) and not _looks_at_same(item, step, later):
            return True
        # A tool that was renamed, such as PowerShell, may have run what this one lacks.
        if PATTERNS["of_bash"].search(item["text"]) and PATTERNS["cmdlet"].search(later.target):
            return True
        missing = PATTERNS["missing"].search(item["text"])
        name = next(filter(None, missing.groups()), "") if missing else ""
        if name and re.search(rf"(?<![\w/.-]){re.escape(name)}(?![\w-])", later.target):
            return True
    elif _arguments(step, events).get("action") != _arguments(later, events).get("action"):
        return True
    return not _names_form(item, step, later)


def normalise_event(call: Event) -> str:
    """Return a text that is equal for calls that do the same."""
    return normalise_action(call.tool_name, decode_arguments(call))


def _names_form(item: Finding, step: Step, later: Step) -> bool:
    """Check that an error is about how a call was made, or names what the later call lacks."""
    said = item["text"][:_HEAD] + item["text"][-_TAIL:]
    if "tool_schema_validation" in item["categories"] or PATTERNS["form"].search(said):
        return True
    lost = {*WORD.findall(step.target)} - {*WORD.findall(later.target)}
    return any(word.startswith("-") and word in said for word in lost)


def _find_fix(item: Finding, step: Step, after: Sequence[Step], events: tuple[Event, ...]) -> Recovery | None:
    if not (is_command(step.tool, step.target) and _CHECKS & {*item["categories"]}):
        return None
    again = next((number for number, later in enumerate(after) if _is_same_check(step, later)), None)
    if again is None or not _has_worked(after[again], events):
        return None
    edits = [one for one in after[:again] if _changes_file(one) and not one.failed]
    named = [one for one in edits if _name_file(one) in item["text"]]
    if not named and len({_name_file(one) for one in edits}) == 1:
        named = edits
    if not named:
        return None
    kinds = tuple(item["categories"])
    return Recovery("fix", events[step.begins], step.ends, events[named[0].begins], item["text"], kinds)


def _is_same_check(step: Step, later: Step) -> bool:
    """Check for a command line that runs a program of an earlier one on the same things."""
    one, other = (
        {(s.program, _list_plain(s)) for s in list_stages(x.target) if s.role == "runs"} for x in (step, later)
    )
    return later.tool == step.tool and not one.isdisjoint(other)


def _list_plain(stage: Stage) -> tuple[str, ...]:
    return tuple(word for word in stage.arguments if not word.startswith("-"))


def _find_replacement(item: Finding, steps: Sequence[Step], stop: int, events: tuple[Event, ...]) -> Recovery | None:
    """Return the recovery of an action that the user overruled: the same file or command, otherwise."""
    index = item["event_index"]
    before = [one for one in steps if item["request"] < one.begins < index]
    after = [one for one in steps if index < one.begins < stop]
    if events[index].is_veto:
        done, before = before[-1:], before[-1:]
    else:
        done = [one for one in before if not one.failed and not _is_look(one)]
    for later in after[:NEAR]:
        if _is_look(later):
            continue
        if not _has_worked(later, events):
            return None
        overruled = [one for one in done if _is_replaced(one, later, events)]
        if not overruled:
            return None
        failed, chosen = events[overruled[-1].begins], events[later.begins]
        if normalise_event(failed) == normalise_event(chosen):
            return None
        return Recovery("correction", failed, index, chosen, item["text"], ("user_feedback",))
    return None


def _is_replaced(step: Step, later: Step, events: tuple[Event, ...]) -> bool:
    """Check that a later call changes what an earlier one wrote, or runs its command otherwise."""
    if _changes_file(later):
        if not _changes_file(step) or _find_path(step) != _find_path(later):
            return False
        written = _list_added(step, events)
        changes = list_edits(_arguments(later, events))
        return any(not edit.old or not written.isdisjoint(list_lines(edit.old)) for edit in changes)
    if not is_command(later.tool, later.target) or later.tool != step.tool:
        return False
    # Two long scripts of one program seldom do the same.
    is_short = max(len(step.target), len(later.target)) <= _SCRIPT
    is_same = is_short and not {*list_programs(step)}.isdisjoint(list_programs(later))
    return is_same and not adds_silencer(step.target, later.target)


def _list_added(step: Step, events: tuple[Event, ...]) -> set[str]:
    """Return the lines that a call adds to a file."""
    edits = list_edits(_arguments(step, events))
    return {line for edit in edits for line in list_lines(edit.new) - list_lines(edit.old)}


def _arguments(step: Step, events: tuple[Event, ...]) -> Json:
    return decode_arguments(events[step.begins])


def list_lines(text: str) -> set[str]:
    """Return the lines that are more than brackets."""
    return {line.strip() for line in text.split("\n") if WORD.search(line)}
