"""Parse the arguments of the training jobs from recipe, command line and environment."""

import os
import re
from argparse import ArgumentDefaultsHelpFormatter, ArgumentError, ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NoReturn

import yaml
from trl import DPOConfig, ModelConfig, SFTConfig, TrlParser
from trl.experimental.sdpo import SDPOConfig

from cards.lint import check_licence
from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.filter_options import SplitBy, Unit
from pimono_sdpo.removed import refuse_removed
from pimono_sdpo.training.guards import LOSS, GuardOptions
from pimono_sdpo.training.options import (
    accept_negative_numbers,
    argument,
    check_numbers,
    checked_recipe,
    find_recipe,
    refuse_unknown,
)
from pimono_sdpo.training.rewards import Mode


@dataclass
class GuardedSDPOConfig(GuardOptions, SDPOConfig):  # type: ignore[misc] # TRL ships no types
    """SDPOConfig with guards, and the methods `rft` and `grpo` (trainer.py)."""

    METHOD = "sdpo"
    WATCHED_LOSS = LOSS

    method: Literal["sdpo", "rft", "grpo"] = argument(
        "What is learned from the rollouts: the teacher's distribution (sdpo), the successful ones "
        "themselves (rft), or the reward relative to the mean of its group (grpo).",
        default="sdpo",
    )
    loss_type: Literal["dapo", "grpo", "bnpo", "dr_grpo"] = argument(
        "By what the sum of the policy loss over tokens is divided, see TRL's GRPOConfig.", default="dapo"
    )
    scale_rewards: Literal["group", "batch", "none"] = argument(
        "Divide the advantages by the standard deviation of the rewards of a prompt, of the batch, or not.",
        default="group",
    )
    importance_sampling_level: Literal["token", "sequence"] = argument(
        "Weight the policy loss by the ratio of probabilities of each token, or of the whole completion.",
        default="token",
    )
    diagnostics_warning_interval: int = argument(
        "Also let TRL warn, at every Nth step, about what flat_groups and dead_reprompts detect; 0 for never.",
        default=0,
    )
    sample_at_once: int | None = argument(
        "Completions that a process samples at a time; all of a step by default, fewer need less memory."
    )


@dataclass
class GuardedSFTConfig(GuardOptions, SFTConfig):  # type: ignore[misc] # TRL ships no types
    """SFTConfig with guards."""

    METHOD = "sft"


_DPO_LOSS = next(one for one in fields(DPOConfig) if one.name == "loss_type").metadata


@dataclass
class GuardedDPOConfig(GuardOptions, DPOConfig):  # type: ignore[misc] # TRL ships no types
    """DPOConfig with guards, and with the losses that TRL only refuses in the first step."""

    METHOD = "dpo"
    loss_type: list[str] = field(
        default_factory=lambda: ["sigmoid"],
        metadata={**_DPO_LOSS, "choices": re.findall(r"`'(\w+)'`", _DPO_LOSS["help"])},
    )


@dataclass
class CommonArguments:
    """The arguments of every training job besides TRL's."""

    mode: Literal["preflight", "smoke", "train"] = argument("What to do, see above.", default="train")
    dataset: str | None = argument("Rows to train on: a folder, or a Hub dataset id.")
    dataset_config: str | None = argument("Configuration of the dataset, such as steps.")
    eval_split: str | None = argument("Split whose rows are scored before and after training, such as test.")
    flavor: str | None = argument(
        "Flavor of HF Jobs for which memory and cost are estimated; this machine by default."
    )
    time_limit: str | None = argument(
        "Stop and publish before this time is up, such as 3h; defaults to TIME_LIMIT and, in a "
        "job, to the default of HF Jobs."
    )
    checkpoint_bucket: str | None = argument(
        "Private bucket (ns/name) that stores checkpoints, to resume on another machine; in a job defaults "
        "to --hub_model_id with -checkpoints appended; none for no bucket."
    )
    force: bool = argument("Train although the preflight advises against it.", default=False)
    license: str | None = argument("Licence id for the model card; defaults to the base model's.")
    overwrite: bool = argument("Replace the contents of OUTPUT instead of resuming.", default=False)


@dataclass
class DPOArguments(CommonArguments):
    """The arguments of DPO: the adapter to start from."""

    adapter: str | None = argument("Adapter to start from, a folder or a Hub id; it is also the reference model.")


