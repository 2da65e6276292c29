"""Build Typer commands from the modules of commands, run them and turn errors into exit codes."""

import gc
import inspect
import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from enum import StrEnum
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import typer
from typer.core import CompletionItem, TyperCommand, TyperGroup  # type: ignore[attr-defined]

from pimono_sdpo.errors import OutputError
from pimono_sdpo.options import flag_of
from pimono_sdpo.program import allow_cleanup, check_hub, printable_output
from pimono_sdpo.removed import refuse_removed
from pimono_sdpo.version import __version__

# The commands by heading in the help.
GROUPS = {
    "Rows and adapters": ("filter", "view", "push", "train"),
    "Rules for agents": ("lessons",),
    "Rollouts": ("rollout", "import", "steps", "pairs", "evaluate"),
    "Suites and duels": ("suite build", "suite split", "suite check", "duel"),
    "Samples": ("demo sessions", "demo model"),
    "Older names": ("prefs", "sft-extract", "eval"),
}
COMMANDS = tuple(chain.from_iterable(GROUPS.values()))
# The rows of a session are many objects without cycles; by default, garbage is collected after every 700.
GC_THRESHOLD = 50_000
STYLE: dict[str, Any] = {
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}


class CommandGroup(TyperGroup):
    """The commands whose names begin with `prefix`."""

    def __init__(self, prefix: str = "", **settings: Any) -> None:
        super().__init__(**settings)
        self.prefix = prefix
        names = [name.removeprefix(prefix).split(" ")[0] for name in COMMANDS if name.startswith(prefix)]
        commands: dict[str, Any] = dict.fromkeys(names)
        self.commands = {**commands, **self.commands}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; raises PimonoError for what was removed."""
        if args and not self.prefix:
            refuse_removed(args[0], args[1:])
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, a group of commands, or None."""
        name = self.prefix + cmd_name
        if name in COMMANDS:
            return command_of(name)
        if any(other.startswith(f"{name} ") for other in COMMANDS):
            style = {key: STYLE[key] for key in ("context_settings", "rich_markup_mode")}
            return CommandGroup(f"{name} ", name=name, no_args_is_help=True, **style)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with their summaries."""
        for heading, names in GROUPS.items():
            rows = [(name[len(self.prefix) :], summary_of(name)) for name in names if name.startswith(self.prefix)]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        """Complete options, and the names of commands without importing them."""
        names = [] if incomplete.startswith("-") else [name for name in self.commands if name.startswith(incomplete)]
        return [CompletionItem(name) for name in names] or super().shell_complete(ctx, incomplete)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; the error for a mistyped choice suggests the closest one."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            if match := re.match(r"'(.+?)' is not one of (.+)", error.message):
                choices = re.findall(r"'(.+?)'", match[2])
                if similar := get_close_matches(match[1], choices, 1):
                    error.message += f" Did you mean '{similar[0]}'?"
            raise


class Command(NamedTuple):
    """The function that runs a command, the class of its options, and its help."""

    run: Callable[[Any], None]
    options: Any
    help: str


def load(command: str) -> Command:
    """Import a command."""
    module_name, function = _find(command)
    # NumPy's threads use CPU time while they wait; only training multiplies large matrices.
    if command != "train":
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Imported objects are never freed; searching them for garbage takes a tenth of the time.
    gc.disable()
    try:
        module = import_module(f"pimono_sdpo.cli.{module_name}")
    finally:
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        gc.enable()
    run = getattr(module, function)
    help = (module if function == "run" else run).__doc__
    return Command(run, get_type_hints(run)["options"], inspect.cleandoc(help or ""))


def summary_of(command: str) -> str:
    """Read the first line of a command's help without importing its module."""
    module_name, function = _find(command)
    text = (Path(__file__).parent / f"{module_name}.py").read_text()
    start = 0 if function == "run" else text.index(f"\ndef {function}(")
    return text[start:].split('"""', 2)[1].partition("\n")[0]


def _find(command: str) -> tuple[str, str]:
    """Return the name of a command's module, and of its function there."""
    module, _, function = command.rpartition(" ")
    if command in GROUPS["Older names"]:
        return "older_names", command.replace("-", "_")
    return (module, function) if module else (command, "run")


