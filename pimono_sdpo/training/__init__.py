"""Train LoRA adapters with SDFT, SDPO, SFT and DPO.

With several processes (`accelerate launch`), only the main one prints and writes.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from pimono_sdpo.errors import TrainingInputError, require_extra
from pimono_sdpo.training.console import quiet_libraries

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


quiet_libraries()
