"""Encode Python values as a flat JSON table, and decode it without running code of the other side.

A reference is an atom (None, bool, str, float, short int) or `[index]` into the table; a row of the
table is `[kind, ...]`. Aliases and cycles are kept. `export` and `load` handle objects that are not
plain values. Runs inside the sandbox, and outside of it to display values.
"""

import base64
import builtins
import collections
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
# Replaces the folder of the run in texts, because it differs in each run.
FOLDER_MARK = "\x00here\x00"
Row = list[Any]
# Two requests are the same if these entries are.
REQUEST_KEYS = ("op", "refs", "table", "files")

# Operators of objects, by their names in the module `operator` or in `builtins`.
BINARY = "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift divmod".split()
OPERATORS = """iadd isub imul itruediv ifloordiv imod ipow iand ior ixor neg pos invert index lt le
    gt ge ne getitem setitem delitem contains abs round int float complex len bool str iter next
    reversed format""".split()


class Run:
    """The folder of this run."""

    folder = FOLDER_MARK


def _without_folder(text: str) -> str:
    return text.replace(Run.folder, FOLDER_MARK)


def _with_folder(text: str) -> str:
    return text.replace(FOLDER_MARK, Run.folder)


def _to_latin1(value: Any) -> str:
    return bytes(memoryview(value)).decode("latin-1")


