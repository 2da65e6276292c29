"""Open the rows to train on, and the report that came with them.

reads a folder written by `pimono-sdpo filter`, or a Hub dataset of the same columns
"""

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, load_dataset
from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
from httpx2 import HTTPError
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.output import REPORT_FILE, read_object
from pimono_sdpo.training.shapes import REPORT, misfit

logger = logging.getLogger(__name__)


def load_rows(dataset: str, split: str = "train", config: str | None = None) -> Dataset:
    """Return the rows of one split of a folder or a Hub dataset, or of a configuration of it.

    Raises TrainingInputError when there is none, it is empty, or it has no `prompt` column.
    """
    if is_local(dataset):
        rows = _local_rows(Path(dataset) / (config or ""), split)
    else:
        rows = _hub_rows(dataset, split, config)
    if "prompt" not in rows.column_names:
        found = ", ".join(f"`{name}`" for name in rows.column_names)
        raise TrainingInputError(
            f"`{dataset}` has no `prompt` column but {found}; give rows written by "
            "`pimono-sdpo filter`."
        )
    if not len(rows):
        raise TrainingInputError(
            f"`{dataset}` holds no rows to {split}; filter again with a lower --min_score."
        )
    return rows


def load_report(dataset: str) -> dict[str, Any] | None:
    """Return the filter's report beside the rows; None when they came without one.

    Rows of a duel have a report of their own, which the card has no place for. Raises
    TrainingInputError for one that no card can be made from.
    """
    if is_local(dataset):
        report = Path(dataset) / REPORT_FILE
        if not report.is_file():
            return None
    else:
        try:
            report = Path(hf_hub_download(dataset, REPORT_FILE, repo_type="dataset"))
        except LocalEntryNotFoundError:
            # The rows came from the local cache and the Hub cannot be asked for their report.
            logger.warning("The report of `%s` could not be fetched: the card has none.", dataset)
            return None
        except EntryNotFoundError:
            # Rows made by other means have no report; the card says so.
            return None
    content = read_object(report)
    stage = (content or {}).get("stage")
    if stage == "sdpo":
        return None
    if isinstance(stage, str):
        raise TrainingInputError(
            f"`{dataset}` holds rows of `{stage}`, which are for SFT or DPO; give rows of "
            "`pimono-sdpo filter`, or of `duel-rows --to sdpo`."
        )
    found = misfit(content, REPORT)
    if found:
        raise TrainingInputError(
            f"The {REPORT_FILE} beside the rows of `{dataset}` is not as `pimono-sdpo filter` "
            f"writes it (see `{found}`); remove it, or filter again."
        )
    return content


def dataset_name(dataset: str) -> str:
    """Name the rows without the machine's path: a Hub id, or the folder's own name."""
    return Path(dataset).resolve().name if is_local(dataset) else dataset


def is_local(name: str) -> bool:
    """Tell a path from a Hub id: it exists here, or is not of the form `ns/name`."""
    return Path(name).exists() or name.startswith(("/", ".", "~")) or name.count("/") != 1


def _local_rows(folder: Path, split: str) -> Dataset:
    if not folder.is_dir():
        raise TrainingInputError(
            f"There is no folder `{folder}`; make it with `pimono-sdpo filter SOURCE "
            f"--out {folder}` or give the Hub id of a dataset."
        )
    # The rejects lie beside `data`, so the folder as a whole is not one dataset.
    files = sorted((folder / "data").glob(f"{split}-*.parquet"))
    files = files or sorted(folder.glob(f"{split}-*.parquet"))
    if not files and split == "train":
        files = sorted((folder / "data").glob("train*.parquet")) or sorted(folder.glob("*.parquet"))
    if not files and split != "train":
        raise TrainingInputError(
            f"`{folder}` holds no data/{split}-*.parquet to evaluate on; filter again with "
            "--test-fraction, or leave --eval_split out."
        )
    if not files and list((folder / "data").glob("test*.parquet")):
        raise TrainingInputError(
            f"`{folder}` holds rows for testing alone; filter again with a smaller --test-fraction."
        )
    if not files:
        raise TrainingInputError(
            f"`{folder}` holds no data/train-*.parquet; make it with "
            f"`pimono-sdpo filter SOURCE --out {folder}`."
        )
    try:
        rows = sum(pq.read_metadata(file).num_rows for file in files)
        # `datasets` has no reader for a split without rows.
        loaded = Dataset.from_parquet([str(file) for file in files]) if rows else None
    except (pa.ArrowInvalid, DatasetGenerationError) as error:
        # Not parquet, or shards of different columns.
        raise TrainingInputError(
            f"The parquet files of `{folder}` cannot be read together ({error.__cause__ or error});"
            " filter into a fresh folder."
        ) from error
    return Dataset.from_dict({"prompt": []}) if loaded is None else loaded


def _hub_rows(repo_id: str, split: str, config: str | None) -> Dataset:
    try:
        return load_dataset(repo_id, config, split=split)
    except DatasetNotFoundError as error:
        raise TrainingInputError(
            f"`{repo_id}` is neither a folder here nor a dataset this account can see on the Hub; "
            "check the name, or set HF_TOKEN when it is private."
        ) from error
    except ValueError as error:
        raise TrainingInputError(
            f"`{repo_id}` has no split `{split}` ({error}); filter again with --test-fraction, or "
            "leave --eval_split out."
        ) from error
    except (ConnectionError, HTTPError) as error:
        raise TrainingInputError(
            f"`{repo_id}` is not a folder here and the Hub could not be asked "
            f"({type(error).__name__}); check the name and the network."
        ) from error
