"""Test answers by recorded calls: they get arguments only, the tests see their replies only.

tests  kind: "recorded", made by `record` from a reference and tests for pytest: files: path to text
       of the tests; passes: the node ids that must pass; calls: what the tests asked of the
       reference, and its replies; modules, packages, roots, sources: what can be imported, from
       where, and modules that both sides have; left_out: the tests that cannot be recorded, with
       the reason; seconds: CPU seconds of the whole run; `needs` as in `rewards.verifiers.tests`

When a suite is built, the tests run once with the reference in another process, and every call
that crosses over is written down: arguments, results, exceptions, arguments that were changed,
output, files. An answer is given the arguments alone, one call after the other. If all its replies
are those of the reference, the tests pass. Otherwise the tests themselves judge the replies, in a
process where there is nothing of the answer; so tolerances, order, membership and messages count
as the tests say. If a reply leads them to a call that was not recorded, the answer is run again
with it.

Objects of the answer stay with the answer: tests see what their methods return. Where the
reference returns a value, an object of an own class equals nothing. Two objects are equal if
`__eq__` says so, does not say so of everything, and their public numbers and texts are those of the
reference. An argument is changed, and a file of the tests written, only where the reference does
so.

Not recordable: tests that read sources, hand over functions, classes or mocks of their own, patch
other modules, derive or copy classes of the answer, or give other results each time.
"""

import base64
import json
import marshal
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from rewards.sandbox import Limits, Ran
from rewards.verifiers import pytest_tests
from rewards.verifiers.outcomes import Outcome, Python, describe_ending, listed
from rewards.verifiers.recorded.values import Decoder

SECONDS = 30.0
OUTPUT = 32 << 20
ROUNDS = 12
MAX_BYTES = 1 << 20
STAGES = [("setup", "passed"), ("call", "passed"), ("teardown", "passed")]
OBJECTS = ("instance", "class", "function", "module", "library")
# What an unfinished program raises; a test that expects any exception must not take it for one.
UNFINISHED = (
    NameError, NotImplementedError, RecursionError, SyntaxError, ImportError, SystemExit,
    KeyboardInterrupt, GeneratorExit, MemoryError,
)  # fmt: skip
PACKAGE = "rewards.verifiers.recorded"
BOOT = """
import base64, marshal, sys, types
for name, code in marshal.loads(base64.b64decode({0!r})):
    module = sys.modules[name] = types.ModuleType(name)
    parent, _, last = name.rpartition(".")
    if parent: setattr(sys.modules[parent], last, module)
    if code: exec(code, module.__dict__)
sys.modules["rewards.verifiers.recorded.worker"].main()
"""
Call = dict[str, Any]
Events = list[dict[str, Any]]


class NotRecordable(Exception):
    """No test of the task can be recorded; the message says why."""


@cache
def _program(mode: str) -> str:
    """Return what the sandbox runs, compiled, since it cannot read a checkout."""
    names = ["values", "answer", *([] if mode == "call" else ["stubs"]), "worker"]
    parts: list[tuple[str, Any]] = [("rewards", None), ("rewards.verifiers", None), (PACKAGE, None)]
    for name in names:
        path = Path(__file__).with_name("recorded") / f"{name}.py"
        parts.append((f"{PACKAGE}.{name}", compile(path.read_text(), f"<{name}>", "exec")))
    return BOOT.format(base64.b64encode(marshal.dumps(parts)))


