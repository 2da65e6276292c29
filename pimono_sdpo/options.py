"""Options as dataclasses: a field holds the type, default and help of an option, once.

`--help`, the report of a run, the key by which a run is resumed and the documentation are made from
the fields; see `pimono_sdpo.cli` for how to add one.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Literal, TypeVar, cast, dataclass_transform

from pimono_sdpo.errors import OutputError

T = TypeVar("T")
# `row`: decides what becomes of each row by itself, so finished shards are made again when it
# changes. `output`: decides which rows are kept or how they are described.
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
) -> Any:
    """Declare an option; one without a default is required.

    `flag` is its spelling where that differs from the field's name, `share` whether `check_shares`
    checks it, `shown` what the help says of a default that is only known later.
    """
    about = {"help": help, "decides": decides, "flag": flag, "minimum": minimum, "shown": shown}
    about |= {"share": share}
    return field(default=default, default_factory=default_factory, metadata=about)


def argument(help: str, *, default: Any = MISSING, shown: str | None = None, passes_options: bool = False) -> Any:
    """Declare a positional argument; a list that `passes_options` also gets unknown options."""
    about = {"help": help, "argument": True, "shown": shown, "passes_options": passes_options}
    return field(default=default, metadata=about)


def same_option(of: type, name: str, *, flag: str | None = None, default: Any = MISSING) -> Any:
    """Declare an option as another class does, with another spelling or default."""
    other = next(one for one in fields(of) if one.name == name)
    about = {"minimum": None, **other.metadata, "argument": False, "flag": flag}
    return field(default=other.default if default is MISSING else default, metadata=about)


@dataclass_transform(kw_only_default=True, field_specifiers=(option, argument, same_option))
def options(cls: type[T]) -> type[T]:
    """Make a class a dataclass of options."""
    return dataclass(kw_only=True)(cls)


def report_options(given: Any) -> dict[str, Any]:
    """Return the options that decide the result, as they stand in the report."""
    return {one.name: getattr(given, one.name) for one in _deciding(given, "row", "output")}


def resume_key(given: Any) -> dict[str, Any]:
    """Return the options that decide each row by itself: a run is resumed when they are equal."""
    return {one.name: getattr(given, one.name) for one in _deciding(given, "row")}


def changed(given: Any, decides: Decides) -> list[str]:
    """Return the flags of the options of a kind that differ from their defaults."""
    deciding = _deciding(given, decides)
    return [
        flag_of(one)
        for one in deciding
        # A list has a factory; it is empty by default.
        if getattr(given, one.name) != ([] if one.default is MISSING else one.default)
    ]


def flag_of(one: "Field[Any]") -> str:
    """Return how an option is spelled on the command line."""
    return cast(str, one.metadata["flag"]) or "--" + one.name.replace("_", "-")


def _deciding(given: Any, *kinds: Decides) -> Sequence["Field[Any]"]:
    return [one for one in fields(given) if one.metadata.get("decides") in kinds]


def check_shares(given: Any) -> None:
    """Raise OutputError for an option that is a share or a chance and not between 0 and 1."""
    for one in fields(given):
        value = getattr(given, one.name)
        if one.metadata.get("share") and not 0.0 <= value <= 1.0:
            raise OutputError(f"{flag_of(one)} {value:g} is not between 0 and 1.")
