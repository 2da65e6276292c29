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
from pimono_sdpo.text import shorten_line
from pimono_sdpo.training.method import Method
from pimono_sdpo.training.models import is_local, public_name
from pimono_sdpo.training.output import LOCAL_FILE, last_checkpoint, read_object

# Names and prefixes of arguments that change no weight: where a run writes and logs to.
NO_EFFECT = (
    *("output_dir", "run_name", "project", "report_to", "disable_tqdm", "log_", "logging_"),
    *("save_", "hub_", "push_to_hub", "trackio_", "diagnostics_", "skip_memory_metrics"),
)
HEAD_BYTES = 2**20
SHOWN = 3
Json = dict[str, Any]


def started_with(method: Method, rows: Dataset, held_out: Dataset | None = None) -> Json:
    """Return every argument that decides the result, with hashes of model and rows."""
    args, name = method.args, str(method.model_args.model_name_or_path)
    settings = {n: value for n, value in args.to_dict().items() if not n.startswith(NO_EFFECT)}
    revision = f"@{method.revision}" if method.revision else f" ({_hash_model(Path(name))})"
    start = {
        **settings,
        **vars(method.model_args),
        **method.teaching(),
        "model_name_or_path": public_name(name) + revision,
        "model_revision": method.revision,
        "method": args.METHOD,
        "rows": _hash_rows(rows, method.COLUMNS),
        "held_out_rows": None if held_out is None else _hash_rows(held_out, method.COLUMNS),
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


def check_same_start(folder: Path, start: Json) -> Json | None:
    """Refuse to resume from checkpoints of another training; raises OutputError.

    Returns what the run that made the first step found before it, None without a checkpoint.
    """
    if last_checkpoint(folder) is None:
        return None
    record = read_object(folder / LOCAL_FILE) or {}
    if "started_with" not in record:
        raise OutputError(
            f"`{folder}` holds checkpoints and no record of their arguments; give --overwrite to "
            "start over, or another --run-name."
        )
    then = record["started_with"]
    other = [
        f"{name} {shorten_line(str(then.get(name)), 60)}, now "
        f"{shorten_line(str(start.get(name)), 60)}"
        for name in sorted({*then, *start})
        if then.get(name) != start.get(name)
    ]
    if other:
        more = f" and {len(other) - SHOWN} more" if len(other) > SHOWN else ""
        raise OutputError(
            f"The training in `{folder}` was started with {'; '.join(other[:SHOWN])}{more}: give "
            "the same arguments to resume it, --overwrite to start over, or another --run-name."
        )
    before: Json = record["before"]
    return before


def _hash_model(folder: Path) -> str:
    """Hash the config of a model and the beginning of each file of weights."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        digest.update(f"{file.name} {file.stat().st_size}".encode())
        with file.open("rb") as weights:
            digest.update(weights.read(HEAD_BYTES))
    return digest.hexdigest()[:12]


def _hash_rows(rows: Dataset, columns: Sequence[str]) -> str:
    """Hash what of the rows is trained on, wherever they came from."""
    digest = hashlib.sha256()
    for row in rows.select_columns([name for name in columns if name in rows.column_names]):
        digest.update(json.dumps(row, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:12]
