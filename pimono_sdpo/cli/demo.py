"""Write sample sessions or a tiny random model."""

from pathlib import Path

from pimono_sdpo.errors import OutputError, require_extra
from pimono_sdpo.options import option, options
from pimono_sdpo.program import print_lines
from pimono_sdpo.runs.folders import writing
from pimono_sdpo.samples import SAMPLE_SESSIONS, write_samples

# The files that Transformers writes for a model and its tokenizer.
MODEL_FILES = (
    *("config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
)


@options
class SessionsOptions:
    """Options of `demo sessions`."""

    out: Path = option("Folder to write the sessions to.")


def sessions(options: SessionsOptions) -> None:
    """Write the sample sessions of the package.

    pimono-sdpo demo sessions --out traces
    """
    written = write_samples(_create_folder(options.out, *(file.name for file in SAMPLE_SESSIONS.iterdir())))
    print_lines(f"{len(written)} files with hand-written sample sessions are in {options.out}")


@options
class ModelOptions:
    """Options of `demo model`."""

    out: Path = option("Folder to write the model to.")


def model(options: ModelOptions) -> None:
    """Write a tiny random model of the Gemma 4 class for testing.

    pimono-sdpo demo model --out tiny-gemma4
    """
    require_extra("train", "torch", "A model")
    from pimono_sdpo.training.tiny_model import write_tiny_model

    path = write_tiny_model(_create_folder(options.out, *MODEL_FILES))
    print_lines(f"a tiny model with random weights is in {path}")


def _create_folder(out: Path, *written: str) -> Path:
    """Create a folder; raises OutputError if it contains any other files than these, which are replaced."""
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        if others := sorted({path.name for path in out.iterdir()} - {*written}):
            raise OutputError(f"`{out}` holds `{others[0]}`, which this command does not write; use an empty folder.")
    return out
