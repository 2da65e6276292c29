"""Save an adapter and put it on the Hub; keep checkpoints in a private bucket there.

BUCKET/NAME/latest.json  which step is whole: its files with size and sha256, by their place in
                         OUTPUT; written last, so that a kill in between leaves the one before
BUCKET/NAME/STEP/        what a local resume needs of OUTPUT: the checkpoint, best/, run-local.json
BUCKET/NAME/data/        the rows that this job filtered

The folder holds what a user of the adapter needs: no EMA teacher, no optimizer, and no
training_args.bin, a pickle that keeps whatever was passed as an argument.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

from httpx2 import HTTPError
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    BucketNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    RemoteEntryNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
from transformers import TrainerCallback

from cards import lint_file
from pimono_sdpo import __version__
from pimono_sdpo.errors import OutputError, TrainingInputError
from pimono_sdpo.traces.hub import explain_error, explain_refusal, is_transient
from pimono_sdpo.traces.sources import HUB_ID
from pimono_sdpo.training import is_main_process, say
from pimono_sdpo.training.output import BEST, DATA, LOCAL_FILE, last_checkpoint, read_object
from processors.secrets import find_secret_kinds

logger = logging.getLogger(__name__)

LATEST = "latest.json"
FETCHED = ".fetched"
SUFFIX = "-checkpoints"
OFF = "none"
# A pickle of all arguments, not needed to resume.
LEFT_BEHIND = "training_args.bin"
# What the client and hf_xet raise when the Hub, the token or the network fail them.
HUB_FAULTS = (HTTPError, OSError, RuntimeError)
Json = dict[str, Any]


def bucket_of(given: str | None, hub_model_id: str | None) -> str | None:
    """Return the bucket for checkpoints: the given one, or in a job one named after its repository.

    Raises TrainingInputError for an invalid name.
    """
    if given is not None and given.lower() == OFF:
        return None
    if given is not None and not HUB_ID.fullmatch(given):
        raise TrainingInputError(
            f"`{given}` cannot name a bucket; give ns/name as --checkpoint_bucket."
        )
    if given is not None:
        return given
    return f"{hub_model_id}{SUFFIX}" if hub_model_id and "JOB_ID" in os.environ else None


class HubCheckpoints(TrainerCallback):  # type: ignore[misc] # transformers is untyped here
    """The snapshots of one training, known by the name of its run."""

    def __init__(self, bucket: str, run_name: str, output: Path) -> None:
        self.bucket = bucket
        self.top = run_name
        self.output = output
        self.api = HfApi()
        self.kept: set[str] = set()

    def open(self) -> None:
        """Create the bucket before hours of training; raises TrainingInputError when that fails."""
        with self._translate_errors("Checkpoints cannot be kept in"):
            self.api.create_bucket(self.bucket, private=True, exist_ok=True)
            private = self.api.bucket_info(self.bucket).private
        if not private:
            raise TrainingInputError(
                f"The bucket `{self.bucket}` is public, and checkpoints can repeat private text; "
                "make it private, or give another as --checkpoint_bucket."
            )

    def fetch(self) -> int | None:
        """Fetch the newest whole snapshot to an OUTPUT without checkpoints; return its step.

        Raises TrainingInputError when the Hub fails, OutputError when a file is damaged.
        """
        if last_checkpoint(self.output) is not None:
            return None
        with self._translate_errors("Checkpoints cannot be read from"):
            self.kept = self._there()
            if self._remote(LATEST) not in self.kept:
                return None
            staging = self.output / FETCHED
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
            fetch = partial(
                self.api.download_bucket_files, self.bucket, raise_on_missing_files=True
            )
            fetch([(self._remote(LATEST), staging / LATEST)])
            latest = read_object(staging / LATEST) or {"step": 0, "files": {LATEST: {}}}
            files: dict[str, Json] = latest["files"]
            wanted = {name: one for name, one in files.items() if one.get("in_bucket") in self.kept}
            fetch([(one["in_bucket"], staging / name) for name, one in wanted.items()])
        damaged = [
            name
            for name, one in files.items()
            if name not in wanted or _sha256(staging / name) != one["sha256"]
        ]
        if damaged:
            raise OutputError(
                f"`{damaged[0]}` of step {latest['step']} in the bucket `{self.bucket}` is "
                f"damaged; remove `{self.top}` there, or give another --run-name."
            )
        (staging / LATEST).unlink()
        # The mark of OUTPUT first, so that what follows is known as ours. The checkpoint last: once
        # it is there, nothing is fetched again.
        order = {LOCAL_FILE: 0, f"checkpoint-{latest['step']}": 2}
        for path in sorted(staging.iterdir(), key=lambda path: order.get(path.name, 1)):
            there_already = self.output / path.name
            if there_already.is_dir():
                shutil.rmtree(there_already)
            path.replace(there_already)
        staging.rmdir()
        return int(latest["step"])

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Upload the checkpoint that was just written; a fault costs this one, not the training."""
        if not state.is_world_process_zero:
            return
        try:
            self._send(state.global_step)
        except HUB_FAULTS as error:
            logger.warning(
                "The checkpoint of step %d was not kept in the bucket `%s` (%s); the training "
                "continues.",
                state.global_step,
                self.bucket,
                " ".join(str(error).split())[:200] or type(error).__name__,
            )

    def _send(self, step: int) -> None:
        files = {}
        for path in self._files(step):
            name = path.relative_to(self.output).as_posix()
            place = name if name.startswith(f"{DATA}/") else f"{step}/{name}"
            files[name] = {"in_bucket": self._remote(place), "sha256": _sha256(path)}
        new = [
            (self.output / name, one["in_bucket"])
            for name, one in files.items()
            # Rows do not change while they are trained on.
            if not (name.startswith(f"{DATA}/") and one["in_bucket"] in self.kept)
        ]
        self.api.batch_bucket_files(self.bucket, add=list(new))
        latest = {"pimono_sdpo": __version__, "step": step, "files": files}
        pointer = json.dumps(latest, indent=2).encode()
        self.api.batch_bucket_files(self.bucket, add=[(pointer, self._remote(LATEST))])
        now = {one["in_bucket"] for one in files.values()} | {self._remote(LATEST)}
        gone = sorted(self.kept - now)
        self.kept |= now
        if gone:
            self.api.batch_bucket_files(self.bucket, delete=gone)
        self.kept = now

    def _files(self, step: int) -> Iterator[Path]:
        yield self.output / LOCAL_FILE
        for folder in (f"checkpoint-{step}", BEST, DATA):
            for path in sorted((self.output / folder).rglob("*")):
                if path.is_file() and path.name != LEFT_BEHIND:
                    yield path

    def remove(self) -> None:
        """Remove the snapshots once the adapter is safe; warn when that fails."""
        try:
            # The pointer first, so that an interrupted removal leaves nothing to resume from.
            names = sorted(self._there(), key=lambda name: name != self._remote(LATEST))
            if names:
                self.api.batch_bucket_files(self.bucket, delete=names)
            self.kept = set()
        except HUB_FAULTS as error:
            logger.warning(
                "The checkpoints in `%s/%s` could not be removed (%s); remove them yourself.",
                self.bucket,
                self.top,
                type(error).__name__,
            )

    def _there(self) -> set[str]:
        """Return the files of this run; the Hub may list `NAME-2` together with `NAME`."""
        items = self.api.list_bucket_tree(self.bucket, self.top, recursive=True)
        try:
            names = {item.path for item in items if item.type == "file"}
        except RemoteEntryNotFoundError:
            return set()
        return {name for name in names if name.startswith(f"{self.top}/")}

    def _remote(self, name: str) -> str:
        return f"{self.top}/{name}"

    @contextmanager
    def _translate_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except HUB_FAULTS as error:
            answer = type(error).__name__
            if isinstance(error, HfHubHTTPError):
                answer = f"the Hub answers {error.response.status_code}"
            if isinstance(error, BucketNotFoundError):
                answer = "it does not exist or this account cannot see it"
            raise TrainingInputError(
                f"{what} the bucket `{self.bucket}` ({answer}); check HF_TOKEN and the network, or "
                f"give --checkpoint_bucket another one, or {OFF} to keep none."
            ) from error


