"""Record a reference, call a candidate, or check what it replied. Runs in the sandbox.

The answer has a process of its own, forked before the job is read, so that it never has the tests
in its memory. It imports its modules, calls them, gives values, and sees arguments only.

A request has `op`, the operation; `refs` and `table`, its arguments; `part`, the test that it
belongs to; `files`, what the test wrote; `plain`, whether values or objects are wanted, where the
reference gives but one of them. A reply has `refs` and `table`, the result and the arguments, or
`raised`; `printed` and `files`. Objects of the answer stay in its process: the other side knows them
by a key.
"""

import builtins
import functools
import importlib
import inspect
import io
import json
import operator
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from rewards.verifiers.channel import MAX_TEXT, close_standard, place_of, take_output, writer
from rewards.verifiers.recorded.values import (
    BINARY,
    MUTABLE,
    OPERATORS,
    Decoder,
    Encoded,
    Folder,
    Row,
    content_of,
    is_of_library,
    prepare,
    receive,
    state_of,
)

PRINTED = 1 << 20
FUNCTIONS = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial,
    types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType,
    functools._lru_cache_wrapper,
)  # fmt: skip
ATOMS = (bool, int, float, str, type(None))


class Answer:
    """The objects that were given out, by their keys."""

    def __init__(self, shared: dict[str, type]) -> None:
        self.shared, self.folder = shared, Folder()
        self.objects: dict[str, Any] = {}
        self.keys: dict[int, str] = {}
        self.counts: dict[tuple[int, str], int] = {}
        self.results: dict[str, Any] = {}
        self.done: dict[int, int] = {}
        self.part = 0

    def export(self, value: Any) -> Row | None:
        """Keep an object here and give its key."""
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.ModuleType):
            return ["module", self._key(value, "module"), value.__name__]
        if isinstance(value, FUNCTIONS):
            name = str(getattr(value, "__name__", ""))
            return ["function", self._key(value, "function"), name]
        return ["instance", self._key(value, "instance"), self._class(type(value))]

    def _class(self, kind: type) -> Row:
        """Return the row of a class, of an exception with its bases down to a built-in one."""
        mro = type.__dict__["__mro__"].__get__(kind)
        name = type.__dict__["__name__"].__get__(kind)
        if is_of_library(kind):
            return ["library", kind.__module__, name, self._key(kind, "class")]
        bases: list[Row] = []
        if BaseException in mro:
            for base in mro[1:]:
                bases.append(self._class(base))
                if str(base.__module__).partition(".")[0] in sys.stdlib_module_names:
                    break
        return ["class", self._key(kind, "class"), name, bases]

    def _key(self, value: Any, sort: str) -> str:
        if id(value) not in self.keys:
            counted = (self.part, sort)
            number = self.counts[counted] = self.counts.get(counted, 0) + 1
            self.keys[id(value)] = f"{self.part}.{sort}.{number}"
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
        """Do one operation; return the reply."""
        self.part = message["part"]
        number = self.done[self.part] = self.done.get(self.part, -1) + 1
        self.folder.apply(message.get("files", {}))
        printed = sys.stdout = io.StringIO()
        try:
            reply = self._done(message, f"{self.part}.{number}")
        except BaseException as failure:  # SystemExit too: the answer may raise anything
            reply = self._raised(failure)
        if text := printed.getvalue():
            reply["printed"] = text[:PRINTED]
        if files := self.folder.changes():
            reply["files"] = files
        return reply

    def _done(self, message: dict[str, Any], name: str) -> dict[str, Any]:
        decoder = Decoder(message["table"], self.load, self.shared)
        arguments = decoder.values(message["refs"])
        kept = [
            made
            for made in decoder.made.values()
            if type(made) in MUTABLE.values() or isinstance(made, tuple(self.shared.values()))
        ]
        origins = {id(made): index for index, made in decoder.made.items()}
        before = content_of(kept, self.shared, self.export)
        result = OPERATIONS[message["op"]](*arguments)
        awaited = inspect.iscoroutine(result)
        if awaited:
            import asyncio

            result = asyncio.run(result)
        self.results[name] = result
        changed = before != content_of(kept, self.shared, self.export)
        encoded = Encoded(
            self.export, self.shared, {id(made): origins[id(made)] for made in kept}, changed,
            flat=message.get("plain", False), named=message.get("plain") is not False,
        )  # fmt: skip
        refs = encoded.refs([result, *(kept if changed else ())])
        reply: dict[str, Any] = {"refs": refs, "table": encoded.table}
        return reply | ({"awaited": True} if awaited else {})

    def _raised(self, failure: BaseException) -> dict[str, Any]:
        try:
            text = str(failure)
            encoded = Encoded(self.export, self.shared)
            refs = encoded.refs([type(failure), failure.args, {**failure.__dict__}])
        except Exception:  # the answer's own exception may fail to be shown
            text, encoded = "", Encoded(self.export, self.shared)
            refs = encoded.refs([type(failure), (), {}])
        where = place_of(failure)
        return {"raised": text[:MAX_TEXT], "where": where, "refs": refs, "table": encoded.table}


