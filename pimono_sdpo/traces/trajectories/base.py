"""A run of somebody else's agent, whatever format it came in: messages, calls, results, verdict."""

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
# The action of agents that call no tool: the last fenced block of their answer.
_FENCE = re.compile(r"```[\w.-]*[ \t]*\n(?P<body>.*?)\n?```", re.DOTALL)
# A call in the text, as SWE-smith and OpenHands prompt models without calls for it.
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
    """One message of the source. `failed` is None where the source does not say it."""

    role: Role
    text: str = ""
    calls: list[Call] = field(default_factory=list)
    call_id: str = ""
    failed: bool | None = None


@dataclass(slots=True)
class Trajectory:
    """A run as its format gives it; what the format does not have is None.

    An empty `run_id` is replaced by the name of the file, with the number of the run where a file
    holds several. `passed` is the verdict of the task's own tests, or a score of at least 1.
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
        """Leave out what has another type than it should; the messages are what matters."""
        for name in ("model", "test_output", "patch", "error"):
            if not isinstance(getattr(self, name), str):
                setattr(self, name, None)
        for name in ("prompt_tokens", "completion_tokens", "cost"):
            if type(getattr(self, name)) not in {int, float}:
                setattr(self, name, None)
        self.tools = self.tools if isinstance(self.tools, list) else []


class FormatError(ValueError):
    """Why a record is not a run of its format, as a clause."""


@dataclass(frozen=True)
class Format:
    """A format of files: how one is recognised, how a file is divided into records, and one is read."""

    name: str
    about: str
    recognises: Callable[[Path], bool]
    read: Callable[[Any], Trajectory]
    divide: Callable[[Path], Iterable[Any]] = lambda file: [file]
    count: Callable[[Path], int] = lambda file: 1

    def read_runs(self, file: Path) -> Iterator[Trajectory | str]:
        """Yield each run of a file, or a sentence that says why it cannot be read."""
        for record in self.divide(file):
            try:
                yield self.read(record)
            except FormatError as problem:
                yield f"{file.name}: {problem}"
            except (AttributeError, LookupError, TypeError, ValueError):
                yield f"{file.name}: a value has another type than in its format"


def read_json(file: Path) -> Any:
    """Return the JSON in a file; raises FormatError if there is none."""
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
    """Drop the nulls that parquet fills in where structs differ."""
    if isinstance(value, dict):
        return {key: drop_nulls(one) for key, one in value.items() if one is not None}
    return [drop_nulls(one) for one in value] if isinstance(value, list) else value


def read_code(text: str) -> bool | None:
    """Return whether a command failed by the exit code that mini-swe-agent puts into results."""
    code = _CODE.search(text) if "<returncode>" in text else None
    return code[1] != "0" if code else None


def pair_results(messages: Sequence[Message]) -> None:
    """Give each call its result, and both an id that no other call of the run has.

    A result belongs to the latest call with its id, and one without an id to the first call that
    waits for a result.
    """
    waiting: dict[str, Call] = {}
    taken: set[str] = set()
    for number, message in enumerate(messages):
        if message.calls:
            new = {call.id: call for call in message.calls}
            waiting = new | waiting | new
            for call in message.calls:
                call.id = f"{call.id}-{number}" if call.id in taken else call.id
                taken.add(call.id)
        elif message.role == "tool":
            found = waiting.pop(message.call_id or next(iter(waiting), ""), None)
            if found is not None:
                found.result, message.call_id = message, found.id


def join_text(content: Any) -> str:
    """Return the text of a content: a string, or a list of parts, whose pictures are left out."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return "\n".join(text for text in texts if isinstance(text, str))


def call_written(messages: Sequence[Message]) -> None:
    """Turn what answers call in their text into calls, and what follows into their results."""
    for message in messages:
        if message.role != "assistant" or message.calls:
            continue
        if found := _FUNCTION.search(message.text):
            values = {one["name"]: one["value"].strip("\n") for one in _PARAMETER.finditer(found["body"])}
            message.calls = [Call("", found["name"], values)]
        elif blocks := [*_FENCE.finditer(message.text)]:
            found = blocks[-1]
            message.calls = [Call("", "bash", {"command": found["body"]})]
        if found:
            message.text = message.text[: found.start()].strip()
    take_results(messages)


def take_results(messages: Sequence[Message]) -> None:
    """Give calls without an id one, and make the user's messages that follow their results."""
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
    """Return a verdict from a flag, a 0 or 1, a score or a word; None if there is none.

    >>> to_verdict(1), to_verdict("I"), to_verdict(0.5), to_verdict(None)
    (True, False, False, None)
    """
    if isinstance(value, int | float):
        return value >= 1
    words = {"C": True, "I": False, "P": False, "N": False, "true": True, "false": False}
    return words.get(value) if isinstance(value, str) else None
