"""The run of every training job, whatever its method: check, train, save, publish.

What a card is and what a secret looks like is told by the job, which may import cards and stages.

What is checked first and what a method is made of comes with `Ready`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from trl import ModelConfig

from pimono_sdpo.training import models, resume, run_log, trackio_run
from pimono_sdpo.training import output as folders
from pimono_sdpo.training.arguments import CommonArguments
from pimono_sdpo.training.held_out import as_sentence
from pimono_sdpo.training.models import published_base
from pimono_sdpo.training.processes import is_leader
from pimono_sdpo.training.publish import (
    HubCheckpoints,
    check_destination,
    checkpoints_of,
    publish_adapter,
    save_adapter,
)
from pimono_sdpo.training.reload import write_probe
from pimono_sdpo.training.time_limit import stopped_at, time_limit_of
from pimono_sdpo.training.trainer import Prepared, train

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


@dataclass
class Ready:
    """What a training starts from once everything that was given has been checked.

    dataset     the rows' name, as the card gives it
    report      of the filter that made the rows, None without one
    start       every argument that decides the result, see started.py
    teaching    what of it the card tells beside TRL's arguments
    before      what was found before the first step, by this run or by the one it goes on with
    score       scores of the held-out rows, None without any; `compare` them before and after
    notes       sentences for the end of the run
    left_out    rows that cannot be trained on, with their reasons, for OUTPUT/left-out.json
    """

    prepared: Prepared
    dataset: str
    report: Json | None
    start: Json
    teaching: Json
    before: Json
    goes_on: bool
    score: Callable[[], Json] | None
    compare: Callable[[Json, Json], Json]
    notes: Sequence[str] = ()
    left_out: Sequence[Json] = ()


def found_before(output: Path, overwrite: bool) -> tuple[bool, Json]:
    """Tell whether a training goes on, and what was found before its first step."""
    goes_on = folders.last_checkpoint(output) is not None and not overwrite
    return goes_on, resume.found_before(output) if goes_on else {}


def train_and_save(
    job: CommonArguments,
    args: Any,
    model_args: ModelConfig,
    *,
    recipe: str,
    command: list[str],
    get_ready: Callable[[], Ready | None],
    write_card: WriteCard,
    secrets: Callable[[str], Sequence[str]],
    lint: Callable[[Path], Sequence[str]],
) -> None:
    """Train, then give OUTPUT its adapter, report and run log; with a repository, publish them.

    `args` are settled. `get_ready` checks everything and builds the trainer, None when nothing is
    to be trained. `secrets` names the kinds of secrets in a text, `lint` what is
    wrong with a card.
    """
    output, smoke = Path(args.output_dir), job.mode == "smoke"
    if is_leader():
        folders.settle(output)
        folders.check_output(output, job.overwrite)
        check_destination(args, smoke)
    limit = time_limit_of(job.time_limit)
    kept = checkpoints_of(job.checkpoint_bucket, args, job.mode, job.overwrite)
    ready = get_ready()
    if ready is None:
        folders.drop_next_data(output)
        return
    trainer, before = ready.prepared.trainer, ready.before
    licence = job.license or models.base_model_licence(model_args, ready.prepared.revision)
    trackio_run.set_up_trackio(args, smoke)
    if not ready.goes_on:
        before["trackio_run"] = trackio_run.free_run_name(args)
    args.run_name = before.get("trackio_run", args.run_name)
    if ready.score is not None and not ready.goes_on:
        before["held_out"] = ready.score()
    base = str(model_args.model_name_or_path)
    if is_leader():
        # Only now: whatever was given has been checked, and nothing is lost before.
        if job.overwrite:
            folders.clear_output(output, keep_data=job.dataset is not None)
            if kept is not None:
                kept.remove()
        folders.begin(output, resume.local_record(base, ready.start, before))
        if ready.left_out:
            folders.write_json({"rows": list(ready.left_out)}, output / folders.LEFT_OUT_FILE)
    for callback in filter(None, (limit, kept)):
        trainer.add_callback(callback)
    metrics = train(ready.prepared)
    evaluation = None
    if ready.score is not None and stopped_at(trainer) is None:
        evaluation = ready.compare(before["held_out"], ready.score())
    if not is_leader():
        return
    log_of = partial(
        run_log.build_run_log,
        ready.prepared,
        model_args,
        mode=job.mode,
        recipe=recipe,
        command=command,
        licence=licence,
        dataset=ready.dataset,
        teaching=ready.teaching,
        before=before,
        evaluation=evaluation,
        metrics=metrics,
    )
    save_run(
        trainer,
        output,
        base_model=base,
        revision=ready.prepared.revision,
        report=ready.report,
        log_of=log_of,
        write_card=write_card,
    )
    notes = [
        *([as_sentence(evaluation, args.METHOD)] if evaluation is not None else []),
        *ready.notes,
    ]
    for note in [*notes, f"the adapter and its card are in {output / folders.ADAPTER}"]:
        print(note)  # noqa: T201
    address = publish_run(args, output, secrets, lint)
    last = after_all(trainer, kept, published=address is not None)
    for note in filter(None, (address, last)):
        print(note)  # noqa: T201
