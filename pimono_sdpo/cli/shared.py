"""Options that several commands share, and how they are read."""

import re
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


def one_of(given: str, names: Sequence[str], option: str) -> str:
    """Refuse what is none of the names."""
    if given not in names:
        raise typer.BadParameter(f"`{given}` is neither {' nor '.join(names)}", param_hint=option)
    return given


def part_of(given: str) -> tuple[int, int]:
    """Read I/N, 1 <= I <= N."""
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", given)
    part, parts = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= part <= parts:
        raise typer.BadParameter(
            f"`{given}` is no part; give 1/3, 2/3 or 3/3 of a source in three", param_hint="--shard"
        )
    return part, parts


def push_target(name: str | None, public: bool, revision: str | None, create_pr: bool) -> Any:
    """Where to push to, if anywhere; a run should not end in what is known before it starts."""
    if name is None and not (public or revision or create_pr):
        return None
    from pimono_sdpo.push import check_account, target_of

    target = target_of(name, public, revision, create_pr)
    check_account(target)
    return target


def folder(out: Path) -> Path:
    """Make the folder to write to; raises OutputError when that cannot be."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"`{out}` cannot be written ({error.strerror}); give the name of a folder."
        ) from error
    return out
