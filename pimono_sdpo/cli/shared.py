"""Options that several commands share, and how they are read."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pimono_sdpo.errors import OutputError

Out = Annotated[Path, typer.Option(help="Folder to write; an earlier output is replaced.")]
MaxSamples = Annotated[
    int | None, typer.Option(help="Keep the best N rows.", min=1, show_default="all")
]
Seed = Annotated[int, typer.Option(help="Decides among equal scores when --max-samples cuts.")]
Licence = Annotated[
    str | None, typer.Option("--license", help="SPDX id of the traces' licence, for the card.")
]
Public = Annotated[
    bool,
    typer.Option("--public", help="Make the dataset public; one that is there stays as it is."),
]
Revision = Annotated[str | None, typer.Option(help="Branch to push to; made when missing.")]
CreatePr = Annotated[
    bool, typer.Option("--create-pr", help="Open a pull request instead of pushing to main.")
]
Dedupe = Annotated[
    bool,
    typer.Option(
        "--dedupe/--no-dedupe",
        help="Keep one row of each story: forks, snapshots, the same prompt.",
    ),
]

Format = Annotated[
    str, typer.Option("--format", help="`trl`, or `together` for its JSON lines, too.")
]


def one_of(given: str, names: Sequence[str], option: str) -> str:
    """Refuse what is none of the names."""
    if given not in names:
        raise typer.BadParameter(f"`{given}` is neither {' nor '.join(names)}", param_hint=option)
    return given


def push_target(name: str | None, public: bool, revision: str | None, create_pr: bool) -> Any:
    """Where to push to, if anywhere; a run should not end in what is known before it starts."""
    from pimono_sdpo.push import PushResult

    return PushResult(
        push=name, public=public, revision=revision, create_pr=create_pr
    ).push_target()


def folder(out: Path) -> Path:
    """Make the folder to write to; raises OutputError when that cannot be."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"`{out}` cannot be written ({error.strerror}); give the name of a folder."
        ) from error
    return out
