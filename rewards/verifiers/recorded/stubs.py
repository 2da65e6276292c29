"""Run pytest on stubs of the answer's modules, which send every operation to another process.

Whatever the tests do with the answer is a request, and the reply is a value, or a stub for an object
of the answer. In the mode `record`, requests go to the process of the reference and are recorded with
their replies. In the mode `check`, replies are those that a candidate gave to the recorded requests:
the tests check them, and nothing of the candidate is in this process. A request that was not recorded
ends the test and is reported. Runs in the sandbox.
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

from rewards.verifiers.channel import make_writer
from rewards.verifiers.pytest_worker import Reporter, run_pytest
from rewards.verifiers.recorded.values import (
    BINARY,
    MUTABLE,
    OPERATORS,
    REQUEST_KEYS,
    Decoder,
    Encoder,
    Folder,
    Row,
    TooLarge,
    is_from_library,
    prepare_imports,
    read_message,
    take_snapshot,
)

MAX_CALLS = 3000
FIXED = (str, bytes, int, float, complex, tuple, frozenset)
Message = dict[str, Any]


class Aborted(BaseException):
    """The test cannot continue; a BaseException, so that tests do not catch it."""


class Session:
    """The requests and replies of a whole run."""

    def __init__(self, shared: Mapping[str, type], locked: Collection[str]) -> None:
        self.shared = shared
        self.part = 0
        self.stubs: dict[str, Any] = {}
        self.why: dict[int, str] = {}
        self.counts: dict[int, int] = {}
        # Immutable results by id, and references to them so that no id is used again.
        self.results: dict[int, Row] = {}
        self._references: list[Any] = []
        # Containers that are attributes of objects: owner, attribute, the tests' copy, its content.
        self.containers: dict[tuple[str, str], list[Any]] = {}
        self.folder = Folder(locked)
        # Reported at the end.
        self.calls: list[list[Any]] = []
        self.wanted: dict[int, list[Any]] = {}

    def exchange(self, message: Message) -> Message:
        """Return the reply to a request."""
        raise NotImplementedError

    def abort(self, why: str) -> Aborted:
        """Record why this test cannot continue; return the exception to raise."""
        self.why.setdefault(self.part, why)
        return Aborted(why)

    def request(self, op: str, *arguments: Any, label: str = "") -> Any:
        """Have the other process perform an operation; return its result or raise its exception."""
        if self.part in self.why:
            raise Aborted(self.why[self.part])
        self._write_back()
        self.encoder = Encoder(self._export, self.shared, results=self.results)
        number = self.counts[self.part] = self.counts.get(self.part, -1) + 1
        try:
            message: Message = {"op": op, "name": f"{op} {label}".strip(), "refs": self.encoder.encode(arguments)}
            message |= {"table": self.encoder.table, "part": self.part}
            if files := self.folder.changes():
                message["files"] = files
        except TooLarge as error:
            raise self.abort(str(error)) from None
        sent = self.encoder.objects
        reply = self.exchange(message)
        if op == "call":
            self.containers = {}  # the call may have changed them in the other process
        if "crash" in reply:
            raise self.abort(reply["crash"])
        sys.stdout.write(str(reply.get("printed", "")))
        try:
            self.folder.apply(reply.get("files", {}))
            decoder = Decoder(reply["table"], self._load, self.shared, sent, mutate=not reply.get("fixed"))
            values = decoder.decode(reply["refs"])
        except Exception as error:  # the answer may forge a reply
            raise self.abort(f"the answer returns something that cannot be read ({type(error).__name__})") from None
        if "raised" in reply:
            if not _is_exception(values[0]):
                raise self.abort("the answer raises something that is not an exception")
            raise _make_exception(values[0], values[1], values[2], reply["raised"])
        self._remember(values[0], number)
        return _make_awaitable(values[0]) if reply.get("awaited") else values[0]

    def get_attribute(self, stub: Any, name: str) -> Any:
        """Request an attribute; raise AttributeError for names that only pytest and Python look up."""
        if name == "__name__" and isinstance(stub, Function):
            return vars(stub)["_label"]
        if name.startswith(("__", "_pytest", "pytest")) or name == "_session":
            raise AttributeError(name)
        value = self.request("getattr", stub, name, label=name)
        if isinstance(value, Class):
            type.__setattr__(value, "_label", name)
        elif isinstance(value, Function):
            vars(value)["_label"] = name
        elif type(value) in MUTABLE.values():  # the tests may change it
            self.containers[vars(stub)["_key"], name] = [stub, name, value, take_snapshot([value], self.shared)]
        return value

    def _write_back(self) -> None:
        """Set attributes whose containers the tests have changed."""
        for container in list(self.containers.values()):
            owner, name, value, before = container
            if (content := take_snapshot([value], self.shared)) != before:
                container[3] = content
                with contextlib.suppress(AttributeError):  # a property that returns copies
                    self.request("setattr", owner, name, value, label=name)

    def _remember(self, value: Any, number: int) -> None:
        """Send this result back by its number later, so that no recorded call contains the reference's value."""
        # Python has only one object for each of these values.
        single = (type(value) is int and -6 < value < 257) or (
            type(value) in (str, bytes, tuple, frozenset) and len(value) < 2
        )
        if type(value) in FIXED and not single:
            self.results[id(value)] = ["result", f"{self.part}.{number}"]
            self._references.append(value)

    def _export(self, value: Any) -> Row:
        if isinstance(value, Remote) or isinstance(type(value), Class):
            if key := vars(value).get("_key"):
                return ["known", key]
        elif is_from_library(value):
            return ["library", value.__module__, value.__name__]
        if isinstance(value, BaseException):
            kind = self.encoder.ref(type(value))
            return ["exception", kind, [self.encoder.ref(one) for one in value.args]]
        kind = "function" if callable(value) else type(value).__name__
        raise self.abort(f"the tests pass a {kind} of their own to the code under test")

    def _load(self, row: Row, _: object = None) -> Any:
        kind, key, *rest = row
        if kind == "opaque":
            return self.stubs.setdefault(f"opaque {key}", Opaque(self, key))
        if kind == "library":
            cls = getattr(sys.modules.get(key), rest[0], None)
            return cls if isinstance(cls, type) else Opaque(self, "")
        if key not in self.stubs:
            self.stubs[key] = self._make_stub(kind, key, rest)
        return self.stubs[key]

    def _make_stub(self, kind: str, key: str, rest: list[Any]) -> Any:
        attributes: dict[str, Any] = {"_key": key, "_session": self, "_label": rest[0]}
        if kind == "class":
            name, bases = rest
            base: type = Stub
            for row in reversed(bases):
                base = self._load(row)
                if not _is_exception(base):
                    raise ValueError(f"{name} is not an exception")
            if bases:
                attributes |= {"__getattr__": Remote.__getattr__, "__str__": _exception_text}
            return type.__new__(Class, name, (base,), attributes)
        stub: Any
        if kind == "instance":
            cls = self._load(rest[0])
            if not isinstance(cls, Class):
                cls = type.__new__(Class, cls.__name__, (Stub,), {**attributes, "_key": None})
            stub, attributes["_label"] = _make_instance(cls), "an object"
        else:
            stub = Module(str(rest[0])) if kind == "module" else Function()
        vars(stub).update(attributes)
        return stub


