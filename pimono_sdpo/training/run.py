"""Run a training job of any method: choose, check, preflight, train, save, publish."""

import hashlib
import json
import math
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from os import environ
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import datasets
import torch
from accelerate import PartialState
from datasets import Dataset
from peft import PeftModel
from transformers import PrinterCallback, ProgressCallback
from transformers.integrations import TrackioCallback
from trl import DPOTrainer, ModelConfig, SFTTrainer
from trl.trainer.utils import create_model_from_path

from cards.render import write_model_card
from pimono_sdpo.errors import OutputError, PimonoError, TrainingInputError
from pimono_sdpo.program import allow_cleanup, check_hub
from pimono_sdpo.push import Repo, remove_empty
from pimono_sdpo.runs.folders import read_json
from pimono_sdpo.text import escape_line, is_this_machine, shorten_line
from pimono_sdpo.training import callbacks, models, output, preflight
from pimono_sdpo.training.arguments import parse_job
from pimono_sdpo.training.console import is_main_process, say, warn
from pimono_sdpo.training.launch import COMMAND
from pimono_sdpo.training.options import (
    DEFAULT_RECIPE,
    OPTIONAL_PACKAGES,
    READS,
    SAMPLING,
    SMOKE_TEST,
    SMOKE_THRESHOLD,
    check_generations,
    choose,
    is_local,
    read_recipe,
    split_options,
)
from pimono_sdpo.training.rewards import (
    PASS_THROUGH,
    Feedback,
    FeedbackBuilder,
    Scoring,
    check_call_format,
    feedback_of,
    hash_own,
    scoring_of,
    set_response_template,
    try_attacks,
    word_reprompt,
)
from pimono_sdpo.training.rows import (
    FILTERED,
    TEMPLATE_KWARGS,
    Fitted,
    Wording,
    check_template,
    filter_source,
    fit_answers,
    fit_prompts,
    hash_rows,
    hold_out,
    load_checked,
    load_report,
    load_rows,
)
from pimono_sdpo.training.trainer import ContextTrainer, DistillationTrainer
from pimono_sdpo.version import __version__
from rewards.verifiers.tool_calls import TOOL_SETS, definitions

SMOKE_STEPS = 2
# The columns of recorded answers.
TARGETS = {"sft": ("completion",), "dpo": ("chosen", "rejected")}
# Names and prefixes of arguments that do not affect the weights: where a run writes and logs to.
NO_EFFECT = (
    *("output_dir", "run_name", "project", "report_to", "disable_tqdm", "log_", "logging_"),
    *("save_", "hub_", "push_to_hub", "trackio_", "diagnostics_", "skip_memory_metrics"),
)
# The arguments of the job that affect the weights or the scores; those of FILTERED only with --source.
TEACHING = ("reward", "gate", "grade", "tools", "eval_split", "held_out", "eval_rows", "eval_generations")
HEAD_BYTES = 2**20
SHOWN_DIFFERENCES = 3
Json = dict[str, Any]


def run_script(method: str, argv: list[str], description: str | None) -> int:
    """Run a script of jobs/; return 0, or 2 after one sentence on stderr."""
    allow_cleanup()
    try:
        check_hub()
        run_job(method, argv, description, "gemma4_12b" if method == "sdpo" else DEFAULT_RECIPE)
    except PimonoError as error:
        sys.stderr.write(f"{escape_line(f'train_{method}: {error}')}\n")
        return 2
    return 0


