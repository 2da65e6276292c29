"""Values as a flat table that JSON can hold, and back; nothing but values ever comes out of it.

A reference is an atom (None, bool, str, float, short int) or `[index]` into the table; a row of the
table is `[kind, ...]`. Aliases and cycles are kept. `export` and `load` deal with what is not a
value. Runs inside the sandbox, and outside of it to show values.
"""

import base64
import builtins
import collections
import functools
import itertools
import json
import os
import stat
import sys
import types
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any, BinaryIO

SHORT = 1 << 60
MAX_ITEMS = 20_000
MAX_VALUES = 50_000
MAX_ITEM_BYTES = 4096
# Stands for the folder of the run in texts, which is another one each time.
HERE = "\x00here\x00"
Row = list[Any]
# What makes two requests the same.
ASKED = ("op", "refs", "table", "files")

# Operators of objects, as the module `operator` or a built-in function names them.
BINARY = "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift divmod".split()
OPERATORS = """iadd isub imul itruediv ifloordiv imod ipow iand ior ixor neg pos invert index lt le
    gt ge ne getitem setitem delitem contains abs round int float complex len bool str iter next
    reversed format""".split()


class Run:
    """The folder of this run."""

    folder = HERE


def _without_folder(text: str) -> str:
    return text.replace(Run.folder, HERE)


def _with_folder(text: str) -> str:
    return text.replace(HERE, Run.folder)


def _latin(value: Any) -> str:
    return bytes(memoryview(value)).decode("latin-1")


MUTABLE: dict[str, type] = {
    "list": list, "dict": dict, "set": set, "bytearray": bytearray, "deque": collections.deque,
    "Counter": collections.Counter, "OrderedDict": collections.OrderedDict,
}  # fmt: skip
SINGLETONS = {"NotImplemented": NotImplemented, "Ellipsis": Ellipsis}
TYPES = {name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and kind.__name__ == name} | {
    "NoneType": type(None)
}
LISTED: tuple[tuple[type, Any], ...] = (
    (list, list.__iter__), (collections.deque, collections.deque.__iter__),
    (set, set.__iter__), (frozenset, frozenset.__iter__),
)  # fmt: skip
# A class, what a row holds of its values, and how they are made of it. Subclasses count as the
# first class that they are of, and none of their own methods is called.
PLAIN: dict[str, tuple[type, Callable[[Any], Row], Callable[..., Any]]] = {
    "str": (str, lambda v: [_without_folder(str.__str__(v))], _with_folder),
    "int": (int, lambda v: [hex(int.__index__(v))], lambda text: int(text, 16)),
    "float": (float, lambda v: [float.__add__(v, 0.0)], float),
    "complex": (complex, lambda v: [(n := complex.__add__(v, 0)).real, n.imag], complex),
    "bytes": (bytes, lambda v: [_latin(v)], lambda text: text.encode("latin-1")),
    "range": (range, lambda v: [v.start, v.stop, v.step], range),
    "datetime": (datetime, lambda v: [datetime.isoformat(v)], datetime.fromisoformat),
    "date": (date, lambda v: [date.isoformat(v)], date.fromisoformat),
    "time": (time, lambda v: [time.isoformat(v)], time.fromisoformat),
    "timedelta": (timedelta, lambda v: [v.days, v.seconds, v.microseconds], timedelta),
    "Decimal": (Decimal, lambda v: [Decimal.__str__(v)], Decimal),
    "Fraction": (Fraction, lambda v: [*map(hex, Fraction.as_integer_ratio(v))],
                 lambda one, other: Fraction(int(one, 16), int(other, 16))),
    "Path": (PurePath, lambda v: [_without_folder(PurePath.__str__(v))],
             lambda text: Path(_with_folder(text))),
}  # fmt: skip


class TooLarge(Exception):
    """An iterator that does not end, or more values than anybody compares."""


