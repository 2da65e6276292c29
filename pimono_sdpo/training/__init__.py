"""Train LoRA adapters with SDFT, SDPO, SFT and DPO.

With several processes (`accelerate launch`), only the main one prints and writes.
"""

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from pimono_sdpo.errors import TrainingInputError, require_extra
from pimono_sdpo.text import escape_line

if TYPE_CHECKING:
    from datasets import Dataset


def train(
    rows: "str | Path | Dataset",
    *,
    method: Literal["auto", "sdft", "sdpo", "rft", "grpo", "sft", "dpo"] = "auto",
    **options: str | int | float | bool | Path | Sequence[str] | None,
) -> Path:
    """Train a LoRA adapter on this machine, as `pimono-sdpo train` does; return OUTPUT.

    rows      a folder of rows, a Hub dataset id, or what `run_pipeline` returns
    options   of the job or of TRL by their names, such as config="cpu", max_steps=20; None keeps the
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
    sys.stderr.write(f"warning: {escape_line(text)}\n")


def say(text: str) -> None:
    """Print a line in the main process only."""
    if is_main_process():
        print(escape_line(text), flush=True)  # noqa: T201


def import_libraries() -> None:
    """Import the large libraries one by one; in a job, where this takes more than a minute, print each."""
    for name in ("torch", "transformers", "datasets", "peft", "trl"):
        if "JOB_ID" in os.environ:
            say(f"importing {name}")
        import_module(name)


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