def run_job(method: str, argv: list[str], description: str | None = None, recipe: str = DEFAULT_RECIPE) -> Path:
    """Run a job with command-line arguments, by default of the method that its rows suit; return OUTPUT.

    Raises PimonoError.
    """
    if method not in (known := ("auto", *SAMPLING, *READS)):
        raise TrainingInputError(f"`{method}` is not a method; use one of {', '.join(dict.fromkeys(known))}.")
    command, rows, choice = argv, None, None
    if method == "auto":
        given, _ = split_options(argv, dataset=None, dataset_config=None, reward=None, config=recipe)
        read_recipe(given["config"], "sdft")
        if given["reward"]:
            method = "sdpo"
        elif given["dataset"] and not {"-h", "--help"} & {*argv}:
            rows = load_rows(given["dataset"], config=given["dataset_config"])
            choice = choose(method, rows.column_names, specs_of(rows))
            method = choice.method
        else:
            method = "sdft"
    if method in ("rft", "grpo"):
        argv = [*argv, "--method", method]
    job, args, model_args, recipe = parse_job(method, argv, recipe, description)
    method = getattr(args, "method", method)
    settle(job, args)
    if args.device.type == "cpu" and not args.use_cpu and job.mode != "preflight":
        raise TrainingInputError(
            f"This machine has no GPU, which the recipe {recipe} needs; give --config cpu, train with --on hf:FLAVOR, "
            "or give --use_cpu true for a small model."
        )
    folder = Path(args.output_dir)
    with open_output(job, args, folder) as (destination, checkpoints, limit):
        if rows is None and job.dataset is not None:
            rows = load_rows(job.dataset, config=job.dataset_config)
        if choice is None:
            choice = choose(method, rows.column_names if rows else (), specs_of(rows) if rows else None)
        if method in SAMPLING and job.reward is None:
            job.reward, job.grade = choice.reward, job.grade or [*choice.grade]
        if method in SAMPLING and job.reward == SMOKE_TEST and args.success_reward_threshold == 1.0:
            # TRL's default, which this reward does not reach.
            args.success_reward_threshold = SMOKE_THRESHOLD
        say(choice.sentence(recipe, model_args.model_name_or_path, getattr(job, "reward", None)))
        print_destinations(args, job.mode, destination, checkpoints)
        dataset = job.dataset
        if dataset is None:
            with PartialState().main_process_first():
                dataset = filter_source(job, folder, args.seed) if hasattr(job, "source") else None
        if dataset is None:
            raise TrainingInputError("There is nothing to train on; give --dataset (rows).")
        rows, held_out, split = hold_out(load_checked(dataset, method, job.dataset_config), dataset, job)
        if held_out is not None:
            held_out = held_out.select(range(min(job.eval_rows, len(held_out))))
        report = load_report(dataset) if "source" in vars(job) else None
        setup = set_up(job, args, model_args)
        check_contexts(setup, rows)
        start = started_with(setup, rows, held_out)
        resumed = None if job.overwrite or job.mode == "preflight" else check_same_start(folder, start)
        fitted, evaluated = fit(setup, rows), held_out and fit(setup, held_out).rows
        before, trainer = resumed or {}, None
        if resumed is None:
            before["preflight"], trainer = run_preflight(setup, fitted, evaluated)
            typed = any(word.partition("=")[0] == "--force" for word in command)
            forced = "--force" if typed else f"`force: true` in the recipe {recipe}"
            preflight.refuse(before["preflight"], forced if job.force else "")
        if job.mode == "preflight":
            return folder
        trainer = trainer or build(setup, fitted.rows, evaluated)
        licence = job.license or models.base_model_licence(model_args, setup.revision)
        if destination is not None and licence is None:
            warn("the card of the base model names no licence; give --license ID for the card of the adapter")
        callbacks.set_up_trackio(args, job.mode == "smoke")
        if resumed is None:
            before["trackio_run"] = callbacks.free_run_name(args)
            if evaluated is not None:
                before["held_out"] = preflight.score(trainer, evaluated, getattr(job, "eval_generations", 1))
        args.run_name = before["trackio_run"]
        if is_main_process():
            begin(setup, folder, fitted, start, before, checkpoints)
        for callback in filter(None, (limit, checkpoints)):
            trainer.add_callback(callback)
        metrics, evaluation = run_steps(trainer), None
        stopped_at = limit and limit.stopped_at
        if evaluated is not None and stopped_at is None:
            after = preflight.score(trainer, evaluated, getattr(job, "eval_generations", 1))
            evaluation = preflight.compare(before["held_out"], after, evaluated, split)
        if is_main_process():
            log = describe_run(setup, trainer, len(rows), fitted) | {
                "recipe": recipe,
                "reason": choice.why,
                "command": [_without_machine_path(word) for word in command],
                # The command that submitted this job, if any did.
                "submitted_with": [_without_machine_path(word) for word in shlex.split(environ.get(COMMAND, ""))],
                "job": describe_job(),
                "licence": licence,
                "preflight": before.get("preflight"),
                "evaluation": evaluation,
                "metrics": metrics,
            }
            log["dataset"]["id"] = models.public_name(job.dataset or getattr(job, "source", None) or dataset)
            if stopped_at is not None:
                log["guards"]["stopped_by"] = output.CUT_SHORT
            save(setup, trainer, folder, report, log)
            if evaluation is not None:
                say(preflight.as_sentence(evaluation, args.METHOD))
            for note in notes_on(fitted, len(rows)):
                say(note)
            say(f"the adapter and its card are in {folder / output.ADAPTER}")
            if destination is not None:
                say(output.publish_adapter(destination, folder / output.ADAPTER))
            if stopped_at is not None:
                say(
                    f"the time limit ended the training after step {stopped_at} of {trainer.state.max_steps}; "
                    "start it again with the same arguments to resume it"
                )
            elif checkpoints is not None and destination is not None:
                # Only once the adapter is on the Hub: a job's own disk is lost.
                checkpoints.remove()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        # Otherwise its threads abort a process that exits before the others.
        torch.distributed.destroy_process_group()
    return folder


