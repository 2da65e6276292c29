"""The output folder of a run: lock, checkpoints, adapter, and what of it is published on the Hub.

OUTPUT/run-local.json  the arguments that the training was started with; never published
OUTPUT/checkpoint-N    TRL's checkpoints, which stay after the run
OUTPUT/best            the adapter of the checkpoint with the best rewards; never published
OUTPUT/left-out.json   rows that could not be trained on, with the reasons
OUTPUT/data            rows filtered by this job, with their report.json
OUTPUT/adapter         the adapter with its card; once the run is finished, run.json lies beside it
OUTPUT/.train.lock     the lock of a running training

A folder with run.json or run-local.json was written by a run and may be replaced by one. The
adapter's folder has only what a user of the adapter needs: no EMA teacher, no optimizer, and no
training_args.bin, a pickle of every argument that was passed. A private bucket may store the files
that a resume needs, under the run's name.
"""

import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from httpx2 import HTTPError
from huggingface_hub import HfApi
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import ModelConfig

from pimono_sdpo.errors import OutputError, TrainingInputError
from pimono_sdpo.push import Repo, check_texts, list_present, open_repo, push_files
from pimono_sdpo.runs.folders import PICTURES, lock, read_json
from pimono_sdpo.traces.hub import retry_hub
from pimono_sdpo.traces.sources import HUB_ID
from pimono_sdpo.training.console import is_main_process, say, warn
from pimono_sdpo.training.launch import open_private_bucket
from pimono_sdpo.training.models import WEIGHTS, keep_layout, limit_threads, model_init_kwargs, translate_errors

RUN_FILE = "run.json"
REPORT_FILE = "report.json"
LOCAL_FILE = "run-local.json"
PROBE_FILE = "probe.safetensors"
LEFT_OUT_FILE = "left-out.json"
ADAPTER = "adapter"
STAGING = ".adapter.partial"
# The value of `stopped_by` in the run log of a training that can be resumed.
CUT_SHORT = "time_limit"
# The adapter of the checkpoint with the best reward, see guards.py.
BEST = "best"
BEST_PARTIAL = ".best.partial"
DATA = "data"
LOCK = ".train.lock"
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
# Transformers writes it last, so a checkpoint without it is incomplete.
LAST_OF_CHECKPOINT = "trainer_state.json"
# Besides checkpoints; the files by which OUTPUT is recognised are last, so that they are removed last.
WRITTEN = (ADAPTER, STAGING, BEST, BEST_PARTIAL, REPORT_FILE, PROBE_FILE, LEFT_OUT_FILE, RUN_FILE, LOCAL_FILE)
Json = dict[str, Any]


def read_written(path: Path) -> Json:
    """Return a report or run log that this package wrote; raises OutputError."""
    content = read_json(path)
    if "pimono_sdpo" not in content:
        raise OutputError(f"`{path}` was not written by pimono-sdpo; run the command that makes it again.")
    return content


def check_output(folder: Path, overwrite: bool = False) -> None:
    """Raise OutputError when a folder holds a finished run, or files that no run has written."""
    is_ours = any("pimono_sdpo" in read_json(folder / name) for name in (RUN_FILE, LOCAL_FILE))
    foreign = [path.name for path in _list_written(folder) if not (is_ours or _is_empty(path))]
    alternative = "give another --run-name or --output_dir"
    if foreign:
        raise OutputError(
            f"`{folder}` holds `{foreign[0]}`, which no training has written; move it, or {alternative}."
        )
    if (folder / RUN_FILE).exists() and not overwrite and not was_cut_short(folder):
        raise OutputError(f"`{folder}` holds a finished run; {alternative}, or --overwrite to replace it.")


def was_cut_short(folder: Path) -> bool:
    """Return whether the time limit ended the run in a folder before its last step."""
    guards = read_json(folder / RUN_FILE).get("guards", {})
    return bool(guards.get("stopped_by") == CUT_SHORT)


def _list_written(folder: Path) -> list[Path]:
    """Return the files and folders with names that a run gives."""
    checkpoints = [path for path in folder.glob("checkpoint-*") if CHECKPOINT.fullmatch(path.name)]
    return [*checkpoints, *filter(Path.exists, map(folder.joinpath, WRITTEN))]


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Lock the output folder; new folders that stay empty are removed."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with lock(folder / LOCK, folder):
            try:
                yield
            finally:
                (folder / LOCK).unlink(missing_ok=True)
    finally:
        for path in filter(_is_empty, new):
            path.rmdir()


def last_checkpoint(folder: Path, damaged: dict[str, str] | None = None) -> Path | None:
    """Return the newest intact checkpoint; add newer, damaged ones and a damaged file of each to `damaged`."""
    numbered = {
        int(match[1]): path for path in folder.glob("checkpoint-*") if (match := CHECKPOINT.fullmatch(path.name))
    }
    for _, checkpoint in sorted(numbered.items(), reverse=True):
        if not read_json(checkpoint / LAST_OF_CHECKPOINT):
            continue
        file = next(filter(_is_damaged, sorted(checkpoint.rglob("*"))), None)
        if file is None:
            return checkpoint
        if damaged is not None:
            damaged[checkpoint.name] = file.relative_to(checkpoint).as_posix()
    return None


