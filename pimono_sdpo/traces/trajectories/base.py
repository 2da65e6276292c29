"""The common form of a run of another agent: messages, calls, results, verdict; and helpers to read one."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from pimono_sdpo.traces.events import decode_json

Json = dict[str, Any]
Role = Literal["system", "user", "assistant", "tool"]
ROLES: dict[object, Role] = {
    "system": "system", "developer": "system", "user": "user", "human": "user",
    "assistant": "assistant", "ai": "assistant", "gpt": "assistant", "agent": "assistant",
    "tool": "tool", "function": "tool",
}  # fmt: skip
BASH_TOOL: Json = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a bash command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
# The action of agents without tool calls: the last fenced block of their answer.
_FENCE = re.compile(r"```[\w.-]*[ \t]*\n(?P<body>.*?)\n?```", re.DOTALL)
# A call in the text, which SWE-smith and OpenHands ask for if a model has no tool calls.
_FUNCTION = re.compile(r"<function=(?P<name>[^>\s]+)>(?P<body>.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=(?P<name>[^>\s]+)>(?P<value>.*?)</parameter>", re.DOTALL)
_CODE = re.compile(r"<returncode>(-?\d+)</returncode>")


@dataclass(slots=True)
class Call:
    """A call of a tool, and its result once `pair_results` has found it."""

    id: str
    name: str
    arguments: Any
    result: "Message | None" = None


@dataclass(slots=True)
class Message:
    """One message of the source; `failed` is None if the source does not say.

    An answer that is not `learned` is context only, as a turn of the user: no model wrote it, or it is a copy.
    """

    role: Role
    text: str = ""
    calls: list[Call] = field(default_factory=list)
    call_id: str = ""
    failed: bool | None = None
    learned: bool = True


@dataclass(slots=True)
class Trajectory:
    """A run; fields that its format does not have are None.

    An empty `run_id` is replaced by the name of the file, with the number of the run if the file
    contains several. `passed` is the verdict of the task's own tests, or a score of at least 1.
    """

    task_id: str
    messages: list[Message]
    run_id: str = ""
    tools: list[Json] = field(default_factory=list)
    model: str | None = None
    passed: bool | None = None
    test_output: str | None = None
    patch: str | None = None
    ended: str = "final"
    error: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        """Replace values of unexpected types by None; only the messages are essential."""
        for name in ("model", "test_output", "patch", "error"):
            if not isinstance(getattr(self, name), str):
                setattr(self, name, None)
        for name in ("prompt_tokens", "completion_tokens", "cost"):
            if type(getattr(self, name)) not in {int, float}:
                setattr(self, name, None)
        self.tools = self.tools if isinstance(self.tools, list) else []


class FormatError(ValueError):
    """A record is not a run of its format; the message is a clause that says why."""


@dataclass(frozen=True)
class Format:
    """A file format: how a file is recognised and divided into records, and how a record is read."""

    name: str
    about: str
    recognises: Callable[[Path], bool]
    read: Callable[[Any], Trajectory]
    divide: Callable[[Path], Iterable[Any]] = lambda file: [file]
    count: Callable[[Path], int] = lambda file: 1
    # The files that continue the run of a file, which are read with it.
    continuations: Callable[[Path], Iterable[Path]] = lambda file: ()

    def read_runs(self, file: Path) -> Iterator[Trajectory | str]:
        """Yield each run of a file, or a message that says why it cannot be read."""
        for record in self.divide(file):
            try:
                yield self.read(record)
            except FormatError as problem:
                yield f"{file.name}: {problem}"
            except (AttributeError, LookupError, TypeError, ValueError):
                yield f"{file.name}: a value has an unexpected type"


def read_json(file: Path) -> Any:
    """Return the JSON of a file; raises FormatError if the file or its JSON cannot be read."""
    try:
        return msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise FormatError(f"it cannot be opened ({error.strerror})") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise FormatError("it is not JSON in UTF-8") from error


def read_message(message: Json) -> Message:
    """Read a message in OpenAI's form; raises FormatError for an unknown role."""
    role = ROLES.get(message.get("role"))
    if role is None:
        raise FormatError(f"a message has the role {message.get('role')!r}")
    text = message.get("content")
    text = join_text(message.get("text") if text is None else text)
    calls = [read_call(call, at) for at, call in enumerate(message.get("tool_calls") or ())]
    ids = [message.get("tool_call_id"), *(message.get("tool_call_ids") or ())] if role == "tool" else []
    return Message(role, text, calls, str(next(filter(None, ids), "")))


