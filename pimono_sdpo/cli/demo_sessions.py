"""Write the sample sessions of the package in every layout.

pimono-sdpo demo sessions --out traces
"""

from pathlib import Path

import typer

from pimono_sdpo.errors import OutputError
from pimono_sdpo.options import option, options
from pimono_sdpo.samples import write_samples


@options
class Options:
    """Options of `demo sessions`."""

    out: Path = option("Folder to write the sessions to.")


def run(options: Options) -> None:
    """Write the sessions."""
    written = write_samples(create_folder(options.out))
    typer.echo(f"{len(written)} files with hand-written sample sessions are in {options.out}")


def create_folder(out: Path) -> Path:
    """Create a folder and return it; raises OutputError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"Cannot write `{out}` ({error.strerror}); give another folder.") from error
    return out