def _is_damaged(path: Path) -> bool:
    """Return whether a file of weights or optimizer state cannot be read."""
    try:
        if path.suffix == ".safetensors":
            # This compares the sizes in the header with the size of the file.
            with safe_open(path, "pt"):
                return False
        return path.suffix in (".pt", ".pth") and zipfile.ZipFile(path).testzip() is not None
    except (OSError, SafetensorError, zipfile.BadZipFile):
        return True


def clear_output(folder: Path) -> None:
    """Remove the files of an earlier run, and nothing else; see check_output."""
    for path in _list_written(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def write_json(content: Json, path: Path) -> None:
    """Write JSON atomically: under a temporary name, which is then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    temporary.write_text(f"{text}\n")
    temporary.replace(path)


def begin(folder: Path, local: Json) -> None:
    """Record what the training starts or resumes with; from here on OUTPUT may be replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(local, folder / LOCAL_FILE)
    if was_cut_short(folder):
        (folder / RUN_FILE).unlink()


def finish(folder: Path, report: Json | None, run: Json) -> None:
    """Move the adapter from STAGING to ADAPTER, and write run log and report into it and beside it.

    A run that is killed here resumes from its last checkpoint and finishes again.
    """
    _write_logs(folder / STAGING, report, run)
    shutil.rmtree(folder / ADAPTER, ignore_errors=True)
    (folder / STAGING).replace(folder / ADAPTER)
    _write_logs(folder, report, run)


def _write_logs(folder: Path, report: Json | None, run: Json) -> None:
    if report is not None:
        write_json(report, folder / REPORT_FILE)
    # Last, since it marks the run as finished.
    write_json(run, folder / RUN_FILE)


def read_finished(output: Path) -> Json:
    """Return the run log of a training; raises OutputError."""
    if not (output / RUN_FILE).is_file() or not (output / ADAPTER).is_dir():
        raise OutputError(f"`{output}` holds no finished run; train first.")
    return read_written(output / RUN_FILE)


# The exceptions that huggingface_hub and hf_xet raise for errors of the Hub, the token or the network.
HUB_FAULTS = (HTTPError, OSError, RuntimeError)
# The files of OUTPUT that a resume needs.
RESUME_FILES = [LOCAL_FILE, f"{DATA}/*", f"{BEST}/*", "checkpoint-*/*"]


class HubCheckpoints(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """The checkpoints of one run in a bucket, under the run's name."""

    def __init__(self, bucket: str, run_name: str, output: Path) -> None:
        self.bucket, self.output = bucket, output
        self.url = f"hf://buckets/{bucket}/{run_name}"
        self.api = HfApi()

    def open(self, overwrite: bool) -> None:
        """Create the bucket, and download its checkpoints if OUTPUT has none."""
        with translate_errors(
            f"Checkpoints cannot be stored in the bucket `{self.bucket}`",
            "or give --checkpoint_bucket another one, or none to store no checkpoints",
        ):
            open_private_bucket(self.api, self.bucket)
            if overwrite or last_checkpoint(self.output) is not None:
                return
            self._sync(self.url, str(self.output))
        if (checkpoint := last_checkpoint(self.output)) is not None:
            step = checkpoint.name.rpartition("-")[2]
            say(f"resumes from step {step}, which the bucket {self.bucket} has kept")

    def _sync(self, source: str, target: str, delete: bool = False) -> None:
        # The order makes a killed upload harmless: first the file that identifies OUTPUT, and last the
        # file without which a checkpoint is incomplete, and deletions. The pickle is not needed to resume.
        pickle = "*/training_args.bin"
        everything: dict[str, Any] = {"include": RESUME_FILES, "exclude": [pickle]}
        incomplete = everything | {"exclude": [pickle, f"*/{LAST_OF_CHECKPOINT}"]}
        for files in ({"include": [LOCAL_FILE]}, incomplete, everything):
            for attempt in retry_hub():
                with attempt:
                    self.api.sync_bucket(source, target, **files, delete=delete and files is everything, quiet=True)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Upload the checkpoint just written; if that fails, warn and go on training."""
        if not state.is_world_process_zero:
            return
        try:
            self._sync(str(self.output), self.url, delete=True)
        except HUB_FAULTS as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            warn(
                f"The checkpoint of step {state.global_step} is not in the bucket `{self.bucket}` ({reason}); "
                "the training continues."
            )

    def remove(self) -> None:
        """Delete the run's checkpoints; warn when that fails."""
        try:
            with TemporaryDirectory() as empty:
                self.api.sync_bucket(empty, self.url, delete=True, quiet=True)
        except HUB_FAULTS as error:
            warn(f"The checkpoints in `{self.url}` could not be removed ({type(error).__name__}); do it yourself.")


def open_checkpoints(bucket: str | None, args: Any, mode: str, overwrite: bool) -> HubCheckpoints | None:
    """Open the bucket, which in a job is by default named after its repository; None to store no checkpoints."""
    if bucket is None and args.hub_model_id and "JOB_ID" in os.environ:
        bucket = f"{args.hub_model_id}-checkpoints"
    if mode != "train" or bucket is None or bucket.lower() == "none":
        return None
    if not HUB_ID.fullmatch(bucket):
        raise TrainingInputError(f"`{bucket}` is not a valid bucket name; give ns/name as --checkpoint_bucket.")
    checkpoints = HubCheckpoints(bucket, str(args.run_name), Path(args.output_dir))
    if is_main_process():
        checkpoints.open(overwrite)
    return checkpoints


STUDENT = "default"
TEXTS = ("README.md", "run.json", "report.json")
PUBLISHED = (*WEIGHTS, *TEXTS, "training.html", "tokenizer*", "*.jinja")
# Files that an earlier version published.
PLOTS = (*PICTURES, "training.svg")


def save_adapter(model: Any, folder: Path, base_model: str, revision: str | None) -> dict[str, int]:
    """Write the student's weights and config to `folder`; return the bytes of each file."""
    config = model.peft_config[STUDENT]
    config.base_model_name_or_path = base_model
    config.revision = revision
    # The embeddings are not trained; the default `auto` would ask the Hub about them.
    model.save_pretrained(folder, selected_adapters=[STUDENT], save_embedding_layers=False)
    # The stub of a card that PEFT writes.
    (folder / "README.md").unlink()
    return {name: (folder / name).stat().st_size for name in WEIGHTS}


def publish_adapter(repo: Repo, folder: Path) -> str:
    """Push the adapter in one commit; return a sentence on it. Raises OutputError; the folder never changes."""
    command = f"push the folder with `hf upload {repo.name} {folder}`"
    texts = filter(Path.is_file, map(folder.joinpath, TEXTS))
    check_texts(texts, f"remove it from the rows and train again, or from the file and {command}")
    files = {path.name: path for name in PUBLISHED for path in sorted(folder.glob(name))}

    def find_old(info: Any) -> set[str]:
        present = list_present(info)
        ours = {name for name in present if any(fnmatch(name, pattern) for pattern in (*PUBLISHED, *PLOTS))}
        return ours if RUN_FILE in present else set()

    card = files.pop("README.md").read_text()
    return push_files(repo, ADAPTER, card, files, find_old, f"; the adapter is in `{folder}`: {command}")


def open_destination(args: Any, mode: str) -> Repo | None:
    """Check that the adapter can be published, and return its repository; None without one."""
    if mode != "train":
        return None
    if args.hub_model_id is None:
        if "JOB_ID" in os.environ:
            warn(
                "This Hugging Face job keeps no files; without HUB_MODEL_ID the adapter is lost "
                "when it ends, unless OUTPUT is on a volume."
            )
        return None
    repo = open_repo(
        args.hub_model_id, "model", args.hub_private_repo is False, "; or leave out --hub_model_id and HUB_MODEL_ID"
    )
    args.hub_model_id = repo.name
    return repo


# The prompt on which the trained model is compared with its adapter, loaded in another process.
PROBE = "The test run ends in `ENOENT`: which file is missing, and what do you do next?"
SETTINGS = ("dtype", "load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "use_bnb_nested_quant")


def probe_logits(model: Any, tokenizer: Any) -> torch.Tensor:
    """Return the float32 logits of the token that would follow PROBE, shape (vocabulary,)."""
    was_training = model.training
    # With another layout a CPU adds in another order, and the logits differ by rounding.
    keep_layout(model)
    limit_threads(model)
    model.eval()
    inputs = tokenizer(PROBE, return_tensors="pt").to(model.device)
    with torch.no_grad():
        logits: torch.Tensor = model(**inputs).logits[0, -1].float().cpu().contiguous()
    model.train(was_training)
    return logits


def write_probe(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save the logits of the trained model."""
    save_file({"logits": probe_logits(model, tokenizer)}, folder / PROBE_FILE)


def load_adapter(folder: Path) -> tuple[Any, Any]:
    """Load the base model of a run, quantised as in the run, with its adapter; return model and tokenizer."""
    run = read_finished(folder)
    # run.json has no paths of this machine, since it is published.
    local = read_json(folder / LOCAL_FILE) or run
    name, revision = str(local["base_model"]), run["base_model_revision"]
    settings = ModelConfig(**{key: run["arguments"][key] for key in SETTINGS})
    what = f"The base model `{name}` cannot be loaded with the adapter of `{folder}`"
    with translate_errors(what, "check both"):
        base = AutoModelForCausalLM.from_pretrained(name, **model_init_kwargs(settings, revision))
        model = PeftModel.from_pretrained(base, str(folder / ADAPTER))
        return model, AutoTokenizer.from_pretrained(name, revision=revision or "main")


def largest_difference(folder: Path) -> float:
    """Return the largest difference between the logits of the reloaded adapter and those saved after training."""
    model, tokenizer = load_adapter(folder)
    saved = load_file(folder / PROBE_FILE)["logits"]
    return float((probe_logits(model, tokenizer) - saved).abs().max())
