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
was given has been checked. One run at a time works in OUTPUT. HF_TOKEN, HUB_MODEL_ID and
TRACKIO_SPACE_ID are read from the environment. Exit code 2: something given cannot be used.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimono_sdpo.errors import PimonoError, TrainingInputError

if TYPE_CHECKING:
    from trl import ModelConfig
    from trl.experimental.sdpo import SDPOConfig

    from pimono_sdpo.training.options import JobArguments
    from pimono_sdpo.training.scoring import Scoring
    from pimono_sdpo.training.sdpo import Fitted, Prepared

Json = dict[str, Any]
PLOT = "training.png"
EVALUATION_PLOT = "evaluation.png"


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

    job, args, model_args, recipe = parse(argv)
    output = Path(args.output_dir)
    if job.mode == "card":
        rewrite_card(output)
        return
    with leave_as_found(output), only_run(output):
        if job.mode == "prepare":
            prepare_rows(job, output, DATA, args.seed)
        else:
            train_and_save(job, args, model_args, recipe, argv, output)


def parse(argv: list[str]) -> tuple["JobArguments", "SDPOConfig", "ModelConfig", str]:
    """Merge recipe, command line and environment; return the arguments and the recipe's name."""
    import yaml
    from trl import ModelConfig

    from cards.lint import LICENCES
    from pimono_sdpo.training import arguments
    from pimono_sdpo.training.config import TrainingConfig
    from pimono_sdpo.training.options import JobArguments
    from pimono_sdpo.training.recipes import DEFAULT_RECIPE, find_recipe

    name, rest = arguments.take_config(argv)
    recipe = find_recipe(name or DEFAULT_RECIPE, Path(__file__).parent)
    parser = arguments.SentenceParser((JobArguments, TrainingConfig, ModelConfig), __doc__)
    try:
        job, args, model_args, *unknown = parser.parse_args_and_config(
            ["--config", str(recipe), *rest], return_remaining_strings=True
        )
    except (ValueError, yaml.YAMLError) as error:
        # TRL checks its own arguments against each other and raises ValueError.
        raise TrainingInputError(
            f"The arguments of `{recipe.name}` and the command line cannot be used: "
            f"{' '.join(str(error).split())}"
        ) from error
    if unknown[-1]:
        raise TrainingInputError(
            f"Unknown argument(s) {' '.join(unknown[-1])}; see --help for the known ones."
        )
    for given in (job, args, model_args):
        arguments.check_numbers(vars(given))
    arguments.check_length(args.max_steps, args.num_train_epochs)
    job.license = arguments.known_licence(job.license, LICENCES)
    args.run_name = args.run_name or recipe.stem
    arguments.check_run_name(args.run_name)
    if args.output_dir == "trainer_output":
        suffix = "-smoke" if job.mode == "smoke" else ""
        args.output_dir = str(Path("outputs") / f"{args.run_name}{suffix}")
    args.hub_model_id = args.hub_model_id or os.environ.get("HUB_MODEL_ID") or None
    return job, args, model_args, recipe.name


def prepare_rows(job: "JobArguments", output: Path, name: str, seed: int) -> str:
    """Filter the source into a folder of OUTPUT and return it."""
    from pimono_sdpo.commands import run_filter

    if job.source is None:
        raise TrainingInputError(
            "There is nothing to train on; give --dataset (rows) or --source (traces)."
        )
    folder = output / name
    report = run_filter(
        job.source,
        folder,
        unit=job.unit,
        min_score=job.min_score,
        max_samples=job.max_samples,
        test_fraction=job.test_fraction,
        seed=seed,
    )
    print(f"{report['kept']} of {report['sessions']} sessions are rows in {output / 'data'}")
    return str(folder)


def rows_of(job: "JobArguments", output: Path, seed: int) -> str:
    """Return the rows to train on: --dataset, else those prepared before, else filter now."""
    from pimono_sdpo.training import output as folders
    from pimono_sdpo.training.prepared import check_prepared
    from processors.redact import redact_text

    if job.dataset is not None:
        return job.dataset
    data = output / folders.DATA
    if job.overwrite:
        folders.check_data(output)
        return prepare_rows(job, output, folders.NEXT_DATA, seed)
    if not (data / folders.REPORT_FILE).exists():
        return prepare_rows(job, output, folders.DATA, seed)
    options = {"unit": job.unit, "min_score": job.min_score, "max_samples": job.max_samples}
    options |= {"test_fraction": job.test_fraction, "seed": seed}
    check_prepared(data, options, job.source, lambda name: redact_text(name, "")[0])
    return str(data)


