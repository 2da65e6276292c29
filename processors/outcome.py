"""Find out what became of a failure, and whether it can teach anything.

A failure is resolved by the first later call of its request that does the same and succeeds: the
same program and subcommand, the same file, or the same other tool; where a program or a package is
missing, also by one that uses or installs it, or by another program that is given the same. It
teaches nothing if it is

slip            a call that named a missing path, misquoted a file or was refused, and was put right
                or dropped at once; several in one request are not slips
no_information  a message without words that say what went wrong
expected        a test that was written to fail and failed before the code was changed
outside         a service that did not answer, which the agent cannot help
not_granted     a call that waits for a permission or a key of the user

That the agent itself erred shows in

code   code of its own that does not parse or run
call   a call or a command line that the program does not take
work   once it has changed a file, a test, a build, a script within a command, or such a file
again  a file that it changed before and changes again once the user has spoken
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from pimono_sdpo.actions import describe_change
from pimono_sdpo.failures import with_role
from pimono_sdpo.prefilter import compile_patterns
from pimono_sdpo.schema import Finding
from pimono_sdpo.shell import list_stages, only_reads
from pimono_sdpo.text import split_shingles
from pimono_sdpo.traces.events import Event, decode_json
from processors.diagnostics import find_target
from processors.status import find_family

_PATTERNS = compile_patterns(Path(__file__).with_name("wording.toml"), "outcome")
_MESSAGE_CHARS = 400
_CODE_CHARS = 3000
_NEAR = 3
_PATCH_CHARS, _REMARK_CHARS = 200, 80
_CHANGES = frozenset({"edit", "write"})
_FILE_TOOLS = frozenset({"read", "ls", "grep", "find", "glob"})
_REFUSALS, _UNKNOWN = with_role("refusal"), with_role("unclear")
_OF_CODE, _SLIPS = with_role("check"), with_role("slip")
_MISSING = "missing_file_or_command"
# From so many on, failures of one kind at one place are not slips any more.
_MANY, _MANY_REFUSALS = 3, 2
_WORD = re.compile(r"[^\W\d_]{3,}")
_MIN_WORDS = 2
_INSTALLS = frozenset({"install", "add"})
_CUT_SHORT = frozenset({"aborted", "error"})
_PLANS = re.compile(r"plan|todo|task_?(?:create|update)", re.IGNORECASE)
# Longer than most options.
_SHORT_WORD = 6
_PATCHED = re.compile(r"\*\*\* \w{1,10} File: ([^\n\\\"]{1,300})")
_USAGE_SHOWN = "\n\nExpected parameters:"
_VERSION = re.compile(r"[\d.]+\Z")
_NAME = re.compile(r"[a-z][\w-]*(?=:|\Z)")
# What one of several things that a tool can do a call wants of it.
_ACTION = re.compile(r'"(?:action|kind|targetUrl)": ?"([^"]{1,200})"')


@dataclass
class Step:
    """A call of the agent, the event of its result, and whether that is a failure."""

    begins: int
    ends: int
    tool: str
    arguments: str
    failed: bool

    @cached_property
    def target(self) -> str:
        """What the call is about."""
        return find_target(self.arguments)

    @cached_property
    def file(self) -> str:
        """The name of the file that the call is about."""
        return _find_file(self.target)

    def __str__(self) -> str:
        return f"{self.tool} {self.target}".strip()


def describe_outcomes(
    findings: Sequence[Finding], events: Sequence[Event], matched: Mapping[int, int], stop: int
) -> list[Finding]:
    """Fill in what followed each finding of one request, up to event `stop`."""
    failed = {item["event_index"] for item in findings if item["kind"] == "failure"}
    steps = [
        Step(index, ends, event.tool_name, event.arguments, ends in failed)
        for index in range(max(findings[0]["request"], 0), stop)
        if (event := events[index]).kind == "tool_call"
        and event.on_active_branch
        and (ends := matched.get(index, -1)) >= 0
    ]
    changes = [step for step in steps if step.tool in _CHANGES]
    starts = [step.begins for step in steps]
    begun = {step.ends: step.begins for step in steps}
    # Failures at each place; calls made before the first one was known count as one.
    places = [_find_place(item) for item in findings]
    alike: Counter[str] = Counter()
    known: dict[str, int] = {}
    for item, place in zip(findings, places, strict=True):
        at = item["event_index"]
        if item["kind"] == "failure" and begun.get(at, at) > known.get(place, -1):
            alike[place] += 1
            known[place] = at
    done = []
    for item, place in zip(findings, places, strict=True):
        after = steps[bisect_right(starts, item["event_index"]) :]
        following: Finding = {**item, "next": _describe_next(item, events, after, stop)}
        following["fault"] = _find_fault(item, steps, changes)
        if item["kind"] == "correction":
            following["target"] = _find_answer(item, events)
        else:
            following["resolved_at"], following["resolved_by"] = _find_resolution(item, after)
            following["excuse"] = _find_excuse(following, events, steps, after, alike[place])
        done.append(following)
    slips = [i for i in done if i["excuse"] == "slip" and not _is_look(i) and "policy_block" not in i["categories"]]
    for item in slips if len(slips) >= _MANY else ():
        item["excuse"] = ""
    return done


def _changes_file(step: Step) -> bool:
    return step.tool in _CHANGES or "*** Begin Patch" in step.arguments[:_PATCH_CHARS]


def _find_place(item: Finding) -> str:
    """Return what failures have in common that keep happening."""
    if _REFUSALS & set(item["categories"]) and item["tool"] not in _CHANGES | _FILE_TOOLS:
        return "refused"
    if _lost_backslashes(item):
        return "backslashes"
    if item["tool"] in _CHANGES | _FILE_TOOLS:
        return _find_file(item["target"])
    if not is_command(item["tool"], item["target"]):
        return item["tool"]
    is_search = only_reads(item["target"]) and not _is_look(item)
    return "looks" if is_search else item["target"]


def _is_look(item: Finding) -> bool:
    """Check for a look at what may be missing."""
    looks = item["tool"] in _FILE_TOOLS or (is_command(item["tool"], item["target"]) and only_reads(item["target"]))
    return looks and {_MISSING} <= {*item["categories"]} <= {_MISSING, "command_error"}


def _lost_backslashes(item: Finding) -> bool:
    """Check for a path of Windows that a shell took the backslashes out of."""
    return ":\\" in item["target"] and bool(_PATTERNS["eaten"].search(item["text"][:_MESSAGE_CHARS]))


def is_command(tool: str, target: str) -> bool:
    """Check that the target of a call is the command line of a shell."""
    return tool == "bash" or (find_family(tool) == "runs" and target[:1] not in {"", "{"})


def _describe_next(item: Finding, events: Sequence[Event], after: Sequence[Step], stop: int) -> str:
    """Return the next call but for a plan, or what the agent said if it called nothing more; not shortened."""
    if after:
        return str(next((step for step in after if not _PLANS.search(step.tool)), after[0]))
    said = (
        event.text
        for event in events[item["event_index"] + 1 : stop]
        if event.kind == "assistant" and event.on_active_branch and event.text.strip()
    )
    return next(said, "")


def _find_answer(item: Finding, events: Sequence[Event]) -> str:
    """Return what the agent said last before a correction, or its last call if it said nothing since the user did."""
    call = ""
    for event in reversed(events[item["request"] + 1 : item["event_index"]]):
        if not event.on_active_branch:
            continue
        if event.kind == "assistant" and event.text.strip() and event.stop_reason not in _CUT_SHORT:
            return event.text.strip()
        if event.kind == "tool_call" and not call:
            call = f"[{event.tool_name} {find_target(event.arguments)}]"
        if event.kind == "user" and call:
            break
    return call


def _find_resolution(item: Finding, after: Sequence[Step]) -> tuple[int | None, str]:
    """Return the event that shows a failure resolved, and what changed before it."""
    is_shell = is_command(item["tool"], item["target"])
    wanted = _identify(item["tool"], item["target"])[-1]
    named = wanted[0] if is_shell else wanted[-1]
    missing = _PATTERNS["missing"].search(item["text"]) if is_shell else None
    lacks = next(filter(None, missing.groups()), "") if missing else ""
    for number, step in enumerate(after):
        if step.failed or step.tool != item["tool"] or (is_shell and _asks_for_help(step.target)):
            continue
        is_same = named in step.arguments or named in step.tool
        if is_same:
            shown = _identify(step.tool, step.target)
            if is_shell:
                # `npm run build` is not `npm run dev`, but `git push` may be `git push origin`.
                is_same = any(one[:2] == wanted[:2] and len({*one[2:], *wanted[2:]}) < 2 for one in shown)
                is_same = is_same and not _are_other_scripts(item["target"], step.target)
            else:
                is_same = set(wanted) <= set(shown[-1])
        if not is_same and not (lacks and _replaces(item, step, lacks, number < _NEAR)):
            continue
        done = [one for one in after[:number] if not one.failed]
        if not is_shell:
            is_file = item["tool"] in _CHANGES | _FILE_TOOLS
            by = [one for one in done if is_file and _find_file(one.target) == _find_file(step.target)]
        else:
            by = _list_causes(item, done) if step.target == item["target"] else []
        return step.ends, describe_step(by[-1] if by else step)
    return None, ""


def describe_step(step: Step) -> str:
    """Return what a call did: its command, or its file with the lines that it removed and added."""
    arguments = decode_json(step.arguments)
    return describe_change(step.tool, arguments) if isinstance(arguments, dict) else str(step)


def _are_other_scripts(one: str, other: str) -> bool:
    """Check for commands with scripts that share less than half of their words, in groups of three."""
    few, more = sorted((set(split_shingles(text[:_CODE_CHARS])) for text in (one, other)), key=len)
    return 2 * len(few & more) < len(few) and _PATTERNS["inline"].search(one) is not None


def _list_causes(item: Finding, done: Sequence[Step]) -> list[Step]:
    """Return what made a command succeed: of several changed files one that its message names."""
    changes = [one for one in done if one.tool in _CHANGES]
    if not changes:
        return [one for one in done if is_command(one.tool, one.target) and not only_reads(one.target)]
    # Files of one name differ in their folder.
    for parts in (2, 1):
        if named := [one for one in changes if any(file in item["text"] for file in _list_files(one.target, parts))]:
            return named
    return changes if len({_list_files(one.target, 2)[0] for one in changes}) == 1 else []


def _asks_for_help(command: str) -> bool:
    """Check for a command line that only asks a program how it is used."""
    return "help" in command and any(
        "--help" in stage.arguments or "help" in stage.arguments[:1] for stage in list_stages(command)
    )


@lru_cache(maxsize=512)
def _identify(tool: str, target: str) -> list[tuple[str, ...]]:
    """Return what two calls that try the same thing have in common, for each program of a line.

    The last one is what the line is for.
    """
    if tool in _CHANGES | _FILE_TOOLS:
        return [(tool, _find_file(target))]
    if not is_command(tool, target):
        return [(tool, target) if find_family(tool) == "runs" else (tool, *_ACTION.findall(target))]
    stages = list_stages(target)
    runs = [stage for stage in stages if stage.role == "runs"]
    found = []
    for stage in runs or stages[-1:]:
        plain = [word for word in stage.arguments if not word.startswith("-")]
        about = plain[:1] if runs else [_find_file(word) for word in plain[-1:]]
        # Behind an option stands its value, behind a colon a kind of the same.
        if runs and stage.arguments[:2] == tuple(plain[:2]):
            about += [named[0] for word in plain[1:2] if (named := _NAME.match(word))]
        found.append((_VERSION.sub("", stage.program), *about))
    return found or [(tool,)]


def _replaces(item: Finding, step: Step, lacks: str, is_near: bool) -> bool:
    """Check for a call that has what was missing, or that does without it."""
    stages = list_stages(step.target)
    word = re.compile(rf"(?<![\w-]){re.escape(lacks)}(?![\w-])")
    for stage in stages:
        installs = not _INSTALLS.isdisjoint(stage.arguments)
        if stage.program == lacks or (installs and word.search(" ".join(stage.arguments))):
            return True
    failed = (stage for stage in list_stages(item["target"]) if stage.program == lacks)
    given = {word for stage in failed for word in stage.arguments if len(word) > _SHORT_WORD}
    return is_near and any(not given.isdisjoint(stage.arguments) for stage in stages)


def _find_file(target: str) -> str:
    """Return the name of a file, whatever folder it was looked for in."""
    return _list_files(target)[0]


def _list_files(target: str, parts: int = 1) -> list[str]:
    """Return the last parts of the paths of a call, of which only a patch has several."""
    paths = _PATCHED.findall(target) or [target]
    return ["/".join(re.split(r"[/\\]", path.rstrip("/\\"))[-parts:]) for path in paths]


def _find_excuse(
    item: Finding, events: Sequence[Event], steps: Sequence[Step], after: Sequence[Step], repeats: int
) -> str:
    """Return why a failure teaches nothing, "" if it does."""
    categories = set(item["categories"])
    if categories <= _UNKNOWN | {"command_error"}:
        is_exit = _PATTERNS["exit_line"].fullmatch
        said = "\n".join(line for line in item["text"].split("\n") if not is_exit(line.strip()))
        # One look without an answer says nothing; many of them say that something is broken.
        is_series = repeats >= _MANY and not said.strip() and only_reads(item["target"])
        if len(_WORD.findall(said[:2000])) < _MIN_WORDS and not is_series:
            return "no_information"
    said = item["text"][:_MESSAGE_CHARS]
    # What the same command lacked at first was not the agent's to give, such as leave.
    again = [step for step in after[:1] if not step.failed and step.target == item["target"]]
    is_shell = is_command(item["tool"], item["target"])
    if (is_shell and again) or _PATTERNS["not_granted"].search(said):
        return "not_granted"
    ends = said + item["text"][_MESSAGE_CHARS:][-_MESSAGE_CHARS:]
    if not categories & _OF_CODE and repeats < _MANY:
        if _PATTERNS["not_provided"].search(ends):
            return "not_granted"
        if _PATTERNS["no_answer"].search(ends):
            return "outside"
    # A tool or a skill that does not exist is put right by whatever works next.
    if _PATTERNS["no_tool"].match(said) and repeats < _MANY and not all(s.failed for s in after[:2]):
        return "slip"
    if "test_or_assertion" in categories and _is_expected(item, events, steps):
        return "expected"
    may_be_outside = categories <= _UNKNOWN | _REFUSALS and not is_shell and repeats < _MANY
    if may_be_outside and _PATTERNS["outside"].search(said):
        return "outside"
    most = _MANY_REFUSALS if categories & _REFUSALS or _lost_backslashes(item) else _MANY
    is_small = categories <= (_SLIPS | _REFUSALS if is_shell else _SLIPS | _REFUSALS | _UNKNOWN)
    return "slip" if is_small and repeats < most and _is_slip(item, after, is_shell) else ""


def _find_fault(item: Finding, steps: Sequence[Step], changes: Sequence[Step]) -> str:
    """Return what shows that the agent itself erred, "" if nothing does; `changes` are the steps that edit files."""
    files = {step.file for step in changes if step.ends < item["event_index"]}
    if item["kind"] == "correction":
        changed_again = {step.file for step in changes if step.begins > item["event_index"]}
        return "" if files.isdisjoint(changed_again) else "again"
    categories = set(item["categories"])
    if categories & _REFUSALS or _PATTERNS["no_program"].search(item["text"][:_MESSAGE_CHARS]):
        return ""
    if _PATTERNS["bad_code"].search(item["text"][:_CODE_CHARS]):
        return "code"
    is_shell = is_command(item["tool"], item["target"])
    if (
        not categories & _OF_CODE
        and item["tool"] not in _CHANGES | _FILE_TOOLS
        and _PATTERNS["bad_call"].search(item["text"].partition(_USAGE_SHOWN)[0][:_MESSAGE_CHARS])
    ):
        return "call"
    names = item["text"] + item["target"]
    is_own = any(len(file) > 3 and file in names for file in files)
    if is_shell and _MISSING not in categories:
        is_own = is_own or _PATTERNS["inline"].search(item["target"]) is not None
    if not (is_own or categories & _OF_CODE):
        return ""
    # Before, a test, a build or a script shows what it found.
    return "work" if any(_changes_file(step) for step in steps if step.ends < item["event_index"]) else ""


def _is_slip(item: Finding, after: Sequence[Step], is_shell: bool) -> bool:
    """Check for a call that was refused, or wrong in itself and dropped or put right at once."""
    categories = set(item["categories"])
    if categories & _REFUSALS:
        return item["resolved_at"] is not None or "policy_block" in categories or not is_shell
    is_patch = is_shell and "*** Begin Patch" in item["target"][:_PATCH_CHARS]
    if is_shell and not is_patch:
        if not _PATTERNS["no_program"].search(item["text"]):
            return only_reads(item["target"]) or _PATTERNS["no_folder"].match(item["text"]) is not None
        return item["resolved_at"] is not None and item["resolved_at"] - item["event_index"] <= _NEAR
    tries = [step for step in after if step.tool == item["tool"]][:2]
    is_dropped = item["tool"] in _FILE_TOOLS | _CHANGES and item["resolved_at"] is None
    return is_dropped or any(not step.failed for step in tries)


def _is_expected(item: Finding, events: Sequence[Event], steps: Sequence[Step]) -> bool:
    """Check for a test that fails because the agent has just written it, and said so."""
    before = [step for step in steps if step.ends < item["event_index"] and not step.failed]
    changes = [step for step in before if step.tool in _CHANGES]
    answer = events[item["event_index"] + 1 : item["event_index"] + _NEAR]
    confirmed = any(e.kind == "assistant" and _PATTERNS["confirmed"].search(e.text[:_REMARK_CHARS]) for e in answer)
    own = [step for step in changes if step.begins > item["request"] and not confirmed] or changes[-1:]
    if not all(_PATTERNS["test_path"].search(step.target) for step in own):
        return False
    # The agent's words since it wrote the test; how it wrote it without a tool is not known.
    since = changes[-1].begins if changes else item["event_index"]
    asked = events[item["request"]].text if changes else ""
    remarks = [text[:_MESSAGE_CHARS] for text in (item["next"], asked)]
    said = events[max(since - _NEAR, 0) : item["event_index"]]
    remarks += [event.text for event in said if event.kind == "assistant"]
    return confirmed or any(_PATTERNS["red"].search(text) for text in remarks)
