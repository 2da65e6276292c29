"""The command line `pimono-sdpo COMMAND`, with one module per command.

To add a command, write a module here and add its name to GROUPS in command_line.py. The module has a docstring,
which is the help (paragraphs that begin with `pimono-sdpo ` are examples), a class under `@options` with a field for
each option (pimono_sdpo/options.py), and a function `run(options)`. A command of two words, such as `suite build`, is
the function `build` of the module `suite`, with the help in its docstring. A module is imported only when its command
is used, since importing `datasets` takes a second.
"""

from pimono_sdpo.__main__ import main as main

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pimono_sdpo.cli.command_line import app as app


def __getattr__(name: str) -> object:
    """Import the Typer app on first use, since `main` must handle Ctrl-C before that."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pimono_sdpo.cli.command_line import app

    return app
