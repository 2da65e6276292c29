"""Save an adapter and put it on the Hub; keep checkpoints in a private bucket there.

BUCKET/NAME/  what a resume needs of OUTPUT, by its place there: its checkpoints, best/,
              run-local.json, and the rows that this job filtered

The adapter's folder holds what a user of the adapter needs: no EMA teacher, no optimizer, and no
training_args.bin, a pickle that keeps whatever was passed as an argument.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from httpx2 import HTTPError
from huggingface_hub import CommitOperationAdd, HfApi
from transformers import TrainerCallback

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.push import Operation, PushOptions, Upload, check_texts
from pimono_sdpo.traces.hub import retry_hub
from pimono_sdpo.traces.sources import HUB_ID
from pimono_sdpo.training import is_main_process, say, warn
from pimono_sdpo.training.launch import open_private_bucket
from pimono_sdpo.training.models import translate_errors
from pimono_sdpo.training.output import ADAPTER, BEST, DATA, LAST_OF_CHECKPOINT, LOCAL_FILE, WEIGHTS, last_checkpoint

# What the client and hf_xet raise when the Hub, the token or the network fail them.
HUB_FAULTS = (HTTPError, OSError, RuntimeError)
# What a resume needs of OUTPUT.
KEPT = [LOCAL_FILE, f"{DATA}/*", f"{BEST}/*", "checkpoint-*/*"]


class HubCheckpoints(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """The checkpoints of one training, known by the name of its run."""

    def __init__(self, bucket: str, run_name: str, output: Path) -> None:
        self.bucket, self.output = bucket, output
        self.place = f"hf://buckets/{bucket}/{run_name}"
        self.api = HfApi()

    def open(self, overwrite: bool) -> None:
        """Create the bucket, and fetch what it holds to an OUTPUT without checkpoints."""
        with translate_errors(
            f"Checkpoints cannot be kept in the bucket `{self.bucket}`",
            "or give --checkpoint_bucket another one, or none to keep none",
        ):
            open_private_bucket(self.api, self.bucket)
            if overwrite or last_checkpoint(self.output) is not None:
                return
            self._sync(self.place, str(self.output))
        if (checkpoint := last_checkpoint(self.output)) is not None:
            step = checkpoint.name.rpartition("-")[2]
            say(f"resumes from step {step}, which the bucket {self.bucket} has kept")

    def _sync(self, source: str, target: str, delete: bool = False) -> None:
        # The mark of OUTPUT goes first, and last what makes a checkpoint a whole one: after a kill in
        # between, the one before is still there. A pickle of all arguments is not needed to resume.
        pickle = "*/training_args.bin"
        whole: dict[str, Any] = {"include": KEPT, "exclude": [pickle]}
        for part in ({"include": [LOCAL_FILE]}, whole | {"exclude": [pickle, f"*/{LAST_OF_CHECKPOINT}"]}, whole):
            for attempt in retry_hub():
                with attempt:
                    self.api.sync_bucket(source, target, **part, delete=delete and part is whole, quiet=True)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Upload the checkpoint that was just written; a fault costs this one, not the training."""
        if not state.is_world_process_zero:
            return
        try:
            self._sync(str(self.output), self.place, delete=True)
        except HUB_FAULTS as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            lost = f"The checkpoint of step {state.global_step} is not in the bucket `{self.bucket}`"
            warn(f"{lost} ({reason}); the training continues.")

    def remove(self) -> None:
        """Remove what is kept once the adapter is safe; warn when that fails."""
        try:
            with TemporaryDirectory() as nothing:
                self.api.sync_bucket(nothing, self.place, delete=True, quiet=True)
        except HUB_FAULTS as error:
            warn(f"The checkpoints in `{self.place}` could not be removed ({type(error).__name__}); do it yourself.")


def open_checkpoints(bucket: str | None, args: Any, mode: str, overwrite: bool) -> HubCheckpoints | None:
    """Open the given bucket, or in a job one named after its repository; None to keep no checkpoints."""
    if bucket is None and args.hub_model_id and "JOB_ID" in os.environ:
        bucket = f"{args.hub_model_id}-checkpoints"
    if mode != "train" or bucket is None or bucket.lower() == "none":
        return None
    if not HUB_ID.fullmatch(bucket):
        raise TrainingInputError(f"`{bucket}` cannot name a bucket; give ns/name as --checkpoint_bucket.")
    kept = HubCheckpoints(bucket, str(args.run_name), Path(args.output_dir))
    if is_main_process():
        kept.open(overwrite)
    return kept


STUDENT = "default"
TEXTS = ("README.md", "run.json", "report.json")
PUBLISHED = (*WEIGHTS, *TEXTS, "*.svg", "training.html", "tokenizer*", "*.jinja")


def save_adapter(model: Any, folder: Path, base_model: str, revision: str | None) -> dict[str, int]:
    """Write the student's weights and config to `folder`; return the bytes of each file."""
    config = model.peft_config[STUDENT]
    config.base_model_name_or_path = base_model
    config.revision = revision
    # The embeddings are untouched; `auto` would ask the Hub about them.
    model.save_pretrained(folder, selected_adapters=[STUDENT], save_embedding_layers=False)
    # PEFT leaves a stub of a card.
    (folder / "README.md").unlink()
    return {name: (folder / name).stat().st_size for name in WEIGHTS}


@dataclass(kw_only=True)
class AdapterUpload(Upload):
    """The upload of an adapter's folder."""

    KIND = "model"
    MESSAGE = "Add the adapter"

    def operations(self, info: Any) -> list[Operation]:
        """Add the files of the adapter, whatever else is there."""
        paths = sorted(path for name in PUBLISHED for path in self.folder.glob(name))
        return [CommitOperationAdd(path.name, path) for path in paths]

    def publish(self) -> str:
        """Push the folder as one commit; return a sentence on it. On any refusal the folder stays as it is."""
        push = f"push the folder with `hf upload {self.repo_id} {self.folder}`"
        self.advice = f"; the adapter is in `{self.folder}`: {push}"
        texts = filter(Path.is_file, map(self.folder.joinpath, TEXTS))
        check_texts(texts, f"remove it from the rows and train again, or from the file and {push}")
        return self.push()


def open_destination(args: Any, mode: str) -> AdapterUpload | None:
    """Make sure that the adapter of a training can be published; None without a repository."""
    if mode != "train":
        return None
    if args.hub_model_id is None:
        if "JOB_ID" in os.environ:
            warn(
                "This Hugging Face job keeps no files; without HUB_MODEL_ID the adapter is lost "
                "when it ends, unless OUTPUT is on a volume."
            )
        return None
    upload = AdapterUpload(
        repo_id=args.hub_model_id,
        options=PushOptions(public=args.hub_private_repo is False),
        folder=Path(args.output_dir) / ADAPTER,
        advice="; or leave out --hub_model_id and HUB_MODEL_ID",
    )
    upload.open()
    args.hub_model_id = upload.repo_id
    return upload
