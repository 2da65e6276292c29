"""Record the calls that pytest tests make to a reference, and test answers by replaying them.

tests  kind: "recorded", made by `record` from a reference and pytest tests. files: path to text of
       the tests; passes: the node ids that must pass; calls: the requests of the tests and the
       reference's replies; modules, packages, roots, sources: the modules of the reference, the
       packages above the tests, the import roots, and modules loaded in both processes; left_out:
       the tests that cannot be recorded, with the reason; generated: calls of the same functions
       with other arguments; seconds: CPU seconds of the whole run; `needs` as in
       `rewards.verifiers.tests`

When a suite is built, the tests run once with the reference in a separate process, and every call
between the two is recorded: arguments, results, exceptions, changed arguments, output and files. An
answer receives the arguments only, one call after the other. If all its replies equal those of the
reference, the tests pass. Otherwise the tests run on its replies, in a process that holds nothing
of the answer, so that tolerances, order, membership and messages count as the tests define them. If
a reply leads the tests to a call that was not recorded, the answer is run again with that call.

Objects of the answer stay in its process; tests see what their methods return. Where the reference
returns a value, an object of the answer's own class is equal only to itself, and only its attributes
can be read: so constants may be enum members, and records may have a class of their own. Two objects
are equal if `__eq__` says so, does not say so for every object, and their public numbers and texts
are those of the reference. An argument is changed, and a file of the tests written, only where the
reference does so. The tests never import files that an answer writes.

Not recordable: tests that read sources, pass functions, classes or mocks of their own, patch other
modules, subclass or copy classes of the answer, or give different results in each run.

A generated call is a recorded call with one argument replaced by another of the same type and size.
Its numbers lie between the recorded ones, its letters and items occur in them. A list stays sorted or
free of duplicates if all recorded ones are, and only strings of plain words are recombined. A
generated call counts only if the reference returns the same value twice. An answer that returns a
different value is not necessarily wrong, so it loses only part of its score.
"""

import json
import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    builtin_exception,
    describe_ending,
    format_value,
)
from rewards.verifiers.pytest_tests import Events, PytestTests, Seconds
from rewards.verifiers.recorded.values import REQUEST_KEYS, Decoder, Encoder

OUTPUT = 32 << 20
MAX_ROUNDS = 40
# For an answer that has used up its CPU time.
MIN_ROUNDS = 3
# How often the reference is replayed to find replies that differ between runs.
FLAKY_RUNS = 6
# Archives store times in steps of 2 seconds: two files written within one step look the same.
ARCHIVE_SECONDS = 2.1
MAX_BYTES = 1 << 20
OWN = {"instance", "function", "module"}
OBJECTS = (*OWN, "class", "library")
# An unfinished program raises these; a test that expects any exception must not accept them.
UNFINISHED = (
    NameError, NotImplementedError, RecursionError, SyntaxError, ImportError, SystemExit,
    KeyboardInterrupt, GeneratorExit, MemoryError,
)  # fmt: skip
Message = dict[str, Any]
# Requests, each with its reply.
Calls = list[list[Any]]


class RecordedTests(msgspec.Struct, tag_field="kind", tag="recorded", kw_only=True):
    """Tests of a spec that replay recorded calls."""

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
    """No test of the task can be recorded, for the reason in the message."""


def record(files: Mapping[str, str], tests: Mapping[str, Any], python: Python) -> dict[str, Any]:
    """Run pytest tests with a reference; return the tests of a spec, of kind "recorded".

    `files` is the program with the reference; `tests` has `files`, and optionally `roots`, `shared`,
    `seconds` and `needs`. Raises NotRecordable with the reason when the reference fails its own
    tests, or when none of them can be recorded.
    """
    source = msgspec.convert({"kind": "pytest", **tests}, PytestTests)
    recorded = _describe_modules(files, source)
    recorded.passes, reasons, collected = _record_calls(files, recorded, python)
    if reasons and (failure := _find_failure(files, source, python)):
        raise NotRecordable(f"the reference fails its own tests: {failure}")
    if recorded.passes and recorded.passes != collected:  # again, without the calls of the other tests
        recorded.passes, more_reasons, _ = _record_calls(files, recorded, python)
        reasons |= more_reasons
    if recorded.passes:
        flaky = _find_flaky(files, recorded, python)
        recorded.passes = [name for name in recorded.passes if name not in flaky]
        reasons |= dict.fromkeys(flaky, "gives different results in each run")
        if flaky and recorded.passes and _record_calls(files, recorded, python)[0] != recorded.passes:
            raise NotRecordable("its tests give different results in each run")
    if not recorded.passes:
        name, reason = next(iter(reasons.items()), ("it has no tests", "nothing is collected"))
        raise NotRecordable(f"none of its tests can be recorded ({name}: {reason})")
    if (size := len(json.dumps(recorded.calls))) > MAX_BYTES:
        raise NotRecordable(f"its recorded calls have {size} bytes, more than {MAX_BYTES}")
    _finish_calls(recorded.calls)
    recorded.generated = _record_generated(files, recorded, python)
    recorded.left_out = reasons
    spec: dict[str, Any] = msgspec.to_builtins(recorded)
    return spec