def specs_of(rows: Dataset) -> list[str | None]:
    """Return the `verifier_spec` of each row, None where there is none."""
    return [*rows["verifier_spec"]] if "verifier_spec" in rows.column_names else [None] * len(rows)


def settle(job: Any, args: Any) -> None:
    """Check the arguments of a job and of TRL together, and adjust them in place."""
    if args.hub_token is not None:
        raise TrainingInputError(
            "--hub_token would be written into training_args.bin of every checkpoint; put the "
            "token into the environment variable HF_TOKEN instead."
        )
    if args.push_to_hub and args.hub_model_id is None:
        raise TrainingInputError("--push_to_hub needs a repository; give --hub_model_id or set HUB_MODEL_ID.")
    for option, package in OPTIONAL_PACKAGES.items():
        if getattr(args, option, False) and find_spec(package) is None:
            raise TrainingInputError(f"--{option} needs the package `{package}`; install it, or leave out --{option}.")
    # The Trainer would also push training_args.bin; output.py pushes the adapter.
    args.push_to_hub = False
    args.model_init_kwargs = args.model_init_kwargs or {}
    if job.mode == "smoke":
        args.max_steps = SMOKE_STEPS if args.max_steps < 1 else min(SMOKE_STEPS, args.max_steps)
        args.save_strategy = "no"
        # Its metrics must not be logged to the run of the real training.
        args.run_name = f"{args.run_name}-smoke"
        args.hub_model_id = None
    if args.METHOD in ("sdft", "sdpo"):
        settle_sampling(job, args)
    elif getattr(args, "chat_template_path", None) is not None:
        raise TrainingInputError(
            "--chat_template_path is not supported: the adapter is for the base model with its "
            "own chat template; leave it out."
        )
    elif getattr(args, "completion_only_loss", None) is False:
        raise TrainingInputError(
            "--completion_only_loss false would train the model to write tool results and requests; leave it out."
        )


def settle_sampling(job: Any, args: Any) -> None:
    """Check and adjust the arguments of SDFT and SDPO."""
    if job.generations is not None:
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
        args.max_steps = math.ceil(job.generations / (batch * args.world_size)) * args.num_iterations
    if args.METHOD == "sdpo" and args.method != "sdpo":
        # Neither `rft` nor `grpo` needs a teacher, so no EMA is kept.
        args.teacher_model_kind = "base"
        args.distillation_weight = 0.0
        job.feedback = job.feedback or "none"
    micro_batches = args.steps_per_generation * args.num_iterations
    aligned = args.save_steps * args.gradient_accumulation_steps % micro_batches == 0
    if args.num_iterations > 1 and args.save_strategy == "steps" and args.save_steps >= 1 and not aligned:
        raise TrainingInputError(
            f"--save_steps {args.save_steps:g} would write checkpoints in the middle of a batch of rollouts, "
            "which is lost on resume; give a multiple of --num_iterations."
        )
    if args.num_iterations > 1 and args.steps_per_generation % args.gradient_accumulation_steps:
        raise TrainingInputError(
            f"--num_iterations {args.num_iterations} would repeat completions within one "
            "update; leave out --steps_per_generation (--sample_at_once saves memory)."
        )
    if args.distillation_mode == "topk_logits" and not args.distillation_topk:
        raise TrainingInputError("--distillation_mode topk_logits needs a number of tokens; give --distillation_topk.")
    if args.use_teacher_server:
        raise TrainingInputError(
            "--use_teacher_server is not supported: the loss in float32 needs all logits of the teacher; leave it out."
        )
    if args.METHOD == "sdft":
        args.num_generations_eval = args.num_generations_eval or 1
    else:
        learns = args.distillation_weight >= 1 and feedback_of(job, args).mode != "none"
        check_generations(args.method, args.num_generations, learns)
    args.chat_template_kwargs = {**TEMPLATE_KWARGS, **(args.chat_template_kwargs or {})}
    if job.tools is not None:
        if job.tools not in TOOL_SETS:
            raise TrainingInputError(f"--tools is {job.tools}, and not one of {', '.join(TOOL_SETS)}.")
        args.chat_template_kwargs["tools"] = definitions(job.tools)


@contextmanager
def open_output(
    job: Any, args: Any, folder: Path
) -> Iterator[tuple[Repo | None, output.HubCheckpoints | None, callbacks.TimeLimit | None]]:
    """Lock OUTPUT, check that the adapter can be published, and fetch checkpoints from the Hub."""
    if args.METHOD == "sdpo":
        # The user's own code, before anything is downloaded.
        hash_own([job.reward or ""])
    # With --source, a preflight writes the rows.
    writes_nothing = job.mode == "preflight" and job.dataset is not None
    destination = None
    with output.only_run(folder) if is_main_process() else nullcontext():
        if is_main_process():
            output.check_output(folder, job.overwrite or writes_nothing)
            destination = output.open_destination(args, job.mode)
        try:
            limit = callbacks.time_limit_of(job.time_limit)
            yield destination, output.open_checkpoints(job.checkpoint_bucket, args, job.mode, job.overwrite), limit
        except BaseException:
            if destination is not None:
                remove_empty(destination)
            raise