def _is_exception(kind: Any) -> bool:
    return isinstance(kind, type) and BaseException in type.mro(kind)


def _exception_text(self: BaseException) -> str:
    return str(vars(self).get("_text", ", ".join(map(str, self.args))))


def _make_instance(kind: type) -> Any:
    """Return an instance without calling the answer."""
    return BaseException.__new__(kind) if issubclass(kind, BaseException) else object.__new__(kind)


def _make_exception(kind: type[BaseException], args: Any, state: dict[str, Any], text: str) -> BaseException:
    exception: BaseException
    if isinstance(kind, Class):
        exception = _make_instance(kind)
        vars(exception).update(state, _text=text)
    else:
        try:
            exception = kind(*args)
        except Exception:
            exception = kind.__new__(kind)
    exception.args = tuple(args)
    return exception


async def _make_awaitable(value: Any) -> Any:
    return value


class Remote:
    """A proxy of something in the answer's process, which performs every operation on it."""

    _session: Any
    _label: str

    def __getattr__(self, name: str) -> Any:
        return self._session.get_attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._session.request("setattr", self, name, value, label=name)

    def __delattr__(self, name: str) -> None:
        self._session.request("delattr", self, name, label=name)


class Function(Remote):
    """A function or a method of the answer."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in the answer's process."""
        return self._session.request("call", self, args, kwargs, label=vars(self)["_label"])


