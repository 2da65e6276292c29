"""Know whether a training that goes on is the one that was begun: what decides its result.

writes and reads OUTPUT/run-local.json
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import ModelConfig

from pimono_sdpo import __version__
from pimono_sdpo.errors import OutputError
from pimono_sdpo.text import shorten
from pimono_sdpo.training.output import LOCAL_FILE, last_checkpoint, read_object
from pimono_sdpo.training.prompt_rows import COLUMNS, SPEC
from pimono_sdpo.training.rows import is_local

# Names and beginnings of names: where a run writes and logs to, which moves no weight.
NO_EFFECT = (
    *("output_dir", "run_name", "project", "report_to", "disable_tqdm", "log_", "logging_"),
    *("save_", "hub_", "push_to_hub", "trackio_", "diagnostics_", "skip_memory_metrics"),
)
# Guards count what is logged, and go back to what was saved: when one can end a run, these decide.
GUARDED = ("logging_steps", "logging_strategy", "logging_first_step", "save_steps", "save_strategy")
WEIGHTS = ("*.safetensors", "*.bin")
HEAD_BYTES = 2**20
SHOWN = 3
Json = dict[str, Any]


def started_with(
    args: Any,
    model_args: ModelConfig,
    revision: str | None,
    rows: Dataset,
    own: Json,
    held_out: Dataset | None = None,
    columns: Sequence[str] = (*COLUMNS, SPEC),
) -> Json:
    """Return every argument that decides the result, with what model and rows really are.

    `own` are those of the job that TRL does not know, `columns` those that are trained on.
    """
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
        **own,
        "model_name_or_path": model,
        "model_revision": revision,
        "method": args.METHOD,
        "rows": _rows(rows, columns),
        "held_out_rows": None if held_out is None else _rows(held_out, columns),
    }
    plain: Json = json.loads(json.dumps(start, default=str))
    return plain


def local_record(base_model: str, start: Json, before: Json) -> Json:
    """Return what stays on this machine: where the base model lies, the start, what came before.

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
    """Refuse to go on from checkpoints of another training; raises OutputError."""
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
        told = [f"{n} {_short(before.get(n))}, now {_short(start.get(n))}" for n in other[:SHOWN]]
        more = f" and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
        raise OutputError(
            f"The training in `{folder}` was started with {'; '.join(told)}{more}: give the same "
            "arguments to go on, --overwrite to start over, or another --run-name."
        )


def found_before(folder: Path) -> Json:
    """Return what was found before the first step by the run that made it; {} without a record."""
    found = (read_object(folder / LOCAL_FILE) or {}).get("before")
    return found if isinstance(found, dict) else {}


def _short(value: object) -> str:
    return " ".join(shorten(str(value), 60).split())


def _model(folder: str) -> str:
    """Tell models apart by config and the beginning of each file of weights."""
    digest = hashlib.sha256((Path(folder) / "config.json").read_bytes())
    for file in sorted(file for kind in WEIGHTS for file in Path(folder).glob(kind)):
        digest.update(f"{file.name} {file.stat().st_size}".encode())
        with file.open("rb") as weights:
            digest.update(weights.read(HEAD_BYTES))
    return digest.hexdigest()[:12]


def _rows(rows: Dataset, columns: Sequence[str]) -> str:
    """Tell rows apart by what is trained on, wherever they came from."""
    digest = hashlib.sha256()
    for row in rows.select_columns([name for name in columns if name in rows.column_names]):
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:12]
