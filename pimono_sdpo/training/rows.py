"""Load the rows to train on and their report, refuse test rows, and leave out rows that do not fit.

reads a folder written by `pimono-sdpo filter`, or a Hub dataset of the same columns
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, load_dataset
from datasets import Json as JsonFeature
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.filtering import FilterOptions, run_filter
from pimono_sdpo.runs.folders import read_json
from pimono_sdpo.training.arguments import SDPOArguments
from pimono_sdpo.training.console import is_main_process, say
from pimono_sdpo.training.models import translate_errors
from pimono_sdpo.training.options import check_folder, is_local
from pimono_sdpo.training.output import DATA, REPORT_FILE, last_checkpoint, read_written

Json = dict[str, Any]
# Columns that say where a row comes from; held-out scores are grouped by the first one of these.
ORIGINS = ("task_id", "run_id", "session_id")
# A temporary column: counts and lengths of a row, or why it is left out.
NOTES = "_notes"
# Options of the filter that are also options of the job.
FILTERED = ("unit", "min_score", "max_samples", "test_fraction", "split_by")


@dataclass(frozen=True)
class Fitted:
    """Rows within their token budgets, with statistics.

    held_out   rows to evaluate on, None if there are none
    given      number of rows before any was left out
    counts     numbers of rows or tokens, for the run log
    lengths    tokens of each row, such as those of its prompt
    budgets    the limit of each of `lengths`, None for no limit
    left_out   rows that cannot be trained on, with the reasons
    """

    rows: Dataset
    held_out: Dataset | None
    given: int
    counts: dict[str, Any]
    lengths: dict[str, list[int]]
    budgets: Mapping[str, int | None]
    left_out: list[Json]


class LeftOut(ValueError):
    """A row cannot be trained on; its arguments are a reason of one word and a detailed one."""


def fit_rows(
    rows: Dataset,
    held_out: Dataset | None,
    fit: Callable[[Json, int], tuple[Json, Json]],
    written: Mapping[str, Any],
    counted: tuple[str, ...],
    budgets: Mapping[str, int | None],
) -> Fitted:
    """Apply `fit` to every row, and leave out the rows for which it raises LeftOut.

    fit       takes a row and its number, from 1; returns the columns `written`, and a note with a number
              for each of `counted` and `budgets`
    written   the columns that `fit` writes, with their features

    Raises TrainingInputError when no row is left.
    """

    def fit_or_leave_out(row: Json, index: int) -> Json:
        try:
            fitted, note = fit(row, index + 1)
        except LeftOut as error:
            return dict.fromkeys(written) | {NOTES: dict(zip(("reason", "detail"), error.args, strict=True))}
        return fitted | {NOTES: note}

    measured = rows.map(
        fit_or_leave_out,
        with_indices=True,
        features=Features({**rows.features, **written, NOTES: JsonFeature()}),
        # The cache key would not see a change of this module's code.
        load_from_cache_file=False,
        desc="fit to the token budget",
    )
    origins = [name for name in ORIGINS if name in rows.column_names]
    kept, notes, left_out = list[int](), list[Json](), list[Json]()
    for index, row in enumerate(measured.select_columns([*origins, NOTES])):
        note = row.pop(NOTES)
        if "reason" in note:
            left_out.append({"row": index + 1, **row, **note})
        else:
            kept.append(index)
            notes.append(note)
    reasons = dict(sorted(Counter(row["reason"] for row in left_out).items()))
    if not kept:
        summary = ", ".join(f"{reason} {count}" for reason, count in reasons.items())
        raise TrainingInputError(
            f"None of the {len(rows)} rows can be trained on ({summary}; the first: "
            f"{left_out[0]['detail']}); give other rows, or a larger budget for those that are too_long."
        )
    evaluated = None
    if held_out is not None:
        evaluated = fit_rows(held_out, None, fit, written, counted, budgets).rows
    counts = {name: sum(note[name] for note in notes) for name in counted} | {"left_out": reasons}
    lengths = {name: [note[name] for note in notes] for name in budgets}
    fitted = measured.select(kept).remove_columns(NOTES)
    return Fitted(fitted, evaluated, len(rows), counts, lengths, budgets, left_out)


def load_rows(dataset: str, split: str = "train", config: str | None = None) -> Dataset:
    """Return the rows of one split of a folder or a Hub dataset, from a config of it if one is given."""
    check_folder(dataset)
    advice, files = "check the name, the network and HF_TOKEN", list[str]()
    if is_local(dataset):
        advice = "give the output of `filter`, `steps` or `pairs`, or of `filter --merge` for parts"
        files = sorted(map(str, Path(dataset).glob(f"data/{split}-*.parquet")))
    if split != "train":
        advice = "filter with --test-fraction, and --split-by session for traces of one repository"
    with translate_errors(f"The split `{split}` of `{dataset}` cannot be loaded", advice):
        if files and config is None:
            # `datasets` notices when these files change; for a folder with a card it may reuse cached rows.
            return load_dataset("parquet", data_files={split: files}, split=split)
        return load_dataset(dataset, config, split=split)


def load_report(dataset: str) -> Json | None:
    """Return the report of the filter that made the rows, None if there is none or it is that of another command."""
    path = Path(dataset) / REPORT_FILE
    if not is_local(dataset):
        try:
            path = Path(hf_hub_download(dataset, REPORT_FILE, repo_type="dataset"))
        except EntryNotFoundError:
            return None
    if not path.is_file() or read_json(path).get("stage") is not None:
        return None
    return read_written(path)


def refuse_test_rows(rows: Dataset, dataset: str) -> None:
    """Raise TrainingInputError when the rows to train on contain rows of the split `test`."""
    test_rows = list(rows["split"]).count("test") if "split" in rows.column_names else 0
    if test_rows:
        raise TrainingInputError(
            f"{test_rows} of the {len(rows)} rows to train on in `{dataset}` have the split `test`; "
            "remove them, or give the rows of the split `train`."
        )


def filter_source(job: SDPOArguments, output: Path, seed: int) -> str:
    """Filter --source and return the folder of the rows; a resumed training uses the rows of its first start."""
    folder = output / DATA
    resumes = last_checkpoint(output) is not None and not job.overwrite
    exists = (folder / REPORT_FILE).is_file()
    if not is_main_process() or (exists and (resumes or job.source is None)):
        return str(folder)
    if job.source is None:
        raise TrainingInputError("There is nothing to train on; give --dataset (rows) or --source (traces).")
    options = FilterOptions(seed=seed, **{name: getattr(job, name) for name in FILTERED})
    report = run_filter(job.source, folder, options)
    say(f"{report['kept']} rows of {report['sessions']} sessions are in {folder}")
    return str(folder)
