"""Record a reference, replay calls on a candidate, or check its replies. Runs in the sandbox.

The answer runs in its own process, forked before the job is read, so that the tests are never in its
memory. It imports its modules, calls them and returns values, and it sees arguments only.

A request has `op`, the operation; `refs` and `table`, its arguments; `part`, the test that it
belongs to; `files`, the files that the test wrote; `plain`, whether values (true) or objects (false)
are expected, where the reference returns only one of them. A reply has `refs` and `table`, the result
and the changed arguments, or `raised`; `printed` and `files`. Objects of the answer stay in its
process: the other process refers to them by a key.
"""

import builtins
import ctypes
import functools
import importlib
import inspect
import io
import json
import operator
import os
import struct
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from rewards.verifiers.channel import MAX_TEXT, close_standard_streams, format_location, make_writer, redirect_output
from rewards.verifiers.recorded.values import (
    BINARY,
    MUTABLE,
    OPERATORS,
    Decoder,
    Encoder,
    Folder,
    Row,
    get_attributes,
    is_from_library,
    prepare_imports,
    read_message,
    take_snapshot,
)

PRINTED = 1 << 20
FUNCTIONS = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial,
    types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType,
    functools._lru_cache_wrapper,
)  # fmt: skip
ATOMS = (bool, int, float, str, type(None))


class Answer:
    """Performs requests on the answer's modules, and keeps the objects that it returned by their keys."""

    def __init__(self, shared: dict[str, type]) -> None:
        self.shared, self.folder = shared, Folder()
        self.objects: dict[str, Any] = {}
        self.keys: dict[int, str] = {}
        self.counts: dict[tuple[int, str], int] = {}
        self.results: dict[str, Any] = {}
        self.numbers: dict[int, int] = {}
        self.part = 0

    def export(self, value: Any) -> Row | None:
        """Keep an object in this process and return a row with its key."""
        if isinstance(value, type):
            return self._class_row(value)
        if isinstance(value, types.ModuleType):
            return ["module", self._key(value, "module"), value.__name__]
        if isinstance(value, FUNCTIONS):
            name = str(getattr(value, "__name__", ""))
            return ["function", self._key(value, "function"), name]
        return ["instance", self._key(value, "instance"), self._class_row(type(value))]

    def _class_row(self, kind: type) -> Row:
        """Return the row of a class; an exception includes its bases up to the first one of the library."""
        mro = type.__dict__["__mro__"].__get__(kind)
        name = type.__dict__["__name__"].__get__(kind)
        if is_from_library(kind):
            return ["library", kind.__module__, name, self._key(kind, "class")]
        bases: list[Row] = []
        if BaseException in mro:
            for base in mro[1:]:
                bases.append(self._class_row(base))
                if str(base.__module__).partition(".")[0] in sys.stdlib_module_names:
                    break
        return ["class", self._key(kind, "class"), name, bases]

    def _key(self, value: Any, kind: str) -> str:
        if id(value) not in self.keys:
            number = self.counts[self.part, kind] = self.counts.get((self.part, kind), 0) + 1
            self.keys[id(value)] = f"{self.part}.{kind}.{number}"
            self.objects[self.keys[id(value)]] = value
        return self.keys[id(value)]

    def load(self, row: Row, value: Callable[[Any], Any]) -> Any:
        """Return the object of a key, a library function, or an exception of the tests."""
        kind, *rest = row
        if kind == "library":
            return getattr(importlib.import_module(rest[0]), rest[1])
        if kind == "result":
            return self.results[rest[0]]
        if kind == "exception":
            return value(rest[0])(*map(value, rest[1]))
        return self.objects[rest[0]]

    def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """Perform one operation; return the reply."""
        self.part = message["part"]
        number = self.numbers[self.part] = self.numbers.get(self.part, -1) + 1
        self.folder.apply(message.get("files", {}))
        printed = sys.stdout = io.StringIO()
        try:
            reply = self._perform(message, f"{self.part}.{number}")
        except BaseException as failure:  # SystemExit too: the answer may raise anything
            reply = self._describe_exception(failure)
        if text := printed.getvalue():
            reply["printed"] = text[:PRINTED]
        if files := self.folder.changes():
            reply["files"] = files
        return reply

    def _perform(self, message: dict[str, Any], name: str) -> dict[str, Any]:
        decoder = Decoder(message["table"], self.load, self.shared)
        arguments = decoder.decode(message["refs"])
        origins = {id(value): index for index, value in decoder.objects.items()}
        mutable = [
            value
            for value in decoder.objects.values()
            if type(value) in MUTABLE.values() or isinstance(value, tuple(self.shared.values()))
        ]
        before = take_snapshot(mutable, self.shared, self.export)
        result = OPERATIONS[message["op"]](*arguments)
        awaited = inspect.iscoroutine(result)
        if awaited:
            import asyncio

            result = asyncio.run(result)
        self.results[name] = result
        changed = before != take_snapshot(mutable, self.shared, self.export)
        encoder = Encoder(
            self.export,
            self.shared,
            {id(value): origins[id(value)] for value in mutable},
            changed,
            flat=message.get("plain", False),
            named=message.get("plain") is not False,
        )
        refs = encoder.encode([result, *(mutable if changed else ())])
        reply: dict[str, Any] = {"refs": refs, "table": encoder.table}
        return reply | ({"awaited": True} if awaited else {})

    def _describe_exception(self, failure: BaseException) -> dict[str, Any]:
        try:
            text, encoder = str(failure), Encoder(self.export, self.shared)
            refs = encoder.encode([type(failure), failure.args, {**failure.__dict__}])
        except Exception:  # the answer's own exception may not be printable
            text, encoder = "", Encoder(self.export, self.shared)
            refs = encoder.encode([type(failure), (), {}])
        where = format_location(failure)
        return {"raised": text[:MAX_TEXT], "where": where, "refs": refs, "table": encoder.table}


