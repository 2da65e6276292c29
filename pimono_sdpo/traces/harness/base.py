"""The `Harness` object: all that this project knows about one harness, filled in by each reader.

A new harness is one file here with a `HARNESS`, and one line in `HARNESSES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class FileTools:
    """How a harness shows and edits files, as far as replay has to know.

    Events call these tools `read`, `edit`, `write` and `bash`, whatever their recorded names are.

    edit           the arguments that hold the old and the new text of an edit, if there are any
    read_only      a pattern for the names of further tools that change no file
    numbers_lines  a read shows each line behind its number
    max_lines      a read stops after so many lines without saying so
    reads_first    an edit of a file is refused until it was read, and again after a compaction
    trims_output   the output of commands is shortened without saying so
    """

    edit: tuple[str, str] | None = None
    read_only: str = ""
    numbers_lines: bool = True
    max_lines: int | None = 2000
    reads_first: bool = True
    trims_output: bool = True


@dataclass(frozen=True)
class Harness:
    """One harness: how its sessions are recognised and read, and what its tools are.

    name         how rows call it
    about        which sessions are read, for the documentation
    recognises   whether a JSON object is a line that only this harness writes
    read_header  session id and working directory; like `read`, from what `decoder` reads, or from
                 what `build` makes of a dict that `decoder` refuses
    read         all events of a session, in order
    sample       the lines of a short session: a request, then a command that fails
    tools        the tools that come with the harness; without them rows have no `verifier_spec`
    no_tools     why `tools` is empty
    files        how it shows and edits files
    coerces      it turns arguments into the types of the schema, such as "42" into a number
    recorder_of  the name of the harness that wrote a session, where a format serves several
    """

    name: str
    about: str
    recognises: Callable[[Entry], bool]
    read_header: Callable[[list[Any]], tuple[str, str]]
    read: Callable[[list[Any]], list[Event]]
    sample: str
    tools: Mapping[str, Tool] = field(default_factory=dict)
    no_tools: str = ""
    files: FileTools = FileTools()
    coerces: bool = False
    decoder: msgspec.json.Decoder[Any] = OBJECT
    build: Callable[[Entry], Any] = dict
    recorder_of: Callable[[list[Any]], str] | None = None


def keep_fields(names: str, **nested: Any) -> Any:
    """Return the type of a dict of which only these fields are decoded, those `nested` by a type.

    Most of a line is not read: what tools kept for themselves, histories, signatures, thoughts.
    """
    fields = {**dict.fromkeys(names.split(), Any), **nested}
    make: Any = TypedDict
    return make("Fields", fields, total=False)


def describe_object(required: str, closed: bool = False, **properties: Schema) -> Schema:
    """Return the JSON Schema of an object; `required` names properties, separated by spaces.

    >>> describe_object("path", path={"type": "string"})["required"]
    ['path']
    """
    schema: Schema = {"type": "object", "properties": properties, "required": required.split()}
    return schema | ({"additionalProperties": False} if closed else {})