def command_of(name: str) -> Any:
    """Build a Typer command whose options are the fields of the command's class of options."""
    command = load(name)

    def call(**values: Any) -> None:
        allow_cleanup()
        check_hub()
        # Libraries format what they print about a training.
        with nullcontext() if name == "train" else printable_output():
            command.run(command.options(**values))

    types = get_type_hints(command.options)
    parameters = [_build_parameter(one, types[one.name]) for one in fields(command.options)]
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        sorted(parameters, key=lambda one: one.default is not inspect.Parameter.empty)
    )
    # Click does not rewrap a paragraph that begins with this mark.
    help = re.sub(r"\n\n(?= *(?:pimono-sdpo |- ))", "\n\n\b\n", command.help)
    passes_options = any(one.metadata.get("passes_options") for one in fields(command.options))
    settings = {**STYLE["context_settings"], "ignore_unknown_options": passes_options}
    if any(one.metadata.get("gives_defaults") for one in fields(command.options)):
        settings["auto_envvar_prefix"] = f"PIMONO_{name.upper()}"
    single = typer.Typer(**STYLE)
    single.command(name.split(" ")[-1], cls=_Command, help=help, context_settings=settings)(call)
    return typer.main.get_command(single)


class _Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep a negative value with its option; Click takes `-1h` for two options, of which one is -h."""
        joined: list[str] = []
        for arg in args:
            if joined and re.fullmatch(r"--[^=]+", joined[-1]) and re.match(r"-\.?\d", arg):
                joined[-1] += f"={arg}"
            else:
                joined.append(arg)
        return super().parse_args(ctx, joined)


def _read_defaults(context: typer.Context, file: Path | None) -> Path | None:
    """Read the options that are not given otherwise from a YAML file."""
    if file is None:
        return file
    import yaml

    try:
        found = yaml.safe_load(file.read_text("utf-8"))
    except OSError as error:
        raise OutputError(f"`{file}` cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise OutputError(
            f"`{file}` cannot be read as YAML; write one option a line, such as `min_score: 2`."
        ) from error
    values = {str(name).replace("-", "_"): value for name, value in found.items()} if isinstance(found, dict) else {}
    if not values or (unknown := values.keys() - {parameter.name for parameter in context.command.params}):
        what = f"`{min(unknown)}`, which is not an option of this command" if values else "no options"
        raise OutputError(f"`{file}` has {what}; write one option a line, such as `min_score: 2`.")
    if "judge_provider" in values:
        raise OutputError(
            f"`{file}` has `judge_provider`, which decides who gets texts and a key; give it on the command line."
        )
    context.default_map = values
    return file


def _build_parameter(field: "Field[Any]", type_: Any) -> inspect.Parameter:
    """Convert a field to a parameter for Typer."""
    metadata, default = field.metadata, field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    settings: dict[str, Any] = {"help": metadata["help"]}
    settings["show_default"] = metadata.get("shown") or default not in ([], None, MISSING)
    inner = get_args(type_)[0] if get_origin(type_) is list else None
    if get_origin(inner) is Literal:
        # Typer accepts a list of an enumeration, but not of a Literal.
        type_ = list[StrEnum("Choice", {name: name for name in get_args(inner)})]  # type: ignore[misc]
    elif inner is not None and not metadata.get("argument"):
        settings["metavar"] = "<str>"
    if metadata.get("argument"):
        info: Any = typer.Argument(**settings)
    else:
        # With explicit flags, Typer does not add --no-... to a flag that is off.
        flags = [flag_of(field)] if metadata["flag"] or default is False else []
        if metadata.get("gives_defaults"):
            flags, settings = ["-c", *flags], {**settings, "is_eager": True, "callback": _read_defaults}
        info = typer.Option(*flags, min=metadata["minimum"], **settings)
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[type_, info],
    )


app = typer.Typer(cls=CommandGroup, no_args_is_help=True, **{**STYLE, "add_completion": True})


@app.callback(invoke_without_command=True)
def front(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Turn recorded coding-agent sessions and rollouts into training rows."""
    if version:
        typer.echo(__version__)
        raise typer.Exit