def record(files: Mapping[str, str], tests: Mapping[str, Any], python: Python) -> dict[str, Any]:
    """Run tests for pytest with a reference; return the tests of a spec, of kind "recorded".

    `files` are those of the program, the reference among them; `tests` has `files`, and optional
    `roots`, `shared`, `seconds`, `needs`. Raises NotRecordable with the reason when the reference
    fails its own tests, or when none of them can be recorded.
    """
    made: dict[str, Any] = {"kind": "recorded", "seconds": float(tests.get("seconds", SECONDS))}
    made |= {key: tests[key] for key in ("files", "needs") if key in tests}
    made |= _places(files, tests) | {"passes": [], "calls": [], "left_out": {}}
    kept, reasons, collected = _recorded(files, made, python)
    if reasons and (why := _fails_plainly(files, tests, python)):
        raise NotRecordable(f"the reference fails its own tests: {why}")
    made["passes"] = kept
    if kept and kept != collected:  # the calls of the other tests must not be in between
        made["passes"], more, _ = _recorded(files, made, python)
        reasons |= more
    if kept := made["passes"]:
        unsteady = _unsteady(files, made, python)
        made["passes"] = [name for name in kept if name not in unsteady]
        reasons |= unsteady
        if unsteady and made["passes"] and _recorded(files, made, python)[0] != made["passes"]:
            raise NotRecordable("its tests give other results each time")
    if not made["passes"]:
        name, reason = next(iter(reasons.items()), ("it has no tests", "nothing is collected"))
        raise NotRecordable(f"none of its tests can be recorded ({name}: {reason})")
    if (size := len(json.dumps(made["calls"]))) > MAX_BYTES:
        raise NotRecordable(f"its recorded calls have {size} bytes, more than {MAX_BYTES}")
    _finish(made["calls"])
    return made | {"left_out": reasons}


def _fails_plainly(files: Mapping[str, str], tests: Mapping[str, Any], python: Python) -> str:
    """Return what fails with the reference beside the tests, "" when nothing does."""
    ran, events = pytest_tests.run_together(files, tests, python)
    for event in events:
        if event.get("outcome") == "failed" or "broken" in event:
            return f"{event.get('id', event.get('broken'))}: {event['text']}"
    ended = any("end" in event for event in events)
    return "" if ended else describe_ending(ran, "running its tests").message


def _recorded(
    files: Mapping[str, str], made: dict[str, Any], python: Python
) -> tuple[list[str], dict[str, str], list[str]]:
    """Record the calls into `made`; return the tests that pass, why others cannot be recorded, all.

    Tests that are skipped or expected to fail are in neither of the first two.
    """
    ran, events = _run("record", files, made, {"ids": made["passes"]}, python)
    end = next((event for event in events if "end" in event), None)
    if end is None:
        raise NotRecordable(describe_ending(ran, "recording its tests").message)
    collected = [name for event in events for name in event.get("collected", ())]
    kept, reasons = [], {}
    for number, name in enumerate(collected, 1):
        why = end["why"].get(str(number))
        reports = [event for event in events if event.get("id") == name]
        if failed := [event["text"] for event in reports if event["outcome"] == "failed"]:
            reasons[name] = why or f"fails with the reference in another process: {failed[0]}"
        elif why:
            reasons[name] = why
        elif _stages(events, name) == STAGES:
            kept.append(name)
    for event in events:
        if "broken" in event:
            reasons[event["broken"]] = end["why"].get("0") or event["text"]
    made["calls"] = end["calls"]
    return kept, reasons, collected


def _unsteady(files: Mapping[str, str], made: dict[str, Any], python: Python) -> dict[str, str]:
    """Run the reference against its own recording; return the tests that it fails.

    Tests are among them that ask for something else each time, such as a file with the time in it.
    """
    calls = [[dict(message), reply] for message, reply in made["calls"]]
    _finish(calls)
    outcomes = verify_recorded(files, {**made, "calls": calls}, python)
    more = {"ids": made["passes"], "calls": calls}
    _, events = _run("check", {}, made, more, python)
    wanted: dict[str, Any] = next((event["wanted"] for event in events if "end" in event), {})
    return {
        name: "gives other results each time"
        for number, (name, outcome) in enumerate(zip(made["passes"], outcomes, strict=True), 1)
        if outcome.kind != "passed" or str(number) in wanted or "0" in wanted
    }


