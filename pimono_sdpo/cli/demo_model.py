"""Write a tiny random model of a Gemma 4's class, for trials.

pimono-sdpo demo model --out tiny-gemma4
"""

from importlib.util import find_spec
from pathlib import Path

import typer

from pimono_sdpo.cli.demo_sessions import create_folder
from pimono_sdpo.errors import OutputError
from pimono_sdpo.options import option, options


@options
class Options:
    """Options of `demo model`."""

    out: Path = option("Folder to write the model to.")
    seed: int = option("Seed of the random weights.", default=0)


def run(options: Options) -> None:
    """Write the model."""
    if not find_spec("torch") or not find_spec("transformers"):
        raise OutputError(
            'A model needs PyTorch and Transformers; install the extra: pip install "pimono-sdpo[train]".'
        )
    from pimono_sdpo.training.tiny_model import write_tiny_model

    path = write_tiny_model(create_folder(options.out), options.seed)
    typer.echo(f"a tiny model with random weights is in {path}")
