"""Modules, classes and objects of the answer, as the tests see them.

An operation goes to the answer's process, its value comes back. An expected value never goes
there: only two objects of the answer are compared by it. With a value of the tests an object is
unequal and has no order, and calculates only if the tests made it themselves, of a
class that they asked for by a name with a capital, which is that of no function of the files before
the answer, and if an object results. What is of a subclass of int, list and the like is
compared as that plain value. Runs inside the sandbox.
"""

import functools
import importlib.machinery
import operator
import types
from collections.abc import Iterable, Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from typing import Any


class Handle:
    """An object of the answer."""

    def __init__(self, connection: Any, number: int, kind: int, name: str) -> None:
        self.__dict__.update(_connection=connection, _number=number, _kind=kind, _name=name)
        self.__dict__.update(_flat=False, _ours=False, _asked=False)

    def __getattr__(self, name: str) -> Any:
        return _asked(self._connection, self._connection.ask("get", self, name), name)

    def __setattr__(self, name: str, value: Any) -> None:
        _patch(self, name, value)

    def __delattr__(self, name: str) -> None:
        _restore(self, name)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Handle):
            return bool(self._connection.ask("equal", self, other))
        # What the tests have may call it equal, say `mock.ANY`; the answer is not asked.
        return self._plain() == other if self.__dict__["_flat"] else NotImplemented

    def __hash__(self) -> int:
        return int(self._special("__hash__"))

    def __str__(self) -> str:
        return str(self._connection.ask("str", self))

    def __repr__(self) -> str:
        return str(self._connection.ask("repr", self))

    def __format__(self, how: str) -> str:
        return str(self._special("__format__", how))

    def __bool__(self) -> bool:
        return bool(self._connection.ask("bool", self))

    def __dir__(self) -> list[str]:
        return list(self._connection.ask("dir", self))

    def _plain(self) -> Any:
        """Return it as a value of the class that its class is derived from."""
        return self._connection.ask("plain", self)

    def _special(self, name: str, *arguments: Any) -> Any:
        return self._connection.ask("special", self, name, arguments)


def _patch(target: Any, name: str, value: Any) -> None:
    """Set an attribute over there, and remember what it was."""
    connection = target.__dict__["_connection"]
    before = target.__dict__.setdefault("_before", {})
    if name not in before and connection.ask("has", target, name):
        before[name] = connection.ask("get", target, name)
    connection.ask("set", target, name, value)


def _restore(target: Any, name: str) -> None:
    """Delete an attribute; one that was set from here becomes what it was before.

    Tools that patch look into the `__dict__` of a handle, see that it is none of its own, and
    delete it in the end.
    """
    connection = target.__dict__["_connection"]
    before = target.__dict__.get("_before", {})
    if name in before:
        connection.ask("set", target, name, before.pop(name))
    else:
        connection.ask("delete", target, name)


def _forwarded(name: str) -> Any:
    def special(self: Handle, *arguments: Any) -> Any:
        return self._special(name, *arguments)

    return special


def _binary(name: str) -> Any:
    order = name in ("__lt__", "__le__", "__gt__", "__ge__")

    def special(self: Handle, other: Any, *more: Any) -> Any:
        ours = self.__dict__["_ours"]
        if not isinstance(other, Handle):
            if self.__dict__["_flat"] and not (ours and name.startswith("__i")):
                return getattr(self._plain(), name, lambda *_: NotImplemented)(other, *more)
            if order or not ours:
                raise TypeError(_refusal(self, name, other))
        found = self._special(name, other, *more)
        if isinstance(found, Handle):
            found.__dict__["_ours"] = ours
        elif not isinstance(other, Handle) and found is not NotImplemented:
            raise TypeError(_refusal(self, name, other))
        return found

    return special


def _refusal(handle: Handle, name: str, other: Any) -> str:
    return (
        f"{name} of {handle.__dict__['_name']}, a class of the code under test, with a "
        f"{type(other).__name__} of the tests: only values are compared with expected values"
    )


def _called(self: Handle, *args: Any, **kwargs: Any) -> Any:
    """Call it over there."""
    found = self._connection.ask("call", self, args, kwargs)
    if isinstance(found, Handle):
        # A method may return `self`.
        is_new = found.__dict__["_kind"] == self.__dict__["_number"]
        found.__dict__["_ours"] = self.__dict__["_asked"] and is_new
    return found


