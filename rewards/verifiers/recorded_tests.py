"""Test answers by recorded calls: they get arguments only, the tests see their replies only.

tests  kind: "recorded", made by `record` from a reference and tests for pytest: files: path to text
       of the tests; passes: the node ids that must pass; calls: what the tests asked of the
       reference, and its replies; modules, packages, roots, sources: what can be imported, from
       where, and modules that both sides have; left_out: the tests that cannot be recorded, with
       the reason; generated: calls of the same functions with other arguments; seconds: CPU
       seconds of the whole run; `needs` as in `rewards.verifiers.tests`

When a suite is built, the tests run once with the reference in another process, and every call
that crosses over is written down: arguments, results, exceptions, arguments that were changed,
output, files. An answer is given the arguments alone, one call after the other. If all its replies
are those of the reference, the tests pass. Otherwise the tests themselves judge the replies, in a
process where there is nothing of the answer; so tolerances, order, membership and messages count
as the tests say. If a reply leads them to a call that was not recorded, the answer is run again
with it.

Objects of the answer stay with the answer: tests see what their methods return. Where the
reference returns a value, an object of an own class equals itself alone, and only its attributes can
be read: so constants may be members of an enum, and what has fields may have a class of its own. Two
objects are equal if `__eq__` says so, does not say so of everything, and their public numbers and
texts are those of the reference. An argument is changed, and a file of the tests written, only where
the reference does so; what an answer writes is never imported by the tests.

Not recordable: tests that read sources, hand over functions, classes or mocks of their own, patch
other modules, derive or copy classes of the answer, or give other results each time.

A generated call is a recorded one with one argument replaced by one of the same type and size, whose
numbers lie between the recorded ones and whose letters and items are recorded ones; it is sorted or
without repetitions where all recorded ones are, and only texts of plain words are taken apart. It
counts where the reference gives the same value twice. An answer that gives another value need not be
wrong, and loses a part of its score only.
"""

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from pathlib import PurePosixPath
from random import Random
from typing import Any

import msgspec

from rewards.sandbox import Limits, Ran
from rewards.verifiers import pytest_tests
from rewards.verifiers.outcomes import (
    PASSED,
    RECORDED_WORKER,
    UNKNOWN,
    Outcome,
    Python,
    built_in,
    describe_ending,
    listed,
)
from rewards.verifiers.pytest_tests import STAGES, Events, PytestTests, Seconds
from rewards.verifiers.recorded.values import ASKED, Decoder, Encoded

OUTPUT = 32 << 20
ROUNDS = 40
# Of an answer that uses up its time.
FEW_ROUNDS = 3
# Of a reference whose replies differ from run to run.
TRIES = 6
# Archives keep times in steps of 2 seconds: within one, a file with the time in it looks the same.
ARCHIVE_SECONDS = 2.1
MAX_BYTES = 1 << 20
OWN = {"instance", "function", "module"}
OBJECTS = (*OWN, "class", "library")
# What an unfinished program raises; a test that expects any exception must not take it for one.
UNFINISHED = (
    NameError, NotImplementedError, RecursionError, SyntaxError, ImportError, SystemExit,
    KeyboardInterrupt, GeneratorExit, MemoryError,
)  # fmt: skip
Message = dict[str, Any]
# A request and its reply.
Calls = list[list[Any]]


class RecordedTests(msgspec.Struct, tag_field="kind", tag="recorded", kw_only=True):
    """Tests of a spec that are recorded calls."""

    seconds: Seconds = 30.0
    files: dict[str, str]
    needs: list[str] | msgspec.UnsetType = msgspec.UNSET
    roots: list[str]
    sources: dict[str, str] = {}
    modules: dict[str, bool]
    packages: dict[str, str] = {}
    passes: list[str]
    calls: Calls
    generated: Calls = []
    left_out: dict[str, str] = {}


class NotRecordable(Exception):
    """No test of the task can be recorded; the message says why."""