def print_destinations(
    args: Any, mode: str, destination: Repo | None, checkpoints: output.HubCheckpoints | None
) -> None:
    """Print what leaves this machine, and where it goes."""
    logged = "trackio" in args.report_to and mode == "train"
    space = args.trackio_space_id or environ.get(callbacks.SPACE_VARIABLE)
    destinations = {
        "the adapter, its card, run log and page, to the repository": destination and destination.name,
        "checkpoints, to the private bucket": checkpoints and checkpoints.bucket,
        "metrics and sampled answers, to the Space": space if logged else None,
        "prompts and weights, to the vLLM server at": _find_vllm_host(args),
    }
    for what, where in destinations.items():
        if where:
            say(f"leaves this machine: {what} {where}")
    say("stays here: " + ("the rows" if any(destinations.values()) else "everything: rows, adapter and metrics"))


@dataclass
class Setup:
    """The arguments of a run with its tokenizer, base model, reward, feedback, and adapter to start from."""

    job: Any
    args: Any
    model_args: ModelConfig
    revision: str | None
    tokenizer: Any
    scoring: Scoring | None = None
    feedback: Feedback | None = None
    adapter: Path | None = None

    @property
    def budgets(self) -> dict[str, int | None]:
        """The limits of the lengths of a row, in tokens."""
        args = self.args
        if args.METHOD in TARGETS:
            return {"sequence": args.max_length}
        return {"prompt": self.prompt_tokens, "teacher_prompt": args.max_reprompt_len}

    # TRL's own limit is taken away once the rows fit.
    prompt_tokens: int = 0


def set_up(job: Any, args: Any, model_args: ModelConfig) -> Setup:
    """Check the base model and its LoRA arguments, and load tokenizer, adapter and reward."""
    adapter = None
    if getattr(job, "adapter", None) is not None:
        adapter = models.open_adapter(job.adapter, model_args)
    revision = models.base_model_revision(model_args)
    models.lora_config(model_args)
    tokenizer = models.load_tokenizer(model_args, revision, args.trust_remote_code)
    setup = Setup(job, args, model_args, revision, tokenizer, adapter=adapter)
    if args.METHOD in TARGETS:
        return setup
    if args.distillation_mode == "topk_logits" and args.distillation_topk > len(tokenizer):
        raise TrainingInputError(
            f"--distillation_topk is {args.distillation_topk}, and the model has {len(tokenizer)} tokens; give a "
            "smaller number."
        )
    setup.prompt_tokens = args.max_prompt_length or args.max_reprompt_len
    # The rows are fitted before; TRL would cut off <bos> and the start of the task.
    args.max_prompt_length = None
    if args.METHOD == "sdpo":
        set_response_template(tokenizer)
        ends = {tokenizer.eos_token_id, *models.end_ids(model_args, revision)}
        setup.scoring, setup.feedback = scoring_of(job.reward, job.gate, job.grade, ends), feedback_of(job, args)
        args.include_environment_feedback = setup.feedback.mode != "none"
        args.feedback_template = PASS_THROUGH
    return setup


def fit(setup: Setup, rows: Dataset) -> Fitted:
    """Fit rows to the token budgets; raises TrainingInputError for rows that the method cannot use."""
    args, job, tokenizer = setup.args, setup.job, setup.tokenizer
    if args.METHOD in TARGETS:
        return fit_answers(rows, TARGETS[args.METHOD], tokenizer, args.max_length)
    feedback, scoring = setup.feedback, setup.scoring
    if feedback is None or scoring is None:
        template = args.teacher_prompt_template
        wording = Wording(lambda task, context: str(template.format(prompt=task, privileged_context=context)))
    else:
        if feedback.asks_reward and scoring.feedback is None:
            raise TrainingInputError(
                f"--feedback {feedback.mode} needs a reward that says what is wrong with a "
                "completion; give --reward verifiers, or --feedback trace."
            )
        scoring.check(args.success_reward_threshold, args.reward_weights, rows.column_names)
        check_call_format(job.reward, tokenizer, rows)
        wording = word_reprompt(args, feedback)
    if scoring is None:
        # Without a context the teacher reads what the student reads.
        rows = rows.filter(lambda text: bool((text or "").strip()), input_columns="privileged_context")
    template_kwargs = args.chat_template_kwargs
    fitted = fit_prompts(rows, tokenizer, setup.prompt_tokens, args.max_reprompt_len, wording, template_kwargs)
    unscored = scoring.find_unscored(fitted.rows) if scoring else []
    if unscored and job.reward == SMOKE_TEST:
        # TRL would count their completions as failures.
        scored = sorted({*range(len(fitted.rows))} - {*unscored})
        if not scored:
            raise TrainingInputError(
                f"None of the {len(unscored)} rows names a concrete term in `reward_terms`; give other rows, or "
                "another --reward."
            )
        lengths = {name: [values[index] for index in scored] for name, values in fitted.lengths.items()}
        fitted = fitted._replace(rows=fitted.rows.select(scored), lengths=lengths)
    return fitted._replace(counts={**fitted.counts, "without_reward": len(unscored)})


