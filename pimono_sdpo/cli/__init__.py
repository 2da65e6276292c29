"""The command line: `pimono-sdpo COMMAND`.

A command is a module of this package and its name in GROUPS (command_line.py): a docstring, which is the help and
where a paragraph that begins with `pimono-sdpo ` is an example; a class under `@options` with a field per option
(pimono_sdpo/options.py); and `run(options)`. A command of two words, such as `suite build`, is the function `build`
of the module `suite`, with its help as docstring. A module is imported only when its command is used, since
importing `datasets` takes a second.
"""

from pimono_sdpo.cli.command_line import app, main, run

__all__ = ["app", "main", "run"]