def _record_generated(files: Mapping[str, str], tests: RecordedTests, python: Python) -> Calls:
    """Return generated calls for which the reference returns the same value twice."""
    messages = _generate_calls(tests.calls)
    if not messages:
        return []
    first, second = (_run("call", files, tests, python, messages)[1] for _ in range(2))
    return [
        [message, reply]
        for message, reply, other in zip(messages, first, second, strict=False)
        if _to_comparable(reply) == _to_comparable(other)
        and "raised" not in reply
        and (message["op"] != "call" or not any(row[0] in OBJECTS for row in reply["table"]))
    ]


PER_FUNCTION = 8
_MAX_DEPTH = 10
_PLAIN_ROWS = {"known", "tuple", "list", "dict", "int"}
_ATOMS = (int, float, str, bool, type(None))
# The positional and the keyword arguments of a call.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _generate_calls(calls: Iterable[Sequence[Message]]) -> list[Message]:
    """Return requests for a fresh process, one part per function, which starts by importing it."""
    messages: list[Message] = []
    for part, ((module, name), recorded) in enumerate(_find_plain_calls(calls).items(), 1):
        random, known, generated = Random(name), [*recorded], list[Arguments]()
        for _ in range(4 * PER_FUNCTION):
            arguments = _vary_arguments(random.choice(recorded), recorded, random)
            if len(generated) < PER_FUNCTION and arguments not in known:
                generated.append(arguments)
                known.append(arguments)
        if generated:
            messages.append(_make_request("import", module, part, "", module))
            messages.append(_make_request("getattr", name, part, "module.1", name))
            messages += [_make_request("call", name, part, "function.1", *arguments) for arguments in generated]
    return messages


def _make_request(op: str, label: str, part: int, key: str, *arguments: Any) -> Message:
    """Return a request; `key` names the object that is its first argument, if any."""
    encoder = Encoder(lambda _: ["known", f"{part}.{key}"], {})
    refs = encoder.encode([object(), *arguments] if key else arguments)
    message = {"op": op, "name": f"{op} {label}", "refs": refs, "table": encoder.table}
    return message | {"part": part} | ({"plain": True} if op == "call" else {})


def _find_plain_calls(calls: Iterable[Sequence[Message]]) -> dict[tuple[str, str], list[Arguments]]:
    """Return the arguments of calls that have only plain values, by module and name of the function."""
    modules: dict[str, str] = {}
    functions: dict[str, tuple[str, str]] = {}
    found = defaultdict[tuple[str, str], list[Arguments]](list)
    for message, reply in calls:
        target, result = _first_row(message), _first_row(reply)
        if message["op"] == "import" and result[0] == "module":
            modules[result[1]] = result[2]
        elif message["op"] == "getattr" and result[0] == "function" and target[-1] in modules:
            functions[result[1]] = (modules[target[-1]], message["refs"][1])
        elif (
            message["op"] == "call" and target[-1] in functions and {row[0] for row in message["table"]} <= _PLAIN_ROWS
        ):
            _, args, kwargs = Decoder(message["table"], lambda *_: None, {}).decode(message["refs"])
            if _is_plain([args, kwargs]):
                found[functions[target[-1]]].append((args, kwargs))
    return found


def _first_row(message: Message) -> Any:
    ref = message["refs"][0]
    return message["table"][ref[0]] if isinstance(ref, list) else [""]


