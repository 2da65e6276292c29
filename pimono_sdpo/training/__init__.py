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
from dataclasses import field
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import TrainingInputError

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


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
