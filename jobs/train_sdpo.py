# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "pimono-sdpo[train] @ git+https://github.com/pimono-sdpo/pimono-sdpo@v0.1.0",
# ]
#
# [tool.hf-jobs]
# flavor = "a10g-large"
# timeout = "3h"
# secrets = ["HF_TOKEN"]
# env = { TIME_LIMIT = "3h" }
# ///
"""Train a LoRA adapter with SDPO on filtered traces, and write its card.

    train_sdpo.py --mode train --run-name NAME [--config RECIPE] [any SDPOConfig/ModelConfig flag]

RECIPE is a YAML file or a name (gemma4_12b when left out, tiny for a CPU). OUTPUT, by default
outputs/NAME, gets run.json, report.json and the adapter with its card under adapter/;
run-local.json beside them knows this machine's paths and is never published.

--mode prepare   filter --source into OUTPUT/data, nothing else
--mode preflight say what is found before the first step: lengths, memory, a few rollouts, time
--mode smoke     train for at most 2 steps, push nothing, log to this machine
--mode train     train; with --hub_model_id or HUB_MODEL_ID, publish the adapter
--mode card      write the card again from OUTPUT/run.json and report.json

A killed training goes on from its last checkpoint when started again with the same arguments, and
refuses others. A finished one is left alone; --overwrite starts over, rows included, once all that
was given has been checked. One run at a time works in OUTPUT. HF_TOKEN, HUB_MODEL_ID,
TRACKIO_SPACE_ID and TIME_LIMIT are read from the environment. Exit code 2: something given cannot
be used.
"""

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimono_sdpo.errors import PimonoError

if TYPE_CHECKING:
    from trl import ModelConfig
    from trl.experimental.sdpo import SDPOConfig

    from pimono_sdpo.training.options import JobArguments
    from pimono_sdpo.training.scoring import Scoring
    from pimono_sdpo.training.sdpo import Fitted, Prepared

Json = dict[str, Any]


def main(argv: list[str]) -> int:
    """Run the job; a problem with what was given is one sentence on stderr and exit code 2."""
    from pimono_sdpo.training.quiet import quiet_libraries

    quiet_libraries()
    try:
        run(argv)
    except PimonoError as problem:
        print(f"train_sdpo: {problem}", file=sys.stderr)
        return 2
    return 0


def run(argv: list[str]) -> None:
    """Parse the arguments and do what the mode says."""
    from pimono_sdpo.training.output import DATA, leave_as_found, only_run
    from pimono_sdpo.training.prepared import prepare_rows
    from pimono_sdpo.training.processes import is_leader

    job, args, model_args, recipe = parse(argv)
    output = Path(args.output_dir)
    if job.mode == "card":
        rewrite_card(output)
        return
    alone = only_run(output) if is_leader() else nullcontext()
    with leave_as_found(output), alone:
        if job.mode == "prepare":
            prepare_rows(job, output, DATA, args.seed)
        else:
            train_and_save(job, args, model_args, recipe, argv, output)


def parse(argv: list[str]) -> tuple["JobArguments", "SDPOConfig", "ModelConfig", str]:
    """Merge recipe, command line and environment; return the arguments and the recipe's name."""
    from cards.lint import LICENCES
    from pimono_sdpo.training.arguments import parse_job
    from pimono_sdpo.training.config import TrainingConfig
    from pimono_sdpo.training.options import JobArguments

    types = (JobArguments, TrainingConfig)
    return parse_job(argv, types, __doc__, Path(__file__).parent, LICENCES)


@dataclass
class Ready:
    """What a training starts from once everything that was given has been checked."""

    prepared: "Prepared"
    dataset: str
    report: Json | None
    start: Json
    teaching: Json
    before: Json
    goes_on: bool


