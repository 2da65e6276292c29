"""Find the mistakes and corrections that recur in sessions, what they cost and what resolved them.

A mistake is known by its program or tool and the line that says what went wrong; corrections are alike if they share
half of their words. One recurs in LEAST sessions, or in fewer of one project. What it cost is counted from the failed
call to the one that resolved it: calls, tokens (of TOKEN_CHARS characters each) and minutes.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pimono_sdpo.actions import describe_change, normalise_action
from pimono_sdpo.edits import decode_arguments
from pimono_sdpo.failures import with_role
from pimono_sdpo.prefilter import compile_patterns
from pimono_sdpo.schema import SESSION, Finding
from pimono_sdpo.shell import list_stages
from pimono_sdpo.stage import Row, iterate_rows
from pimono_sdpo.text import shorten, shorten_line
from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.parse import match_results, read_trace
from pimono_sdpo.traces.sources import Source, read_sessions
from processors import recoveries
from processors.evidence import find_evidence
from processors.recoveries import NO_LESSON, Recovery, find_recoveries
from processors.recovery_rows import TOKEN_CHARS, write_key
from processors.redact import Private, identify, redact_json

Json = dict[str, Any]
# So many sessions show that a mistake recurs; of one project, one fewer does.
LEAST = 3
# Corrections are alike if they share this part of their words, of which there must be a few.
ALIKE, FEW_WORDS = 0.5, 3
RULES = compile_patterns(Path(recoveries.__file__).with_name("wording.toml"), "lessons")
# Advice about a kind of mistake, by the name of its pattern.
ADVICE = {
    "unread": "Read a file before you edit it, and again if it has changed since.",
    "no_text": "Copy the old text of an edit exactly from the file as it is now; read it again before you retry.",
    "not_unique": "Make the old text of an edit unique by adding the lines around it.",
    "too_large": "Read large files in parts, with an offset and a limit, or search in them.",
    "glob": "Quote paths that contain brackets, stars or question marks: the shell is zsh.",
    "folder": "`read` opens files only; list a folder with `ls`.",
    "parameters": "Use exactly the names of parameters that the definition of a tool has.",
    "beyond": "Find out how long a file is before you read it from a line on.",
    "no_path": "Find a file before you read it or change its folder; do not guess its path.",
    "no_tool": "Call only the tools that are offered.",
}
_TEXT_CHARS, _LINE_CHARS, _EXAMPLES = 300, 160, 3
# Paths, numbers and quoted texts.
_OF_ONE_CASE = re.compile(r"[/\\\d'\"]")
_CORRECTING = re.compile(r"[^\W\d_]{4,}")


@dataclass(frozen=True)
class Occurrence:
    """One time that a mistake was made: where, what was tried, what resolved it, and what it cost."""

    source: str
    session: str
    project: str
    event: int
    said: str
    tried: str
    resolved_by: str
    instead: str
    calls: int
    tokens: int
    minutes: float


@dataclass
class Lesson:
    """A mistake or a correction that recurs."""

    kind: str
    key: str
    line: str = ""
    occurrences: list[Occurrence] = field(default_factory=list)

    @property
    def sessions(self) -> int:
        """The number of sessions in which it occurred."""
        return len({one.session for one in self.occurrences})

    def recurs(self) -> bool:
        """Check that it occurred often enough to be a lesson."""
        of_project: defaultdict[str, set[str]] = defaultdict(set)
        for one in self.occurrences:
            of_project[one.project].add(one.session)
        return self.sessions >= LEAST or any(len(found) >= LEAST - 1 for found in of_project.values())

    def describe(self) -> Json:
        """Return the lesson as JSON: its line, costs and examples."""
        return {
            "kind": self.kind,
            "line": self.line,
            "mistake": self.key,
            "sessions": self.sessions,
            "times": len(self.occurrences),
            **{name: sum(getattr(one, name) for one in self.occurrences) for name in ("calls", "tokens")},
            "minutes": round(sum(one.minutes for one in self.occurrences), 1),
            "examples": [vars(one) for one in _choose_examples(self.occurrences)],
        }


def find_lessons(source: Source, recorder: Sequence[str] | None = ()) -> list[Lesson]:
    """Return the lessons of all sessions of a source, those of most sessions first."""
    mistakes: dict[str, Lesson] = {}
    corrections: list[tuple[set[str], Lesson]] = []
    seen: set[tuple[str, str, str]] = set()
    tables = (table for shard in source.shards for table in read_sessions(shard))
    for row in (row for table in tables for row in iterate_rows(table, SESSION)):
        for kind, key, print_, occurrence in _list_occurrences(row, recorder):
            # A fork or a copy of a session repeats its events.
            if print_ in seen:
                continue
            seen.add(print_)
            if kind == "mistake":
                mistakes.setdefault(key, Lesson(kind, key)).occurrences.append(occurrence)
            else:
                _group_correction(corrections, key, occurrence)
    found = [one for one in (*mistakes.values(), *(lesson for _, lesson in corrections)) if one.recurs()]
    for lesson in found:
        lesson.line = _write_line(lesson)
    return sorted((one for one in found if one.line), key=lambda one: (-one.sessions, -len(one.occurrences), one.key))


def _list_occurrences(
    row: Row, recorder: Sequence[str] | None
) -> Iterator[tuple[str, str, tuple[str, str, str], Occurrence]]:
    """Yield the failures and corrections of a session: kind, key, a print that copies share, and the occurrence."""
    trace = read_trace(row["trace"] or b"")
    events = trace.events
    items = [item for found in find_evidence(events, None).described.values() for item in found]
    if not items:
        return
    private = (trace.cwd, *identify(row["trace"], trace, recorder))
    calls = {result: call for call, result in match_results(events).items()}
    recovered = {one.at: one for one in find_recoveries(events)}
    session = redact_json(row["session_id"] or trace.session_id or row["source"], private)
    for item in items:
        at = item["event_index"]
        # The findings of a test or a build belong to the code of the day.
        is_lesson = item["excuse"] not in NO_LESSON and with_role("check").isdisjoint(item["categories"])
        if not is_lesson or (item["kind"] == "failure" and at not in calls):
            continue
        call = events[calls[at]] if item["kind"] == "failure" else events[at]
        recovery = recovered.get(at)
        end = recovery.chosen.index if recovery else item["resolved_at"] or at
        span = events[call.index : end + 1]
        said = redact_json(item["text"], private)
        tried, instead = _describe_calls(call, recovery, private) if item["kind"] == "failure" else ("", "")
        occurrence = Occurrence(
            source=redact_json(row["source"], private),
            session=session,
            project=redact_json(Path(trace.cwd).name, private),
            event=at,
            said=shorten_line(said, _TEXT_CHARS),
            tried=tried,
            resolved_by=shorten(redact_json(item["resolved_by"], private), _TEXT_CHARS),
            instead=instead,
            calls=sum(event.kind == "tool_call" for event in span),
            tokens=sum(len(event.text) + len(event.arguments) for event in span) // TOKEN_CHARS,
            minutes=_measure_minutes(span),
        )
        action = normalise_action(call.tool_name, decode_arguments(call)) or call.text
        print_ = (call.timestamp, action, item["text"][:_TEXT_CHARS])
        if item["kind"] == "correction":
            yield "correction", said, print_, occurrence
        else:
            yield "mistake", _name_mistake(item, call, said), print_, occurrence


def _name_mistake(item: Finding, call: Event, said: str) -> str:
    """Return what the same mistakes have in common: a known kind, what is missing, or the tool and its message."""
    head = said[: 2 * _TEXT_CHARS]
    if missing := RULES["missing"].search(head):
        return f"missing {next(filter(None, missing.groups()))}"
    if known := next((name for name in ADVICE if RULES[name].search(head)), ""):
        return known
    return write_key(Recovery("call", call, item["event_index"], call, said, ()), said).removeprefix("call ")


def _describe_calls(call: Event, recovery: Recovery | None, private: Private) -> tuple[str, str]:
    made = [call, *([recovery.chosen] if recovery else [])]
    # Redact before shortening: half of a secret is not recognised.
    shown = [redact_json(describe_change(one.tool_name, decode_arguments(one)), private) for one in made]
    return shorten(shown[0], _TEXT_CHARS), shorten(shown[1], _TEXT_CHARS) if recovery else ""


def _measure_minutes(span: Sequence[Event]) -> float:
    times = [event.timestamp for event in span if event.timestamp]
    if not times:
        return 0.0
    try:
        first, last = (datetime.fromisoformat(time.replace("Z", "+00:00")) for time in (times[0], times[-1]))
        return max((last - first).total_seconds() / 60, 0.0)
    except (ValueError, TypeError):  # not a date, or one of two without a zone
        return 0.0


def _group_correction(groups: list[tuple[set[str], Lesson]], said: str, occurrence: Occurrence) -> None:
    words = {word.lower() for word in _CORRECTING.findall(said[:_TEXT_CHARS])}
    # An output that the user pasted is not a rule of the user's.
    if len(words) < FEW_WORDS or RULES["pasted"].search(said):
        return
    for shared, lesson in groups:
        if len(words & shared) >= ALIKE * len(words | shared):
            lesson.occurrences.append(occurrence)
            return
    lesson = Lesson("correction", shorten_line(said, _LINE_CHARS))
    lesson.occurrences.append(occurrence)
    groups.append((words, lesson))


def _write_line(lesson: Lesson) -> str:
    """Word a lesson as a line for a file of instructions; "" if nothing is known that helps."""
    if lesson.kind == "correction":
        return f"The user has said several times: {lesson.key}"
    if lesson.key in ADVICE:
        return ADVICE[lesson.key]
    solved = [one for one in lesson.occurrences if one.instead]
    solved.sort(key=lambda one: (len(one.instead), one.instead))
    if lesson.key.startswith("missing "):
        used = next(filter(None, (_list_new_programs(one) for one in solved)), [])
        return f"`{lesson.key.removeprefix('missing ')}` is not installed" + (f"; use `{used[0]}`." if used else ".")
    swaps = [swap for one in solved if (swap := _find_swap(one.tried, one.instead))]
    for swap in swaps:
        # A path or a value that was wrong once says nothing about the next time.
        if swaps.count(swap) > 1 or not _OF_ONE_CASE.search(" ".join(swap)):
            return f"Instead of `{swap[0]}` use `{swap[1]}` ({lesson.key})."
    if len({one.session for one in solved}) < LEAST - 1:
        return ""
    return f"After `{lesson.key}`, this worked: `{shorten_line(solved[0].instead, _LINE_CHARS)}`."


def _list_new_programs(one: Occurrence) -> list[str]:
    """Return the programs that a command which worked runs, and the one that failed does not."""
    # The name of the tool stands in front of a command.
    commands = (text.partition(" ")[2] for text in (one.tried, one.instead))
    tried, instead = ([stage.program for stage in list_stages(command)] for command in commands)
    return [program for program in instead if program not in tried]


def _find_swap(tried: str, instead: str) -> tuple[str, str] | None:
    """Return the few words that two calls differ in, with the one before them; None if they differ in more."""
    one, other = tried.split(), instead.split()
    start = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    end = 0
    while end < min(len(one), len(other)) - start and one[-1 - end] == other[-1 - end]:
        end += 1
    old, new = one[start : len(one) - end], other[start : len(other) - end]
    if not old or not new or max(len(old), len(new)) > LEAST:
        return None
    return " ".join(old), " ".join(new)


def _choose_examples(occurrences: Sequence[Occurrence]) -> list[Occurrence]:
    """Return a few occurrences of different sessions, those with a known answer first."""
    ranked = sorted(occurrences, key=lambda one: (not one.instead, not one.resolved_by))
    distinct = {one.session: one for one in reversed(ranked)}
    return list(reversed(distinct.values()))[:_EXAMPLES]