def _is_plain(value: Any, depth: int = 0) -> bool:
    if type(value) is dict:
        value = [*value, *value.values()]
    if type(value) in (list, tuple) and depth < _MAX_DEPTH:  # it may contain itself
        return all(_is_plain(item, depth + 1) for item in value)
    return type(value) in _ATOMS


def _vary_arguments(base: Arguments, recorded: Sequence[Arguments], random: Random) -> Arguments:
    args, kwargs = [*base[0]], {**base[1]}
    if not (args or kwargs):
        return base
    place = random.choice([*range(len(args)), *kwargs])
    if isinstance(place, str):
        values = [keywords[place] for _, keywords in recorded if place in keywords]
        kwargs[place] = _vary(kwargs[place], values, random)
    else:
        values = [positional[place] for positional, _ in recorded if len(positional) > place]
        args[place] = _vary(args[place], values, random)
    return tuple(args), kwargs


def _vary(base: Any, values: Sequence[Any], random: Random) -> Any:
    """Return a value of the type and size of `base`, within the range of the recorded `values`."""
    kind = type(base)
    values = [value for value in values if type(value) is kind]
    if kind is int:
        return random.randint(min(values), max(values))
    if kind is float and all(map(math.isfinite, values)):
        return random.uniform(min(values), max(values))
    if kind is str and all(value.replace(" ", "").isalnum() for value in values):
        letters = "".join(values)
        start = random.randrange(len(letters) - len(base) + 1)
        return letters[start : start + len(base)]
    if kind is dict:
        return {key: _vary(base[key], [value[key] for value in values if key in value], random) for key in base}
    if kind is tuple and all(len(value) == len(base) for value in values):
        return tuple(map(_vary, base, zip(*values, strict=True), [random] * len(base)))
    if kind not in (list, tuple):
        return random.choice(values)
    items = [item for value in values for item in value]
    varied = [_vary(random.choice(items), items, random) for _ in base]
    if all(len(set(map(repr, value))) == len(value) for value in values):
        varied = list({repr(item): item for item in varied}.values())
    try:
        if kind is list and all(value == sorted(value) for value in values):
            varied.sort()
    except TypeError:  # the items have no order
        pass
    return kind(varied)


def run_generated(files: Mapping[str, str], tests: RecordedTests, python: Python) -> list[tuple[Any, Any]]:
    """Return the answer's and the reference's reply to each generated call."""
    messages = [message for message, _ in tests.generated]
    replies = _run("call", files, tests, python, messages)[1] if messages else []
    pairs = zip(chain(replies, repeat({})), tests.generated, strict=False)
    return [(reply, expected) for reply, (message, expected) in pairs if message["op"] == "call"]


def _find_failure(files: Mapping[str, str], tests: PytestTests, python: Python) -> str:
    """Return what fails when the tests run in one process with the reference, "" when nothing does."""
    ran, events = pytest_tests.run_together(files, tests, python)
    for event in events:
        if event.get("outcome") == "failed" or "broken" in event:
            return f"{event.get('id', event.get('broken'))}: {event['text']}"
    ended = any("end" in event for event in events)
    return "" if ended else describe_ending(ran, "running its tests").message


def _record_calls(
    files: Mapping[str, str], tests: RecordedTests, python: Python
) -> tuple[list[str], dict[str, str], list[str]]:
    """Record the calls into `tests`; return the tests that pass, why others cannot be recorded, and all tests."""
    ran, events = _run("record", files, tests, python)
    end = next((event for event in events if "end" in event), None)
    if end is None:
        raise NotRecordable(describe_ending(ran, "recording its tests").message)
    collected = [name for event in events for name in event.get("collected", ())]
    passing, reasons = [], {}
    for number, name in enumerate(collected, 1):
        why = end["why"].get(str(number))
        if failed := [e["text"] for e in events if e.get("id") == name and e["outcome"] == "failed"]:
            reasons[name] = why or f"fails when the reference runs in another process: {failed[0]}"
        elif why:
            reasons[name] = why
        elif pytest_tests.has_passed(name, events):  # neither skipped nor expected to fail
            passing.append(name)
    for event in events:
        if "broken" in event:
            reasons[event["broken"]] = end["why"].get("0") or event["text"]
    tests.calls = end["calls"]
    return passing, reasons, collected


