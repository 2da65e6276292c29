"""What comes with the package, to try it: samples, tiny-model."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from pimono_sdpo.cli.shared import folder
from pimono_sdpo.errors import OutputError


def samples_command(
    out: Annotated[Path, typer.Option(help="Folder to write the samples to.")],
) -> None:
    """Write the sample sessions that come with the package, in every input layout."""
    from pimono_sdpo.samples import write_samples

    written = write_samples(folder(out))
    typer.echo(f"{len(written)} files with hand-written sample sessions are in {out}")


def tiny_model_command(
    out: Annotated[Path, typer.Option(help="Folder to write the model to.")],
    seed: Annotated[int, typer.Option(help="Seed of the random weights.")] = 0,
) -> None:
    """Write a tiny random model of the class of google/gemma-4-12B-it, for trials on a CPU."""
    if not find_spec("torch") or not find_spec("transformers"):
        raise OutputError(
            "A model needs PyTorch and Transformers; install the extra: pip install "
            '"pimono-sdpo[train]".'
        )
    from pimono_sdpo.training.tiny_model import write_tiny_model

    typer.echo(f"a tiny model with random weights is in {write_tiny_model(folder(out), seed)}")
