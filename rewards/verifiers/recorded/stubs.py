"""The tests' process: the answer's modules as the tests see them, and pytest on top of them.

Whatever the tests do with the answer is a request, and what comes back is a value, or a stub that
stands for an object of the answer. In `record`, requests go to the process of the reference and are
written down with their replies. In `check`, replies are those that a candidate gave to the recorded
requests: the tests judge them, and nothing of the candidate is in this process. A request that was
not recorded ends the test and is reported. Runs in the sandbox.
"""

import contextlib
import importlib.machinery
import os
import sys
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from typing import Any, BinaryIO

from rewards.verifiers.channel import writer
from rewards.verifiers.pytest_worker import Reporter, run_pytest
from rewards.verifiers.recorded.values import (
    ASKED,
    BINARY,
    MUTABLE,
    OPERATORS,
    Decoder,
    Encoded,
    Folder,
    Row,
    TooLarge,
    content_of,
    is_of_library,
    prepare,
    receive,
)

MAX_CALLS = 3000
FIXED = (str, bytes, int, float, complex, tuple, frozenset)
Message = dict[str, Any]


class Aborted(BaseException):
    """The test cannot go on; no test catches this."""


class Session:
    """Requests and replies of the whole run."""

    def __init__(self, shared: Mapping[str, type], locked: Collection[str]) -> None:
        self.shared = shared
        self.part = 0
        self.stubs: dict[str, Any] = {}
        self.why: dict[int, str] = {}
        self.counts: dict[int, int] = {}
        # Results that cannot change, by id, and what keeps these ids theirs.
        self.results: dict[int, Row] = {}
        self._kept: list[Any] = []
        # Containers that objects hold, as the tests have them: owner, attribute, value, content.
        self.held: dict[tuple[str, str], list[Any]] = {}
        self.folder = Folder(locked)
        # What there is to report at the end.
        self.calls: list[list[Any]] = []
        self.wanted: dict[int, list[Any]] = {}

    def exchange(self, message: Message) -> Message:
        """Return the reply to a request."""
        raise NotImplementedError

    def aborted(self, why: str) -> Aborted:
        """Return what ends this test, to be raised."""
        self.why.setdefault(self.part, why)
        return Aborted(why)

    def ask(self, op: str, *arguments: Any, label: str = "") -> Any:
        """Have an operation done; raise what it raised."""
        if self.part in self.why:
            raise Aborted(self.why[self.part])
        self._write_back()
        self.encoded = Encoded(self._export, self.shared, results=self.results)
        number = self.counts[self.part] = self.counts.get(self.part, -1) + 1
        try:
            message: Message = {"op": op, "name": f"{op} {label}".strip(), "refs": self.encoded.refs(arguments)}
            message |= {"table": self.encoded.table, "part": self.part}
            if files := self.folder.changes():
                message["files"] = files
        except TooLarge as error:
            raise self.aborted(str(error)) from None
        sent = self.encoded.objects
        reply = self.exchange(message)
        if op == "call":
            self.held = {}  # it may have changed over there
        if "crash" in reply:
            raise self.aborted(reply["crash"])
        sys.stdout.write(str(reply.get("printed", "")))
        try:
            self.folder.apply(reply.get("files", {}))
            decoder = Decoder(reply["table"], self._load, self.shared, sent, mutate=not reply.get("fixed"))
            values = decoder.values(reply["refs"])
        except Exception as error:  # of a reply that the answer forged
            raise self.aborted(f"the answer gives what cannot be read ({type(error).__name__})") from None
        if "raised" in reply:
            if not _is_exception(values[0]):
                raise self.aborted("the answer raises what is no exception")
            raise _exception(values[0], values[1], values[2], reply["raised"])
        self._remember(values[0], number)
        return _awaitable(values[0]) if reply.get("awaited") else values[0]

    def attribute(self, one: Any, name: str) -> Any:
        """Ask for an attribute; what only pytest and the like look for is not there."""
        if name == "__name__" and isinstance(one, Function):
            return vars(one)["_label"]
        if name.startswith(("__", "_pytest", "pytest")) or name == "_session":
            raise AttributeError(name)
        found = self.ask("getattr", one, name, label=name)
        if isinstance(found, Class):
            type.__setattr__(found, "_label", name)
        elif isinstance(found, Function):
            vars(found)["_label"] = name
        elif type(found) in MUTABLE.values():  # for what the tests do with it
            self.held[vars(one)["_key"], name] = [one, name, found, content_of([found], self.shared)]
        return found

    def _write_back(self) -> None:
        """Set attributes whose containers the tests have changed."""
        for found in list(self.held.values()):
            owner, name, value, before = found
            if (now := content_of([value], self.shared)) != before:
                found[3] = now
                with contextlib.suppress(AttributeError):  # of a property that gives copies
                    self.ask("setattr", owner, name, value, label=name)

    def _remember(self, value: Any, number: int) -> None:
        """Let a result go back as what it is, so that no call has the reference's in it."""
        # Python has only one object for each of these.
        single = (type(value) is int and -6 < value < 257) or (
            type(value) in (str, bytes, tuple, frozenset) and len(value) < 2
        )
        if type(value) in FIXED and not single:
            self.results[id(value)] = ["result", f"{self.part}.{number}"]
            self._kept.append(value)

    def _export(self, value: Any) -> Row:
        if isinstance(value, Remote) or isinstance(type(value), Class):
            if key := vars(value).get("_key"):
                return ["known", key]
        elif is_of_library(value):
            return ["library", value.__module__, value.__name__]
        if isinstance(value, BaseException):
            kind = self.encoded.ref(type(value))
            return ["exception", kind, [self.encoded.ref(one) for one in value.args]]
        kind = "function" if callable(value) else type(value).__name__
        raise self.aborted(f"the tests hand a {kind} of their own to the code under test")

    def _load(self, row: Row, _: object = None) -> Any:
        kind, key, *rest = row
        if kind == "opaque":
            return self.stubs.setdefault(f"opaque {key}", Opaque(self, key))
        if kind == "library":
            found = getattr(sys.modules.get(key), rest[0], None)
            return found if isinstance(found, type) else Opaque(self, "")
        if key not in self.stubs:
            self.stubs[key] = self._stub(kind, key, rest)
        return self.stubs[key]

    def _stub(self, kind: str, key: str, rest: list[Any]) -> Any:
        own: dict[str, Any] = {"_key": key, "_session": self, "_label": rest[0]}
        if kind == "class":
            name, bases = rest
            above: type = Stub
            for row in reversed(bases):
                above = self._load(row)
                if not _is_exception(above):
                    raise ValueError(f"{name} is no exception")
            if bases:
                own |= {"__getattr__": Remote.__getattr__, "__str__": _text}
            return type.__new__(Class, name, (above,), own)
        made: Any
        if kind == "instance":
            of = self._load(rest[0])
            if not isinstance(of, Class):
                of = type.__new__(Class, of.__name__, (Stub,), {**own, "_key": None})
            made, own["_label"] = _plain(of), "an object"
        else:
            made = Module(str(rest[0])) if kind == "module" else Function()
        vars(made).update(own)
        return made