@dataclass
class Encoded:
    """A table, and the objects that its rows were made from.

    `origins` are objects of the other side, by id: their rows say which, and are left empty unless
    `changed`. `flat` says that what is derived from a list, say, is no more than a list, `named` that
    a named tuple is a value. `results` are rows of what came from the other side, by id: it goes back
    by that name.
    """

    export: Callable[[Any], Row | None]
    shared: Mapping[str, type]
    origins: Mapping[int, int] = field(default_factory=dict)
    changed: bool = True
    flat: bool = True
    named: bool = True
    results: Mapping[int, Row] = field(default_factory=dict)
    table: list[Row] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)
    _seen: dict[int, int] = field(default_factory=dict)

    def refs(self, values: Iterable[Any]) -> list[Any]:
        """Return references to the values; the table has all that they hold."""
        done = len(self.table)
        found = [self.ref(value) for value in values]
        while done < len(self.table):
            value = self.objects[done]
            origin = self.origins.get(id(value))
            if origin is None:
                self.table[done] = self._row(value)
            else:
                self.table[done] = ["origin", origin, self._row(value) if self.changed else None]
            done += 1
            if done > MAX_VALUES:
                raise TooLarge("it holds too many values")
        return found

    def ref(self, value: Any) -> Any:
        """Return the reference to one value; its row is made later."""
        kind = type(value)
        if id(value) not in self.results:
            if value is None or kind in (bool, float) or (kind is int and -SHORT < value < SHORT):
                return value
            if kind is str:
                return _without_folder(value)
        if id(value) not in self._seen:
            self._seen[id(value)] = len(self.table)
            self.table.append([])
            self.objects.append(value)
        return [self._seen[id(value)]]

    def _row(self, value: Any) -> Row:
        """Return the row of one value; methods of its own class are not called."""
        kind = type(value)
        if id(value) in self.results:
            return self.results[id(value)]
        if found := [name for name, single in SINGLETONS.items() if value is single]:
            return ["singleton", *found]
        if isinstance(value, type) and TYPES.get(value.__name__) is value:
            return ["type", value.__name__]
        is_plain = self.flat or kind.__module__ in sys.stdlib_module_names or (self.named and hasattr(kind, "_fields"))
        if not is_plain and not isinstance(value, tuple(self.shared.values())) and (row := self.export(value)):
            return row  # of an own class, which may be derived from a list and the like
        for name, (base, holds, _) in PLAIN.items():
            if isinstance(value, base):
                return [name, *holds(value)]
        if isinstance(value, bytearray):
            return ["bytearray", _latin(value)]
        if isinstance(value, slice):
            return ["slice", *map(self.ref, (value.start, value.stop, value.step))]
        for base, items in LISTED:
            if isinstance(value, base):
                return [base.__name__, self._items(items(value), base in (set, frozenset))]
        if isinstance(value, tuple):
            row = ["tuple", [self.ref(item) for item in tuple.__iter__(value)]]
            fields = kind.__dict__.get("_fields")
            return ["named", kind.__name__, list(fields), row[1]] if fields else row
        if isinstance(value, dict):
            name = kind.__name__ if MUTABLE.get(kind.__name__) is kind else "dict"
            return [name, [[self.ref(key), self.ref(item)] for key, item in dict.items(value)]]
        return self._other(value)

    def _other(self, value: Any) -> Row:
        kind = type(value)
        if kind.__module__ in ("builtins", "itertools") and isinstance(value, Iterator):
            return ["iterator", self._items(itertools.islice(value, MAX_ITEMS + 1), False)]
        for name, shared in self.shared.items():
            if isinstance(value, shared):
                return ["object", name, [[k, self.ref(v)] for k, v in state_of(value).items()]]
        if kind.__module__ == "numpy" and "numpy" in sys.modules:
            numpy = sys.modules["numpy"]
            if isinstance(value, numpy.generic):
                return self._row(value.item())
            if isinstance(value, numpy.ndarray):
                return ["ndarray", str(value.dtype), self.ref(value.tolist())]
        return self.export(value) or ["opaque", kind.__name__]

    def _items(self, items: Iterable[Any], unordered: bool) -> list[Any]:
        listed = list(items)
        if len(listed) > MAX_ITEMS:
            raise TooLarge(f"more than {MAX_ITEMS} items, or an iterator without an end")
        if unordered and all(type(item) in (str, int, float, bool, tuple) for item in listed):
            listed.sort(key=lambda item: (type(item).__name__, repr(item)))
        return [self.ref(item) for item in listed]


