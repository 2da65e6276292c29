"""The tests' process: the way to the answer's process, and what comes back from there.

Runs inside the sandbox.
"""

import enum
import functools
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from rewards.verifiers.isolated import wire
from rewards.verifiers.isolated.codec import MUTABLE, Decoder, Encoded, Row
from rewards.verifiers.isolated.copies import COPIES, Unjudged
from rewards.verifiers.isolated.handles import Class, Handle, Module, shaped

FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
PATIENCE_MS = 1000
# Exceptions with a meaning for the test run itself are never the answer's to raise.
NOT_THEIRS = ("unittest",)


class Ended(BaseException):
    """The answer's process is gone, or writes what is no message; no test catches this."""

    hung = False


class Hung(Ended):
    """It used up its CPU seconds."""

    hung = True


class Connection:
    """The way to the answer's process."""

    def __init__(self, reader: int, writer: int, pid: int, shared: Mapping[str, type]) -> None:
        self.reader, self.writer, self.pid, self.shared = reader, writer, pid, shared
        self.trouble: BaseException | None = None
        self.copies = MUTABLE | {name: made(self.refuse) for name, made in COPIES.items()}
        self.functions: list[Any] = []
        self.handles: dict[int, Any] = {}
        self.aliases: dict[int, Any] = {}
        self.entries: frozenset[str] = frozenset()
        self.errors: dict[tuple[str, str], type] = {}
        self._world: tuple[str, dict[str, str]] = (os.getcwd(), dict(os.environ))  # noqa: PTH109
        self._one_at_a_time = threading.RLock()

    def refuse(self, reason: str) -> NoReturn:
        """End the run as one that says nothing about the answer."""
        self.trouble = Unjudged(reason)
        raise self.trouble

    def ask(self, operation: str, *arguments: Any) -> Any:
        """Have an operation done over there; raise what it raised."""
        if self.trouble:
            raise self.trouble
        try:
            with self._one_at_a_time:
                return self._ask(operation, arguments)
        except (Ended, Unjudged) as trouble:
            self.trouble = trouble
            raise

    def _ask(self, operation: str, arguments: tuple[Any, ...]) -> Any:
        encoded = Encoded(self)
        refs = encoded.refs(arguments)
        request = {"op": operation, "refs": refs, "table": encoded.table, **self._moved()}
        try:
            wire.send(self.writer, request)
            while "callback" in (reply := wire.receive(self.reader)):
                wire.send(self.writer, self._called(reply))
            sys.stdout.write(str(reply["printed"]))
            containers = self.copies if operation == "get" else MUTABLE
            decoder = Decoder(reply["table"], self, encoded.objects, containers)
            values = decoder.values(reply["refs"])
            raised = self._error(reply, values) if "raised" in reply else None
        except (OSError, EOFError) as end:
            raise self._end() from end
        except (LookupError, ValueError, TypeError, RecursionError, AttributeError) as failure:
            raise Ended(f"wrote what is no value ({failure})") from failure
        if raised is not None:
            raise raised
        return values[0]

    def _end(self) -> Ended:
        """Say how the answer's process ended."""
        for _ in range(PATIENCE_MS):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
                return Hung("did not end in its CPU time")
            if pid:
                break
            time.sleep(0.001)
        return Ended("ended the process instead of returning")

    def _moved(self) -> dict[str, Any]:
        """Return folder and environment where a test changed them."""
        world = (os.getcwd(), dict(os.environ))  # noqa: PTH109
        before, self._world = self._world, world
        moved: dict[str, Any] = {"folder": world[0]} if world[0] != before[0] else {}
        new = {k: v for k, v in world[1].items() if before[1].get(k) != v}
        new.pop("PYTEST_CURRENT_TEST", None)
        return {**moved, "environment": new} if new else moved

    def _called(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Call a function of the tests for the answer."""
        args, kwargs = Decoder(message["table"], self).values(message["refs"])
        try:
            result = self.functions[message["callback"]](*args, **kwargs)
        except Exception as failure:  # goes to the answer, which called
            return {"raised": type(failure).__name__, "text": str(failure)}
        encoded = Encoded(self)
        return {"refs": encoded.refs([result]), "table": encoded.table}

    def keeps(self, value: Any) -> bool:
        """Whether it is a member of an enum, which no value can stand for."""
        return isinstance(value, enum.Enum)

    def export(self, value: Any) -> Row:
        """Return the row of a handle or of a function of the tests."""
        if isinstance(value, Handle | Module):
            return ["handle", value.__dict__["_number"]]
        if isinstance(value, type) and (number := value.__dict__.get("_number", -1)) >= 0:
            return ["handle", number]
        if isinstance(value, FUNCTIONS):
            self.functions.append(value)
            return ["callback", len(self.functions) - 1]
        raise Unjudged(
            f"the tests hand the code under test a {type(value).__qualname__}, which cannot go to "
            "another process; put its class into a file that `shared` names"
        )

    def load(self, row: Row) -> Any:
        """Return the handle of a row; each number has one."""
        kind, number, *rest = row
        if number not in self.handles:
            if kind == "class" and rest[1]:
                self.handles[number] = self._error_class(rest[1], number)
            elif kind == "class":
                self.handles[number] = shaped(Class, rest[2])(self, number, number, rest[0])
            else:
                self.handles[number] = shaped(Handle, rest[2], rest[1])(self, number, *rest[:2])
                self.handles[number].__dict__["_flat"] = rest[3]
        return self.handles[number]

    def _error(self, reply: Mapping[str, Any], values: list[Any]) -> BaseException:
        args, state = values
        kind = self.load(reply["raised"])
        try:
            error: BaseException = kind(*args)
        except Exception:  # a signature of its own
            error = kind.__new__(kind)
            error.args = args
        error.__dict__.update(state)
        error.__dict__["_where"] = str(reply["where"])
        return error

    def _error_class(self, lineage: Sequence[Sequence[str]], number: int) -> type:
        """Return the tests' own class of that name, or one made like the answer's."""
        (module, name), *bases = lineage
        if module == "builtins" and name in ("KeyboardInterrupt", "GeneratorExit"):
            return RuntimeError
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names and top not in NOT_THEIRS:
            found = getattr(sys.modules.get(module), name, None)
            if isinstance(found, type) and issubclass(found, BaseException):
                return found
        if (module, name) not in self.errors:
            above = self._error_class(bases, -1) if bases else Exception
            made = type(
                name.rpartition(".")[2], (above,), {"_number": number, "__module__": module}
            )
            self.errors[module, name] = made
        elif number >= 0:
            self.errors[module, name]._number = number  # type: ignore[attr-defined]
        return self.errors[module, name]