MUTABLE: dict[str, type] = {
    "list": list, "dict": dict, "set": set, "bytearray": bytearray, "deque": collections.deque,
    "Counter": collections.Counter, "OrderedDict": collections.OrderedDict,
}  # fmt: skip
SINGLETONS = {"NotImplemented": NotImplemented, "Ellipsis": Ellipsis}
TYPES = {name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and kind.__name__ == name} | {
    "NoneType": type(None)
}
SEQUENCES: tuple[tuple[type, Any], ...] = (
    (list, list.__iter__), (collections.deque, collections.deque.__iter__),
    (set, set.__iter__), (frozenset, frozenset.__iter__),
)  # fmt: skip
# By kind of row: a class, how its values become a row, and how a row becomes a value. Subclasses are
# encoded as the first matching class, and their own methods are never called.
PLAIN: dict[str, tuple[type, Callable[[Any], Row], Callable[..., Any]]] = {
    "str": (str, lambda v: [_without_folder(str.__str__(v))], _with_folder),
    "int": (int, lambda v: [hex(int.__index__(v))], lambda text: int(text, 16)),
    "float": (float, lambda v: [float.__add__(v, 0.0)], float),
    "complex": (complex, lambda v: [(n := complex.__add__(v, 0)).real, n.imag], complex),
    "bytes": (bytes, lambda v: [_to_latin1(v)], lambda text: text.encode("latin-1")),
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
    """An endless iterator, or too many values to compare."""


@dataclass
class Encoder:
    """Builds a table of rows from objects.

    `origins` are objects of the other process, by id: their rows refer to them, and hold their content
    only if `changed`. With `flat`, an instance of a subclass of list and the like is encoded as its base
    class; with `named`, a named tuple is a value. `results` are the rows of objects that came from the
    other process, by id: they are sent back under the same name.
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
    _indexes: dict[int, int] = field(default_factory=dict)

    def encode(self, values: Iterable[Any]) -> list[Any]:
        """Return references to the values, after adding them and all that they contain to the table."""
        done = len(self.table)
        refs = [self.ref(value) for value in values]
        while done < len(self.table):
            value = self.objects[done]
            origin = self.origins.get(id(value))
            if origin is None:
                self.table[done] = self._row(value)
            else:
                self.table[done] = ["origin", origin, self._row(value) if self.changed else None]
            done += 1
            if done > MAX_VALUES:
                raise TooLarge("it contains too many values")
        return refs

    def ref(self, value: Any) -> Any:
        """Return the reference to one value; `encode` adds its row later."""
        kind = type(value)
        if id(value) not in self.results:
            if value is None or kind in (bool, float) or (kind is int and -SHORT < value < SHORT):
                return value
            if kind is str:
                return _without_folder(value)
        if id(value) not in self._indexes:
            self._indexes[id(value)] = len(self.table)
            self.table.append([])
            self.objects.append(value)
        return [self._indexes[id(value)]]

    def _row(self, value: Any) -> Row:
        """Return the row of one value, without calling methods of its own class."""
        kind = type(value)
        if id(value) in self.results:
            return self.results[id(value)]
        for name, singleton in SINGLETONS.items():
            if value is singleton:
                return ["singleton", name]
        if isinstance(value, type) and TYPES.get(value.__name__) is value:
            return ["type", value.__name__]
        is_plain = self.flat or kind.__module__ in sys.stdlib_module_names or (self.named and hasattr(kind, "_fields"))
        if not is_plain and not isinstance(value, tuple(self.shared.values())) and (row := self.export(value)):
            return row  # of a class of its own, which may be a subclass of list and the like
        for name, (base, to_row, _) in PLAIN.items():
            if isinstance(value, base):
                return [name, *to_row(value)]
        if isinstance(value, bytearray):
            return ["bytearray", _to_latin1(value)]
        if isinstance(value, slice):
            return ["slice", *map(self.ref, (value.start, value.stop, value.step))]
        for base, items in SEQUENCES:
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
                return ["object", name, [[k, self.ref(v)] for k, v in get_attributes(value).items()]]
        if kind.__module__ == "numpy" and "numpy" in sys.modules:
            numpy = sys.modules["numpy"]
            if isinstance(value, numpy.generic):
                return self._row(value.item())
            if isinstance(value, numpy.ndarray):
                return ["ndarray", str(value.dtype), self.ref(value.tolist())]
        return self.export(value) or ["opaque", kind.__name__]

    def _items(self, items: Iterable[Any], unordered: bool) -> list[Any]:
        elements = list(items)
        if len(elements) > MAX_ITEMS:
            raise TooLarge(f"more than {MAX_ITEMS} items, or an endless iterator")
        if unordered and all(type(item) in (str, int, float, bool, tuple) for item in elements):
            elements.sort(key=lambda item: (type(item).__name__, repr(item)))
        return [self.ref(item) for item in elements]


def take_snapshot(
    values: Iterable[Any], shared: Mapping[str, type], export: Callable[[Any], Row | None] = lambda _: None
) -> list[Row]:
    """Return the table of the values, to detect later whether they changed."""
    encoder = Encoder(export, shared)
    encoder.encode(values)
    return encoder.table


@dataclass
class Decoder:
    """Decodes the values of a table; rows of the kind `origin` refer to the objects in `sent`.

    With `mutate`, changed objects are updated in place; otherwise a changed one is returned as a copy.
    """

    table: list[Row]
    load: Callable[[Row, Callable[[Any], Any]], Any]
    shared: Mapping[str, type]
    sent: Sequence[Any] = ()
    mutate: bool = True
    objects: dict[int, Any] = field(default_factory=dict)
    _unfilled: list[tuple[Any, Any]] = field(default_factory=list)

    def decode(self, refs: Iterable[Any]) -> list[Any]:
        """Return the values; raises ValueError and others when the table is not valid."""
        values = [self.value(ref) for ref in refs]
        while self._unfilled:
            self._fill(*self._unfilled.pop())
        return values

    def value(self, ref: Any) -> Any:
        """Return one value; `decode` fills in its content later."""
        if type(ref) is str:
            return _with_folder(ref)
        if type(ref) is not list:
            return ref
        (index,) = ref
        if index not in self.objects:
            self.objects[index] = self._create(*self.table[index])
        return self.objects[index]

    def _create(self, kind: str, *rest: Any) -> Any:
        original = None
        if kind == "origin":
            original, row = self.sent[rest[0]], rest[1]
            if row is None or not (row[0] in MUTABLE or row[0] == "object"):
                return original
            original = original if self.mutate else None
            kind, *rest = row
        if kind in MUTABLE or kind == "object":
            cls = self.shared[rest[0]] if kind == "object" else MUTABLE[kind]
            value = original
            if not isinstance(value, cls):
                value = object.__new__(cls) if kind == "object" else cls()
            self._unfilled.append((value, rest[-1]))
            return value
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
                return numpy.array(self.decode([rest[1]])[0], dtype=dtype)
        return self.load([kind, *rest], self.value)

    def _fill(self, target: Any, items: Any) -> None:
        """Set the content of a new or an existing object."""
        if isinstance(target, bytearray):
            target[:] = items.encode("latin-1")
        elif isinstance(target, list):
            target[:] = map(self.value, items)
        elif isinstance(target, dict):
            pairs = [(self.value(key), self.value(item)) for key, item in items]
            dict.clear(target)
            dict.update(target, pairs)
        elif isinstance(target, set | collections.deque):
            elements = list(map(self.value, items))
            target.clear()
            target.update(elements) if isinstance(target, set) else target.extend(elements)
        else:
            state = {key: self.value(item) for key, item in items if key != "__class__"}
            for key in get_attributes(target).keys() - state.keys():
                object.__delattr__(target, key)
            for key, item in state.items():
                object.__setattr__(target, key, item)


def is_from_library(value: Any) -> bool:
    """Whether a class or a function can be imported from the standard library by its name."""
    module, name = (str(getattr(value, attribute, "")) for attribute in ("__module__", "__name__"))
    return (
        module.partition(".")[0] in sys.stdlib_module_names and getattr(sys.modules.get(module), name, None) is value
    )


def get_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an instance itself, including slots."""
    slots = [
        name
        for base in type(value).__mro__
        for name in base.__dict__.get("__slots__", ())
        if name not in ("__dict__", "__weakref__")
    ]
    attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    own = getattr(value, "__dict__", None)
    return attributes | (own if isinstance(own, dict) else {})  # a class may define something else as `__dict__`


def prepare_imports(job: Mapping[str, Any], root: str) -> dict[str, type]:
    """Make modules below `root` importable, and import the shared modules.

    Returns the classes of the shared modules by name.
    """
    Run.folder = root
    sys.dont_write_bytecode = True
    roots = (str(Path(root, one)) for one in job["roots"])
    sys.path[:] = [*roots, *(path for path in sys.path if path)]
    classes = {}
    for name, source in job["shared"].items():
        module = types.ModuleType(name)
        sys.modules[name] = module
        exec(compile(source, f"{name}.py", "exec"), module.__dict__)
        for value in module.__dict__.values():
            if isinstance(value, type) and value.__module__ == name:
                classes[f"{name}:{value.__qualname__}"] = value
    return classes


class Folder:
    """Tracks changes to the files below the working folder, without following links.

    `locked` files and bytecode caches are never overwritten.
    """

    MAX_BYTES = 1 << 20

    def __init__(self, locked: Collection[str] = ()) -> None:
        self.root, self.locked = Path.cwd(), locked
        self.known = self._scan()

    def changes(self) -> dict[str, str | None]:
        """Return the content of what was written since the last call by path, None for what was deleted."""
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
        """Make the changes of the other process here."""
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
                    found[os.path.relpath(path, self.root)] = (state.st_mtime_ns, state.st_size, state.st_ino)
        return found

    def _read(self, path: str) -> str:
        content = (self.root / path).read_bytes()
        if len(content) > self.MAX_BYTES:
            raise TooLarge(f"the file {path} has {len(content)} bytes")
        return base64.b85encode(zlib.compress(content)).decode()  # databases are mostly zeros


MAX_MESSAGE = 64 << 20


def read_message(channel: BinaryIO) -> dict[str, Any]:
    """Read one message; raises EOFError at the end, ValueError when the message is not valid."""
    line = channel.readline(MAX_MESSAGE)
    if not line.endswith(b"\n"):
        raise EOFError
    message = json.loads(line)
    if type(message) is not dict:
        raise ValueError("the message is not an object")
    return message