def content_of(
    values: Iterable[Any], shared: Mapping[str, type], export: Callable[[Any], Row | None] = lambda _: None
) -> list[Row]:
    """Return the table of values, to see later whether they changed."""
    encoded = Encoded(export, shared)
    encoded.refs(values)
    return encoded.table


@dataclass
class Decoder:
    """The values of a table; `sent` are the objects that rows marked as `origin` stand for.

    They are changed in place where `mutate`; otherwise what changed is a copy.
    """

    table: list[Row]
    load: Callable[[Row, Callable[[Any], Any]], Any]
    shared: Mapping[str, type]
    sent: Sequence[Any] = ()
    mutate: bool = True
    made: dict[int, Any] = field(default_factory=dict)
    _todo: list[tuple[Any, Any]] = field(default_factory=list)

    def values(self, refs: Iterable[Any]) -> list[Any]:
        """Return the values; ValueError and the like when the table holds none."""
        found = [self.value(ref) for ref in refs]
        while self._todo:
            self._fill(*self._todo.pop())
        return found

    def value(self, ref: Any) -> Any:
        """Return one value; what it holds is filled in later."""
        if type(ref) is str:
            return _with_folder(ref)
        if type(ref) is not list:
            return ref
        (index,) = ref
        if index not in self.made:
            self.made[index] = self._made(*self.table[index])
        return self.made[index]

    def _made(self, kind: str, *rest: Any) -> Any:
        original = None
        if kind == "origin":
            original, row = self.sent[rest[0]], rest[1]
            if row is None or not (row[0] in MUTABLE or row[0] == "object"):
                return original
            original = original if self.mutate else None
            kind, *rest = row
        if kind in MUTABLE or kind == "object":
            of = self.shared[rest[0]] if kind == "object" else MUTABLE[kind]
            fresh = functools.partial(object.__new__, of) if kind == "object" else of
            made = original if isinstance(original, of) else fresh()
            self._todo.append((made, rest[-1]))
            return made
        if kind in PLAIN:
            return PLAIN[kind][2](*rest)
        match kind:
            case "tuple":
                return tuple(map(self.value, rest[0]))
            case "frozenset":
                return frozenset(map(self.value, rest[0]))
            case "slice":
                return slice(*map(self.value, rest))
            case "iterator":
                return (item for item in [self.value(one) for one in rest[0]])
            case "named":
                named = collections.namedtuple(rest[0], rest[1])  # type: ignore[misc]
                return named(*map(self.value, rest[2]))
            case "singleton":
                return SINGLETONS[rest[0]]
            case "type":
                return TYPES[rest[0]]
            case "ndarray":
                import numpy

                if (dtype := numpy.dtype(rest[0])).itemsize > MAX_ITEM_BYTES:
                    raise ValueError("items too large")
                return numpy.array(self.values([rest[1]])[0], dtype=dtype)
        return self.load([kind, *rest], self.value)

    def _fill(self, made: Any, items: Any) -> None:
        """Give an empty or an old object what the row says."""
        if isinstance(made, bytearray):
            made[:] = items.encode("latin-1")
        elif isinstance(made, list):
            made[:] = map(self.value, items)
        elif isinstance(made, dict):
            pairs = [(self.value(key), self.value(item)) for key, item in items]
            dict.clear(made)
            dict.update(made, pairs)
        elif isinstance(made, set | collections.deque):
            new = list(map(self.value, items))
            made.clear()
            made.update(new) if isinstance(made, set) else made.extend(new)
        else:
            state = {key: self.value(item) for key, item in items if key != "__class__"}
            for key in state_of(made).keys() - state.keys():
                object.__delattr__(made, key)
            for key, item in state.items():
                object.__setattr__(made, key, item)


