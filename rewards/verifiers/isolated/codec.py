"""Values as a flat table that JSON can hold, and back; nothing but values ever comes out of it.

A reference is an atom (None, bool, str, float, short int) or `[index]` into the table; a row of the
table is `[kind, ...]`. Aliases and cycles are kept. What is no value is left to `Outside`.
Runs inside the sandbox, on both sides.
"""

import collections
import datetime
import decimal
import fractions
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

SHORT = 1 << 60
MUTABLE: dict[str, type] = {
    "list": list, "dict": dict, "set": set, "bytearray": bytearray, "deque": collections.deque,
    "Counter": collections.Counter, "OrderedDict": collections.OrderedDict,
}  # fmt: skip
SINGLETONS = {"NotImplemented": NotImplemented, "Ellipsis": Ellipsis}
PLAIN: tuple[type, ...] = (
    object, type, int, float, str, bool, list, tuple, dict, set, frozenset, bytes, bytearray,
    complex, type(None),
)  # fmt: skip
TYPES = {kind.__name__: kind for kind in PLAIN}
LISTED: tuple[tuple[type, Any], ...] = (
    (list, list.__iter__), (collections.deque, collections.deque.__iter__),
    (set, set.__iter__), (frozenset, frozenset.__iter__),
)  # fmt: skip
BY_TEXT: dict[str, Any] = {
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "Decimal": (decimal.Decimal, decimal.Decimal.__str__, decimal.Decimal),
    "Fraction": (fractions.Fraction, fractions.Fraction.__str__, fractions.Fraction),
    "Path": (pathlib.PurePath, pathlib.PurePath.__str__, pathlib.Path),
}
BY_NUMBERS = {"complex": complex, "range": range, "timedelta": datetime.timedelta}
Row = list[Any]


class Outside(Protocol):
    """What to do with what is no value."""

    @property
    def shared(self) -> Mapping[str, type]:
        """The classes that both sides have."""

    def keeps(self, value: Any) -> bool:
        """Whether it goes as a handle although it could go as a value."""

    def export(self, value: Any) -> Row:
        """Return the row for it."""

    def load(self, row: Row) -> Any:
        """Return what such a row stands for."""