class Class(Remote, type):
    """A class of the answer."""

    __call__ = Function.__call__

    def __new__(cls, name: str, bases: tuple[Any, ...], _: dict[str, Any]) -> "Class":
        """Refuse to subclass a class of the answer."""
        raise bases[0]._session.abort(f"the tests derive {name} from a class of the code under test")

    def __instancecheck__(self, value: Any) -> bool:
        if BaseException in type.mro(self) or not isinstance(type(value), Class):
            return type.__instancecheck__(self, value)
        return bool(self._session.request("isinstance", value, self))

    def __subclasscheck__(self, kind: type) -> bool:
        if not isinstance(kind, Class) or BaseException in type.mro(self):
            return type.__subclasscheck__(self, kind)
        return bool(kind.__dict__["_session"].request("issubclass", kind, self))


class Opaque(Remote):
    """An object of the answer where the reference returns a value; it is equal only to itself.

    It has no operators and no methods, because they could return whatever the tests expect.
    """

    def __init__(self, session: Session, key: str) -> None:
        vars(self).update(_session=session, _key=key)

    def __bool__(self) -> bool:
        return bool(self._session.request("bool", self))

    def __repr__(self) -> str:
        return "(an object of its own class)"


class Stub(Remote):
    """An object of the answer."""

    __call__ = Function.__call__

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        result = self._session.request("equal", self, other)
        # While recording, it is the whole list that `answer._compare` returns.
        return bool(result[0] and not result[1] if isinstance(result, list) else result)

    def __hash__(self) -> int:
        return 0  # equality decides

    def __repr__(self) -> str:
        return str(self._session.request("repr", self))

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        # The answer must not see the outcome of a test.
        if isinstance(error, AssertionError) or not isinstance(error, Exception | None):
            return False
        return self._session.request("exit", self, kind, error, None)

    def __reduce_ex__(self, _: Any) -> Any:
        raise self._session.abort("the tests copy or pickle an object of the code under test")


def _make_special_method(op: str, reflected: bool = False) -> Any:
    def special_method(self: Any, *arguments: Any) -> Any:
        if reflected:
            return self._session.request(op, arguments[0], self)
        result = self._session.request(op, self, *arguments)
        return iter(result) if op == "iter" and isinstance(result, list) else result

    return special_method


for _name in ("iter", "len", "getitem"):  # for enums
    setattr(Class, f"__{_name}__", _make_special_method(_name))
for _name in (*BINARY, *OPERATORS, "enter", "fspath"):
    setattr(Stub, f"__{_name.removesuffix('_')}__", _make_special_method(_name))
for _name in BINARY:
    setattr(Stub, f"__r{_name.removesuffix('_')}__", _make_special_method(_name, reflected=True))