def _is_exception(kind: Any) -> bool:
    return isinstance(kind, type) and BaseException in type.mro(kind)


def _text(self: BaseException) -> str:
    return str(vars(self).get("_text", ", ".join(map(str, self.args))))


def _plain(kind: type) -> Any:
    """Return an instance without a call of the answer."""
    return BaseException.__new__(kind) if issubclass(kind, BaseException) else object.__new__(kind)


def _exception(kind: type[BaseException], args: Any, state: dict[str, Any], text: str) -> BaseException:
    made: BaseException
    if isinstance(kind, Class):
        made = _plain(kind)
        vars(made).update(state, _text=text)
    else:
        try:
            made = kind(*args)
        except Exception:
            made = kind.__new__(kind)
    made.args = tuple(args)
    return made


def _awaitable(value: Any) -> Any:
    async def finished() -> Any:
        return value

    return finished()


class Remote:
    """What stands for something of the answer: the answer does whatever is done with it."""

    _session: Any
    _label: str

    def __getattr__(self, name: str) -> Any:
        return self._session.attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._session.ask("setattr", self, name, value, label=name)

    def __delattr__(self, name: str) -> None:
        self._session.ask("delattr", self, name, label=name)


class Function(Remote):
    """A function or a method of the answer."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it over there."""
        return self._session.ask("call", self, args, kwargs, label=vars(self)["_label"])


