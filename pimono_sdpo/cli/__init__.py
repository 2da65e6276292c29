"""The command line: `pimono-sdpo COMMAND`.

A command is one module of this package and its name in COMMANDS (command_line.py). The module has

- a docstring: its first line says in one sentence what the command does; the rest is shown by
  `--help`, where a paragraph that begins with `pimono-sdpo ` is an example;
- `Options`, a class under `@options` with a field per option: `option(...)` or `argument(...)`
  gives it a default, its one sentence of help and, with `decides=`, its place in the report and in
  the key by which a run is resumed (see pimono_sdpo/options.py);
- `run(options)`, which reads every field.

`--help`, report, resume key and the reference in the documentation follow from these. A command of
two words, such as `suite build`, is the function `build` of the module `suite`: its docstring is the
help, the class of its argument has the options. A module is imported only when its command is used,
since importing `datasets` takes a second.
"""

from pimono_sdpo.cli.command_line import app, main, run

__all__ = ["app", "main", "run"]