def record(files: Mapping[str, str], tests: Mapping[str, Any], python: Python) -> dict[str, Any]:
    """Run tests for pytest with a reference; return the tests of a spec, of kind "recorded".

    `files` are those of the program, the reference among them; `tests` has `files`, and optional
    `roots`, `shared`, `seconds`, `needs`. Raises NotRecordable with the reason when the reference
    fails its own tests, or when none of them can be recorded.
    """
    given = msgspec.convert({"kind": "pytest", **tests}, PytestTests)
    made = _places(files, given)
    kept, reasons, collected = _recorded(files, made, python)
    if reasons and (why := _fails_plainly(files, given, python)):
        raise NotRecordable(f"the reference fails its own tests: {why}")
    made.passes = kept
    if kept and kept != collected:  # the calls of the other tests must not be in between
        made.passes, more, _ = _recorded(files, made, python)
        reasons |= more
    if kept := made.passes:
        unsteady = _unsteady(files, made, python)
        made.passes = [name for name in kept if name not in unsteady]
        reasons |= dict.fromkeys(unsteady, "gives other results each time")
        if unsteady and made.passes and _recorded(files, made, python)[0] != made.passes:
            raise NotRecordable("its tests give other results each time")
    if not made.passes:
        name, reason = next(iter(reasons.items()), ("it has no tests", "nothing is collected"))
        raise NotRecordable(f"none of its tests can be recorded ({name}: {reason})")
    if (size := len(json.dumps(made.calls))) > MAX_BYTES:
        raise NotRecordable(f"its recorded calls have {size} bytes, more than {MAX_BYTES}")
    _finish(made.calls)
    made.generated = _generated(files, made, python)
    made.left_out = reasons
    plain: dict[str, Any] = msgspec.to_builtins(made)
    return plain


def _generated(files: Mapping[str, str], made: RecordedTests, python: Python) -> Calls:
    """Return generated calls for which the reference gives the same value twice."""
    messages = _generate_calls(made.calls)
    if not messages:
        return []
    first, second = (_run("call", files, made, python, messages)[1] for _ in range(2))
    calls = zip(messages, first, second, strict=False)
    return [
        [message, one]
        for message, one, other in calls
        if _essence(one) == _essence(other)
        and "raised" not in one
        and (message["op"] != "call" or not any(row[0] in OBJECTS for row in one["table"]))
    ]


PER_FUNCTION = 8
_MAX_DEPTH = 10
_PLAIN_ROWS = {"known", "tuple", "list", "dict", "int"}
_ATOMS = (int, float, str, bool, type(None))
# The positional and the keyword arguments of a call.
Given = tuple[tuple[Any, ...], dict[str, Any]]


def _generate_calls(calls: Iterable[Sequence[Message]]) -> list[Message]:
    """Return requests for a fresh process, a part for each function; the first two find it."""
    messages: list[Message] = []
    for number, ((module, name), recorded) in enumerate(_calls_of_functions(calls).items(), 1):
        random, known, made = Random(name), [*recorded], list[Given]()
        for _ in range(4 * PER_FUNCTION):
            one = _varied(random.choice(recorded), recorded, random)
            if len(made) < PER_FUNCTION and one not in known:
                made.append(one)
                known.append(one)
        if made:
            messages.append(_request("import", module, number, "", module))
            messages.append(_request("getattr", name, number, "module.1", name))
            messages += [_request("call", name, number, "function.1", *one) for one in made]
    return messages


def _request(op: str, label: str, part: int, key: str, *arguments: Any) -> Message:
    """Return a request with the arguments, the first of which is the object of the key, if any."""
    encoded = Encoded(lambda _: ["known", f"{part}.{key}"], {})
    refs = encoded.refs([object(), *arguments] if key else arguments)
    message = {"op": op, "name": f"{op} {label}", "refs": refs, "table": encoded.table}
    return message | {"part": part} | ({"plain": True} if op == "call" else {})


def _calls_of_functions(calls: Iterable[Sequence[Message]]) -> dict[tuple[str, str], list[Given]]:
    """Return the plain arguments of calls by module and name of the function."""
    modules: dict[str, str] = {}
    functions: dict[str, tuple[str, str]] = {}
    found = defaultdict[tuple[str, str], list[Given]](list)
    for message, reply in calls:
        asked, got = _row(message), _row(reply)
        if message["op"] == "import" and got[0] == "module":
            modules[got[1]] = got[2]
        elif message["op"] == "getattr" and got[0] == "function" and asked[-1] in modules:
            functions[got[1]] = (modules[asked[-1]], message["refs"][1])
        elif (
            message["op"] == "call" and asked[-1] in functions and {row[0] for row in message["table"]} <= _PLAIN_ROWS
        ):
            _, args, kwargs = Decoder(message["table"], lambda *_: None, {}).values(message["refs"])
            if _is_plain([args, kwargs]):
                found[functions[asked[-1]]].append((args, kwargs))
    return found


def _row(message: Message) -> Any:
    first = message["refs"][0]
    return message["table"][first[0]] if isinstance(first, list) else [""]