def check_contexts(setup: Setup, rows: Dataset) -> None:
    """Raise TrainingInputError when the teacher could read nothing in any row."""
    feedback, columns = setup.feedback, {"privileged_context"}
    if setup.args.METHOD in TARGETS or getattr(setup.args, "distillation_weight", 1.0) == 0:
        return
    if feedback is not None:
        columns = {"privileged_context"} if feedback.mode in ("trace", "both") else set()
        columns |= {"verifier_spec"} if feedback.asks_reward else set()
    texts = [text for name in columns & {*rows.column_names} for text in rows[name]]
    if columns and not any(str(text or "").strip() for text in texts):
        raise TrainingInputError(
            f"No row has a text in {' or '.join(sorted(columns))}, so the teacher would read nothing; give rows that "
            "`filter` wrote, or --feedback none with a reward."
        )


def run_preflight(setup: Setup, fitted: Fitted, held_out: Dataset | None) -> tuple[Json, Any]:
    """Print and return the findings, and the trainer if one was built to sample completions."""
    job, args, model_args = setup.job, setup.args, setup.model_args
    hardware = models.hardware_of(job.flavor)
    with translate(model_args):
        config = models.read_config(model_args, setup.revision, args.trust_remote_code)
        parts = estimate(setup, fitted, config)
    findings = preflight.inspect(args, model_args, fitted, setup.budgets, parts, hardware)
    samples = args.METHOD not in TARGETS
    if samples:
        per_step = args.generation_batch_size // args.num_generations
        if len(fitted.rows) < per_step:
            raise TrainingInputError(
                f"There are {len(fitted.rows)} rows and each step takes {per_step} prompts; give "
                "more rows, a smaller batch or more num_generations."
            )
        findings["templates_checked"] = check_template(fitted.rows, setup.tokenizer, args.chat_template_kwargs)
    if setup.scoring is not None:
        template, threshold = args.chat_template_kwargs, args.success_reward_threshold
        findings["attacks"] = try_attacks(setup.scoring, fitted.rows, threshold, setup.tokenizer, template, job.reward)
    trainer, tries = None, samples and job.preflight_rows and not args.use_vllm and job.mode != "smoke"
    on_cpu = args.device.type == "cpu" and not args.use_cpu
    if tries and not on_cpu and (job.force or not findings["stops"]):
        trainer = build(setup, fitted.rows, held_out)
        longest = fitted.lengths["teacher_prompt"].index(max(fitted.lengths["teacher_prompt"]))
        try:
            sampled, peak = preflight.sample(trainer, job.preflight_rows, longest, hardware)
        except torch.OutOfMemoryError as error:
            raise TrainingInputError(
                f"The GPU does not have enough memory for a step; give {findings['memory']['lowered_by']}."
            ) from error
        findings |= sampled
        if getattr(args, "method", None) == "sdpo":
            stops, findings["warnings"] = preflight.judge(findings)
            findings["stops"] += stops
        if peak is not None:
            findings["memory"]["measured_gib"] = round(peak / models.GIB, 2)
            findings["stops"] = [*preflight.too_little_memory(findings["memory"]), *findings["stops"]]
    for line in preflight.as_text(findings).split("\n"):
        say(line)
    return findings, trainer


def estimate(setup: Setup, fitted: Fitted, config: Any) -> dict[str, int]:
    """Estimate the peak of the GPU's memory, in bytes by purpose."""
    args, model_args = setup.args, setup.model_args
    if args.METHOD not in TARGETS:
        return models.estimate_sampling(args, model_args, config, setup.prompt_tokens)
    longest, pairs = max(fitted.lengths["sequence"]), args.METHOD == "dpo"
    return models.estimate_supervised(
        args, model_args, config, longest, pairs=pairs, adapter=setup.adapter is not None
    )


def translate(model_args: ModelConfig) -> Any:
    """Turn library errors about the model and its arguments into a TrainingInputError."""
    return models.translate_errors(
        f"The model `{model_args.model_name_or_path}` cannot be trained with these arguments",
        "check its files, --lora_target_modules and the other arguments",
    )