class Module(Remote, types.ModuleType):
    """A module of the answer."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            names = self._session.request("call", self._session.request("getattr", self, "__dir__"), (), {})
            return [public for public in names if not public.startswith("_")]
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") or isinstance(value, types.ModuleType):
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)


class Finder(MetaPathFinder, Loader):
    """Imports stubs for the answer's modules; `modules` maps their names to whether they are packages.

    Other modules below the working folder can be imported only if they belong to the tests: files that
    the answer writes there must not run in this process.
    """

    def __init__(self, session: Session, job: Message, root: str) -> None:
        self.session, self.modules, self.root, self.sources = session, job["modules"], f"{root}/", job["files"]
        self.roots = [f"{root}/{one}".rstrip("/") for one in job["roots"]]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module of the answer."""
        if name not in self.modules:
            other = importlib.machinery.PathFinder.find_spec(name, path)
            origin = (other and other.origin) or ""
            if origin.startswith(self.root) and origin.removeprefix(self.root) not in self.sources:
                raise self.session.abort("the tests import a file that was written while they ran")
            return None
        spec = importlib.machinery.ModuleSpec(name, self, is_package=self.modules[name])
        if spec.submodule_search_locations is not None:
            folder = name.replace(".", "/")
            spec.submodule_search_locations += [f"{root}/{folder}" for root in self.roots]
        return spec

    def create_module(self, spec: Any) -> Module:
        """Import it in the answer's process."""
        module: Module = self.session.request("import", spec.name, label=spec.name)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing; `create_module` has imported the module."""


class LiveSession(Session):
    """Sends requests to the process of the reference and records them."""

    def __init__(self, shared: Mapping[str, type], locked: Collection[str], replies: BinaryIO, requests: int) -> None:
        super().__init__(shared, locked)
        self.replies, self.send = replies, make_writer(requests)

    def exchange(self, message: Message) -> Message:
        """Send a request and record it with its reply."""
        if len(self.calls) >= MAX_CALLS:
            raise self.abort(f"the tests make more than {MAX_CALLS} calls")
        try:
            self.send(message)
            reply = read_message(self.replies)
        except (OSError, EOFError, ValueError):
            raise self.abort("the code under test ended its process") from None
        if reply.get("raised") and reply["table"][:1] and "TooLarge" in reply["table"][0][2:3]:
            raise self.abort(f"the code under test returns something that cannot be recorded: {reply['raised']}")
        self.calls.append([message, reply])
        return reply


class ReplayedSession(Session):
    """Returns the replies of a candidate, by part and in order."""

    def __init__(self, shared: Mapping[str, type], locked: Collection[str], calls: list[list[Any]]) -> None:
        super().__init__(shared, locked)
        self.parts = defaultdict[int, list[list[Any]]](list)
        for message, reply in calls:
            self.parts[message["part"]].append([message, reply])
        self.positions = Counter[int]()

    def exchange(self, message: Message) -> Message:
        """Return the candidate's reply to the same request."""
        position, calls = self.positions[self.part], self.parts[self.part]
        request, reply = calls[position] if position < len(calls) else ({}, None)
        if any(request.get(key) != message.get(key) for key in REQUEST_KEYS):
            if message["op"] == "repr":
                return {"refs": ["(an object)"], "table": []}
            self.wanted[self.part] = [position, message]
            raise self.abort("the tests make a call that they do not make with the reference")
        self.positions[self.part] += 1
        if reply is None:
            raise self.abort("the answer ended before this call")
        return reply  # type: ignore[no-any-return]


class PartReporter(Reporter):
    """Reports the known tests, or all, and sets the part of the session to the running test."""

    def __init__(self, say: Any, known: list[str], session: Session) -> None:
        super().__init__(say)
        self.known, self.session = list(known), session

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep only the known tests."""
        if self.known:
            items[:] = [item for item in items if item.nodeid in self.known]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin the part of a test."""
        if nodeid not in self.known:
            self.known.append(nodeid)
        self.session.part = self.known.index(nodeid) + 1


def run(job: Message, channel: int, start_session: Callable[[dict[str, type], list[str]], Session]) -> None:
    """Run pytest in its own folder and report."""
    root = Path(os.environ["TMPDIR"]).resolve() / "tests"
    for path, text in job["files"].items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    os.chdir(root)
    session = start_session(prepare_imports(job, str(root)), [path for path in job["files"] if path.endswith(".py")])
    report = make_writer(channel)
    sys.meta_path.insert(0, Finder(session, job, str(root)))
    arguments = [f"--basetemp={root}/tmp", *job["arguments"]]
    code = run_pytest(arguments, PartReporter(report, job["ids"], session))
    report({"end": code, "why": session.why, "calls": session.calls, "wanted": session.wanted})