def _is_plain(value: Any, depth: int = 0) -> bool:
    if type(value) is dict:
        value = [*value, *value.values()]
    if type(value) in (list, tuple) and depth < _MAX_DEPTH:  # it may hold itself
        return all(_is_plain(item, depth + 1) for item in value)
    return type(value) in _ATOMS


def _varied(base: Given, recorded: Sequence[Given], random: Random) -> Given:
    args, kwargs = [*base[0]], {**base[1]}
    if not (args or kwargs):
        return base
    place = random.choice([*range(len(args)), *kwargs])
    if isinstance(place, str):
        seen = [given[1][place] for given in recorded if place in given[1]]
        kwargs[place] = _like(kwargs[place], seen, random)
    else:
        seen = [given[0][place] for given in recorded if len(given[0]) > place]
        args[place] = _like(args[place], seen, random)
    return tuple(args), kwargs


def _like(base: Any, seen: Sequence[Any], random: Random) -> Any:
    """Return a value of the type and the size of `base`, within what was seen."""
    kind = type(base)
    alike = [one for one in seen if type(one) is kind]
    if kind is int:
        return random.randint(min(alike), max(alike))
    if kind is float and all(map(math.isfinite, alike)):
        return random.uniform(min(alike), max(alike))
    if kind is str and all(one.replace(" ", "").isalnum() for one in alike):
        letters = "".join(alike)
        start = random.randrange(len(letters) - len(base) + 1)
        return letters[start : start + len(base)]
    if kind is dict:
        return {key: _like(base[key], [one[key] for one in alike if key in one], random)
                for key in base}  # fmt: skip
    if kind is tuple and all(len(one) == len(base) for one in alike):
        return tuple(map(_like, base, zip(*alike, strict=True), [random] * len(base)))
    if kind not in (list, tuple):
        return random.choice(alike)
    items = [item for one in alike for item in one]
    made = [_like(random.choice(items), items, random) for _ in base]
    if all(len(set(map(repr, one))) == len(one) for one in alike):
        made = list({repr(item): item for item in made}.values())
    try:
        if kind is list and all(one == sorted(one) for one in alike):
            made.sort()
    except TypeError:  # no order
        pass
    return kind(made)


def replies_to_generated(files: Mapping[str, str], tests: RecordedTests, python: Python) -> list[tuple[Any, Any]]:
    """Return the answer's and the reference's reply to each generated call."""
    messages = [message for message, _ in tests.generated]
    replies = _run("call", files, tests, python, messages)[1] if messages else []
    pairs = zip(chain(replies, repeat({})), tests.generated, strict=False)
    return [(reply, expected) for reply, (message, expected) in pairs if message["op"] == "call"]


def _fails_plainly(files: Mapping[str, str], tests: PytestTests, python: Python) -> str:
    """Return what fails with the reference beside the tests, "" when nothing does."""
    ran, events = pytest_tests.run_together(files, tests, python)
    for event in events:
        if event.get("outcome") == "failed" or "broken" in event:
            return f"{event.get('id', event.get('broken'))}: {event['text']}"
    ended = any("end" in event for event in events)
    return "" if ended else describe_ending(ran, "running its tests").message


def _recorded(
    files: Mapping[str, str], made: RecordedTests, python: Python
) -> tuple[list[str], dict[str, str], list[str]]:
    """Record the calls into `made`; return the tests that pass, why others cannot be recorded, all."""
    ran, events = _run("record", files, made, python)
    end = next((event for event in events if "end" in event), None)
    if end is None:
        raise NotRecordable(describe_ending(ran, "recording its tests").message)
    collected = [name for event in events for name in event.get("collected", ())]
    kept, reasons = [], {}
    for number, name in enumerate(collected, 1):
        why = end["why"].get(str(number))
        if failed := [e["text"] for e in events if e.get("id") == name and e["outcome"] == "failed"]:
            reasons[name] = why or f"fails with the reference in another process: {failed[0]}"
        elif why:
            reasons[name] = why
        elif _stages(events, name) == STAGES:  # neither skipped nor expected to fail
            kept.append(name)
    for event in events:
        if "broken" in event:
            reasons[event["broken"]] = end["why"].get("0") or event["text"]
    made.calls = end["calls"]
    return kept, reasons, collected