class Class(Remote, type):
    """A class of the answer."""

    __call__ = Function.__call__

    def __new__(cls, name: str, bases: tuple[Any, ...], _: dict[str, Any]) -> "Class":
        """Refuse to derive a class from one of the answer."""
        raise bases[0]._session.aborted(f"the tests derive {name} from a class of the code under test")

    def __instancecheck__(self, value: Any) -> bool:
        if BaseException in type.mro(self) or not isinstance(type(value), Class):
            return type.__instancecheck__(self, value)
        return bool(self._session.ask("isinstance", value, self))

    def __subclasscheck__(self, kind: type) -> bool:
        if not isinstance(kind, Class) or BaseException in type.mro(self):
            return type.__subclasscheck__(self, kind)
        return bool(kind.__dict__["_session"].ask("issubclass", kind, self))


class Opaque(Remote):
    """An object of the answer where the reference gives a value: it equals itself alone.

    No operator works on it, and no method: they could answer as the tests want.
    """

    def __init__(self, session: Session, key: str) -> None:
        vars(self).update(_session=session, _key=key)

    def __bool__(self) -> bool:
        return bool(self._session.ask("bool", self))

    def __repr__(self) -> str:
        return "(an object of its own class)"


class Stub(Remote):
    """An object of the answer."""

    __call__ = Function.__call__

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        answer = self._session.ask("equal", self, other)
        # While recording, all that was found out about the two comes back.
        return bool(answer[0] and not answer[1] if isinstance(answer, list) else answer)

    def __hash__(self) -> int:
        return 0  # equality decides

    def __repr__(self) -> str:
        return str(self._session.ask("repr", self))

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        # What a test found out is none of the answer's business.
        if isinstance(error, AssertionError) or not isinstance(error, Exception | None):
            return False
        return self._session.ask("exit", self, kind, error, None)

    def __reduce_ex__(self, _: Any) -> Any:
        raise self._session.aborted("the tests copy or pickle an object of the code under test")


def _forwarded(op: str, turned: bool = False) -> Any:
    def special(self: Any, *arguments: Any) -> Any:
        if turned:
            return self._session.ask(op, arguments[0], self)
        found = self._session.ask(op, self, *arguments)
        return iter(found) if op == "iter" and isinstance(found, list) else found

    return special


for _name in ("iter", "len", "getitem"):  # of an enum
    setattr(Class, f"__{_name}__", _forwarded(_name))
for _name in (*BINARY, *OPERATORS, "enter", "fspath"):
    setattr(Stub, f"__{_name.removesuffix('_')}__", _forwarded(_name))
for _name in BINARY:
    setattr(Stub, f"__r{_name.removesuffix('_')}__", _forwarded(_name, turned=True))