def _finish(calls: list[list[Any]]) -> None:
    """Note in each call whether an object may come back; leave out lines of the reference."""
    wanted = _labels_with(calls, OBJECTS)
    for message, reply in calls:
        reply.pop("where", None)
        if message["name"] not in wanted:
            message["plain"] = True


def _labels_with(calls: Iterable[Sequence[Any]], kinds: Collection[str]) -> set[str]:
    """Return the names of calls that some reply of the reference answers with such a row."""
    return {
        message["name"]
        for message, reply in calls
        if any(row[0] in kinds and row[-1] is not None for row in reply["table"])
    }


def verify_recorded(
    files: Mapping[str, str], tests: Mapping[str, Any], python: Python
) -> list[Outcome]:
    """Hand the recorded calls to the files; one outcome for each test that must pass, in order.

    Raises SandboxError when nothing could be run.
    """
    recorded: list[list[Any]] = tests["calls"]
    messages = [message for message, _ in recorded]
    ran, replies = _ask(files, tests, messages, python)
    if [*map(_essence, replies)] == [_essence(reply) for _, reply in recorded]:
        return [Outcome("passed")] * len(tests["passes"])
    rules = _Rules(recorded)
    first = ran, messages, replies
    for number in range(ROUNDS):
        calls = rules.admit(zip(messages, _padded(replies, messages), strict=True))
        checked, events = _run("check", {}, tests, {"ids": tests["passes"], "calls": calls}, python)
        wanted: dict[str, Any] = next((event["wanted"] for event in events if "end" in event), {})
        if not wanted or number == ROUNDS - 1:
            break
        messages = rules.rerouted(messages, wanted)
        ran, replies = _ask(files, tests, messages, python)
    if not any("end" in event for event in events):
        ending = describe_ending(checked, "testing what the answer gives")
        return [ending, *[Outcome("unknown")] * (len(tests["passes"]) - 1)]
    differing = _differences(recorded, *first)
    broken = next((event["text"] for event in events if "broken" in event), "")
    return [
        _outcome(name, events, differing.get(number) or differing.get(0), broken)
        for number, name in enumerate(tests["passes"], 1)
    ]


def _ask(
    files: Mapping[str, str], tests: Mapping[str, Any], messages: list[Call], python: Python
) -> tuple[Ran, list[Any]]:
    """Return the replies of the files to calls, as many as there are."""
    return _run("call", files, tests, {"calls": messages}, python)


def _run(
    mode: str, files: Mapping[str, str], tests: Mapping[str, Any], more: dict[str, Any],
    python: Python,
) -> tuple[Ran, Events]:  # fmt: skip
    job = {"roots": tests["roots"], "shared": tests["sources"]} | more
    if mode != "call":
        modules = [path for path in tests["files"] if pytest_tests.is_test(path)]
        job |= {"arguments": modules, "modules": tests["modules"]}
        job |= {"files": tests["packages"] | tests["files"]}
    seconds = float(tests.get("seconds", SECONDS))
    limits = Limits(cpu_seconds=seconds, wall_seconds=max(30, 5 * seconds), output=OUTPUT)
    ran = python(["-c", _program(mode), mode], files, json.dumps(job).encode(), limits)
    lines = ran.stdout.split(b"\n")[:-1]
    return ran, [json.loads(line) for line in lines if line.startswith(b"{")]


def _stages(events: Events, name: str) -> list[tuple[str, str]]:
    return [(e["when"], e["outcome"]) for e in events if e.get("id") == name]


def _padded(replies: list[Any], messages: list[Call]) -> list[Any]:
    return replies[: len(messages)] + [None] * (len(messages) - len(replies))


def _essence(reply: Any) -> str:
    """Return what of a reply the tests could see."""
    return json.dumps({k: v for k, v in reply.items() if k != "where"}, sort_keys=True)