def read_call(call: Json, at: int = 0) -> Call:
    """Read a call in OpenAI's form; raises FormatError for one without a name."""
    function = call.get("function") or call
    if not isinstance(function, dict):
        function = {**call, "name": function}
    name = function.get("name")
    if not isinstance(name, str):
        raise FormatError("a call has no name")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = decode_json(arguments) if arguments.strip() else {}
    else:
        arguments = drop_nulls(arguments)
    return Call(str(call.get("id") or f"call_{at}"), name, arguments)


def drop_nulls(value: Any) -> Any:
    """Drop the nulls that parquet adds where structs differ."""
    if isinstance(value, dict):
        return {key: drop_nulls(one) for key, one in value.items() if one is not None}
    return [drop_nulls(one) for one in value] if isinstance(value, list) else value


def read_code(text: str) -> bool | None:
    """Return whether a command failed, by the exit code that mini-swe-agent adds to results; None without one."""
    code = _CODE.search(text)
    return code[1] != "0" if code else None


def pair_results(messages: Sequence[Message]) -> None:
    """Set the result of each call, and give both an id that is unique in the run.

    A result belongs to the latest call with its id; without an id, it belongs to the first call
    that has no result yet.
    """
    pending: dict[str, Call] = {}
    used: set[str] = set()
    for number, message in enumerate(messages):
        if message.calls:
            new = {call.id: call for call in message.calls}
            pending = new | pending | new
            for call in message.calls:
                call.id = f"{call.id}-{number}" if call.id in used else call.id
                used.add(call.id)
        elif message.role == "tool":
            answered = pending.pop(message.call_id or next(iter(pending), ""), None)
            if answered is not None:
                answered.result, message.call_id = message, answered.id


def join_text(content: Any) -> str:
    """Return the text of a message's content: a string, or a list of parts without its images."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "\n".join(text for text in texts if isinstance(text, str))


def call_written(messages: Sequence[Message]) -> None:
    """Turn calls in the text of answers into tool calls, and the messages after them into their results."""
    for message in messages:
        if message.role != "assistant" or message.calls:
            continue
        if match := _FUNCTION.search(message.text):
            values = {one["name"]: one["value"].strip("\n") for one in _PARAMETER.finditer(match["body"])}
            message.calls = [Call("", match["name"], values)]
        elif blocks := [*_FENCE.finditer(message.text)]:
            match = blocks[-1]
            message.calls = [Call("", "bash", {"command": match["body"]})]
        if match:
            message.text = message.text[: match.start()].strip()
    take_results(messages)


def take_results(messages: Sequence[Message]) -> None:
    """Give each call without an id one, and turn the user message after it into its result."""
    open_call = ""
    for number, message in enumerate(messages):
        if message.role == "assistant":
            open_call = ""
            for call in message.calls:
                if not call.id:
                    call.id = open_call = f"call_{number}"
        elif message.role == "user" and open_call:
            message.role, message.call_id, open_call = "tool", open_call, ""


def to_verdict(value: Any) -> bool | None:
    """Return whether a flag, a score or a word of Inspect means that a run passed; None for anything else.

    >>> to_verdict(1), to_verdict("I"), to_verdict(0.5), to_verdict(None)
    (True, False, False, None)
    """
    if isinstance(value, int | float):
        return value >= 1
    words = {"C": True, "I": False, "P": False, "N": False, "true": True, "false": False}
    return words.get(value) if isinstance(value, str) else None
