"""Modules, classes and objects of the answer, as the tests see them.

An operation goes to the answer's process, its value comes back. A comparison that could only be
believed is answered here: an object of a class that the tests never named equals itself alone, has
no order, and contains what it lists. Runs inside the sandbox.
"""

import importlib.machinery
import types
from collections.abc import Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from typing import Any


class Handle:
    """An object of the answer."""

    def __init__(self, connection: Any, number: int, kind: int, name: str) -> None:
        self.__dict__.update(_connection=connection, _number=number, _kind=kind, _name=name)

    def __getattr__(self, name: str) -> Any:
        return self._connection.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _patch(self, name, value)

    def __delattr__(self, name: str) -> None:
        _restore(self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it over there."""
        return self._connection.ask("call", self, args, kwargs)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        alike = isinstance(other, Handle) and other._kind == self._kind
        return (alike or self._is_named()) and bool(self._connection.ask("equal", self, other))

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

    def __contains__(self, item: Any) -> bool:
        if self._is_named():
            return bool(self._special("__contains__", item))
        return any(item == one for one in self)

    def __iter__(self) -> Iterator[Any]:
        return self._special("__iter__")  # type: ignore[no-any-return]

    def _special(self, name: str, *arguments: Any) -> Any:
        return self._connection.ask("special", self, name, arguments)

    def _is_named(self) -> bool:
        return self._kind in self._connection.named


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


def _ordering(name: str) -> Any:
    def special(self: Handle, other: Any) -> Any:
        alike = isinstance(other, Handle) and other._kind == self._kind
        return self._special(name, other) if alike or self._is_named() else NotImplemented

    return special


for _name in """len next reversed getitem setitem delitem enter exit int float index complex abs neg
    pos invert round trunc floor ceil length_hint await aiter anext get set_name fspath
    add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod pow rpow
    matmul rmatmul and rand or ror xor rxor lshift rlshift rshift rrshift
    iadd isub imul itruediv ifloordiv imod ipow iand ior ixor""".split():  # fmt: skip
    if _name not in ("get", "set_name", "await", "aiter", "anext"):
        setattr(Handle, f"__{_name}__", _forwarded(f"__{_name}__"))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Handle, f"__{_name}__", _ordering(f"__{_name}__"))


class Class(Handle):
    """A class of the answer."""

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Handle) and bool(self._connection.ask("isinstance", value, self))

    def __subclasscheck__(self, value: object) -> bool:
        return isinstance(value, Handle) and bool(self._connection.ask("issubclass", value, self))

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


class Module(types.ModuleType):
    """A module of the answer; imported over there when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__version__", "__doc__"):
            raise AttributeError(name)
        connection = self.__dict__["_connection"]
        if name == "__all__" and name not in (names := dir(self)):
            return [public for public in names if not public.startswith("_")]
        found = connection.ask("get", self, name)
        if isinstance(found, Class):
            connection.named.add(found._number)
        return found

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