def _find_flaky(files: Mapping[str, str], tests: RecordedTests, python: Python) -> list[str]:
    """Return the tests that the reference fails in a replay, or that make different calls in each run."""
    calls = [[dict(message), reply] for message, reply in tests.calls]
    _finish_calls(calls)
    replayed = msgspec.structs.replace(tests, calls=calls)
    recorded = [_to_comparable(reply) for _, reply in calls]
    flaky: set[str] = set()
    if any("files" in message for call in calls for message in call):
        time.sleep(ARCHIVE_SECONDS)
    for _ in range(FLAKY_RUNS):
        outcomes = verify_recorded(files, replayed, python, rounds=1)
        _, events = _run("check", {}, replayed, python)
        wanted = _find_wanted(events)
        # Such as a test that compares a file with the current time.
        flaky |= {event["id"] for event in events if event.get("outcome") == "failed"}
        flaky |= {
            name
            for number, (name, outcome) in enumerate(zip(tests.passes, outcomes, strict=True), 1)
            if outcome != PASSED or str(number) in wanted or "0" in wanted
        }
        _, replies = _run("call", files, replayed, python, [message for message, _ in calls])
        if [*map(_to_comparable, replies)] == recorded:
            break  # nothing is random
    return [name for name in tests.passes if name in flaky]


def _find_wanted(events: Events) -> dict[str, Any]:
    """Return the first call of each part that the tests made and that was not recorded."""
    return next((event["wanted"] for event in events if "end" in event), {})


def _finish_calls(calls: Calls) -> None:
    """Mark in each request whether objects or values come back; drop the reference's source lines."""
    rules = _ReplyRules(calls)
    for message, reply in calls:
        reply.pop("where", None)
        rules.mark_plain(message)


def verify_recorded(
    files: Mapping[str, str], tests: RecordedTests, python: Python, rounds: int = MAX_ROUNDS
) -> list[Outcome]:
    """Replay the recorded calls on the files; one outcome for each test that must pass, in order."""
    recorded = tests.calls
    messages = [message for message, _ in recorded]
    ran, replies = _run("call", files, tests, python, messages)
    if [*map(_to_comparable, replies)] == [_to_comparable(reply) for _, reply in recorded]:
        return [PASSED] * len(tests.passes)
    differences = _find_differences(recorded, ran, replies)
    rules, cpu_seconds = _ReplyRules(recorded), ran.cpu_seconds
    for number in range(rounds):
        padded = replies[: len(messages)] + [None] * (len(messages) - len(replies))
        calls = rules.admit(zip(messages, padded, strict=True))
        checked, events = _run("check", {}, tests, python, calls)
        wanted = _find_wanted(events)
        if not wanted or number == rounds - 1 or (number >= MIN_ROUNDS and cpu_seconds > tests.seconds):
            break
        messages = rules.insert_wanted(messages, wanted)
        ran, replies = _run("call", files, tests, python, messages)
        cpu_seconds += ran.cpu_seconds
    if not any("end" in event for event in events):
        return [describe_ending(checked, "testing what the answer returns"), *[UNKNOWN] * (len(tests.passes) - 1)]
    broken = next((event["text"] for event in events if "broken" in event), "")
    return [
        _to_outcome(name, events, differences.get(number) or differences.get(0), broken)
        for number, name in enumerate(tests.passes, 1)
    ]


def _run(
    mode: str, files: Mapping[str, str], tests: RecordedTests, python: Python, calls: list[Any] | None = None
) -> tuple[Ran, Events]:
    """Run a worker; return its output lines, which are replies to `calls` in the mode "call"."""
    job: dict[str, Any] = {"roots": tests.roots, "shared": tests.sources}
    if mode != "record":
        job["calls"] = tests.calls if calls is None else calls
    if mode != "call":
        job["arguments"] = [path for path in tests.files if pytest_tests.is_test(path)]
        job |= {"modules": tests.modules, "ids": tests.passes}
        job |= {"files": tests.packages | tests.files}
    limits = Limits(cpu_seconds=tests.seconds, output=OUTPUT)
    ran = python(["-m", RECORDED_WORKER, mode], files=files, stdin=json.dumps(job).encode(), limits=limits)
    messages: Events = []
    with suppress(RecursionError):  # an answer may forge a message that is nested too deeply
        messages += (json.loads(line) for line in ran.stdout.split(b"\n")[:-1] if line.startswith(b"{"))
    return ran, messages


