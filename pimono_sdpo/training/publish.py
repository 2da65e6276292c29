"""Save an adapter into a folder of its own and put that folder on the Hub.

The folder holds what a user of the adapter needs: no EMA teacher, no optimizer, and no
training_args.bin, a pickle that keeps whatever was passed as an argument.
"""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from httpx2 import HTTPError
from huggingface_hub import HfApi

from pimono_sdpo.errors import OutputError, TrainingInputError
from pimono_sdpo.training.tracking import hub_problem

logger = logging.getLogger(__name__)

STUDENT = "default"
WEIGHTS = ("adapter_model.safetensors", "adapter_config.json")
PUBLISHED = (*WEIGHTS, "README.md", "run.json", "report.json", "*.png")


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
    problem = hub_problem()
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
    api = HfApi()
    try:
        url = api.create_repo(hub_model_id, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=url.repo_id,
            folder_path=folder,
            allow_patterns=list(PUBLISHED),
            commit_message="Add the SDPO adapter",
        )
    except (HTTPError, OSError) as error:
        # The network, the token or the Hub: nothing is lost, so say how to go on.
        raise OutputError(
            f"The adapter is in `{folder}` but could not be published ({type(error).__name__}: "
            f"{error}); push it with `hf upload {hub_model_id} {folder}`."
        ) from error
    return str(url)