def build(setup: Setup, rows: Dataset, held_out: Dataset | None = None) -> Any:
    """Load the model and return TRL's trainer with our callbacks; raises TrainingInputError when that fails."""
    args, model_args = setup.args, setup.model_args
    args.model_init_kwargs = {**models.model_init_kwargs(model_args, setup.revision), **args.model_init_kwargs}
    with translate(model_args):
        make = make_supervised if args.METHOD in TARGETS else make_sampling
        trainer = make(setup, rows, held_out)
        # Otherwise wrong arguments of these end the training in a traceback.
        trainer.create_optimizer_and_scheduler(num_training_steps=1)
    trainer.optimizer = trainer.lr_scheduler = None
    models.keep_layout(trainer.model)
    models.limit_threads(trainer.model)
    if trainer.pop_callback(TrackioCallback) is not None:
        trainer.add_callback(callbacks.SafeTrackio(callbacks.list_arguments(trainer.args, model_args)))
    # These print all metrics of a step; `Progress` prints the most important ones.
    trainer.pop_callback(PrinterCallback)
    trainer.pop_callback(ProgressCallback)
    # TRL would write a draft of a card to OUTPUT with every checkpoint.
    trainer.create_model_card = lambda *_, **__: None
    trainer.add_callback(callbacks.Progress(trainer))
    trainer.add_callback(callbacks.Guards(args))
    return trainer


def make_sampling(setup: Setup, rows: Dataset, held_out: Dataset | None) -> Any:
    """Return the trainer of SDFT or SDPO with its teacher."""
    args, scoring, feedback = setup.args, setup.scoring, setup.feedback
    common = {
        "model": setup.model_args.model_name_or_path,
        "args": args,
        "train_dataset": rows,
        "processing_class": setup.tokenizer,
        "peft_config": models.lora_config(setup.model_args),
    }
    if scoring is None or feedback is None:
        trainer: Any = ContextTrainer(eval_dataset=held_out, **common)
    else:
        trainer = DistillationTrainer(reward_funcs=[scoring.reward], **common)
        trainer.teacher_context_builder = FeedbackBuilder(trainer, feedback, scoring.feedback)
    callbacks.make_resumable(trainer)
    return trainer


def make_supervised(setup: Setup, rows: Dataset, held_out: Dataset | None) -> Any:
    """Return TRL's SFT or DPO trainer, on top of the adapter if there is one."""
    args, adapter = setup.args, setup.adapter
    model: Any = setup.model_args.model_name_or_path
    weights: dict[str, torch.Tensor] = {}
    if adapter is not None:
        base = create_model_from_path(model, **args.model_init_kwargs)
        args.model_init_kwargs = None
        model = PeftModel.from_pretrained(base, str(adapter), is_trainable=True)
        weights = {name: one.detach().float().clone() for name, one in model.named_parameters() if one.requires_grad}
    # The trainers would take some of the other columns for inputs of their own.
    columns = ["prompt", *TARGETS[args.METHOD], "tools", "chat_template_kwargs"]
    was_enabled = datasets.is_caching_enabled()
    # Otherwise `datasets` may reuse results that an earlier version of this code cached.
    datasets.disable_caching()
    trainer = {"sft": SFTTrainer, "dpo": DPOTrainer}[args.METHOD](
        model=model,
        args=args,
        train_dataset=rows.select_columns(columns),
        eval_dataset=None if held_out is None else held_out.select_columns(columns),
        processing_class=setup.tokenizer,
        peft_config=models.lora_config(setup.model_args) if adapter is None else None,
    )
    if was_enabled:
        datasets.enable_caching()
    if not args.bf16:
        # On a quantised base these trainers cast the LoRA weights to bfloat16, which loses three of
        # four steps of Adam to rounding at a learning rate of 1e-5.
        for name, parameter in trainer.model.named_parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
                if name in weights:
                    parameter.data.copy_(weights[name])
    return trainer


def find_callback(trainer: Any, kind: type) -> Any:
    """Return the callback of this class."""
    return next(one for one in trainer.callback_handler.callbacks if isinstance(one, kind))


def run_steps(trainer: Any) -> dict[str, float]:
    """Train from the newest intact checkpoint to the last step; return the metrics of the whole run."""
    damaged: dict[str, str] = {}
    checkpoint = output.last_checkpoint(Path(trainer.args.output_dir), damaged)
    for name, file in damaged.items():
        start = "starts over" if checkpoint is None else f"resumes from {checkpoint.name}"
        say(f"`{file}` of {name} is damaged, so the training {start}")
    result = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    metrics: dict[str, float] = find_callback(trainer, callbacks.Progress).whole_run(result.metrics)
    return metrics


