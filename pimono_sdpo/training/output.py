"""The output folder of a run: its files, and replacing only what an earlier run left there.

OUTPUT/run-local.json  what the training was started with; marks OUTPUT as ours, never published
OUTPUT/checkpoint-N    TRL's own, until the run is finished and after
OUTPUT/best            the adapter of the checkpoint with the best rewards, never published
OUTPUT/left-out.json   rows that could not be trained on, with their reasons
OUTPUT/data            rows filtered by this job, with their report.json
OUTPUT/adapter         the adapter with its card; run.json beside it says that the run is finished
OUTPUT/.train.lock     held by the run that is at work here, gone with it
"""

import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pimono_sdpo.errors import OutputError, PimonoError
from pimono_sdpo.runs.folders import lock, read_json, remove

RUN_FILE = "run.json"
REPORT_FILE = "report.json"
LOCAL_FILE = "run-local.json"
PROBE_FILE = "probe.safetensors"
LEFT_OUT_FILE = "left-out.json"
ADAPTER = "adapter"
STAGING = ".adapter.partial"
# What the run log names as the end of a training that can be resumed.
CUT_SHORT = "time_limit"
# The adapter of the checkpoint where the reward was best, see guards.py.
BEST = "best"
BEST_PARTIAL = ".best.partial"
DATA = "data"
# Where an overwriting run keeps its rows until nothing can stop it from starting.
NEXT_DATA = ".data.next"
LOCK = ".train.lock"
# The mark goes last, so that a half-cleared folder is still known as ours.
FILES = (REPORT_FILE, PROBE_FILE, LEFT_OUT_FILE, RUN_FILE, LOCAL_FILE)
CHECKPOINT = re.compile(r"checkpoint-\d+")
# Transformers writes it last, so a checkpoint without it is incomplete.
LAST_OF_CHECKPOINT = "trainer_state.json"
Json = dict[str, Any]
# What a run log and a filter report must hold for a card to be made from them.
NUMBER = (int, float)
NUMBER_OR_NONE = (int, float, type(None))
TEXT_OR_NONE = (str, type(None))

REPORT: dict[str, Any] = {
    "sessions": int,
    "kept": int,
    "rejected": int,
    "drop_reasons": dict,
    "input": {"source": str, "kind": str, "revision": TEXT_OR_NONE},
    "options": {"unit": str, "min_score": NUMBER, "max_samples": (int, type(None))},
    "score": {
        **dict.fromkeys(("min", "max", "mean", "cut"), NUMBER_OR_NONE),
        "histogram": [{"from": NUMBER, "to": NUMBER, "rows": int, "rejected": int}],
    },
    "stages": [{"stage": str, "rows_in": int, "rows_out": int}],
    "category_counts": dict,
    "first_sample": {
        "prompt": [{"content": str}],
        "privileged_context": str,
        "reward_terms": [str],
        "score": NUMBER_OR_NONE,
        "score_terms": object,
    },
}
FILTER_OPTIONS: dict[str, Any] = {
    "options": {
        "unit": str,
        "min_score": NUMBER,
        "max_samples": (int, type(None)),
        "test_fraction": NUMBER,
        "seed": int,
    }
}
RUN: dict[str, Any] = {
    "pimono_sdpo": str,
    "method": str,
    "run_name": str,
    "mode": str,
    "recipe": str,
    "command": [str],
    "licence": TEXT_OR_NONE,
    "base_model": str,
    "base_model_revision": TEXT_OR_NONE,
    "base_model_class": str,
    "dataset": {
        "id": str,
        "rows": int,
        "rows_used": int,
        "special_tokens_neutralised": int,
    },
    "teaching": dict,
    "evaluation": (dict, type(None)),
    "hub_model_id": TEXT_OR_NONE,
    "trackio": {"project": str, "space_id": TEXT_OR_NONE, "url": TEXT_OR_NONE},
    "arguments": {
        "max_steps": int,
        "per_device_train_batch_size": int,
        "gradient_accumulation_steps": int,
        "dtype": TEXT_OR_NONE,
        "load_in_4bit": bool,
        "load_in_8bit": bool,
        "bnb_4bit_quant_type": str,
        "use_bnb_nested_quant": bool,
        **dict.fromkeys("learning_rate seed lora_r lora_alpha lora_dropout".split(), object),
    },
    "hardware": {"device": str, "name": str, "count": int},
    "versions": {"trl": str},
    "started_at": str,
    "resumed_at": [int],
    "finished_at": str,
    "metrics": {"train_runtime": object, "train_samples_per_second": object},
    "log_history": [{"step": int}],
    "guards": {
        "alerts": [{"step": int, "guard": str}],
        "stopped_by": TEXT_OR_NONE,
        "went_back_to": (int, type(None)),
    },
    "adapter": {"trainable_parameters": int},
}