class Encoded:
    """A table, and the objects that its rows were made from."""

    def __init__(self, outside: Outside, origins: Mapping[int, int] | None = None) -> None:
        self.outside, self.origins = outside, origins or {}
        self.table: list[Row] = []
        self.objects: list[Any] = []
        self._seen: dict[int, int] = {}

    def refs(self, values: Iterable[Any]) -> list[Any]:
        """Return references to the values; the table has all that they hold."""
        done = len(self.table)
        found = [self._ref(value) for value in values]
        while done < len(self.table):
            value = self.objects[done]
            row = self._row(value)
            origin = self.origins.get(id(value))
            self.table[done] = row if origin is None else ["origin", origin, row]
            done += 1
        return found

    def _ref(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind in (bool, str, float) or (kind is int and -SHORT < value < SHORT):
            return value
        if id(value) not in self._seen:
            self._seen[id(value)] = len(self.table)
            self.table.append([])
            self.objects.append(value)
        return [self._seen[id(value)]]

    def _row(self, value: Any) -> Row:
        """Return the row of one value; methods of its own class are not asked."""
        kind = type(value)
        for name, single in SINGLETONS.items():
            if value is single:
                return ["singleton", name]
        if self.outside.keeps(value):
            return self.outside.export(value)
        if isinstance(value, type) and TYPES.get(value.__name__) is value:
            return ["type", value.__name__]
        if isinstance(value, str):
            return ["str", str.__str__(value)]
        if isinstance(value, int):
            return ["int", hex(int.__index__(value))]
        if isinstance(value, float):
            return ["float", float.__add__(value, 0.0)]
        if isinstance(value, complex):
            plain = complex.__add__(value, 0)
            return ["complex", plain.real, plain.imag]
        if isinstance(value, bytes | bytearray):
            name = "bytes" if isinstance(value, bytes) else "bytearray"
            return [name, bytes(memoryview(value)).decode("latin-1")]
        if isinstance(value, range):
            return ["range", value.start, value.stop, value.step]
        if isinstance(value, slice):
            return ["slice", *map(self._ref, (value.start, value.stop, value.step))]
        for base, items in LISTED:
            if isinstance(value, base):
                return [base.__name__, [self._ref(item) for item in items(value)]]
        if isinstance(value, tuple):
            row = ["tuple", [self._ref(item) for item in tuple.__iter__(value)]]
            fields = kind.__dict__.get("_fields")
            return ["named", kind.__name__, list(fields), row[1]] if fields else row
        if isinstance(value, dict):
            name = kind.__name__ if MUTABLE.get(kind.__name__) is kind else "dict"
            pairs = [[self._ref(key), self._ref(item)] for key, item in dict.items(value)]
            return [name, pairs]
        for name, (base, text, _) in reversed(BY_TEXT.items()):
            if isinstance(value, base) and not (name == "date" and isinstance(value, _LATER)):
                return [name, text(value)]
        if isinstance(value, datetime.timedelta):
            return ["timedelta", value.days, value.seconds, value.microseconds]
        for name, shared in self.outside.shared.items():
            if isinstance(value, shared):
                state = [[key, self._ref(item)] for key, item in _state(value).items()]
                return ["object", name, state]
        if "numpy" in sys.modules and type(value).__module__ == "numpy":
            numpy = sys.modules["numpy"]
            if isinstance(value, numpy.generic):
                return self._row(value.item())
            if isinstance(value, numpy.ndarray):
                return ["ndarray", str(value.dtype), self._ref(value.tolist())]
        return self.outside.export(value)


_LATER = datetime.datetime


class Decoder:
    """The values of a table; `sent` are the objects that rows marked as `origin` stand for."""

    def __init__(
        self, table: list[Row], outside: Outside, sent: Sequence[Any] = (),
        containers: Mapping[str, type] = MUTABLE,
    ) -> None:  # fmt: skip
        self.table, self.outside, self.sent = table, outside, sent
        self.containers = containers
        self.made: dict[int, Any] = {}
        self._todo: list[tuple[Any, list[Any]]] = []

    def values(self, refs: Iterable[Any]) -> list[Any]:
        """Return the values; ValueError and the like when the table is none."""
        found = [self._value(ref) for ref in refs]
        while self._todo:
            made, rest = self._todo.pop()
            _fill(made, rest, self._value)
        return found

    def _value(self, ref: Any) -> Any:
        if type(ref) is not list:
            return ref
        (index,) = ref
        if index not in self.made:
            self.made[index] = self._made(index)
        return self.made[index]

    def _made(self, index: int) -> Any:
        kind, *rest = self.table[index]
        if kind != "origin":
            return self._shell(kind, rest, None)
        origin, (kind, *rest) = rest
        original = self.sent[origin]
        same = self._shell(kind, rest, original)
        return same if same is original or kind in MUTABLE else original

    def _shell(self, kind: str, rest: list[Any], original: Any) -> Any:
        if kind in MUTABLE:
            made = original if type(original) is MUTABLE[kind] else self.containers[kind]()
            if original is None or made is original:
                self._todo.append((made, rest))
                return made
            return original  # of a class of the tests' own: left as it is
        if kind == "object":
            shared = self.outside.shared[rest[0]]
            made = original if isinstance(original, shared) else object.__new__(shared)
            self._todo.append((made, rest))
            return made
        return self._fixed(kind, rest)

    def _fixed(self, kind: str, rest: list[Any]) -> Any:
        value = self._value
        match kind:
            case "tuple":
                return tuple(map(value, rest[0]))
            case "frozenset":
                return frozenset(map(value, rest[0]))
            case "named":
                made = collections.namedtuple(rest[0], rest[1])  # type: ignore[misc]
                return made(*map(value, rest[2]))
            case "slice":
                return slice(*map(value, rest))
            case "str" | "float":
                return rest[0]
            case "int":
                return int(rest[0], 16)
            case "bytes":
                return rest[0].encode("latin-1")
            case "complex" | "range" | "timedelta":
                return BY_NUMBERS[kind](*rest)
            case "singleton":
                return SINGLETONS[rest[0]]
            case "type":
                return TYPES[rest[0]]
            case "ndarray":
                import numpy

                return numpy.array(self.values([rest[1]])[0], dtype=rest[0])
        if kind in BY_TEXT:
            return BY_TEXT[kind][2](rest[0])
        return self.outside.load([kind, *rest])


def _fill(made: Any, rest: list[Any], value: Any) -> None:
    """Give an empty or an old object what the row says."""
    items = rest[-1]
    if isinstance(made, bytearray):
        bytearray.__setitem__(made, slice(None), items.encode("latin-1"))
    elif isinstance(made, list):
        list.__setitem__(made, slice(None), map(value, items))
    elif isinstance(made, dict | set | collections.deque):
        pairs = isinstance(made, dict)
        new: list[Any] = (
            [(value(k), value(v)) for k, v in items] if pairs else list(map(value, items))
        )
        if isinstance(made, dict):
            dict.clear(made)
            dict.update(made, new)
        elif isinstance(made, set):
            set.clear(made)
            set.update(made, new)
        else:
            collections.deque.clear(made)
            collections.deque.extend(made, new)
    else:
        state = {key: value(item) for key, item in items}
        for key in _state(made).keys() - state.keys():
            object.__delattr__(made, key)
        for key, item in state.items():
            object.__setattr__(made, key, item)


def _state(value: Any) -> dict[str, Any]:
    """Return the attributes that an instance has itself, slots included."""
    slots = [
        name
        for base in type(value).__mro__
        for name in base.__dict__.get("__slots__", ())
        if name not in ("__dict__", "__weakref__")
    ]
    there = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return there | dict(getattr(value, "__dict__", {}))