def checkpoints_of(
    given: str | None, args: Any, mode: str, overwrite: bool
) -> HubCheckpoints | None:
    """Open the bucket of a training, and fetch what it holds to an OUTPUT without checkpoints.

    Returns None when no checkpoints are kept. With `overwrite` nothing is fetched.
    """
    bucket = bucket_of(given, args.hub_model_id)
    if bucket is None or mode != "train":
        return None
    kept = HubCheckpoints(bucket, str(args.run_name), Path(args.output_dir))
    if is_main_process():
        kept.open()
        step = None if overwrite else kept.fetch()
        if step is not None:
            say(f"resumes from step {step}, which the bucket {bucket} has kept")
    return kept


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


STUDENT = "default"
# Seconds before each attempt to publish; a job's disk is lost with it.
WAITS = (0.0, 1.0, 4.0, 15.0)
WEIGHTS = ("adapter_model.safetensors", "adapter_config.json")
PUBLISHED = (*WEIGHTS, "README.md", "run.json", "report.json", "*.svg", "training.html")


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


def check_hub(hub_model_id: str) -> None:
    """Find out before hours of training that the adapter could not be published."""
    api = HfApi()
    # A name without an account is put under this one.
    namespace = hub_model_id.rpartition("/")[0]
    try:
        validate_repo_id(hub_model_id)
        problem = explain_refusal(
            api, namespace, lambda: not namespace or api.repo_exists(hub_model_id)
        )
    except (HTTPError, OSError) as error:
        problem = explain_error(error)
    except HFValidationError:
        problem = "that cannot name a repository; give ns/name"
    if problem:
        raise TrainingInputError(
            f"The adapter could not be published as `{hub_model_id}` ({problem}); or leave out "
            "--hub_model_id and HUB_MODEL_ID."
        )