def _contains(self: Handle, item: Any) -> bool:
    if not isinstance(item, Handle):
        if self.__dict__["_flat"]:
            return operator.contains(self._plain(), item)
        if hasattr(type(self), "__iter__"):
            return any(item is one or item == one for one in self)  # type: ignore[attr-defined]
        if not self.__dict__["_ours"]:
            raise TypeError(_refusal(self, "__contains__", item))
    return bool(self._special("__contains__", item))


UNARY = """iter len next reversed getitem setitem delitem enter exit int float index complex abs neg
    pos invert round trunc floor ceil length_hint fspath""".split()  # fmt: skip
OWN = {"__call__": _called, "__contains__": _contains}


class Coroutine:
    """What asyncio wants of a coroutine; it is run over there, all at once."""

    def send(self, value: Any) -> Any:
        """End with its result."""
        raise StopIteration(self._connection.ask("finish", self))  # type: ignore[attr-defined]

    def throw(self, *error: Any) -> Any:
        """Raise it."""
        raise error[0]

    def close(self) -> None:
        """Nothing is left to do."""

    def __await__(self) -> Iterator[Any]:
        return self._connection.ask("finish", self)  # type: ignore[attr-defined, no-any-return]
        yield


def shaped(kind: type, specials: Iterable[str], name: str = "") -> Any:
    """Return the class of handles that have these special methods."""
    return _shaped(kind, tuple(specials), name if name in ("coroutine", "generator") else "")


@functools.cache
def _shaped(kind: type, specials: tuple[str, ...], sort: str) -> type:
    methods: dict[str, Any] = {
        name: OWN.get(name) or (_forwarded if name.strip("_") in UNARY else _binary)(name)
        for name in specials
    }
    if sort == "generator":
        methods["__class__"] = property(lambda _: types.GeneratorType)
    return type(kind.__name__, (kind, Coroutine) if sort == "coroutine" else (kind,), methods)


class Class(Handle):
    """A class of the answer."""

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Handle) and bool(self._connection.ask("isinstance", value, self))

    def __subclasscheck__(self, value: object) -> bool:
        return isinstance(value, Handle) and bool(self._connection.ask("issubclass", value, self))

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Class) and other.__dict__["_number"] == self.__dict__["_number"]
        return same or self is other

    def __hash__(self) -> int:
        return hash(self.__dict__["_number"])

    def __mro_entries__(self, bases: Any) -> Any:
        name = self.__dict__["_name"]
        self._connection.refuse(f"the tests derive a class from {name} of the code under test")


def _asked(connection: Any, found: Any, name: str) -> Any:
    """Note that the tests asked for a class by its name; an entry that became one is another."""
    if not isinstance(found, Class):
        return found
    if name[:1].isupper() and name not in connection.entries:
        found.__dict__["_asked"] = True
        return found
    number = found.__dict__["_number"]
    if number not in connection.aliases:
        connection.aliases[number] = type(found)(
            connection, number, number, found.__dict__["_name"]
        )
    return connection.aliases[number]


class Module(types.ModuleType):
    """A module of the answer; imported over there when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__version__", "__doc__"):
            raise AttributeError(name)
        connection = self.__dict__["_connection"]
        if name == "__all__" and name not in (names := dir(self)):
            return [public for public in names if not public.startswith("_")]
        return _asked(connection, connection.ask("get", self, name), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") or isinstance(value, types.ModuleType):
            self.__dict__[name] = value
        else:
            _patch(self, name, value)

    def __delattr__(self, name: str) -> None:
        _restore(self, name)

    def __dir__(self) -> list[str]:
        return list(self.__dict__["_connection"].ask("dir", self))


class Finder(MetaPathFinder, Loader):
    """Finds the answer's modules before any other of that name; `modules` says which are packages.

    Modules of the tests may lie below such a package, too.
    """

    def __init__(self, connection: Any, modules: Mapping[str, bool], roots: list[str]) -> None:
        self.connection, self.modules, self.roots = connection, modules, roots

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module of the answer."""
        if name not in self.modules:
            return None
        spec = importlib.machinery.ModuleSpec(name, self, is_package=self.modules[name])
        if spec.submodule_search_locations is not None:
            below = name.replace(".", "/")
            spec.submodule_search_locations += [f"{root}/{below}" for root in self.roots]
        return spec

    def create_module(self, spec: Any) -> Module:
        """Import it over there."""
        module = Module(spec.name)
        number = self.connection.ask("import", spec.name)._number
        module.__dict__.update(_connection=self.connection, _number=number)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is left to do."""
