"""Save an adapter into a folder of its own and put that folder on the Hub.

The folder holds what a user of the adapter needs: no EMA teacher, no optimizer, and no
training_args.bin, a pickle that keeps whatever was passed as an argument.
"""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import sleep
from typing import Any

from httpx2 import HTTPError
from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from pimono_sdpo.errors import OutputError, TrainingInputError
from pimono_sdpo.hub_errors import clause, passes, who_may_write

logger = logging.getLogger(__name__)

STUDENT = "default"
# Seconds before each attempt to publish; a job's disk is lost with it.
WAITS = (0.0, 1.0, 4.0, 15.0)
WEIGHTS = ("adapter_model.safetensors", "adapter_config.json")
PUBLISHED = (*WEIGHTS, "README.md", "run.json", "report.json", "*.png", "training.html")


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
        problem = who_may_write(
            api, namespace, lambda: not namespace or api.repo_exists(hub_model_id)
        )
    except (HTTPError, OSError) as error:
        problem = clause(error)
    except HFValidationError:
        problem = "that cannot name a repository; give ns/name"
    if problem:
        raise TrainingInputError(
            f"The adapter could not be published as `{hub_model_id}` ({problem}); or leave out "
            "--hub_model_id and HUB_MODEL_ID."
        )


def check_destination(args: Any, smoke: bool) -> None:
    """Find out before hours of training that the adapter would be lost.

    Raises TrainingInputError when the Hub cannot be written; a job without a repository is warned.
    """
    if args.hub_model_id:
        check_hub(args.hub_model_id)
    elif "JOB_ID" in os.environ and not smoke:
        logger.warning(
            "This Hugging Face job keeps no files; without HUB_MODEL_ID the adapter is lost when "
            "it ends, unless OUTPUT is on a volume."
        )


def publish_adapter(
    folder: Path,
    hub_model_id: str,
    private: bool,
    secrets: Callable[[str], Sequence[str]],
    lint: Callable[[Path], Sequence[str]],
) -> str:
    """Upload the adapter folder as one commit; return the repository's address.

    `secrets` names the kinds of secrets in a text, `lint` says what is wrong with a card. Raises
    OutputError when a text still holds a secret, which rows of others may bring along, when the
    card would be refused, or when the Hub refuses; the folder stays as it is.
    """
    problems = lint(folder / "README.md")
    if problems:
        raise OutputError(
            f"The Hub may refuse `{folder / 'README.md'}`: {problems[0]} Nothing was published; "
            f"mend it and push the folder with `hf upload {hub_model_id} {folder}`."
        )
    for file in sorted(path for path in folder.iterdir() if path.suffix in {".md", ".json"}):
        kinds = secrets(file.read_text())
        if kinds:
            raise OutputError(
                f"`{file}` still holds what looks like a secret ({', '.join(sorted(set(kinds)))}), "
                "so nothing was published; take it out of the rows and train again, or out of the "
                f"file and push the folder with `hf upload {hub_model_id} {folder}`."
            )
    for wait in WAITS:
        sleep(wait)
        try:
            return _upload(folder, hub_model_id, private)
        except (HTTPError, OSError, RuntimeError, ValueError) as error:
            # The network, the token or the Hub; the client hides a file or card that was refused
            # behind errors of its own. Nothing is lost, so say how to go on.
            trouble: Exception = error
            if not passes(error):
                break
    told = clause(trouble) if isinstance(trouble, HTTPError | OSError) else _in_a_line(trouble)
    raise OutputError(
        f"The adapter is in `{folder}` but could not be published ({told}); push it with "
        f"`hf upload {hub_model_id} {folder}`."
    ) from trouble


def _upload(folder: Path, hub_model_id: str, private: bool) -> str:
    api = HfApi()
    url = api.create_repo(hub_model_id, private=private, exist_ok=True)
    api.upload_folder(
        repo_id=url.repo_id,
        folder_path=folder,
        allow_patterns=list(PUBLISHED),
        commit_message="Add the adapter",
    )
    return str(url)


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{error} {error.__cause__ or ''}".split())
