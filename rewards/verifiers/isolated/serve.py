"""The answer's process: imports its modules, calls them, answers with values. Sees no tests.

Requests: {"op", "refs", "table"}, the refs being the arguments of the operation. Answers: {"refs",
"table", "printed"}, the first ref being the result, or {"raised", ...}. Runs in the sandbox.
"""

import asyncio
import builtins
import enum
import importlib
import io
import os
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rewards.verifiers.isolated import wire
from rewards.verifiers.isolated.codec import MUTABLE, Decoder, Encoded, Row

PRINTED = 1 << 20
FLAT = (int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
# A handle has those of them that the object's class has.
SPECIALS = [f"__{name}__" for name in """contains call iter len next reversed getitem setitem
    delitem enter exit int float index complex abs neg pos invert round trunc floor ceil length_hint
    fspath lt le gt ge
    add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod pow rpow
    matmul rmatmul and rand or ror xor rxor lshift rlshift rshift rrshift
    iadd isub imul itruediv ifloordiv imod ipow iand ior ixor""".split()]  # fmt: skip


class Answer:
    """What the tests hold handles to."""

    def __init__(self, reader: int, writer: int, shared: dict[str, type]) -> None:
        self.reader, self.writer, self.shared = reader, writer, shared
        self.root = f"{Path.cwd()}/"
        self.numbers: dict[int, int] = {}
        self.objects: list[Any] = []
        self.made: set[int] = set()
        self.bare: Any = None

    def keeps(self, value: Any) -> bool:
        """Whether it stays: a member of an enum, what the tests made of a class of the answer."""
        return value is not self.bare and (isinstance(value, enum.Enum) or id(value) in self.made)

    def export(self, value: Any) -> Row:
        """Keep an object here and give a handle to it."""
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        number = self.numbers[id(value)]
        if isinstance(value, type):
            return ["class", number, value.__name__, _lineage(value), _specials(type(value))]
        kind = type(value)
        flat = bool({*FLAT} & {*type.mro(kind)})
        name = type.__dict__["__name__"].__get__(kind)
        return ["handle", number, self.export(kind)[1], name, _specials(kind), flat]

    def load(self, row: Row) -> Any:
        """Return the object of a handle, or a function that asks the tests."""
        if row[0] == "callback":
            return lambda *args, **kwargs: self._ask(row[1], args, kwargs)
        return self.objects[row[1]]

    def _ask(self, number: int, args: Any, kwargs: Any) -> Any:
        encoded = Encoded(self)
        refs = encoded.refs([args, kwargs])
        wire.send(self.writer, {"callback": number, "refs": refs, "table": encoded.table})
        while "op" in (message := wire.receive(self.reader)):
            self.handle(message)
        if "raised" in message:
            raise getattr(builtins, message["raised"], Exception)(message["text"])
        return Decoder(message["table"], self).values(message["refs"])[0]

    def handle(self, message: dict[str, Any]) -> None:
        """Do one request and answer it."""
        decoder = Decoder(message["table"], self)
        arguments = decoder.values(message["refs"])
        printed = sys.stdout = io.StringIO()
        if "folder" in message:
            os.chdir(message["folder"])
        os.environ.update(message.get("environment", {}))
        try:
            result = OPERATIONS[message["op"]](*arguments)
            if message["op"] == "call":
                self._keep(arguments[0], result)
            self.bare = result if message["op"] == "plain" else None
            kept = [made for made in decoder.made.values() if self._is_changeable(made)]
            origins = {id(made): index for index, made in decoder.made.items()}
            encoded = Encoded(self, {id(made): origins[id(made)] for made in kept})
            reply = {"refs": encoded.refs([result, *kept]), "table": encoded.table}
        except BaseException as failure:  # SystemExit too: the answer may raise anything
            reply = self._raised(failure)
        wire.send(self.writer, {**reply, "printed": printed.getvalue()[:PRINTED]})

    def _keep(self, kind: Any, made: Any) -> None:
        """Let the tests have a handle of what they made, say, of a subclass of list."""
        if type(made) is kind and isinstance(made, FLAT):
            top = str(kind.__module__).partition(".")[0]
            if top not in sys.stdlib_module_names:
                self.made.add(id(made))

    def _is_changeable(self, made: Any) -> bool:
        return type(made) in MUTABLE.values() or isinstance(made, tuple(self.shared.values()))

    def _raised(self, failure: BaseException) -> dict[str, Any]:
        where = ""
        for frame in traceback.extract_tb(failure.__traceback__):
            if frame.filename.startswith(self.root):
                where = f"{frame.filename.removeprefix(self.root)}:{frame.lineno}: {frame.line}"
        try:
            text = str(failure)
            encoded = Encoded(self)
            refs = encoded.refs([failure.args, {**failure.__dict__}])
        except Exception:  # the answer's own exception may fail to be shown
            text, encoded, refs = "", Encoded(self), [[], {}]
            refs = encoded.refs([(), {}])
        kind = self.export(type(failure))
        return {"raised": kind, "text": text, "where": where, "refs": refs, "table": encoded.table}


def _lineage(kind: type) -> list[list[str]]:
    """Return module and name of an exception and its bases, nothing for another class."""
    if not issubclass(kind, BaseException):
        return []
    return [[base.__module__, base.__qualname__] for base in type.mro(kind)[:-1]]


def _specials(kind: type) -> list[str]:
    return [name for name in SPECIALS if getattr(kind, name, None) is not None]


def _special(found: Any, name: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(type(found), name)(found, *arguments)


def _has(found: Any, name: str) -> bool:
    try:
        return hasattr(found, name)
    except Exception:  # of a `__getattr__` of the answer
        return False


def _equal(one: Any, other: Any) -> bool:
    """Whether two are equal, by a class that does not call everything equal."""
    return bool(one == other) and not bool(one == object())


OPERATIONS: dict[str, Callable[..., Any]] = {
    "import": importlib.import_module,
    "get": getattr,
    "has": _has,
    "set": setattr,
    "delete": delattr,
    "call": lambda function, args, kwargs: function(*args, **kwargs),
    "special": _special,
    "plain": lambda value: value,
    "finish": asyncio.run,
    "equal": _equal,
    "isinstance": isinstance,
    "issubclass": issubclass,
    "str": str,
    "repr": repr,
    "bool": bool,
    "dir": dir,
}


def load_shared(sources: dict[str, str]) -> dict[str, type]:
    """Import modules that both sides have; return their classes by name."""
    found = {}
    for name, source in sources.items():
        module = types.ModuleType(name)
        sys.modules[name] = module
        exec(compile(source, f"{name}.py", "exec"), module.__dict__)
        for value in module.__dict__.values():
            if isinstance(value, type) and value.__module__ == name:
                found[f"{name}:{value.__qualname__}"] = value
    return found


def serve(reader: int, writer: int, shared: dict[str, str]) -> None:
    """Answer requests until the tests are done."""
    answer = Answer(reader, writer, load_shared(shared))
    while True:
        answer.handle(wire.receive(reader))
