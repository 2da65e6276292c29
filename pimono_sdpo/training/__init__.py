"""Train LoRA adapters with SDPO, SFT and DPO.

With several processes (`accelerate launch`), only the main one prints and writes.
"""

import json
import logging
import os
import re
import sys
import warnings
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import field
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from pimono_sdpo.errors import TrainingInputError, require_extra
from pimono_sdpo.text import escape_controls

if TYPE_CHECKING:
    from datasets import Dataset

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def train(
    rows: "str | Path | Dataset",
    *,
    method: Literal["sdpo", "rft", "grpo", "sft", "dpo"] = "sdpo",
    **options: str | int | float | bool | Path | Sequence[str] | None,
) -> Path:
    """Train a LoRA adapter on this machine, as `pimono-sdpo train` does; return OUTPUT.

    rows      a folder of rows, a Hub dataset id, or what `run_pipeline` returns
    options   of the job or of TRL by their names, such as config="tiny", max_steps=20; None keeps the
              value of the recipe

    OUTPUT/adapter holds the adapter with its card. Needs the extra `train`. Raises TrainingInputError
    for invalid rows or options, and OutputError for an OUTPUT that cannot be used or an adapter that
    could not be pushed.
    """
    require_extra("train", "trl", "Training here")
    from datasets import Dataset

    from pimono_sdpo.training.run import run_job

    argv: list[str] = []
    for name, value in options.items():
        if callable(value):
            raise TrainingInputError(f"`{name}` is a {type(value).__name__}; give its name, as module:name.")
        if value is not None:
            argv += [f"--{name}", *map(str, value if isinstance(value, list | tuple) else [value])]
    if isinstance(rows, str | Path):
        return run_job(method, ["--dataset", str(rows), *argv])
    if not isinstance(rows, Dataset) or not rows.num_rows:
        what = "an empty dataset" if isinstance(rows, Dataset) else f"of the type {type(rows).__name__}"
        raise TrainingInputError(f"The rows are {what}; give a folder, a Hub dataset id, or a `Dataset` with rows.")
    with TemporaryDirectory() as folder:
        rows.to_parquet(Path(folder) / "rows" / "data" / "train-00000-of-00001.parquet")
        return run_job(method, ["--dataset", f"{folder}/rows", *argv])


def is_main_process() -> bool:
    """Return whether this is the main process of the training."""
    return int(os.environ.get("RANK", "0")) == 0


def warn(text: str) -> None:
    """Print a warning on stderr."""
    sys.stderr.write(f"warning: {escape_controls(text)}\n")


def say(text: str) -> None:
    """Print a line in the main process only."""
    if is_main_process():
        print(text, flush=True)  # noqa: T201


def argument(help: str, *, default: Any = None) -> Any:
    """Declare an argument of a job for the parser of Transformers."""
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata={"help": help})
    return field(default=default, metadata={"help": help})


def seconds_of(limit: str) -> float:
    """Return the seconds of a duration as Hugging Face Jobs writes it, such as 90m or 3h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", limit.strip())
    seconds = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not seconds:
        raise TrainingInputError(f"`{limit}` is not a valid time limit; use a duration such as 90m or 3h.")
    return seconds


def read_options(method: str) -> dict[str, Any]:
    """Return the arguments of `add_argument` for each option of a job, by its name.

    They come from a file that `make docs` writes: TRL's own parser takes seconds to import, and may
    not be installed.
    """
    by_method: dict[str, Any] = json.loads(Path(__file__).with_name("options.json").read_text())
    return by_method.get(method, by_method["sdpo"])  # type: ignore[no-any-return]


def find_shipped(name: str) -> Path:
    """Return a file or folder of jobs/, from the installed package or a checkout."""
    package = Path(str(files("pimono_sdpo")))
    packaged = package / name
    return packaged if packaged.exists() else package.parent / "jobs" / name


def find_recipe(name: str) -> Path:
    """Return the file at this path, or else the recipe of this name, with or without `.yaml`."""
    recipes = find_shipped("recipes")
    for path in (Path(name), recipes / f"{name.removesuffix('.yaml')}.yaml"):
        if path.is_file():
            return path
    known = ", ".join(sorted(path.stem for path in recipes.glob("*.yaml")))
    raise TrainingInputError(f"There is no recipe `{name}`; give the path of a YAML file or one of {known}.")


def refuse_unknown(arguments: list[str], parser: ArgumentParser) -> None:
    """Raise TrainingInputError for unknown arguments, and suggest the option that was probably meant."""
    if arguments:
        matches = get_close_matches(arguments[0], ["--config", *parser._option_string_actions], 1)
        advice = f", did you mean {matches[0]}? See --help." if matches else "; see --help."
        if not arguments[0].startswith("-"):
            advice = "; give one folder of rows, then options."
        raise TrainingInputError(f"Unknown argument(s) {' '.join(arguments)}{advice}")


def quiet_libraries() -> None:
    """Silence known warnings of TRL, Transformers and bitsandbytes; call it before they are imported."""
    # Read by TRL when it is imported.
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # Transformers has renamed an argument that TRL sets, and an attribute that PEFT reads.
    warnings.filterwarnings("ignore", ".*gradient_checkpointing.* is deprecated", FutureWarning)
    # It warns that without the optional package `kernels` it computes NF4 on a CPU by its own code.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


quiet_libraries()
