"""The `Harness` dataclass: how one agent's sessions are recognised and read, and what its tools are.

A new harness is one file here with a `HARNESS`, and one line in `HARNESSES`.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from pimono_sdpo.traces.events import Event
from pimono_sdpo.traces.lines import OBJECT

Entry = dict[str, Any]
Schema = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """A tool and the JSON Schemas of its arguments, oldest version first."""

    description: str
    schemas: tuple[Schema, ...]

    def define(self, name: str, schema: Schema) -> Schema:
        """Return the tool in the form that chat templates take; every schema is open there."""
        parameters = {key: value for key, value in schema.items() if key != "additionalProperties"}
        function = {"name": name, "description": self.description, "parameters": deepcopy(parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class Table:
    """A table of an agent's SQLite file: its columns with the session's id, the order of rows and the time of changes.

    A row becomes a JSON object with its `name` as `table`. Of a table with a `json` column, only the columns in
    `keys` and that one, as `data`, are read; without `keys` the stored JSON is the line. `zstd` is a column with the
    compressed JSON of the rows in which `json` is null.
    """

    name: str
    session: str
    order: str
    changed: str = ""
    json: str = ""
    keys: tuple[str, ...] = ()
    zstd: str = ""


@dataclass(frozen=True)
class Store:
    """The sessions in an agent's SQLite file; the first table has all their ids, in the order they began.

    `project` is its column with the working directory. A column `agent` names the agent of each session, if the
    file holds sessions of several: those of agents with a reader of their own are left out. `lacks` says what these
    sessions do not record, for the report and the card.
    """

    tables: tuple[Table, ...]
    project: str = ""
    agent: str = ""
    lacks: str = ""


@dataclass(frozen=True)
class Harness:
    """One harness: how its sessions are recognised and read, and what its tools are.

    name         its name in rows
    about        which sessions are read, for the documentation
    recognises   whether a JSON object is a line that only this harness writes
    read_header  returns the session id and the working directory; like `read`, it gets the objects
                 from `decoder`, or from `build` for a dict that `decoder` refuses
    read         returns all events of a session, in order
    sample       the lines of a short session: a request, then a command that fails
    tools        the tools that come with the harness, by the names in its events
    edit         the arguments with the old and the new text of an edit, if there are any
    coerces      it converts arguments to the types of the schema, such as "42" to a number
    recorder_of  returns the name of the harness that wrote a session, if several write this format
    version_of   returns the version that wrote a session, "" if it does not say
    list_kinds   yields the types of entries and of the blocks in them, which `traces.drift` counts
    title        its name in messages
    word         the SOURCE that stands for the user's own sessions, "" if there are none
    homes        returns the folders or files where the agent stores them, whether they exist or not, from
                 the environment variables and the user's home folder
    store        its sessions in SQLite, whose rows are the lines that it reads
    """

    name: str
    about: str
    recognises: Callable[[Entry], bool]
    read_header: Callable[[list[Any]], tuple[str, str]]
    read: Callable[[list[Any]], list[Event]]
    sample: str
    tools: Mapping[str, Tool] = field(default_factory=dict)
    edit: tuple[str, str] | None = None
    coerces: bool = False
    decoder: msgspec.json.Decoder[Any] = OBJECT
    build: Callable[[Entry], Any] = dict
    recorder_of: Callable[[list[Any]], str] | None = None
    version_of: Callable[[list[Any]], str] = lambda objects: ""
    list_kinds: Callable[[list[Any]], Iterable[str]] = lambda objects: ()
    title: str = ""
    word: str = ""
    homes: Callable[[Mapping[str, str], Path], list[Path]] = lambda environ, home: []
    store: Store | None = None


def find_home(environ: Mapping[str, str], variable: str, default: Path) -> Path:
    """Return the folder that an environment variable names, otherwise the default one."""
    return Path(environ.get(variable) or default).expanduser()


def read_setting(file: Path, *keys: str) -> str:
    """Return a text from a settings file in JSON, "" if the file does not have it."""
    try:
        value = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError):
        # Agents also accept comments in these files; then their default applies here.
        return ""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


def keep_fields(names: str, **nested: Any) -> Any:
    """Return the type of a dict from which only these fields are decoded; `nested` gives the types of others.

    Most of a line is never decoded: private data of tools, histories, signatures, thinking.
    """
    make: Any = TypedDict
    return make("Fields", {**dict.fromkeys(names.split(), Any), **nested}, total=False)


TEXT: Schema = {"type": "string"}


def describe_arguments(required: str, texts: str, numbers: str = "", flags: str = "", **others: Schema) -> Schema:
    """Return the JSON Schema of a tool's arguments, whose names are separated by spaces.

    >>> describe_arguments("path", "path", "limit")["properties"]["limit"]
    {'type': 'number'}
    """
    kinds = {"string": texts, "boolean": flags, "number": numbers}
    properties: dict[str, Any] = {name: {"type": kind} for kind, names in kinds.items() for name in names.split()}
    return describe_object(required, **properties, **others)


def describe_list(item: Schema) -> Schema:
    """Return the JSON Schema of a list."""
    return {"type": "array", "items": item}


def describe_object(required: str, closed: bool = False, /, **properties: Schema) -> Schema:
    """Return the JSON Schema of an object; `required` names properties, separated by spaces.

    >>> describe_object("path", path={"type": "string"})["required"]
    ['path']
    """
    schema: Schema = {"type": "object", "properties": properties, "required": required.split()}
    return {**schema, "additionalProperties": False} if closed else schema
