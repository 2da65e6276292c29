"""Refuse to resume a training whose result would differ: what decides it is kept and compared.

writes and reads OUTPUT/run-local.json
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from pimono_sdpo import __version__
from pimono_sdpo.errors import OutputError
from pimono_sdpo.text import shorten
from pimono_sdpo.training.method import Method
from pimono_sdpo.training.output import LOCAL_FILE, last_checkpoint, read_object
from pimono_sdpo.training.rows import is_local

# Names and prefixes of arguments that change no weight: where a run writes and logs to.
NO_EFFECT = (
    *("output_dir", "run_name", "project", "report_to", "disable_tqdm", "log_", "logging_"),
    *("save_", "hub_", "push_to_hub", "trackio_", "diagnostics_", "skip_memory_metrics"),
)
# Guards count logged values and restore saved ones: when one can end a run, these matter.
GUARDED = ("logging_steps", "logging_strategy", "logging_first_step", "save_steps", "save_strategy")
WEIGHTS = ("*.safetensors", "*.bin")
HEAD_BYTES = 2**20
SHOWN = 3
Json = dict[str, Any]


def started_with(method: Method, rows: Dataset, held_out: Dataset | None = None) -> Json:
    """Return every argument that decides the result, with hashes of model and rows."""
    args, model_args, revision = method.args, method.model_args, method.revision
    counted = GUARDED if args.stopping() else ()
    settings = {
        name: value
        for name, value in args.to_dict().items()
        if name in counted or not name.startswith(NO_EFFECT)
    }
    name = str(model_args.model_name_or_path)
    model = f"{name}@{revision}" if revision else f"{Path(name).resolve().name} ({_model(name)})"
    start = {
        **settings,
        **vars(model_args),
        **method.identity(),
        "model_name_or_path": model,
        "model_revision": revision,
        "method": args.METHOD,
        "rows": _rows(rows, method.COLUMNS),
        "held_out_rows": None if held_out is None else _rows(held_out, method.COLUMNS),
    }
    plain: Json = json.loads(json.dumps(start, default=str))
    return plain


def local_record(base_model: str, start: Json, before: Json) -> Json:
    """Return what stays on this machine: the place of the base model, the start, and `before`.

    before   what was found before the first step: `preflight`, `held_out`
    """
    base = str(Path(base_model).resolve()) if is_local(base_model) else base_model
    return {
        "pimono_sdpo": __version__,
        "base_model": base,
        "started_with": start,
        "before": before,
    }


def check_same_start(folder: Path, start: Json) -> None:
    """Refuse to resume from checkpoints of another training; raises OutputError."""
    if last_checkpoint(folder) is None:
        return
    before = (read_object(folder / LOCAL_FILE) or {}).get("started_with")
    if not isinstance(before, dict):
        raise OutputError(
            f"`{folder}` holds checkpoints and no record of their arguments; give --overwrite to "
            "start over, or another --run-name."
        )
    other = [n for n in sorted({*before, *start}) if before.get(n) != start.get(n)]
    if other:
        shown = [f"{n} {_short(before.get(n))}, now {_short(start.get(n))}" for n in other[:SHOWN]]
        more = f" and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
        raise OutputError(
            f"The training in `{folder}` was started with {'; '.join(shown)}{more}: give the same "
            "arguments to resume it, --overwrite to start over, or another --run-name."
        )


def found_before(folder: Path) -> Json:
    """Return what the run that made the first step found before it; {} without a record."""
    found = (read_object(folder / LOCAL_FILE) or {}).get("before")
    return found if isinstance(found, dict) else {}


def _short(value: object) -> str:
    return " ".join(shorten(str(value), 60).split())


def _model(folder: str) -> str:
    """Hash the config of a model and the beginning of each file of weights."""
    digest = hashlib.sha256((Path(folder) / "config.json").read_bytes())
    for file in sorted(file for kind in WEIGHTS for file in Path(folder).glob(kind)):
        digest.update(f"{file.name} {file.stat().st_size}".encode())
        with file.open("rb") as weights:
            digest.update(weights.read(HEAD_BYTES))
    return digest.hexdigest()[:12]


def _rows(rows: Dataset, columns: Sequence[str]) -> str:
    """Hash what of the rows is trained on, wherever they came from."""
    digest = hashlib.sha256()
    for row in rows.select_columns([name for name in columns if name in rows.column_names]):
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:12]
