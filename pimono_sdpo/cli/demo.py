"""Write samples: sessions, and a tiny random model."""

from pathlib import Path

import typer

from pimono_sdpo.errors import require_extra
from pimono_sdpo.options import option, options
from pimono_sdpo.runs.folders import writing
from pimono_sdpo.samples import write_samples


@options
class SessionsOptions:
    """Options of `demo sessions`."""

    out: Path = option("Folder to write the sessions to.")


def sessions(options: SessionsOptions) -> None:
    """Write the sample sessions of the package.

    pimono-sdpo demo sessions --out traces
    """
    written = write_samples(_create_folder(options.out))
    typer.echo(f"{len(written)} files with hand-written sample sessions are in {options.out}")


@options
class ModelOptions:
    """Options of `demo model`."""

    out: Path = option("Folder to write the model to.")


def model(options: ModelOptions) -> None:
    """Write a tiny random model of a Gemma 4's class, for trials.

    pimono-sdpo demo model --out tiny-gemma4
    """
    require_extra("train", "torch", "A model")
    from pimono_sdpo.training.tiny_model import write_tiny_model

    path = write_tiny_model(_create_folder(options.out))
    typer.echo(f"a tiny model with random weights is in {path}")


def _create_folder(out: Path) -> Path:
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    return out