def _unsteady(files: Mapping[str, str], made: RecordedTests, python: Python) -> list[str]:
    """Return the tests that the reference fails by its own recording, or that ask for something else each time."""
    calls = [[dict(message), reply] for message, reply in made.calls]
    _finish(calls)
    again = msgspec.structs.replace(made, calls=calls)
    recorded = [_essence(reply) for _, reply in calls]
    unsteady: set[str] = set()
    if any("files" in one for call in calls for one in call):
        time.sleep(ARCHIVE_SECONDS)
    for _ in range(TRIES):
        outcomes = verify_recorded(files, again, python, rounds=1)
        _, events = _run("check", {}, again, python)
        wanted: dict[str, Any] = next((event["wanted"] for event in events if "end" in event), {})
        # Such as one that compares a file with the time of day.
        unsteady |= {event["id"] for event in events if event.get("outcome") == "failed"}
        unsteady |= {
            name
            for number, (name, outcome) in enumerate(zip(made.passes, outcomes, strict=True), 1)
            if outcome != PASSED or str(number) in wanted or "0" in wanted
        }
        _, replies = _run("call", files, again, python, [message for message, _ in calls])
        if [*map(_essence, replies)] == recorded:
            break  # nothing is left to chance
    return [name for name in made.passes if name in unsteady]


def _finish(calls: Calls) -> None:
    """Note in each call whether objects or values come back; leave out lines of the reference."""
    note = _notes(calls)
    for message, reply in calls:
        reply.pop("where", None)
        note(message)


def _notes(calls: Calls) -> Callable[[Message], None]:
    """Return what notes in a request whether the reference gives values or objects by that name."""
    objects, named = _labels_with(calls, OBJECTS), _labels_with(calls, ("named",))

    def note(message: Message) -> None:
        if message["name"] not in objects:
            message["plain"] = True
        elif message["name"] not in named:
            message["plain"] = False

    return note


def _labels_with(calls: Calls, kinds: Collection[str]) -> set[str]:
    """Return the names of calls that some reply of the reference answers with such a row."""
    return {
        message["name"]
        for message, reply in calls
        if any(row[0] in kinds and row[-1] is not None for row in reply["table"])
    }


def verify_recorded(
    files: Mapping[str, str], tests: RecordedTests, python: Python, rounds: int = ROUNDS
) -> list[Outcome]:
    """Hand the recorded calls to the files; one outcome for each test that must pass, in order."""
    recorded = tests.calls
    messages = [message for message, _ in recorded]
    ran, replies = _run("call", files, tests, python, messages)
    if [*map(_essence, replies)] == [_essence(reply) for _, reply in recorded]:
        return [PASSED] * len(tests.passes)
    differing = _differences(recorded, ran, replies)
    rules, spent = _Rules(recorded), ran.cpu_seconds
    for number in range(rounds):
        padded = replies[: len(messages)] + [None] * (len(messages) - len(replies))
        calls = rules.admit(zip(messages, padded, strict=True))
        checked, events = _run("check", {}, tests, python, calls)
        wanted: dict[str, Any] = next((event["wanted"] for event in events if "end" in event), {})
        if not wanted or number == rounds - 1 or (number >= FEW_ROUNDS and spent > tests.seconds):
            break
        messages = rules.rerouted(messages, wanted)
        ran, replies = _run("call", files, tests, python, messages)
        spent += ran.cpu_seconds
    if not any("end" in event for event in events):
        return [describe_ending(checked, "testing what the answer gives"), *[UNKNOWN] * (len(tests.passes) - 1)]
    broken = next((event["text"] for event in events if "broken" in event), "")
    return [
        _outcome(name, events, differing.get(number) or differing.get(0), broken)
        for number, name in enumerate(tests.passes, 1)
    ]


def _run(
    mode: str, files: Mapping[str, str], tests: RecordedTests, python: Python,
    calls: list[Any] | None = None,
) -> tuple[Ran, Events]:  # fmt: skip
    """Run a worker; return what it wrote, which are replies to `calls` in the mode "call"."""
    job: dict[str, Any] = {"roots": tests.roots, "shared": tests.sources}
    if mode != "record":
        job["calls"] = tests.calls if calls is None else calls
    if mode != "call":
        job["arguments"] = [path for path in tests.files if pytest_tests.is_test(path)]
        job |= {"modules": tests.modules, "ids": tests.passes}
        job |= {"files": tests.packages | tests.files}
    limits = Limits(cpu_seconds=tests.seconds, output=OUTPUT)
    command, given = ["-m", RECORDED_WORKER, mode], json.dumps(job).encode()
    ran = python(command, files=files, stdin=given, limits=limits)
    lines = ran.stdout.split(b"\n")[:-1]
    read: Events = []
    with suppress(RecursionError):  # what an answer forged may be deeper than can be read here
        read += (json.loads(line) for line in lines if line.startswith(b"{"))
    return ran, read


