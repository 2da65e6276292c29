"""Write the reference of all commands as Markdown: `python -m pimono_sdpo.cli.reference`."""

import inspect
import sys
import textwrap
from dataclasses import MISSING, Field, fields
from typing import Any, get_type_hints

from pimono_sdpo.cli.command_line import COMMANDS, choices_of, module_of
from pimono_sdpo.options import flag_of


def reference() -> str:
    """Return a section for each command: what it does, examples, arguments and options."""
    return "\n".join(section(name) for name in COMMANDS)


def section(command: str) -> str:
    """Return the section of one command."""
    module = module_of(command)
    return (
        f"## `{command}`\n\n{_with_code_blocks(inspect.cleandoc(module.__doc__ or ''))}\n\n"
        f"{options_table(module.Options)}\n"
    )


def options_table(options: Any) -> str:
    """Return a Markdown table of the fields of a class of options."""
    types = get_type_hints(options)
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for field in sorted(fields(options), key=lambda one: not one.metadata.get("argument")):
        values = "\\|".join(choices_of(types[field.name]))
        name = f"`{_spelling(field)}`" + (f" {values}" if values else "")
        lines.append(f"| {name} | {_default(field)} | {field.metadata['help']} |")
    return "\n".join(lines)


def _spelling(field: "Field[Any]") -> str:
    if field.metadata.get("argument"):
        return field.name.upper()
    flag = flag_of(field)
    return f"{flag}/--no-{flag[2:]}" if field.default is True else flag


def _default(field: "Field[Any]") -> str:
    if field.metadata.get("shown"):
        return str(field.metadata["shown"])
    if field.default is MISSING and field.default_factory is MISSING:
        return "required"
    if field.default is None or field.default is False or field.default is MISSING:
        return ""
    return "on" if field.default is True else f"`{field.default}`"


def _with_code_blocks(text: str) -> str:
    """Fence the examples of a docstring."""
    parts = []
    for part in text.split("\n\n"):
        is_example = part.lstrip().startswith("pimono-sdpo ")
        parts.append(f"```sh\n{textwrap.dedent(part).strip()}\n```" if is_example else part)
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(reference())