# What a run has beside, by its method.
OF_METHOD: dict[str, dict[str, Any]] = {
    "sdpo": {
        "dataset": {"prompts_shortened": int, "contexts_shortened": int, "without_reward": int},
        "teaching": {"reward": str, "gate": [str], "grade": [str], "feedback": str},
        "arguments": {
            "success_reward_threshold": NUMBER,
            **dict.fromkeys(
                "num_generations max_prompt_length max_completion_length temperature "
                "distillation_mode teacher_model_kind teacher_update_rate "
                "include_environment_feedback".split(),
                object,
            ),
        },
    },
    "sft": {
        "dataset": {"left_out": dict},
        "arguments": {"max_length": (int, type(None)), "loss_type": str, "packing": bool},
    },
    "dpo": {
        "dataset": {"left_out": dict},
        "teaching": {"adapter": TEXT_OR_NONE},
        "arguments": {
            "max_length": (int, type(None)),
            "loss_type": [str],
            "loss_weights": (list, type(None)),
            "beta": NUMBER,
        },
    },
}


def run_misfit(run: object) -> str | None:
    """Name the first part of a run log that its card would miss; None when all are there."""
    problem = misfit(run, RUN)
    if problem is not None or not isinstance(run, dict):
        return problem
    shape = OF_METHOD.get(run["method"])
    return "method" if shape is None else misfit(run, shape)


def misfit(content: object, shape: Any, name: str = "it") -> str | None:
    """Name the first part that is missing or of another kind; None when all are there.

    >>> misfit({"a": {"b": 1}}, {"a": {"b": str}})
    'a.b'
    """
    if isinstance(shape, dict):
        if not isinstance(content, dict):
            return name
        before = "" if name == "it" else f"{name}."
        parts = [(f"{before}{key}", content.get(key), part) for key, part in shape.items()]
        absent = [f"{before}{key}" for key in shape if key not in content]
        if absent:
            return absent[0]
    elif isinstance(shape, list):
        if not isinstance(content, list):
            return name
        parts = [(f"{name}[{number}]", item, shape[0]) for number, item in enumerate(content)]
    else:
        return None if isinstance(content, shape) else name
    return next(filter(None, (misfit(item, part, where) for where, item, part in parts)), None)


def read_object(path: Path) -> Json | None:
    """Return the JSON object of a file; None for none, an incomplete one or one not ours."""
    content = read_json(path) if path.is_file() else None
    return content if isinstance(content, dict) else None


def is_ours(file: Path) -> bool:
    """Tell whether this project wrote the JSON file."""
    return "pimono_sdpo" in (read_object(file) or {})