def get_ready(
    job: "JobArguments", args: "SDPOConfig", model_args: "ModelConfig", output: Path
) -> Ready | None:
    """Check everything and build the trainer; None after --mode preflight.

    Only rows that had to be filtered from --source are left behind then.
    """
    from pimono_sdpo.training import models, rows, sdpo, started
    from pimono_sdpo.training import output as folders
    from pimono_sdpo.training.prepared import rows_of
    from pimono_sdpo.training.processes import leader_first
    from processors.redact import redact_text
    from rewards.choice import taught_by, teaching

    with leader_first():
        dataset = rows_of(job, output, args.seed, lambda name: redact_text(name, "")[0])
    loaded = rows.load_rows(dataset)
    held_out = rows.load_rows(dataset, job.eval_split) if job.eval_split else None
    report = rows.load_report(dataset)
    revision = models.base_model_revision(model_args)
    models.lora_config(model_args)
    tokenizer = models.load_tokenizer(model_args, revision, args.trust_remote_code)
    ends = models.end_ids(model_args, revision)
    scoring, feedback = taught_by(job, args.feedback_template, tokenizer, ends)
    taught = teaching(job, feedback)
    start = started.started_with(args, model_args, revision, loaded, taught, held_out)
    if not job.overwrite:
        started.check_same_start(output, start)
    fitted = sdpo.fit(args, loaded, tokenizer, scoring, feedback, held_out)
    prepared = None
    if job.mode != "preflight" or job.preflight_rows:
        prepared = sdpo.prepare(args, model_args, fitted, tokenizer, revision, scoring, feedback)
    goes_on = folders.last_checkpoint(output) is not None and not job.overwrite
    before = started.found_before(output) if goes_on else {}
    if job.mode == "preflight" or not goes_on:
        before["preflight"] = look_first(
            job, args, model_args, fitted, tokenizer, revision, scoring, prepared
        )
    if job.mode == "preflight" or prepared is None:
        return None
    return Ready(prepared, dataset, report, start, taught, before, goes_on)


def train_and_save(
    job: "JobArguments",
    args: "SDPOConfig",
    model_args: "ModelConfig",
    recipe: str,
    argv: list[str],
    output: Path,
) -> None:
    """Train, then give OUTPUT its adapter, report and run log; with a repository, publish them."""
    from cards import lint_file
    from pimono_sdpo.training import ending, models, rows, run_log, sdpo, started, tracking
    from pimono_sdpo.training import output as folders
    from pimono_sdpo.training.checkpoints_hub import checkpoints_of
    from pimono_sdpo.training.held_out import as_sentence, score_rows, summary
    from pimono_sdpo.training.processes import is_leader
    from pimono_sdpo.training.publish import check_destination
    from pimono_sdpo.training.time_limit import stopped_at, time_limit_of
    from processors.secrets import kinds_in
    from rewards.verifiers.tool_definitions import definitions

    smoke = job.mode == "smoke"
    sdpo.settle_length(args, job.generations)
    sdpo.settle_arguments(args, model_args, smoke)
    sdpo.settle_tools(args, definitions(job.tools) if job.tools else None)
    if is_leader():
        folders.settle(output)
        folders.check_output(output, job.overwrite)
        check_destination(args, smoke)
    limit = time_limit_of(job.time_limit)
    kept = checkpoints_of(job.checkpoint_bucket, args, job.mode, job.overwrite)
    ready = get_ready(job, args, model_args, output)
    if ready is None:
        folders.drop_next_data(output)
        return
    trainer, fitted, before = ready.prepared.trainer, ready.prepared.fitted, ready.before
    licence = job.license or models.base_model_licence(model_args, ready.prepared.revision)
    tracking.set_up_trackio(args, smoke)
    if not ready.goes_on:
        before["trackio_run"] = tracking.free_run_name(args)
    args.run_name = before.get("trackio_run", args.run_name)
    if fitted.held_out is not None and not ready.goes_on:
        before["held_out"] = score_rows(trainer, fitted.held_out, job.eval_generations)
    base = str(model_args.model_name_or_path)
    if is_leader():
        # Only now: whatever was given has been checked, and nothing is lost before.
        if job.overwrite:
            folders.clear_output(output, keep_data=job.dataset is not None)
            if kept is not None:
                kept.remove()
        folders.begin(output, started.local_record(base, ready.start, before))
    for callback in filter(None, (limit, kept)):
        trainer.add_callback(callback)
    metrics = sdpo.train(ready.prepared)
    evaluation = None
    if fitted.held_out is not None and stopped_at(trainer) is None:
        after = score_rows(trainer, fitted.held_out, job.eval_generations)
        threshold = args.success_reward_threshold
        evaluation = summary(before["held_out"], after, threshold, str(job.eval_split))
    if not is_leader():
        return
    log_of = partial(
        run_log.build_run_log,
        ready.prepared,
        model_args,
        mode=job.mode,
        recipe=recipe,
        command=argv,
        licence=licence,
        dataset=rows.dataset_name(job.dataset or job.source or ready.dataset),
        teaching=ready.teaching,
        before=before,
        evaluation=evaluation,
        metrics=metrics,
    )
    ending.save_run(
        trainer,
        output,
        base_model=base,
        revision=ready.prepared.revision,
        report=ready.report,
        log_of=log_of,
        write_card=write_card,
    )
    if evaluation is not None:
        print(as_sentence(evaluation))
    tell_silent_rows(job.reward, fitted.counts["without_reward"], len(fitted.rows))
    print(f"the adapter and its card are in {output / folders.ADAPTER}")
    address = ending.publish_run(args, output, kinds_in, lint_file)
    if address is not None:
        print(address)
    note = ending.after_all(trainer, kept, published=address is not None)
    if note is not None:
        print(note)