def _to_comparable(reply: Any) -> str:
    """Return the part of a reply that the tests can see."""
    return json.dumps({k: v for k, v in reply.items() if k != "where"}, sort_keys=True)


class _ReplyRules:
    """Limits replies to the kinds of objects, changes and files that the reference's replies have."""

    def __init__(self, recorded: Calls) -> None:
        self.recorded = recorded
        self.objects, self.named, self.changes = (
            self._names_with(*kinds) for kinds in (OBJECTS, ["named"], ["origin"])
        )
        self.library = {tuple(row[1:3]) for _, reply in recorded for row in reply["table"] if row[0] == "library"}
        self.raised = {row[0] for _, reply in recorded if "raised" in reply for row in reply["table"]}
        self.files = {path for _, reply in recorded for path in reply.get("files", ())}
        self.test_files = {path for message, _ in recorded for path in message.get("files", ())}

    def _names_with(self, *kinds: str) -> set[str]:
        """Return the names of the calls for which a reply of the reference has a row of one of the kinds."""
        return {
            message["name"]
            for message, reply in self.recorded
            if any(row[0] in kinds and row[-1] is not None for row in reply["table"])
        }

    def mark_plain(self, message: Message) -> None:
        """Mark in a request whether the reference returns values or objects for this name."""
        if message["name"] not in self.objects:
            message["plain"] = True
        elif message["name"] not in self.named:
            message["plain"] = False

    def admit(self, calls: Iterable[tuple[Message, Any]]) -> Calls:
        """Return the calls with their replies as the tests may see them."""
        unused = defaultdict[tuple[int, str], list[Message]](list)
        for message, reply in reversed(self.recorded):
            unused[message["part"], message["name"]].append(reply)
        admitted = []
        for message, reply in calls:
            references = unused[message["part"], message["name"]]
            reference = references.pop() if references else {}
            if reply is not None:
                try:
                    reply = self._admit_reply(message, reply, reference)
                except Exception:  # the answer may forge a reply
                    reply = {"crash": "the answer returns something that cannot be read"}
            admitted.append([message, reply])
        return admitted

    def _admit_reply(self, message: Message, reply: Message, reference: Message) -> Message:
        if "raised" in reply:
            kind = _first_builtin(reply)
            if issubclass(kind, UNFINISHED) and ("raised" not in reference or _first_builtin(reference) is not kind):
                return {"crash": f"{kind.__name__}: {reply['raised']}"}
            reply["table"] = [["opaque", ""] if row[0] in OWN - self.raised else row for row in reply["table"]]
            return reply
        # A library class that the reference never returns stays in the other process: its objects might
        # equal anything.
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
            reply["files"] = {k: v for k, v in files.items() if k in self.files or k not in self.test_files}
        return reply

    def insert_wanted(self, messages: list[Message], wanted: Mapping[str, Any]) -> list[Message]:
        """Return the calls with those that the tests made instead."""
        parts = defaultdict[int, list[Message]](list)
        for message in messages:
            parts[message["part"]].append(message)
        for number, (at, message) in wanted.items():
            self.mark_plain(message)
            part = parts[int(number)]
            remaining = part[at:]
            is_same = [all(other.get(key) == message.get(key) for key in REQUEST_KEYS) for other in remaining]
            if True in is_same:
                del part[at : at + is_same.index(True)]
            elif remaining and remaining[0]["name"] == message["name"]:
                part[at] = message
            else:
                part.insert(at, message)
        return [message for number in sorted(parts) for message in parts[number]]


def _first_builtin(reply: Message) -> type[BaseException]:
    """Return the first built-in class of the exception that was raised."""
    (index,) = reply["refs"][0]
    row = reply["table"][index]
    for kind, name, *rest in [row, *(row[3] if row[0] == "class" else ())]:
        if known := builtin_exception(name if kind == "type" else rest[0] if kind == "library" else None):
            return known
    return Exception


def _is_equal(reply: Message, reference: Message) -> bool:
    """Whether two objects of the answer are equal; their attributes must be those of the reference."""
    equal, always, *attributes = _decode_for_display(reply)[0]
    if not equal or always or not reference:
        return bool(equal and not always)
    expected_equal, _, *expected_attributes = _decode_for_display(reference)[0]
    if not expected_equal:
        return True
    return all(
        got[name] == expected[name]
        for got, expected in zip(attributes, expected_attributes, strict=True)
        for name in got.keys() & expected.keys()
    )