def check_output(folder: Path, overwrite: bool = False) -> None:
    """Refuse a folder that cannot be written, or that holds a finished run or foreign files."""
    _check_place(folder)
    foreign = [path.name for path in sorted(folder.glob("*")) if _is_foreign(path)]
    if foreign:
        raise OutputError(
            f"`{folder}` holds `{foreign[0]}`, which no run of this job has left there; move it, "
            "or give another --run-name or --output_dir."
        )
    if (folder / RUN_FILE).exists() and not overwrite and not was_cut_short(folder):
        raise OutputError(
            f"`{folder}` holds a finished run; give another --run-name or --output_dir, or "
            "--overwrite to replace it."
        )


def was_cut_short(folder: Path) -> bool:
    """Tell whether the time limit ended the run in a folder before its last step."""
    guards = (read_object(folder / RUN_FILE) or {}).get("guards")
    return isinstance(guards, dict) and guards.get("stopped_by") == CUT_SHORT


def _check_place(folder: Path) -> None:
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise OutputError(f"`{there}` is a file; give the name of a folder as --output_dir.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"`{there}` cannot be written; give another --output_dir.")


def _is_foreign(path: Path) -> bool:
    """Tell whether a run would take this for its own although it is not."""
    if path.name == ADAPTER:
        ours = is_ours(path / RUN_FILE) and not path.is_symlink()
    elif path.name in (*FILES, STAGING, BEST, BEST_PARTIAL) or CHECKPOINT.fullmatch(path.name):
        ours = is_ours(path.parent / LOCAL_FILE) or is_ours(path.parent / RUN_FILE)
    else:
        return False
    there = path.exists() or path.is_symlink()
    return there and not ours and not _is_empty(path)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def check_data(folder: Path) -> None:
    """Refuse to replace data that this job did not make."""
    data = folder / DATA
    if data.exists() and not _is_empty(data) and not is_ours(data / REPORT_FILE):
        raise OutputError(
            f"`{data}` holds files that are not of an earlier filter run; give another --run-name "
            "or --output_dir."
        )


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold the output folder for this run alone; raises OutputError when another one is at work."""
    _check_place(folder)
    with lock(folder / LOCK, folder):
        try:
            yield
        finally:
            (folder / LOCK).unlink(missing_ok=True)


@contextmanager
def leave_as_found(folder: Path) -> Iterator[None]:
    """Remove empty folders, and rows prepared for a run that cannot start."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        yield
    except PimonoError:
        drop_next_data(folder)
        raise
    finally:
        for place in new:
            if _is_empty(place):
                place.rmdir()


def drop_next_data(folder: Path) -> None:
    """Remove rows that were prepared for a run that does not take place."""
    if is_ours(folder / NEXT_DATA / REPORT_FILE):
        shutil.rmtree(folder / NEXT_DATA)


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint of a run that is complete and whose files can be read."""
    return next((path for path in _complete(folder) if damaged_file(path) is None), None)


def damaged_checkpoints(folder: Path) -> dict[str, str]:
    """Return the checkpoints that are newer than the last whole one, with a file that is cut."""
    last, damaged = last_checkpoint(folder), {}
    for path in _complete(folder):
        if path == last:
            break
        damaged[path.name] = str(damaged_file(path))
    return damaged


def damaged_file(checkpoint: Path) -> str | None:
    """Return the first file of weights or optimizer state that cannot be read; None for none."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(checkpoint.rglob("*")):
        try:
            if path.suffix == ".safetensors":
                # It compares the sizes that the header states with that of the file.
                with safe_open(path, "pt"):
                    continue
            if path.suffix in (".pt", ".pth") and zipfile.ZipFile(path).testzip() is not None:
                return path.relative_to(checkpoint).as_posix()
        except (OSError, SafetensorError, zipfile.BadZipFile):
            return path.relative_to(checkpoint).as_posix()
    return None


def _complete(folder: Path) -> list[Path]:
    found = [
        path
        for path in folder.glob("checkpoint-*")
        if CHECKPOINT.fullmatch(path.name) and read_object(path / LAST_OF_CHECKPOINT)
    ]
    return sorted(found, key=lambda path: int(path.name.rsplit("-", 1)[1]), reverse=True)


def clear_output(folder: Path, keep_data: bool) -> None:
    """Remove what an earlier run of this job left, and nothing else; see check_output.

    Rows made for the new run take their place.
    """
    try:
        ours = [folder / name for name in (STAGING, BEST, BEST_PARTIAL)]
        for path in [*ours, *folder.glob("checkpoint-*"), folder / ADAPTER]:
            if path.is_dir() and not _is_foreign(path):
                remove(path, RUN_FILE)
        if not keep_data and is_ours(folder / DATA / REPORT_FILE):
            remove(folder / DATA, REPORT_FILE)
        if is_ours(folder / NEXT_DATA / REPORT_FILE):
            (folder / NEXT_DATA).replace(folder / DATA)
        for path in [folder / name for name in FILES]:
            if path.is_file() and not _is_foreign(path):
                path.unlink()
    except OSError as error:
        raise OutputError(
            f"What `{folder}` holds cannot be replaced ({error.strerror}); give another "
            "--output_dir."
        ) from error


def write_json(content: Json, path: Path) -> None:
    """Write JSON under a temporary name, then rename."""
    _write(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", path)


def _write(text: str, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    temporary.write_text(text)
    temporary.replace(path)


def begin(folder: Path, local: Json) -> None:
    """Write down what the training starts or resumes with; from here on OUTPUT is ours."""
    folder.mkdir(parents=True, exist_ok=True)
    if was_cut_short(folder):
        # The adapter goes first, or `finalize` would restore the run log.
        if (folder / ADAPTER).is_dir():
            remove(folder / ADAPTER, RUN_FILE)
        (folder / RUN_FILE).unlink()
    write_json(local, folder / LOCAL_FILE)


def staging_folder(folder: Path) -> Path:
    """Return an empty folder for assembling the adapter."""
    staging = folder / STAGING
    if staging.exists():
        shutil.rmtree(staging)
    return staging


def finish(folder: Path, staging: Path, report: Json | None, run: Json) -> None:
    """Give the adapter its name, with the run and the report in it and beside it."""
    if report is not None:
        write_json(report, staging / REPORT_FILE)
    # Last, since it marks the folder as complete.
    write_json(run, staging / RUN_FILE)
    finalize(folder)


def finalize(folder: Path) -> None:
    """Give a complete adapter its name; this also finishes what a kill has interrupted."""
    staging, adapter = folder / STAGING, folder / ADAPTER
    if is_ours(staging / RUN_FILE):
        if _is_foreign(adapter):
            raise OutputError(
                f"`{adapter}` is not of this run, and the trained adapter is in `{staging}`; "
                "move `adapter` away and start again with the same arguments."
            )
        if adapter.exists():
            remove(adapter, RUN_FILE)
        staging.replace(adapter)
    if is_ours(adapter / RUN_FILE) and not (folder / RUN_FILE).exists():
        # run.json last, since it marks the run as finished.
        for name in (REPORT_FILE, RUN_FILE):
            if (adapter / name).is_file():
                _write((adapter / name).read_text(), folder / name)


def read_finished(output: Path) -> tuple[Json | None, Json]:
    """Return the report of the rows, if any, and the run log; raises OutputError."""
    if not (output / RUN_FILE).is_file() or not (output / ADAPTER).is_dir():
        raise OutputError(
            f"`{output}` holds no finished run; train first, or give its --run_name or "
            "--output_dir."
        )
    run = _read(output / RUN_FILE, run_misfit)
    report = output / REPORT_FILE
    return _read(report, partial(misfit, shape=REPORT)) if report.exists() else None, run


def _read(path: Path, misfit_of: Callable[[object], str | None]) -> Json:
    content = read_object(path)
    problem = misfit_of(content)
    if content is None or problem:
        raise OutputError(
            f"`{path}` is not as this job writes it (see `{problem}`); train again with "
            "--overwrite or into another folder."
        )
    return content