@dataclass
class SDPOArguments(CommonArguments):
    """The arguments of SDPO: source of the rows, rewards, feedback, rollouts of the preflight."""

    source: str | None = argument("Traces to filter when there is no --dataset: a path or a Hub id.")
    unit: Unit = argument("What a row is made from (with --source).", default="session")
    min_score: float = argument("Drop rows with a lower score (with --source).", default=0.0)
    test_fraction: float = argument(
        "Probability that a repository is held out as split test (with --source).", default=0.0
    )
    split_by: SplitBy = argument(
        "Hold out whole repositories, or sessions of one (with --source).", default="repository"
    )
    max_samples: int | None = argument("Keep the best N rows (with --source).")
    reward: str = argument(
        "What scores a completion: verifiers (named by --gate and --grade), trace_grounding (a smoke test: a "
        "fluent wrong answer scores like a right one), or a function of your own as module:name, in the current "
        "folder or installed.",
        default="trace_grounding",
    )
    gate: list[str] = argument("Verifiers that must pass, such as tool_calls.", default=[])
    grade: list[str] = argument("Verifiers that count, with weights such as syntax=0.5.", default=[])
    tools: str | None = argument(
        "Tools that the chat template declares to the model, such as pi or repo_agent; none by default."
    )
    generations: int | None = argument("Train for this many completions, rounded up to whole steps.")
    feedback: Mode | None = argument(
        "What the teacher of a failed completion reads: the verifiers' feedback (rollout), the "
        "row's context (trace), both or none; defaults to both with verifiers, else trace."
    )
    feedback_tokens: int = argument(
        "Maximum tokens of the verifiers' feedback; longer texts are shortened.", default=256
    )
    eval_generations: int = argument("Completions per row of --eval_split.", default=4)
    preflight_rows: int = argument(
        "Rows for which the preflight samples completions; with 0, --mode preflight loads no weights.", default=4
    )


ABOUT = """\
--mode preflight check rows, lengths and memory, and with SDPO the rewards of a few rollouts and
                 the time, print the result and stop
--mode smoke     train for at most 2 steps, push nothing, log to this machine
--mode train     train; with --hub_model_id or HUB_MODEL_ID, publish the adapter

OUTPUT, by default outputs/NAME, gets run.json and the adapter with its card under adapter/. Rows
that do not fit are left out and listed in left-out.json. A training that was killed resumes from
its last checkpoint when it is started again with the same arguments; other arguments are refused.
A finished training is kept unless --overwrite is given. HF_TOKEN, HUB_MODEL_ID, TRACKIO_SPACE_ID
and TIME_LIMIT are read from the environment. Exit code 2: invalid arguments, rows or files.
"""


class _HelpFormatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Show defaults, and the paragraphs of a description as they are."""


class SentenceParser(TrlParser):  # type: ignore[misc] # TRL ships no types
    """TRL's parser, which raises an error of one sentence instead of printing pages of usage."""

    def error(self, message: str) -> NoReturn:
        """Raise TrainingInputError with the message of argparse."""
        raise TrainingInputError(f"The arguments cannot be used ({' '.join(message.split())}); see --help.")

    def set_defaults_with_config(self, **config: Any) -> list[str]:
        """Set the values of a recipe as defaults, after a check."""
        refuse_removed("train", [f"--{name}={value}" for name, value in config.items()])
        super().set_defaults_with_config(**checked_recipe(config, self))
        return []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse and check the numbers before the libraries divide by them."""
        accept_negative_numbers(self)
        parsed, rest = super().parse_known_args(args, namespace)
        defaults = {one.name: one.default for type_ in self.dataclass_types for one in fields(type_)}
        check_numbers(vars(parsed), defaults)
        return parsed, rest


def parse_job(
    argv: list[str], options: type[CommonArguments], config: type, description: str | None, default_recipe: str
) -> tuple[Any, Any, ModelConfig, str]:
    """Return the arguments of the job, of TRL and of the model, and the recipe's file name."""
    refuse_removed("train", argv)
    recipe_parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    recipe_parser.add_argument("--config", default=default_recipe)
    try:
        parsed, rest = recipe_parser.parse_known_args(argv)
    except ArgumentError as error:
        raise TrainingInputError(f"{error}; give the name or the path of a recipe.") from error
    parser, recipe = open_parser(options, config, description), find_recipe(parsed.config)
    try:
        job, args, model_args, *unknown = parser.parse_args_and_config(
            ["--config", str(recipe), *rest], return_remaining_strings=True
        )
    except (ValueError, ImportError, OSError, yaml.YAMLError) as error:
        # TRL raises ValueError when its arguments contradict each other.
        reason = " ".join(str(error).split()).rstrip(".")
        raise TrainingInputError(
            f"The arguments of `{recipe.name}` and the command line cannot be used: {reason}."
        ) from error
    refuse_unknown(unknown[-1], parser)
    job.license = check_licence(job.license)
    run_name = args.run_name = args.run_name or recipe.stem
    if run_name != Path(run_name).name or ".." in run_name or "\\" in run_name:
        raise TrainingInputError(
            f"The run name `{run_name}` is not a folder name; leave out slashes and "
            "`..`, or give the path as --output_dir."
        )
    if args.output_dir == "trainer_output":
        args.output_dir = str(Path("outputs") / f"{run_name}{'-smoke' * (job.mode == 'smoke')}")
    args.hub_model_id = args.hub_model_id or os.environ.get("HUB_MODEL_ID") or None
    return job, args, model_args, recipe.name


def open_parser(options: type[CommonArguments], config: type, description: str | None = None) -> SentenceParser:
    """Return the parser of the arguments of the job, of TRL and of the model."""
    return SentenceParser(
        (options, config, ModelConfig),
        # The default lists every option of TRL.
        usage="%(prog)s [--OPTION VALUE]...",
        formatter_class=_HelpFormatter,
        description=f"{description or ''}\n{ABOUT}".lstrip(),
        allow_abbrev=False,
    )