def _stages(events: Events, name: str) -> list[tuple[str, str]]:
    return [(e["when"], e["outcome"]) for e in events if e.get("id") == name]


def _essence(reply: Any) -> str:
    """Return what of a reply the tests could see."""
    return json.dumps({k: v for k, v in reply.items() if k != "where"}, sort_keys=True)


class _Rules:
    """What a reply may bring: no more kinds of things than the reference's replies."""

    def __init__(self, recorded: Calls) -> None:
        self.recorded = recorded
        self.objects, self.note = _labels_with(recorded, OBJECTS), _notes(recorded)
        self.changes = _labels_with(recorded, ("origin",))
        self.library = {tuple(row[1:3]) for _, reply in recorded for row in reply["table"] if row[0] == "library"}
        self.raised = {row[0] for _, reply in recorded if "raised" in reply for row in reply["table"]}
        self.files = {path for _, reply in recorded for path in reply.get("files", ())}
        self.given = {path for message, _ in recorded for path in message.get("files", ())}

    def admit(self, calls: Iterable[tuple[Message, Any]]) -> Calls:
        """Return calls with the replies as the tests may see them."""
        left = defaultdict[tuple[int, str], list[Message]](list)
        for message, reply in reversed(self.recorded):
            left[message["part"], message["name"]].append(reply)
        admitted = []
        for message, reply in calls:
            alike = left[message["part"], message["name"]]
            reference = alike.pop() if alike else {}
            if reply is not None:
                try:
                    reply = self._admitted(message, reply, reference)
                except Exception:  # of a reply that the answer forged
                    reply = {"crash": "the answer gives what cannot be read"}
            admitted.append([message, reply])
        return admitted

    def _admitted(self, message: Message, reply: Message, reference: Message) -> Message:
        if "raised" in reply:
            kind = _first_built_in(reply)
            if issubclass(kind, UNFINISHED) and ("raised" not in reference or _first_built_in(reference) is not kind):
                return {"crash": f"{kind.__name__}: {reply['raised']}"}
            reply["table"] = [["opaque", ""] if row[0] in OWN - self.raised else row for row in reply["table"]]
            return reply
        # A library's class that the reference does not give stays over there: its objects might equal anything.
        reply["table"] = [
            ["class", row[3], row[2], []] if row[0] == "library" and tuple(row[1:3]) not in self.library else row
            for row in reply["table"]
        ]
        if message["name"] not in self.objects:
            reply["table"] = [
                ["opaque", row[1] if row[0] in ("instance", "function") else ""] if row[0] in OBJECTS else row
                for row in reply["table"]
            ]
        if message["op"] == "equal":
            reply = {"refs": [_is_equal(reply, reference)], "table": []}
        if message["name"] not in self.changes:
            reply["fixed"] = True
        if files := reply.get("files"):
            reply["files"] = {k: v for k, v in files.items() if k in self.files or k not in self.given}
        return reply

    def rerouted(self, messages: list[Message], wanted: Mapping[str, Any]) -> list[Message]:
        """Return the calls with those that the tests want instead."""
        parts = defaultdict[int, list[Message]](list)
        for message in messages:
            parts[message["part"]].append(message)
        for part, (at, message) in wanted.items():
            self.note(message)
            left = parts[int(part)][at:]
            later = [all(one.get(key) == message.get(key) for key in ASKED) for one in left]
            if True in later:
                del parts[int(part)][at : at + later.index(True)]
            elif left and left[0]["name"] == message["name"]:
                parts[int(part)][at] = message
            else:
                parts[int(part)].insert(at, message)
        return [message for part in sorted(parts) for message in parts[part]]


def _first_built_in(reply: Message) -> type[BaseException]:
    """Return the first built-in class of what was raised."""
    (index,) = reply["refs"][0]
    row = reply["table"][index]
    for kind, name, *rest in [row, *(row[3] if row[0] == "class" else ())]:
        if known := built_in(name if kind == "type" else rest[0] if kind == "library" else None):
            return known
    return Exception


def _is_equal(reply: Message, reference: Message) -> bool:
    """Whether two objects of the answer are equal; what they hold must be what it should be."""
    equal, always, *held = _shown(reply)[0]
    if not equal or always or not reference:
        return bool(equal and not always)
    wanted = _shown(reference)[0]
    if not wanted[0]:
        return True
    return all(
        got[name] == expected[name]
        for got, expected in zip(held, wanted[2:], strict=True)
        for name in got.keys() & expected.keys()
    )


