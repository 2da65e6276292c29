"""The training jobs: SDPO, SFT and DPO.

Of several processes of one training (`accelerate launch`) only the main one prints and writes.
"""

import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
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
    """Return the seconds of a duration as Hugging Face Jobs writes it, such as 90m or 3h.

    Raises TrainingInputError.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", limit.strip())
    seconds = float(found[1]) * UNITS[found[2]] if found else 0.0
    if not seconds:
        raise TrainingInputError(
            f"`{limit}` is not a valid time limit; use a duration such as 90m or 3h."
        )
    return seconds


@contextmanager
def main_process_first() -> Iterator[None]:
    """Let the main process do something before the others do the same."""
    from accelerate import PartialState

    with PartialState().main_process_first():
        yield


def quiet_libraries() -> None:
    """Run on import of this package, before TRL, Transformers or bitsandbytes are imported."""
    # Read by TRL when it is imported.
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # Transformers has renamed an argument that TRL sets by itself.
    warnings.filterwarnings("ignore", ".*gradient_checkpointing.* is deprecated", FutureWarning)
    # PEFT asks Transformers by the old name of an attribute.
    warnings.filterwarnings("ignore", ".*is_gradient_checkpointing. is deprecated", FutureWarning)
    # Without the optional `kernels` package bitsandbytes computes NF4 by its own CPU code.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


quiet_libraries()