class _PlaceholderClasses(dict[str, type]):
    """Placeholders for the classes of the answer and of shared modules, which do not exist in this process."""

    def __missing__(self, key: str) -> type:
        name = key.rpartition(":")[2]
        return type("Named", (), {"__repr__": lambda self: f"<{name}>"})


def _decode_for_display(message: Message, number: int | None = 1, request: Message | None = None) -> list[Any]:
    """Return the first values of a message, to be shown or compared; a reply needs its request."""
    classes = _PlaceholderClasses()

    def load(row: list[Any], _: object) -> Any:
        return classes[row[2][2] if row[0] == "instance" else f"{row[0]} {row[-1]}"]()

    sent: list[Any] = []
    if request:
        sent = Decoder(request["table"], load, classes).decode([[index] for index in range(len(request["table"]))])
    return Decoder(message["table"], load, classes, sent).decode(message["refs"][:number])


def _find_differences(recorded: Calls, ran: Ran, replies: list[Any]) -> dict[int, Outcome]:
    """Return, by part, where the replies first differ from those of the reference."""
    found: dict[int, Outcome] = {}
    for index, (message, expected) in enumerate(recorded):
        if message["part"] in found:
            continue
        op, _, name = message["name"].partition(" ")
        call = f"importing {name}" if op == "import" else f"`{name or op}`"
        if op == "call":
            _, args, kwargs = _decode_for_display(message, None)
            arguments = [*map(format_value, args), *(f"{k}={format_value(v)}" for k, v in kwargs.items())]
            call = f"{name}({', '.join(arguments)})"
        if index >= len(replies):
            found[message["part"]] = describe_ending(ran, call)
        elif _to_comparable(reply := replies[index]) != _to_comparable(expected):
            actual = f"{call} {_describe_reply(message, reply)}"
            if "raised" in reply and "raised" not in expected:
                where = f"\n  {reply['where']}" if reply.get("where") else ""
                found[message["part"]] = Outcome("runtime_exception", f"{actual}{where}")
            else:
                text = f"{actual}, the reference {_describe_reply(message, expected)}"
                found[message["part"]] = Outcome("test_or_assertion", text)
    return found


def _describe_reply(message: Message, reply: Message) -> str:
    try:
        if "raised" in reply:
            row = reply["table"][reply["refs"][0][0]]
            return f"raises {row[1] if row[0] == 'type' else row[2]}: {reply['raised']}"
        return f"returns {format_value(_decode_for_display(reply, 1, message)[0])}"
    except Exception:  # the answer may forge a reply
        return "returns something that cannot be read"


def _to_outcome(name: str, events: Events, difference: Outcome | None, broken: str) -> Outcome:
    if pytest_tests.has_passed(name, events):
        return PASSED
    text = next((e["text"] for e in events if e.get("id") == name and e["outcome"] != "passed"), "")
    text = text or broken or "it is skipped or not collected"
    if difference is None:
        return Outcome("test_or_assertion", f"{name}: {text}")
    if difference.kind != "test_or_assertion":
        return Outcome(difference.kind, f"{name}: {difference.message}")
    return Outcome(difference.kind, f"{name}: {text.splitlines()[0]}. {difference.message}")


def _describe_modules(files: Mapping[str, str], tests: PytestTests) -> RecordedTests:
    """Return tests without calls, with the modules that can be imported; those of `files` come first."""
    source = ["src"] if any(path.startswith("src/") for path in files) else []
    roots = list(tests.roots) or ["", *source]
    shared = {PurePosixPath(path).stem: tests.files[path] for path in tests.shared}
    packages = {str(parent / "__init__.py") for path in tests.files for parent in PurePosixPath(path).parents}
    return RecordedTests(
        seconds=tests.seconds,
        files=tests.files,
        needs=tests.needs,
        roots=roots,
        sources=shared,
        modules={name: package for name, package in _find_modules(files, roots).items() if name not in shared},
        packages=dict.fromkeys(sorted(packages & files.keys()), ""),
        passes=[],
        calls=[],
    )


def _find_modules(files: Collection[str], roots: Sequence[str]) -> dict[str, bool]:
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