def check_destination(args: Any, smoke: bool) -> None:
    """Find out before hours of training that the adapter would be lost.

    Raises TrainingInputError when the Hub cannot be written; warns a job without a repository.
    """
    if args.hub_model_id:
        check_hub(args.hub_model_id)
    elif "JOB_ID" in os.environ and not smoke:
        logger.warning(
            "This Hugging Face job keeps no files; without HUB_MODEL_ID the adapter is lost when "
            "it ends, unless OUTPUT is on a volume."
        )


def publish_adapter(folder: Path, hub_model_id: str, private: bool) -> str:
    """Upload the adapter folder as one commit; return the repository's address.

    Raises OutputError when a text still holds a secret, which rows of others may bring along, when
    the card would be refused, or when the Hub refuses; the folder stays as it is.
    """
    problems = lint_file(folder / "README.md")
    if problems:
        raise OutputError(
            f"The Hub may refuse `{folder / 'README.md'}`: {problems[0]} Nothing was published; "
            f"fix it and push the folder with `hf upload {hub_model_id} {folder}`."
        )
    for file in sorted(path for path in folder.iterdir() if path.suffix in {".md", ".json"}):
        kinds = find_secret_kinds(file.read_text())
        if kinds:
            raise OutputError(
                f"`{file}` still holds what looks like a secret ({', '.join(sorted(set(kinds)))}), "
                "so nothing was published; remove it from the rows and train again, or from the "
                f"file and push the folder with `hf upload {hub_model_id} {folder}`."
            )
    for wait in WAITS:
        sleep(wait)
        try:
            api = HfApi()
            url = api.create_repo(hub_model_id, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=url.repo_id,
                folder_path=folder,
                allow_patterns=list(PUBLISHED),
                commit_message="Add the adapter",
            )
            return str(url)
        except (HTTPError, OSError, RuntimeError, ValueError) as error:
            # The network, the token or the Hub; the client hides a file or card that was refused
            # behind errors of its own. Nothing is lost, so say how to continue.
            trouble: Exception = error
            if not is_transient(error):
                break
    if isinstance(trouble, HTTPError | OSError):
        reason = explain_error(trouble)
    else:
        reason = " ".join(f"{trouble} {trouble.__cause__ or ''}".split())
    raise OutputError(
        f"The adapter is in `{folder}` but could not be published ({reason}); push it with "
        f"`hf upload {hub_model_id} {folder}`."
    ) from trouble