def is_of_library(value: Any) -> bool:
    """Whether a class or a function is one that the standard library has under its name."""
    module, name = (str(getattr(value, attribute, "")) for attribute in ("__module__", "__name__"))
    return (
        module.partition(".")[0] in sys.stdlib_module_names and getattr(sys.modules.get(module), name, None) is value
    )


def state_of(value: Any) -> dict[str, Any]:
    """Return the attributes that an instance has itself, slots included."""
    slots = [
        name
        for base in type(value).__mro__
        for name in base.__dict__.get("__slots__", ())
        if name not in ("__dict__", "__weakref__")
    ]
    there = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    named = getattr(value, "__dict__", None)
    return there | (named if isinstance(named, dict) else {})  # a class may have a method of that name


def prepare(job: Mapping[str, Any], root: str) -> dict[str, type]:
    """Make modules below `root` importable, import those that both sides have.

    Returns the classes of the latter by name.
    """
    Run.folder = root
    sys.dont_write_bytecode = True
    roots = (str(Path(root, one)) for one in job["roots"])
    sys.path[:] = [*roots, *(path for path in sys.path if path)]
    found = {}
    for name, source in job["shared"].items():
        module = types.ModuleType(name)
        sys.modules[name] = module
        exec(compile(source, f"{name}.py", "exec"), module.__dict__)
        for value in module.__dict__.values():
            if isinstance(value, type) and value.__module__ == name:
                found[f"{name}:{value.__qualname__}"] = value
    return found


class Folder:
    """The files below the working folder, and how they changed; links are not followed.

    Those that are `locked` stay as they are, and so does what Python may have compiled.
    """

    MAX_BYTES = 1 << 20

    def __init__(self, locked: Collection[str] = ()) -> None:
        self.root, self.locked = Path.cwd(), locked
        self.known = self._scan()

    def changes(self) -> dict[str, str | None]:
        """Return what was written since the last time by path, None for what is gone."""
        now = self._scan()
        changed: dict[str, str | None] = {
            path: "" if path.endswith("/") else self._read(path)
            for path in sorted(now)
            if self.known.get(path) != now[path]
        }
        changed |= {path: None for path in sorted(self.known, reverse=True) if path not in now}
        self.known = now
        return changed

    def apply(self, changes: Mapping[str, str | None]) -> None:
        """Write what changed on the other side."""
        for path, text in changes.items():
            target = self.root / path
            if {"..", "__pycache__"} & {*target.parts} or str(PurePath(path)) in self.locked:
                continue
            if not target.parent.resolve().is_relative_to(self.root):
                continue
            if text is None:
                target.rmdir() if target.is_dir() else target.unlink(missing_ok=True)
            elif path.endswith("/"):
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(zlib.decompress(base64.b85decode(text)))
        self.known = self._scan()

    def _scan(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for folder, folders, files in os.walk(self.root):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in (*folders, *files):
                path = os.path.join(folder, name)  # noqa: PTH118
                state = os.lstat(path)
                if stat.S_ISDIR(state.st_mode):
                    found[f"{os.path.relpath(path, self.root)}/"] = ()
                elif stat.S_ISREG(state.st_mode):
                    seen = (state.st_mtime_ns, state.st_size, state.st_ino)
                    found[os.path.relpath(path, self.root)] = seen
        return found

    def _read(self, path: str) -> str:
        content = (self.root / path).read_bytes()
        if len(content) > self.MAX_BYTES:
            raise TooLarge(f"the file {path} has {len(content)} bytes")
        return base64.b85encode(zlib.compress(content)).decode()  # databases are mostly zeros


LARGEST = 64 << 20


def receive(channel: BinaryIO) -> dict[str, Any]:
    """Read one message; EOFError when there is none, ValueError when it cannot be read."""
    line = channel.readline(LARGEST)
    if not line.endswith(b"\n"):
        raise EOFError
    message = json.loads(line)
    if type(message) is not dict:
        raise ValueError("a message that is not an object")
    return message
