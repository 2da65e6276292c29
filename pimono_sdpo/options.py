"""Declare the options of a command as fields of a dataclass, with type, default and help.

`--help`, the report of a run, its resume key and the documentation are generated from the fields;
see `pimono_sdpo.cli` for how to add one.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from math import isfinite
from typing import Any, Literal, TypeVar, cast, dataclass_transform, get_args, get_origin, get_type_hints

from pimono_sdpo.errors import OutputError

T = TypeVar("T")
# `row`: the option affects each row by itself, so finished shards are made again when it changes.
# `output`: it affects only which rows are kept or how they are described.
Decides = Literal["row", "output"]


def option(
    help: str,
    *,
    default: Any = MISSING,
    default_factory: Callable[[], Any] | Any = MISSING,
    decides: Decides | None = None,
    flag: str | None = None,
    minimum: float | None = None,
    share: bool = False,
    shown: str | None = None,
    gives_defaults: bool = False,
) -> Any:
    """Declare an option; one without a default is required.

    `flag` is its spelling if that differs from the field's name; with `share`, it is from 0 to 1; `shown` is the
    default that the help shows. One that `gives_defaults` is a YAML file with the values of options that are not
    given otherwise.
    """
    metadata = {"help": help, "decides": decides, "flag": flag, "minimum": minimum, "share": share, "shown": shown}
    metadata["gives_defaults"] = gives_defaults
    return field(default=default, default_factory=default_factory, metadata=metadata)


def argument(help: str, *, default: Any = MISSING, shown: str | None = None, passes_options: bool = False) -> Any:
    """Declare a positional argument; a list that `passes_options` also gets unknown options."""
    metadata = {"help": help, "argument": True, "shown": shown, "passes_options": passes_options}
    return field(default=default, metadata=metadata)


def same_option(of: type, name: str, *, flag: str | None = None, default: Any = MISSING) -> Any:
    """Declare the same option as another class, optionally with another spelling or default."""
    other = next(one for one in fields(of) if one.name == name)
    metadata = {"minimum": None, **other.metadata, "argument": False, "flag": flag}
    return field(default=other.default if default is MISSING else default, metadata=metadata)


@dataclass_transform(kw_only_default=True, field_specifiers=(option, argument, same_option))
def options(cls: type[T]) -> type[T]:
    """Make a class a dataclass of options."""
    return dataclass(kw_only=True)(cls)


def report_options(values: Any) -> dict[str, Any]:
    """Return the options that affect the result, for the report."""
    return {one.name: getattr(values, one.name) for one in _deciding(values, "row", "output")}


def resume_key(values: Any) -> dict[str, Any]:
    """Return the options that affect each row; a run is resumed if they are equal."""
    return {one.name: getattr(values, one.name) for one in _deciding(values, "row")}


def flag_of(one: "Field[Any]") -> str:
    """Return the spelling of an option on the command line."""
    return cast(str, one.metadata["flag"]) or "--" + one.name.replace("_", "-")


def _deciding(values: Any, *kinds: Decides) -> Sequence["Field[Any]"]:
    return [one for one in fields(values) if one.metadata.get("decides") in kinds]


def check_values(values: Any) -> None:
    """Raise OutputError for a value that is not among the choices of its option, or not within its limits."""
    kinds = get_type_hints(type(values))
    for one in fields(values):
        value, kind = getattr(values, one.name), kinds[one.name]
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise OutputError(f"{flag_of(one)} is {value!r}; use one of {', '.join(get_args(kind))}.")
        if value is None or not {int, float}.intersection((kind, *get_args(kind))):
            continue
        least, most = (0, 1) if one.metadata.get("share") else (one.metadata.get("minimum"), None)
        is_number = isinstance(value, int | float) and isfinite(value)
        if not is_number or (least is not None and value < least) or (most is not None and value > most):
            limits = [f" {word} {limit}" for word, limit in (("from", least), ("to", most)) if limit is not None]
            raise OutputError(f"{flag_of(one)} is {value!r}; use a finite number{''.join(limits)}.")