def train_and_save(
    job: "JobArguments",
    args: "SDPOConfig",
    model_args: "ModelConfig",
    recipe: str,
    argv: list[str],
    output: Path,
) -> None:
    """Train, then give OUTPUT its adapter, report and run log, in that order and each whole.

    The mode `preflight` ends before anything is written.
    """
    from pimono_sdpo.training import models, publish, reload, rows, run_log, sdpo, started, tracking
    from pimono_sdpo.training import output as folders
    from pimono_sdpo.training.held_out import as_sentence, score_rows, summary
    from processors.secrets import kinds_in
    from rewards.choice import taught_by, teaching

    smoke = job.mode == "smoke"
    sdpo.settle_arguments(args, model_args, smoke)
    folders.settle(output)
    folders.check_output(output, job.overwrite)
    check_where_it_goes(args, smoke)
    dataset = rows_of(job, output, args.seed)
    loaded = rows.load_rows(dataset)
    held_out = rows.load_rows(dataset, job.eval_split) if job.eval_split else None
    report = rows.load_report(dataset)
    revision = models.base_model_revision(model_args)
    models.lora_config(model_args)
    tokenizer = models.load_tokenizer(model_args, revision, args.trust_remote_code)
    ends = models.end_ids(model_args, revision)
    scoring, feedback = taught_by(job, args.feedback_template, tokenizer, ends)
    start = started.started_with(args, model_args, revision, loaded, teaching(job, feedback))
    if not job.overwrite:
        started.check_same_start(output, start)
    fitted = sdpo.fit(args, loaded, tokenizer, scoring, feedback, held_out)
    prepared = None
    if job.mode != "preflight" or job.preflight_rows:
        prepared = sdpo.prepare(args, model_args, fitted, tokenizer, revision, scoring, feedback)
    goes_on = folders.last_checkpoint(output) is not None and not job.overwrite
    before = started.found_before(output) if goes_on else {}
    if not (smoke or goes_on):
        before["preflight"] = look_first(
            job, args, model_args, fitted, tokenizer, revision, scoring, prepared
        )
    if job.mode == "preflight" or prepared is None:
        return
    licence = job.license or models.base_model_licence(model_args, prepared.revision)
    tracking.set_up_trackio(args, smoke)
    if fitted.held_out is not None and not goes_on:
        before["held_out"] = score_rows(prepared.trainer, fitted.held_out, job.eval_generations)
    # Only now: whatever was given has been checked, and nothing is lost before.
    if job.overwrite:
        folders.clear_output(output, keep_data=job.dataset is not None)
    base = str(model_args.model_name_or_path)
    folders.begin(output, started.local_record(base, start, before))
    metrics = sdpo.train(prepared)
    evaluation = None
    if fitted.held_out is not None:
        after = score_rows(prepared.trainer, fitted.held_out, job.eval_generations)
        threshold = args.success_reward_threshold
        evaluation = summary(before["held_out"], after, threshold, str(job.eval_split))
        print(as_sentence(evaluation))

    staging = folders.staging_folder(output)
    model = prepared.trainer.accelerator.unwrap_model(prepared.trainer.model)
    files = publish.save_adapter(model, staging, models.published_base(base), prepared.revision)
    reload.write_probe(model, prepared.trainer.processing_class, output)
    log = run_log.build_run_log(
        prepared,
        model_args,
        mode=job.mode,
        recipe=recipe,
        command=argv,
        licence=licence,
        dataset=rows.dataset_name(job.dataset or job.source or dataset),
        teaching=teaching(job, feedback),
        before=before,
        evaluation=evaluation,
        metrics=metrics,
        adapter_files=files,
    )
    write_card(report, log, staging)
    folders.finish(output, staging, report, log)
    adapter = output / folders.ADAPTER
    silent, used = fitted.counts["without_reward"], log["dataset"]["rows_used"]
    if silent and job.reward == "verifiers":
        print(f"{silent} of {used} rows have no verifier_spec: nothing judges them")
    elif silent:
        print(f"{silent} of {used} rows name no concrete term, so that their reward counts as 0")
    print(f"the adapter and its card are in {adapter}")
    if args.hub_model_id:
        private = args.hub_private_repo is not False
        print(publish.publish_adapter(adapter, args.hub_model_id, private, kinds_in))


def check_where_it_goes(args: "SDPOConfig", smoke: bool) -> None:
    """Find out before hours of training that the adapter would be lost."""
    from pimono_sdpo.training.publish import check_hub

    if args.hub_model_id:
        check_hub(args.hub_model_id)
    elif "JOB_ID" in os.environ and not smoke:
        print(
            "train_sdpo: this Hugging Face job keeps no files; without HUB_MODEL_ID the adapter is "
            "lost when it ends, unless OUTPUT is on a volume.",
            file=sys.stderr,
        )


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
        rows=job.preflight_rows,
    )
    print(as_text(found))
    refuse(found, job.force)
    return found


def write_card(report: Json | None, run: Json, folder: Path) -> None:
    """Write the model card and the plots it shows."""
    from cards import lint_card, render_model_card, write_evaluation_plot, write_run_plot

    write_run_plot(run, folder / PLOT)
    if run["evaluation"]:
        write_evaluation_plot(run["evaluation"], folder / EVALUATION_PLOT)
    card = render_model_card(report, run)
    (folder / "README.md").write_text(card)
    for problem in lint_card(card):
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