def _compare(one: Any, other: Any) -> list[Any]:
    """Return whether two objects are equal, whether the first is equal to anything, and the attributes of both.

    Only public attributes that are numbers or texts are returned.
    """
    attributes = [
        {
            name: item
            for name, item in get_attributes(value).items()
            if not name.startswith("_") and type(item) in ATOMS
        }
        for value in (one, other)
    ]
    equal = bool(one == other)
    try:
        always = equal and bool(one == object())
    except Exception:  # a class that only compares itself to its own kind
        always = False
    return [equal, always, *attributes]


BUILT_IN = ("repr", "getattr", "setattr", "delattr", "isinstance", "issubclass")
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name, None) or getattr(builtins, name) for name in (*BINARY, *OPERATORS, *BUILT_IN)},
    "import": importlib.import_module,
    "call": lambda function, args, kwargs: function(*args, **kwargs),
    "enter": lambda one: type(one).__enter__(one),
    "exit": lambda one, *exception: type(one).__exit__(one, *exception),
    "equal": _compare,
    "fspath": os.fspath,
}


def main() -> None:
    """Read a job from standard input; write lines of JSON to standard output."""
    mode = sys.argv[1]
    requests, replies = os.pipe(), os.pipe()
    if mode != "check":
        if os.fork() == 0:
            _serve(requests[0], replies[1])
        os.close(requests[0])
        os.close(replies[1])
    job = json.loads(sys.stdin.buffer.read())
    channel = redirect_output()
    send, reader = make_writer(requests[1]), os.fdopen(replies[0], "rb")
    if mode != "check":
        send({key: job[key] for key in ("roots", "shared")})
    if mode == "call":
        report = make_writer(channel)
        for message in job["calls"]:  # one by one: the answer must not see the next call before it replies
            send(message)
            try:
                report(read_message(reader))
            except (EOFError, ValueError):
                break
    else:
        from rewards.verifiers.recorded import stubs

        def start_session(shared: dict[str, type], locked: list[str]) -> stubs.Session:
            if mode == "check":
                return stubs.ReplayedSession(shared, locked, job["calls"])
            return stubs.LiveSession(shared, locked, reader, requests[1])

        stubs.run(job, channel, start_session)
    os._exit(0)


def _leave_domain_of_tests() -> None:
    """Enter a Landlock domain below that of the tests, whose descriptors a process of the same user could open."""
    landlock_create_ruleset, landlock_restrict_self, scopes = 444, 446, struct.pack("QQQ", 0, 0, 3)
    libc = ctypes.CDLL(None)
    rules = libc.syscall(landlock_create_ruleset, scopes, len(scopes), 0)
    # Before version 6 of Landlock the sandbox only works with a user for each run, who cannot open them.
    if rules >= 0:
        libc.syscall(landlock_restrict_self, rules, 0)
        os.close(rules)


def _serve(reader: int, channel: int) -> NoReturn:
    """Answer requests until there are no more; the first one has the import roots and shared modules."""
    _leave_domain_of_tests()
    close_standard_streams()
    low, high = sorted((reader, channel))
    os.closerange(3, low)
    os.closerange(low + 1, high)
    os.closerange(high + 1, os.sysconf("SC_OPEN_MAX"))
    try:
        requests, send = os.fdopen(reader, "rb"), make_writer(channel)
        answer = Answer(prepare_imports(read_message(requests), str(Path.cwd())))
        while True:
            send(answer.handle(read_message(requests)))
    finally:
        os._exit(1)
