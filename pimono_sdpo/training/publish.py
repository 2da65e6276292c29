"""Save an adapter, publish it on the Hub, and store checkpoints in a private bucket there.

BUCKET/NAME/  the files of OUTPUT that a resume needs: checkpoints, best/, run-local.json, and the
              rows that this job filtered

The adapter's folder has only what a user of the adapter needs: no EMA teacher, no optimizer, and no
training_args.bin, a pickle of every argument that was passed.
"""

import os
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from httpx2 import HTTPError
from huggingface_hub import HfApi
from transformers import TrainerCallback

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.push import Repo, check_texts, list_present, open_repo, push_files
from pimono_sdpo.runs.folders import PICTURES
from pimono_sdpo.traces.hub import retry_hub
from pimono_sdpo.traces.sources import HUB_ID
from pimono_sdpo.training.console import is_main_process, say, warn
from pimono_sdpo.training.launch import open_private_bucket
from pimono_sdpo.training.models import translate_errors
from pimono_sdpo.training.output import (
    ADAPTER,
    BEST,
    DATA,
    LAST_OF_CHECKPOINT,
    LOCAL_FILE,
    RUN_FILE,
    WEIGHTS,
    last_checkpoint,
)

# What huggingface_hub and hf_xet raise for errors of the Hub, the token or the network.
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
