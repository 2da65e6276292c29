"""Push finished rows to the Hub in one commit; a new dataset is private.

pimono-sdpo push rows/ ns/name
"""

from pathlib import Path

import typer

from pimono_sdpo.options import argument, options
from pimono_sdpo.push import push_folder
from pimono_sdpo.push_options import PushOptions


@options
class PushCommandOptions(PushOptions):
    """Options of `push`."""

    folder: Path = argument("Folder that `filter`, `steps` or `pairs` wrote.")
    name: str = argument("Dataset to push it to: ns/name.")


def run(options: PushCommandOptions) -> None:
    """Push the folder."""
    typer.echo(push_folder(options.folder, options.name, options))