def begin(
    setup: Setup, folder: Path, fitted: Fitted, start: Json, before: Json, checkpoints: output.HubCheckpoints | None
) -> None:
    """Clear OUTPUT if asked to, and record the start; all checks have passed."""
    if setup.job.overwrite:
        output.clear_output(folder)
        if checkpoints is not None:
            checkpoints.remove()
    base = str(setup.model_args.model_name_or_path)
    local = {
        "pimono_sdpo": __version__,
        "base_model": str(Path(base).resolve()) if is_local(base) else base,
        "started_with": start,
        "before": before,
    }
    output.begin(folder, local)
    if fitted.left_out:
        output.write_json({"rows": fitted.left_out}, folder / output.LEFT_OUT_FILE)


def save(setup: Setup, trainer: Any, folder: Path, report: Json | None, log: Json) -> None:
    """Write the adapter with its card, run log and report to OUTPUT."""
    staging = folder / output.STAGING
    shutil.rmtree(staging, ignore_errors=True)
    model = trainer.accelerator.unwrap_model(trainer.model)
    log["adapter"]["files"] = output.save_adapter(model, staging, log["base_model"], setup.revision)
    # The tokenizer has the chat template, so the adapter can be used without the base's repository.
    setup.tokenizer.save_pretrained(staging)
    output.write_probe(model, trainer.processing_class, folder)
    # JSON cannot hold NaN and infinity.
    log = json.loads(json.dumps(log), parse_constant=lambda _: None)
    for problem in write_model_card(report, log, staging):
        warn(f"the Hub may refuse the model card: {problem}")
    output.finish(folder, report, log)


def notes_on(fitted: Fitted, given: int) -> Iterator[str]:
    """Yield sentences for the end of the run, on rows that were left out or have no reward."""
    for first in fitted.left_out[:1]:
        yield (
            f"{len(fitted.left_out)} of {given} rows were left out, see left-out.json; the "
            f"first, row {first['row']}: {first['reason']} ({first['detail']})"
        )
    if unscored := fitted.counts.get("without_reward"):
        yield f"{unscored} rows cannot be scored by this reward"


def teaching(setup: Setup) -> Json:
    """Return the settings besides TRL's arguments that decide the result."""
    job = setup.job
    own = [*TEACHING, *(FILTERED if getattr(job, "source", None) and not job.dataset else ())]
    settings = {"reward": None, "adapter": None, **{name: getattr(job, name) for name in own if hasattr(job, name)}}
    if getattr(job, "source", None) and not job.dataset:
        settings["source"] = models.public_name(job.source)
    if setup.adapter is not None:
        weights = hashlib.sha256((setup.adapter / models.WEIGHTS[0]).read_bytes()).hexdigest()
        settings["adapter"] = f"{models.public_name(job.adapter)} ({weights[:12]})"
    if setup.feedback is not None:
        settings["own_code"] = hash_own([job.reward, *job.gate, *job.grade])
        settings["feedback"] = setup.feedback.mode
        settings["feedback_tokens"] = setup.feedback.tokens
        settings["teacher_wording"] = job.teacher_wording
    return settings


def started_with(setup: Setup, rows: Dataset, held_out: Dataset | None = None) -> Json:
    """Return every argument that affects the result, with hashes of model and rows."""
    args, name = setup.args, str(setup.model_args.model_name_or_path)
    revision = f"@{setup.revision}" if setup.revision else f" ({_hash_model(Path(name))})"
    columns = [*READS[args.METHOD][1], "privileged_context", "verifier_spec", "tools"]
    start = {
        **{n: value for n, value in args.to_dict().items() if not n.startswith(NO_EFFECT)},
        **vars(setup.model_args),
        **teaching(setup),
        "prompt_tokens": setup.prompt_tokens,
        "model_name_or_path": models.public_name(name) + revision,
        "model_revision": setup.revision,
        "method": getattr(args, "method", args.METHOD),
        "rows": hash_rows(rows, columns),
        "held_out_rows": None if held_out is None else hash_rows(held_out, columns),
    }
    plain: Json = json.loads(json.dumps(start, default=str))
    return plain


def check_same_start(folder: Path, start: Json) -> Json | None:
    """Return the preflight and scores of a training to resume, None when there is no checkpoint.

    Raises OutputError when the training in `folder` was started with other arguments, model or rows.
    """
    if output.last_checkpoint(folder) is None:
        return None
    record = read_json(folder / output.LOCAL_FILE)
    if "started_with" not in record:
        raise OutputError(
            f"`{folder}` holds checkpoints and no record of their arguments; give --overwrite to "
            "start over, or another --run-name."
        )
    old = record["started_with"]
    differences = [
        f"{name} {shorten_line(str(old.get(name)), 60)}, now {shorten_line(str(start.get(name)), 60)}"
        for name in sorted({*old, *start})
        if old.get(name) != start.get(name)
    ]
    if differences:
        hidden = len(differences) - SHOWN_DIFFERENCES
        more = f" and {hidden} more" if hidden > 0 else ""
        raise OutputError(
            f"The training in `{folder}` was started with {'; '.join(differences[:SHOWN_DIFFERENCES])}{more}: give "
            "the same arguments to resume it, --overwrite to start over, or another --run-name."
        )
    before: Json = record["before"]
    return before


