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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pimono_sdpo.commands import train as common

if TYPE_CHECKING:
    from trl import ModelConfig
    from trl.experimental.sdpo import SDPOConfig

    from pimono_sdpo.training.arguments import JobArguments
    from pimono_sdpo.training.rewards import Scoring
    from pimono_sdpo.training.run import Ready
    from pimono_sdpo.training.trainer import Fitted, Prepared

Json = dict[str, Any]


def main(argv: list[str]) -> int:
    """Run the job; a problem with what was given is one sentence on stderr and exit code 2."""
    return common.launch("train_sdpo", run, argv)


def run(argv: list[str]) -> None:
    """Parse the arguments and do what the mode says."""
    from pimono_sdpo.training.output import DATA
    from pimono_sdpo.training.rows import prepare_rows

    job, args, model_args, recipe = parse(argv)
    output = Path(args.output_dir)

    def work() -> None:
        if job.mode == "prepare":
            prepare_rows(job, output, DATA, args.seed)
        else:
            train_and_save(job, args, model_args, recipe, argv)

    common.in_output(output, job.mode, work)


def parse(argv: list[str]) -> tuple["JobArguments", "SDPOConfig", "ModelConfig", str]:
    """Merge recipe, command line and environment; return the arguments and the recipe's name."""
    from pimono_sdpo.training.arguments import JobArguments, TrainingConfig

    types = (JobArguments, TrainingConfig)
    return common.parse(argv, types, __doc__, Path(__file__).parent, "gemma4_12b")


def train_and_save(
    job: "JobArguments",
    args: "SDPOConfig",
    model_args: "ModelConfig",
    recipe: str,
    argv: list[str],
) -> None:
    """Settle what the method needs and run its training_run."""
    from pimono_sdpo.training import run as training_run
    from pimono_sdpo.training import sdpo
    from rewards.verifiers.tool_schemas import definitions

    sdpo.settle_length(args, job.generations)
    sdpo.settle_arguments(args, model_args, job.mode == "smoke")
    sdpo.settle_tools(args, definitions(job.tools) if job.tools else None)
    training_run.train_and_save(
        job,
        args,
        model_args,
        recipe=recipe,
        command=argv,
        get_ready=partial(get_ready, job, args, model_args),
        write_card=common.write_card,
        secrets=common.secrets_in,
        lint=common.lint_of,
    )


def get_ready(job: "JobArguments", args: "SDPOConfig", model_args: "ModelConfig") -> "Ready | None":
    """Check everything and build the trainer; None after --mode preflight.

    Only rows that had to be filtered from --source are left behind then.
    """
    from pimono_sdpo.training import held_out, models, resume, rows, sdpo
    from pimono_sdpo.training import run as training_run
    from pimono_sdpo.training.processes import leader_first
    from pimono_sdpo.training.rewards import taught_by, teaching
    from pimono_sdpo.training.rows import refuse_test_rows, rows_of
    from processors.redact import redact_text

    output = Path(args.output_dir)
    with leader_first():
        dataset = rows_of(job, output, args.seed, lambda name: redact_text(name, "")[0])
    loaded = rows.load_rows(dataset)
    refuse_test_rows(loaded, dataset)
    kept_back = rows.load_rows(dataset, job.eval_split) if job.eval_split else None
    report = rows.load_report(dataset)
    revision = models.base_model_revision(model_args)
    models.lora_config(model_args)
    tokenizer = models.load_tokenizer(model_args, revision, args.trust_remote_code)
    ends = models.end_ids(model_args, revision)
    scoring, feedback = taught_by(job, args.feedback_template, tokenizer, ends)
    taught = teaching(job, feedback)
    start = resume.started_with(args, model_args, revision, loaded, taught, kept_back)
    if not job.overwrite:
        resume.check_same_start(output, start)
    fitted = sdpo.fit(args, loaded, tokenizer, scoring, feedback, kept_back)
    prepared = None
    if job.mode != "preflight" or job.preflight_rows:
        prepared = sdpo.prepare(args, model_args, fitted, tokenizer, revision, scoring, feedback)
    goes_on, before = training_run.found_before(output, job.overwrite)
    if job.mode == "preflight" or not goes_on:
        before["preflight"] = look_first(
            job, args, model_args, fitted, tokenizer, revision, scoring, prepared
        )
    if job.mode == "preflight" or prepared is None:
        return None
    score = None
    if fitted.held_out is not None:
        score = partial(
            held_out.score_rows, prepared.trainer, fitted.held_out, job.eval_generations
        )
    return training_run.Ready(
        prepared,
        rows.dataset_name(job.dataset or job.source or dataset),
        report,
        start,
        taught,
        before,
        goes_on,
        score,
        partial(
            held_out.summary, threshold=args.success_reward_threshold, split=str(job.eval_split)
        ),
        silent_rows(job.reward, fitted.counts["without_reward"], len(fitted.rows)),
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
    from pimono_sdpo.training.memory import hardware_of
    from pimono_sdpo.training.preflight import as_text, preflight, refuse
    from pimono_sdpo.training.processes import is_leader
    from pimono_sdpo.training.rewards import refuse_unsound

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


def silent_rows(reward: str, silent: int, used: int) -> list[str]:
    """Say for how many rows there was no reward, if there were any."""
    if silent and reward == "verifiers":
        return [f"{silent} of {used} rows have no verifier_spec: nothing judges them"]
    if silent:
        return [f"{silent} of {used} rows name no concrete term, so that their reward counts as 0"]
    return []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