class _Classes(dict[str, type]):
    """Stands for the classes of the answer, and those that both sides have; none exists here."""

    def __missing__(self, key: str) -> type:
        name = key.rpartition(":")[2]
        return type("Named", (), {"__repr__": lambda self: f"<{name}>"})


def _shown(message: Message, number: int | None = 1, asked: Message | None = None) -> list[Any]:
    """Return the first values of a message, to be shown or compared; a reply needs its request."""
    classes = _Classes()

    def load(row: list[Any], _: object) -> Any:
        return classes[row[2][2] if row[0] == "instance" else f"{row[0]} {row[-1]}"]()

    sent: list[Any] = []
    if asked:
        sent = Decoder(asked["table"], load, classes).values([[index] for index in range(len(asked["table"]))])
    return Decoder(message["table"], load, classes, sent).values(message["refs"][:number])


def _differences(recorded: Calls, ran: Ran, replies: list[Any]) -> dict[int, Outcome]:
    """Say for each part where the replies first differ from those of the reference."""
    found: dict[int, Outcome] = {}
    for index, (message, expected) in enumerate(recorded):
        if message["part"] in found:
            continue
        op, _, name = message["name"].partition(" ")
        call = f"importing {name}" if op == "import" else f"`{name or op}`"
        if op == "call":
            _, args, kwargs = _shown(message, None)
            given = [*map(listed, args), *(f"{k}={listed(v)}" for k, v in kwargs.items())]
            call = f"{name}({', '.join(given)})"
        if index >= len(replies):
            found[message["part"]] = describe_ending(ran, call)
        elif _essence(reply := replies[index]) != _essence(expected):
            says = f"{call} {_said(message, reply)}"
            outcome = Outcome("test_or_assertion", f"{says}, the reference {_said(message, expected)}")
            if "raised" in reply and "raised" not in expected:
                where = f"\n  {reply['where']}" if reply.get("where") else ""
                outcome = Outcome("runtime_exception", f"{says}{where}")
            found[message["part"]] = outcome
    return found


def _said(message: Message, reply: Message) -> str:
    try:
        if "raised" in reply:
            row = reply["table"][reply["refs"][0][0]]
            return f"raises {row[1] if row[0] == 'type' else row[2]}: {reply['raised']}"
        return f"gives {listed(_shown(reply, 1, message)[0])}"
    except Exception:  # of a reply that the answer forged
        return "gives what cannot be read"


def _outcome(name: str, events: Events, difference: Outcome | None, broken: str) -> Outcome:
    if _stages(events, name) == STAGES:
        return PASSED
    text = next((e["text"] for e in events if e.get("id") == name and e["outcome"] != "passed"), "")
    text = text or broken or "it is skipped or not collected"
    if difference is None:
        return Outcome("test_or_assertion", f"{name}: {text}")
    if difference.kind != "test_or_assertion":
        return Outcome(difference.kind, f"{name}: {difference.message}")
    return Outcome(difference.kind, f"{name}: {text.splitlines()[0]}. {difference.message}")


def _places(files: Mapping[str, str], tests: PytestTests) -> RecordedTests:
    """Return tests without calls: what can be imported from where, the files' modules first."""
    source = ["src"] if any(path.startswith("src/") for path in files) else []
    roots = list(tests.roots) or ["", *source]
    shared = {PurePosixPath(path).stem: tests.files[path] for path in tests.shared}
    modules = {n: package for n, package in _modules_of(files, roots).items() if n not in shared}
    above = {str(parent / "__init__.py") for path in tests.files for parent in PurePosixPath(path).parents}
    return RecordedTests(
        seconds=tests.seconds, files=tests.files, needs=tests.needs, roots=roots, sources=shared,
        modules=modules, packages=dict.fromkeys(sorted(above & files.keys()), ""),
        passes=[], calls=[],
    )  # fmt: skip


def _modules_of(files: Collection[str], roots: Sequence[str]) -> dict[str, bool]:
    """Return the names under which files can be imported, and whether each is a package."""
    found: dict[str, bool] = {}
    for root in roots:
        for path in map(PurePosixPath, files):
            if path.suffix == ".py" and path.is_relative_to(root or "."):
                parts = path.relative_to(root or ".").with_suffix("").parts
                if parts[-1] != "__init__":
                    found.setdefault(".".join(parts), False)
                for depth in range(1, len(parts)):
                    found[".".join(parts[:depth])] = True
    return found
