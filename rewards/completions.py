"""Open stored completions: rows with a `verifier_spec`, and one completion each.

reads  a folder or file of parquet or JSONL, or a saved dataset; columns `verifier_spec` (JSON text
       or null; in JSONL an object, too), and `completion` (text, or a conversation) or
       `completions` (a list of such)

Lines of JSONL that differ in their shape have the type Json, and are distinguished row by row.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, DatasetDict, Json, Value, load_dataset, load_from_disk
from datasets.exceptions import DatasetsError

from pimono_sdpo.errors import EmptySelection, SourceError

SPEC, ONE, SEVERAL = "verifier_spec", "completion", "completions"


def open_completions(source: str) -> Dataset:
    """Return the rows as they are stored; raises SourceError or EmptySelection."""
    path = Path(source)
    if not path.exists():
        raise SourceError(f"`{source}` does not exist; give a folder or file of completions.")
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    parquet = [str(file) for file in files if file.suffix == ".parquet"]
    raw = [str(file) for file in files if file.suffix in {".jsonl", ".json"}]
    try:
        if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
            found = load_from_disk(source)
        elif parquet and not sum(pq.read_metadata(file).num_rows for file in parquet):
            raise EmptySelection(f"`{source}` has no rows; give stored completions.")
        elif parquet:
            found = load_dataset("parquet", data_files=parquet, split="train")
        elif raw and not any(Path(file).stat().st_size for file in raw):
            raise EmptySelection(f"`{source}` has no rows; give stored completions.")
        elif raw:
            found = _with_specs_as_text(load_dataset("json", data_files=raw, split="train"), raw)
        else:
            raise SourceError(
                f"`{source}` holds neither parquet nor JSONL; give stored completions."
            )
    except (pa.ArrowException, DatasetsError, ValueError, OSError) as error:
        raise SourceError(
            f"`{source}` cannot be read ({type(error).__name__}); write it again, all files with "
            "the same columns."
        ) from error
    if isinstance(found, DatasetDict):
        raise SourceError(f"`{source}` has several splits; give the folder of one.")
    _check(source, found)
    return found


def one_each(rows: Dataset) -> Dataset:
    """Give every completion of `completions` a row of its own, in order; others stay as they are.

    A row without any has none afterwards.
    """
    if SEVERAL not in rows.column_names:
        return rows
    given = [_listed(completions) for completions in rows[SEVERAL]]
    whose = [number for number, completions in enumerate(given) for _ in completions]
    flat = [completion for completions in given for completion in completions]
    alone = rows.remove_columns(SEVERAL).select(whose)
    several = rows.features[SEVERAL]
    kind = several if isinstance(several, Json) else several.feature
    return alone.add_column(ONE, flat, new_fingerprint=rows._fingerprint, feature=kind)


def _with_specs_as_text(rows: Dataset, files: list[str]) -> Dataset:
    """Take specs that are objects as they stand; one type for all would fill them with nulls."""
    if not isinstance(rows.features.get(SPEC), dict) or not all(f.endswith("l") for f in files):
        return rows
    lines = [line for file in files for line in Path(file).read_text().split("\n") if line.strip()]
    specs = [json.loads(line).get(SPEC) for line in lines]
    texts = [None if spec is None else json.dumps(spec) for spec in specs]
    kept = rows.remove_columns(SPEC)
    return kept.add_column(SPEC, texts, new_fingerprint=rows._fingerprint, feature=Value("string"))


def _check(source: str, rows: Dataset) -> None:
    there = rows.column_names
    if not rows.num_rows:
        raise EmptySelection(f"`{source}` has no rows; give stored completions.")
    if ONE in there and SEVERAL in there:
        raise SourceError(f"`{source}` has both `{ONE}` and `{SEVERAL}`; leave one of them out.")
    needed = (SEVERAL if SEVERAL in there else ONE, SPEC)
    missing = next((name for name in needed if name not in there), None)
    if missing:
        raise SourceError(
            f"`{source}` has the columns {', '.join(there)} but no `{missing}`; give completions "
            "with the spec of their rows."
        )
    if not _text(rows.features[SPEC]):
        raise SourceError(
            f"`{SPEC}` of `{source}` is not text; write each row's spec with json.dumps."
        )
    if ONE in there and not _completion(rows.features[ONE]):
        raise SourceError(
            f"`{ONE}` of `{source}` is neither text nor a conversation; give text, or a list of "
            "messages with `role` and `content`."
        )
    several = rows.features.get(SEVERAL)
    inner = several if isinstance(several, Json) else getattr(several, "feature", None)
    if several is not None and not _completion(inner):
        raise SourceError(
            f"`{SEVERAL}` of `{source}` is not a list of texts or conversations; give one "
            "entry per completion."
        )


def _listed(completions: Any) -> list[Any]:
    """Return the completions of a row; anything but a list becomes one that is rejected later."""
    return completions if isinstance(completions, list) else [] if completions is None else [None]


def _text(feature: Any) -> bool:
    return isinstance(feature, Json) or getattr(feature, "dtype", "") in (
        "string",
        "large_string",
        "null",
    )


def _completion(feature: Any) -> bool:
    message = getattr(feature, "feature", None)
    return (
        _text(feature)
        or isinstance(message, Json)
        or (isinstance(message, dict) and "content" in message)
    )