def look_first(
    job: "JobArguments",
    args: "SDPOConfig",
    model_args: "ModelConfig",
    fitted: "Fitted",
    tokenizer: Any,
    revision: str | None,
    scoring: "Scoring",
    prepared: "Prepared | None",
) -> Json:
    """Print the preflight and return it; refuses what it finds unless --force."""
    from pimono_sdpo.training.hardware import hardware_of
    from pimono_sdpo.training.preflight import preflight, refuse
    from pimono_sdpo.training.preflight_text import as_text
    from pimono_sdpo.training.processes import is_leader
    from rewards.choice import refuse_unsound

    found = preflight(
        args,
        model_args,
        fitted,
        tokenizer,
        revision,
        reward_rows=refuse_unsound(scoring, fitted.rows, args.success_reward_threshold),
        hardware=hardware_of(job.flavor),
        prepared=prepared,
        # vLLM samples groups alone, and its weights are not loaded yet.
        rows=0 if args.use_vllm or job.mode == "smoke" else job.preflight_rows,
    )
    if is_leader():
        print(as_text(found))
    refuse(found, job.force)
    return found


def tell_silent_rows(reward: str, silent: int, used: int) -> None:
    """Say for how many rows there was no reward."""
    if silent and reward == "verifiers":
        print(f"{silent} of {used} rows have no verifier_spec: nothing judges them")
    elif silent:
        print(f"{silent} of {used} rows name no concrete term, so that their reward counts as 0")


def write_card(report: Json | None, run: Json, folder: Path) -> None:
    """Write the model card with its plots."""
    from cards import write_model_card

    for problem in write_model_card(report, run, folder):
        print(f"train_sdpo: the Hub may refuse the model card: {problem}", file=sys.stderr)


def rewrite_card(output: Path) -> None:
    """Write the card of a finished run again; the same run gives the same bytes."""
    from pimono_sdpo.training.finished import read_finished
    from pimono_sdpo.training.output import ADAPTER

    report, run = read_finished(output)
    write_card(report, run, output / ADAPTER)
    print(f"the card is {output / ADAPTER / 'README.md'}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