def _equal(one: Any, other: Any) -> list[Any]:
    """Say whether two are equal, whether one is equal to anything, and what they hold.

    That is, their public attributes that are numbers or texts.
    """
    held = [
        {name: item for name, item in state_of(each).items() if not name.startswith("_") and type(item) in ATOMS}
        for each in (one, other)
    ]
    equal = bool(one == other)
    try:
        always = equal and bool(one == object())
    except Exception:  # a class that only looks at its own kind
        always = False
    return [equal, always, *held]


BUILT_IN = ("repr", "getattr", "setattr", "delattr", "isinstance", "issubclass")
OPERATIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name, None) or getattr(builtins, name) for name in (*BINARY, *OPERATORS, *BUILT_IN)},
    "import": importlib.import_module,
    "call": lambda function, args, kwargs: function(*args, **kwargs),
    "enter": lambda one: type(one).__enter__(one),
    "exit": lambda one, *how: type(one).__exit__(one, *how),
    "equal": _equal,
    "fspath": os.fspath,
}


def main() -> None:
    """Do the job that comes by the input; lines of JSON go to the output."""
    mode = sys.argv[1]
    requests, replies = os.pipe(), os.pipe()
    if mode != "check":
        if os.fork() == 0:
            _serve(requests[0], replies[1])
        os.close(requests[0])
        os.close(replies[1])
    job = json.loads(sys.stdin.buffer.read())
    channel = take_output()
    send, reader = writer(requests[1]), os.fdopen(replies[0], "rb")
    if mode != "check":
        send({key: job[key] for key in ("roots", "shared")})
    if mode == "call":
        say = writer(channel)
        for message in job["calls"]:  # the next one is unknown until the reply is there
            send(message)
            try:
                say(receive(reader))
            except (EOFError, ValueError):
                break
    else:
        from rewards.verifiers.recorded import stubs

        def session(shared: dict[str, type], locked: list[str]) -> stubs.Session:
            if mode == "check":
                return stubs.Replayed(shared, locked, job["calls"])
            return stubs.Live(shared, locked, reader, requests[1])

        stubs.run(job, channel, session)
    os._exit(0)


def _serve(reader: int, channel: int) -> NoReturn:
    """Answer requests until there are no more; the first says where modules lie."""
    close_standard()
    low, high = sorted((reader, channel))
    os.closerange(3, low)
    os.closerange(low + 1, high)
    os.closerange(high + 1, os.sysconf("SC_OPEN_MAX"))
    try:
        requests, send = os.fdopen(reader, "rb"), writer(channel)
        answer = Answer(prepare(receive(requests), str(Path.cwd())))
        while True:
            send(answer.handle(receive(requests)))
    finally:
        os._exit(1)
