"""Look at what was made: view, card."""

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer


def view_command(
    source: Annotated[
        str,
        typer.Argument(
            help="Folder that `filter`, `merge` or a training wrote, or ns/name on the Hub."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="HTML file to write.", show_default="NAME.html in this folder"),
    ] = None,
    traces: Annotated[
        str | None,
        typer.Option("--source", help="The traces that were filtered, where they lie now."),
    ] = None,
    rows: Annotated[int, typer.Option(help="List the best N rows and as many rejects.", min=1)] = (
        500
    ),
    open_page: Annotated[
        bool,
        typer.Option(
            "--open/--no-open", help="Show the page in a browser.", show_default="on a terminal"
        ),
    ] = sys.stdout.isatty(),
) -> None:
    """Write one HTML page that works offline: funnel, charts, and the rows with their traces."""
    from pimono_sdpo.commands.looks import fetched, view_page, write_page

    folder, name = fetched(source)
    page = view_page(folder, name, traces, rows)
    path = out or Path(f"{name.rpartition('/')[2]}.html")
    write_page(page, path)
    typer.echo(f"the page is {path} ({len(page) / 2**20:.1f} MB)")
    if open_page:
        webbrowser.open(path.resolve().as_uri())


def card_command(
    path: Annotated[
        Path,
        typer.Argument(help="A card, or a folder with one: rows, an adapter, any repository."),
    ],
    check: Annotated[
        bool, typer.Option("--check", help="Only check it, by the Hub's rules and without it.")
    ] = False,
) -> None:
    """Write the card of a finished folder again, and check it by the rules of the Hub."""
    from pimono_sdpo.commands.looks import card_of, check_card, write_card

    card = card_of(path) if check else write_card(path)
    check_card(card)
    typer.echo(f"{card}: nothing that the Hub would refuse")
