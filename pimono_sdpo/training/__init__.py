"""The training jobs: SDPO, SFT and DPO.

Of several processes of one training (`accelerate launch`) only the main one prints and writes.
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
    options   of the job or of TRL by their names, such as config="tiny", max_steps=20; None leaves
              an option as the recipe has it

    OUTPUT/adapter holds the adapter with its card. Needs the extra `train`. Raises TrainingInputError
    for what cannot be used, and OutputError for an OUTPUT that is not free or an adapter that could
    not be pushed.
    """
    require_extra("train", "trl", "Training here")
    from datasets import Dataset

    from pimono_sdpo.training.run import run_job

    words: list[str] = []
    for name, value in options.items():
        if callable(value):
            raise TrainingInputError(f"`{name}` is a {type(value).__name__}; give its name, as module:name.")
        if value is not None:
            words += [f"--{name}", *map(str, value if isinstance(value, list | tuple) else [value])]
    if isinstance(rows, str | Path):
        return run_job(method, ["--dataset", str(rows), *words])
    if not isinstance(rows, Dataset) or not rows.num_rows:
        what = "an empty dataset" if isinstance(rows, Dataset) else f"of the type {type(rows).__name__}"
        raise TrainingInputError(f"The rows are {what}; give a folder, a Hub dataset id, or a `Dataset` with rows.")
    with TemporaryDirectory() as folder:
        rows.to_parquet(Path(folder) / "rows" / "data" / "train-00000-of-00001.parquet")
        return run_job(method, ["--dataset", f"{folder}/rows", *words])


def is_main_process() -> bool:
    """Tell whether this is the first process, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def warn(text: str) -> None:
    """Write a sentence on stderr about something that does not end the job."""
    sys.stderr.write(f"warning: {text}\n")


def say(text: str) -> None:
    """Print a line of a job, once however many processes there are."""
    if is_main_process():
        print(text, flush=True)  # noqa: T201


def argument(help: str, *, default: Any = None) -> Any:
    """Declare an argument of a job as the parser of Transformers reads it."""
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata={"help": help})
    return field(default=default, metadata={"help": help})


def seconds_of(limit: str) -> float:
    """Return the seconds of a duration as Hugging Face Jobs writes it, such as 90m or 3h."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", limit.strip())
    seconds = float(found[1]) * UNITS[found[2]] if found else 0.0
    if not seconds:
        raise TrainingInputError(f"`{limit}` is not a valid time limit; use a duration such as 90m or 3h.")
    return seconds


def read_options(method: str) -> dict[str, Any]:
    """Return how `argparse` reads each option of a job, by its name.

    From a file that `make docs` writes: TRL's own parser takes seconds, and may not be installed.
    """
    known: dict[str, Any] = json.loads(Path(__file__).with_name("options.json").read_text())
    return known[method if method in known else "sdpo"]  # type: ignore[no-any-return]


def find_shipped(name: str) -> Path:
    """Return a file or folder of jobs/: packaged, or in a checkout."""
    package = Path(str(files("pimono_sdpo")))
    packaged = package / name
    return packaged if packaged.exists() else package.parent / "jobs" / name


def find_recipe(name: str) -> Path:
    """Return the file: the path as given, else the recipe of this name, with or without `.yaml`."""
    recipes = find_shipped("recipes")
    for path in (Path(name), recipes / f"{name.removesuffix('.yaml')}.yaml"):
        if path.is_file():
            return path
    known = ", ".join(sorted(path.stem for path in recipes.glob("*.yaml")))
    raise TrainingInputError(f"There is no recipe `{name}`; give the path of a YAML file or one of {known}.")


def refuse_unknown(words: list[str], parser: ArgumentParser) -> None:
    """Raise TrainingInputError for words that are left over, with the option that is meant."""
    if words:
        meant = get_close_matches(words[0], ["--config", *parser._option_string_actions], 1)
        advice = f", did you mean {meant[0]}? See --help." if meant else "; see --help."
        if not words[0].startswith("-"):
            advice = "; give one folder of rows, then options."
        raise TrainingInputError(f"Unknown argument(s) {' '.join(words)}{advice}")


def quiet_libraries() -> None:
    """Run on import of this package, before TRL, Transformers or bitsandbytes are imported."""
    # Read by TRL when it is imported.
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # Transformers has renamed an argument that TRL sets, and an attribute that PEFT reads.
    warnings.filterwarnings("ignore", ".*gradient_checkpointing.* is deprecated", FutureWarning)
    # Without the optional `kernels` package bitsandbytes computes NF4 by its own CPU code.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


quiet_libraries()