class _Rules:
    """What a reply may bring: no more kinds of things than the reference's replies."""

    def __init__(self, recorded: list[list[Any]]) -> None:
        self.recorded: dict[int, list[list[Any]]] = {}
        for message, reply in recorded:
            self.recorded.setdefault(message["part"], []).append([message, reply])
        self.objects = _labels_with(recorded, OBJECTS)
        self.changes = _labels_with(recorded, ("origin",))
        self.files = {path for _, reply in recorded for path in reply.get("files", ())}
        self.given = {path for message, _ in recorded for path in message.get("files", ())}

    def admit(self, calls: Iterable[tuple[Call, Any]]) -> list[list[Any]]:
        """Return calls with the replies as the tests may see them."""
        counts: dict[int, int] = {}
        admitted = []
        for message, reply in calls:
            part = message["part"]
            at = counts[part] = counts.get(part, -1) + 1
            same = [
                r
                for m, r in self.recorded.get(part, [])[at : at + 1]
                if m["name"] == message["name"]
            ]
            admitted.append([message, self._admit(message, reply, same[0] if same else {})])
        return admitted

    def _admit(self, message: Call, reply: Any, reference: Call) -> Any:
        if reply is None:
            return None
        try:
            return self._admitted(message, reply, reference)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
            return {"crash": "the answer gives what cannot be read"}

    def _admitted(self, message: Call, reply: Call, reference: Call) -> Call:
        if "raised" in reply:
            kind = _built_in(reply)
            if issubclass(kind, UNFINISHED) and (
                "raised" not in reference or _built_in(reference) is not kind
            ):
                return {"crash": f"{kind.__name__}: {reply['raised']}"}
            return reply
        if message["name"] not in self.objects:
            reply["table"] = [
                ["opaque", "object"] if row[0] in OBJECTS else row for row in reply["table"]
            ]
        if message["op"] == "equal":
            reply = {"refs": [_is_equal(reply, reference)], "table": []}
        if message["name"] not in self.changes:
            reply["fixed"] = True
        if files := reply.get("files"):
            allowed = {k: v for k, v in files.items() if k in self.files or k not in self.given}
            reply["files"] = allowed
        return reply

    def rerouted(self, messages: list[Call], wanted: Mapping[str, Any]) -> list[Call]:
        """Return the calls with those that the tests want instead."""
        parts: dict[int, list[Call]] = {}
        for message in messages:
            parts.setdefault(message["part"], []).append(message)
        for part, (at, message) in wanted.items():
            if message["name"] not in self.objects:
                message["plain"] = True
            parts.setdefault(int(part), [])[at : at + 1] = [message]
        return [message for part in sorted(parts) for message in parts[part]]


def _built_in(reply: Call) -> type[BaseException]:
    """Return the first built-in class of what was raised."""
    (index,) = reply["refs"][0]
    row = reply["table"][index]
    for kind, name, *rest in [row, *(row[3] if row[0] == "class" else ())]:
        found = name if kind == "type" else rest[0] if kind == "library" else None
        known = getattr(__import__("builtins"), str(found), None)
        if isinstance(known, type) and issubclass(known, BaseException):
            return known
    return Exception


def _is_equal(reply: Call, reference: Call) -> bool:
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


class _Shown:
    """An object of the answer, in feedback."""

    def __init__(self, row: list[Any]) -> None:
        self.name = row[2][2] if row[0] == "instance" else f"{row[0]} {row[-1]}"

    def __repr__(self) -> str:
        return f"<{self.name}>"


class _Classes(dict[str, type]):
    """Stands for the classes that both sides have, none of which exists here."""

    def __missing__(self, key: str) -> type:
        name = key.rpartition(":")[2]
        return type(name, (), {"__repr__": lambda self: f"<{name}>"})


def _shown(message: Call, number: int | None = 1, asked: Call | None = None) -> list[Any]:
    """Return the first values of a message, to be shown or compared; a reply needs its request."""

    def load(row: list[Any], _: object) -> Any:
        return _Shown(row)

    sent: list[Any] = []
    if asked:
        decoder = Decoder(asked["table"], load, _Classes())
        sent = decoder.values([[index] for index in range(len(asked["table"]))])
    return Decoder(message["table"], load, _Classes(), sent).values(message["refs"][:number])