def _hash_model(folder: Path) -> str:
    """Hash the config of a model, and size and first HEAD_BYTES of each file of weights."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        digest.update(f"{file.name} {file.stat().st_size}".encode())
        with file.open("rb") as weights:
            digest.update(weights.read(HEAD_BYTES))
    return digest.hexdigest()[:12]


SAMPLED = (
    "num_iterations num_generations max_completion_length max_reprompt_len temperature top_p top_k "
    "distillation_mode distillation_alpha distillation_topk teacher_model_kind teacher_update_rate teacher_sync_steps"
)
ARGUMENTS_OF_METHOD = {
    "sdft": SAMPLED.split(),
    "sdpo": (
        f"{SAMPLED} method beta loss_type success_reward_threshold use_successful_as_teacher "
        "include_environment_feedback environment_feedback_only_without_solution distillation_weight"
    ).split(),
    "sft": "max_length packing completion_only_loss assistant_only_loss loss_type".split(),
    "dpo": "max_length beta loss_type loss_weights label_smoothing".split(),
}
PACKAGES = "trl transformers peft bitsandbytes torch accelerate datasets huggingface_hub trackio".split()


def _find_vllm_host(args: Any) -> str | None:
    """Return the host of a vLLM server on another machine, None without one."""
    if not getattr(args, "use_vllm", False) or args.vllm_mode != "server":
        return None
    host = urlsplit(args.vllm_server_base_url or f"//{args.vllm_server_host}").hostname or ""
    return None if is_this_machine(host) else host


def describe_run(setup: Setup, trainer: Any, given: int, fitted: Fitted) -> Json:
    """Return the run log without results: arguments, hardware, versions, log of each step."""
    args, model_args = trainer.args, setup.model_args
    model = trainer.accelerator.unwrap_model(trainer.model)
    settings, space, history = args.to_dict(), args.trackio_space_id, trainer.state.log_history
    target = model.peft_config["default"].target_modules
    on_gpu = args.device.type == "cuda"
    device = torch.cuda.get_device_name(args.device) if on_gpu else platform.processor() or platform.machine()
    progress = find_callback(trainer, callbacks.Progress)
    return {
        "pimono_sdpo": __version__,
        "method": args.METHOD,
        "run_name": args.run_name,
        "output_dir": _without_machine_path(str(args.output_dir)),
        "mode": setup.job.mode,
        "base_model": models.public_name(str(model_args.model_name_or_path)),
        "base_model_revision": setup.revision,
        "base_model_class": type(model.get_base_model()).__name__,
        "dataset": {"rows": given, "rows_used": len(trainer.train_dataset), **fitted.counts},
        "teaching": teaching(setup),
        "hub_model_id": args.hub_model_id,
        "trackio": {
            "project": args.project,
            "space_id": space,
            "url": f"https://huggingface.co/spaces/{space}" if space else None,
        },
        "arguments": {
            **callbacks.list_arguments(args, model_args),
            **{name: settings[name] for name in ARGUMENTS_OF_METHOD[args.METHOD]},
            "max_prompt_length": setup.prompt_tokens,
            "lora_target_modules": target if isinstance(target, str) else sorted(target),
        },
        "hardware": {"device": args.device.type, "name": device, "count": torch.cuda.device_count() if on_gpu else 1},
        "versions": {name: version(name) for name in PACKAGES},
        "started_at": progress.started_at,
        "resumed_at": progress.resumed_at,
        "finished_at": callbacks.now(),
        "guards": find_callback(trainer, callbacks.Guards).record(),
        # The last entry of the history summarises the run, as `metrics` does.
        "log_history": [e for e in history if not {"train_runtime", "rollouts"} & e.keys()],
        "rollouts": [{"step": entry["step"], **rollout} for entry in history for rollout in entry.get("rollouts", ())],
        "adapter": {"trainable_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad)},
    }


def describe_job() -> Json | None:
    """Return flavor and time limit of the job on Hugging Face that this process runs in, None elsewhere."""
    info = callbacks.job_info()
    if info is None:
        return None
    return {"flavor": info.flavor, "timeout": environ.get("TIME_LIMIT", callbacks.DEFAULT_JOB_LIMIT)}


def _without_machine_path(word: str) -> str:
    """Reduce a path outside the working folder to its name; `word` may be --OPTION=PATH."""
    option, equals, value = word.rpartition("=")
    path = Path(value)
    outside = path.is_absolute() or ".." in path.parts or value.startswith("~")
    return f"{option}{equals}{path.name}" if outside else word