class Module(Remote, types.ModuleType):
    """A module of the answer."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            names = self._session.ask("call", self._session.ask("getattr", self, "__dir__"), (), {})
            return [public for public in names if not public.startswith("_")]
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") or isinstance(value, types.ModuleType):
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)


class Finder(MetaPathFinder, Loader):
    """Finds the answer's modules before others; `modules` says which are packages.

    Of other modules below the working folder only the `sources` of the tests can be imported: what the
    answer writes there must not run here.
    """

    def __init__(self, session: Session, job: Message, root: str) -> None:
        self.session, self.modules, self.root, self.sources = session, job["modules"], f"{root}/", job["files"]
        self.roots = [f"{root}/{one}".rstrip("/") for one in job["roots"]]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module of the answer."""
        if name not in self.modules:
            found = importlib.machinery.PathFinder.find_spec(name, path)
            place = (found and found.origin) or ""
            if place.startswith(self.root) and place.removeprefix(self.root) not in self.sources:
                raise self.session.aborted("the tests import what was written while they ran")
            return None
        spec = importlib.machinery.ModuleSpec(name, self, is_package=self.modules[name])
        if spec.submodule_search_locations is not None:
            below = name.replace(".", "/")
            spec.submodule_search_locations += [f"{root}/{below}" for root in self.roots]
        return spec

    def create_module(self, spec: Any) -> Module:
        """Import it over there."""
        found: Module = self.session.ask("import", spec.name, label=spec.name)
        return found

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is left to do."""


class Live(Session):
    """Requests go to the process of the reference."""

    def __init__(self, shared: Mapping[str, type], locked: Collection[str], replies: BinaryIO, requests: int) -> None:
        super().__init__(shared, locked)
        self.replies, self.send = replies, writer(requests)

    def exchange(self, message: Message) -> Message:
        """Send it, and write the reply down."""
        if len(self.calls) >= MAX_CALLS:
            raise self.aborted(f"the tests make more than {MAX_CALLS} calls")
        try:
            self.send(message)
            reply = receive(self.replies)
        except (OSError, EOFError, ValueError):
            raise self.aborted("the code under test ended its process") from None
        if reply.get("raised") and reply["table"][:1] and "TooLarge" in reply["table"][0][2:3]:
            raise self.aborted(f"the code under test gives what cannot be recorded: {reply['raised']}")
        self.calls.append([message, reply])
        return reply


class Replayed(Session):
    """Replies are those of a candidate, by part and in order."""

    def __init__(self, shared: Mapping[str, type], locked: Collection[str], calls: list[list[Any]]) -> None:
        super().__init__(shared, locked)
        self.given = defaultdict[int, list[list[Any]]](list)
        for message, reply in calls:
            self.given[message["part"]].append([message, reply])
        self.at = Counter[int]()

    def exchange(self, message: Message) -> Message:
        """Return what the candidate replied."""
        at, given = self.at[self.part], self.given[self.part]
        asked, reply = given[at] if at < len(given) else ({}, None)
        if any(asked.get(key) != message.get(key) for key in ASKED):
            if message["op"] == "repr":
                return {"refs": ["(an object)"], "table": []}
            self.wanted[self.part] = [at, message]
            raise self.aborted("the tests make another call than with the reference")
        self.at[self.part] += 1
        if reply is None:
            raise self.aborted("the answer did not come so far")
        found: Message = reply
        return found


class Parts(Reporter):
    """Reports the tests that are known, or all, and tells the session which one runs."""

    def __init__(self, say: Any, known: list[str], session: Session) -> None:
        super().__init__(say)
        self.known, self.session = list(known), session

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep the tests that are known."""
        if self.known:
            items[:] = [item for item in items if item.nodeid in self.known]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin the part of a test."""
        if nodeid not in self.known:
            self.known.append(nodeid)
        self.session.part = self.known.index(nodeid) + 1


def run(job: Message, channel: int, make: Callable[[dict[str, type], list[str]], Session]) -> None:
    """Run pytest in a folder of its own and report."""
    root = Path(os.environ["TMPDIR"]).resolve() / "tests"
    for path, text in job["files"].items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    os.chdir(root)
    session = make(prepare(job, str(root)), [path for path in job["files"] if path.endswith(".py")])
    say = writer(channel)
    sys.meta_path.insert(0, Finder(session, job, str(root)))
    arguments = [f"--basetemp={root}/tmp", *job["arguments"]]
    code = run_pytest(arguments, Parts(say, job["ids"], session))
    say({"end": code, "why": session.why, "calls": session.calls, "wanted": session.wanted})