def _differences(
    recorded: list[list[Any]], ran: Ran, messages: list[Call], replies: list[Any]
) -> dict[int, Outcome]:
    """Say for each part where the replies first differ from those of the reference."""
    found: dict[int, Outcome] = {}
    for index, (message, expected) in enumerate(recorded):
        if message["part"] in found:
            continue
        call = _call(message)
        if index >= len(replies):
            found[message["part"]] = describe_ending(ran, call)
        elif _essence(replies[index]) != _essence(expected):
            found[message["part"]] = _difference(call, message, replies[index], expected)
    return found


def _difference(call: str, message: Call, reply: Call, expected: Call) -> Outcome:
    if "raised" in reply and "raised" not in expected:
        where = f"\n  {reply['where']}" if reply.get("where") else ""
        return Outcome("error", f"{call} raises {_name_of(reply)}: {reply['raised']}{where}")
    said = [_said(message, one) for one in (reply, expected)]
    return Outcome("wrong", f"{call} {said[0]}, the reference {said[1]}")


def _said(message: Call, reply: Call) -> str:
    try:
        if "raised" in reply:
            return f"raises {_name_of(reply)}: {reply['raised']}"
        (value,) = _shown(reply, 1, message)
    except Exception:  # of a reply that the answer forged
        return "gives what cannot be read"
    return f"gives {listed(value)}"


def _name_of(reply: Call) -> str:
    row = reply["table"][reply["refs"][0][0]]
    return str(row[1] if row[0] == "type" else row[2])


def _call(message: Call) -> str:
    op, _, name = message["name"].partition(" ")
    arguments = _shown(message, None)
    if op == "call":
        given = [*map(listed, arguments[1]), *(f"{k}={listed(v)}" for k, v in arguments[2].items())]
        return f"{name}({', '.join(given)})"
    return f"importing {name}" if op == "import" else f"`{name or op}`"


def _outcome(name: str, events: Events, difference: Outcome | None, broken: str) -> Outcome:
    stages = _stages(events, name)
    if stages == STAGES:
        return Outcome("passed")
    text = next((e["text"] for e in events if e.get("id") == name and e["outcome"] != "passed"), "")
    text = text or broken or "it is skipped or not collected"
    if difference is None:
        return Outcome("wrong", f"{name}: {text}")
    if difference.kind in ("timeout", "error"):
        return Outcome(difference.kind, f"{name}: {difference.message}")
    return Outcome("wrong", f"{name}: {text.splitlines()[0]}. {difference.message}")


def _places(files: Mapping[str, str], tests: Mapping[str, Any]) -> dict[str, Any]:
    """Return what can be imported from where; modules of the files stand before others."""
    theirs: Mapping[str, str] = tests["files"]
    roots = tests.get("roots") or [
        "",
        *(["src"] if any(p.startswith("src/") for p in files) else []),
    ]
    shared = {PurePosixPath(path).stem: theirs[path] for path in tests.get("shared", ())}
    modules = {n: package for n, package in _modules_of(files, roots).items() if n not in shared}
    above = {
        str(parent / "__init__.py") for path in theirs for parent in PurePosixPath(path).parents
    }
    packages = dict.fromkeys(sorted(above & files.keys()), "")
    return {"roots": list(roots), "sources": shared, "modules": modules, "packages": packages}


def _modules_of(files: Collection[str], roots: Sequence[str]) -> dict[str, bool]:
    """Return the names under which files can be imported, and whether each is a package."""
    found: dict[str, bool] = {}
    for root in roots:
        for path in files:
            pure = PurePosixPath(path)
            if pure.suffix != ".py" or not pure.is_relative_to(root or "."):
                continue
            parts = pure.relative_to(root or ".").with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            else:
                found.setdefault(".".join(parts), False)
            for depth in range(1, len(parts) + (pure.name == "__init__.py")):
                found[".".join(parts[:depth])] = True
    return {name: package for name, package in found.items() if name}
