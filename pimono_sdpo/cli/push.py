"""Push finished rows to the Hub as a dataset, private if new, in one commit."""

from pathlib import Path
from typing import Annotated

import typer

from pimono_sdpo.cli.shared import CreatePr, Public, Revision
from pimono_sdpo.commands.push import run_push


def push_command(
    folder: Annotated[Path, typer.Argument(help="Folder that `filter` or `merge` wrote.")],
    name: Annotated[str, typer.Argument(help="Dataset to push it to: ns/name.")],
    public: Public = False,
    revision: Revision = None,
    create_pr: CreatePr = False,
) -> None:
    """Put finished rows on the Hub as a dataset, private if new, in one commit."""
    from pimono_sdpo.push import target_of

    typer.echo(run_push(folder, target_of(name, public, revision, create_pr)))
