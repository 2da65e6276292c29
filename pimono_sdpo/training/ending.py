"""The end of every training job: the adapter, its card and its run log in OUTPUT, then on the Hub.

What a card is and what a secret looks like is told by the job, which may import cards and stages.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from pimono_sdpo.training import output as folders
from pimono_sdpo.training.checkpoints_hub import HubCheckpoints
from pimono_sdpo.training.models import published_base
from pimono_sdpo.training.publish import publish_adapter, save_adapter
from pimono_sdpo.training.reload import write_probe
from pimono_sdpo.training.time_limit import stopped_at

Json = dict[str, Any]


class LogOf(Protocol):
    """Gives the run as JSON."""

    def __call__(self, *, adapter_files: dict[str, int]) -> Json:
        """Take the bytes of each file of the adapter."""


# Writes the card of report and run into a folder.
WriteCard = Callable[[Json | None, Json, Path], None]


def save_run(
    trainer: Any,
    output: Path,
    *,
    base_model: str,
    revision: str | None,
    report: Json | None,
    log_of: LogOf,
    write_card: WriteCard,
) -> Json:
    """Give OUTPUT its adapter, report and run log, in that order and each whole; return the log."""
    staging = folders.staging_folder(output)
    model = trainer.accelerator.unwrap_model(trainer.model)
    files = save_adapter(model, staging, published_base(base_model), revision)
    write_probe(model, trainer.processing_class, output)
    log = log_of(adapter_files=files)
    write_card(report, log, staging)
    folders.finish(output, staging, report, log)
    return log


def publish_run(
    args: Any,
    output: Path,
    secrets: Callable[[str], Sequence[str]],
    lint: Callable[[Path], Sequence[str]],
) -> str | None:
    """Push the adapter when a repository is named, privately unless told otherwise.

    Returns the repository's address. `secrets` names the kinds of secrets in a text, `lint`
    what is wrong with a card.
    """
    if not args.hub_model_id:
        return None
    private = args.hub_private_repo is not False
    return publish_adapter(output / folders.ADAPTER, args.hub_model_id, private, secrets, lint)


def after_all(trainer: Any, kept: HubCheckpoints | None, published: bool) -> str | None:
    """Say how to go on with a training that was cut short; forget the checkpoints of others.

    They are forgotten only when the adapter is on the Hub: a job's own disk is lost.
    """
    step = stopped_at(trainer)
    if step is not None:
        return (
            f"the time limit ended the training after step {step} of {trainer.state.max_steps}; "
            "start it again with the same arguments to go on from there"
        )
    if kept is not None and published:
        kept.remove()
    return None
