"""Parse the arguments of the training jobs from recipe, command line and environment."""

import os
import re
from argparse import ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

from trl import DPOConfig, ModelConfig, SFTConfig, TrlParser
from trl.experimental.sdft import SDFTConfig
from trl.experimental.sdpo import SDPOConfig

from cards.lint import check_licence
from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.filter_options import SplitBy, Unit
from pimono_sdpo.removed import refuse_removed
from pimono_sdpo.training.options import (
    accept_negative_numbers,
    argument,
    check_numbers,
    checked_recipe,
    find_recipe,
    read_recipe,
    refuse_unknown,
    section_of,
    split_options,
)

Mode = Literal["rollout", "trace", "both", "none"]
GUARDS = ("reward_collapse", "entropy_collapse", "not_finite")
# How the teacher is shown what went wrong in a recorded session.
TRACE_TEMPLATE = (
    "\nAnother agent has worked on this before. What its tools reported and its user corrected:\n\n{feedback_raw}\n\n"
)


@dataclass
class GuardOptions:
    """The options of the guards (callbacks.py), mixed into a configuration of TRL."""

    METHOD: ClassVar[str]

    stop_on: str = argument(
        f"Guards that end the training, separated by commas, or all: {', '.join(GUARDS)}.", default=""
    )
    guard_window: int = argument("Number of logged values in the moving mean of the reward.", default=10)

    def __post_init__(self) -> None:
        """Check the guards; raises ValueError."""
        super().__post_init__()  # type: ignore[misc] # of TRL's configuration
        if unknown := self.stopping() - {*GUARDS}:
            raise ValueError(
                f"--stop_on names {', '.join(sorted(unknown))}; give some of {', '.join(GUARDS)}, or all."
            )

    def stopping(self) -> set[str]:
        """Return the guards that end the training."""
        names = {name.strip() for name in self.stop_on.split(",")} - {""}
        return {*GUARDS} if names == {"all"} else names


@dataclass
class GuardedSDPOConfig(GuardOptions, SDPOConfig):  # type: ignore[misc] # TRL ships no types
    """SDPOConfig with guards, and the methods `rft` and `grpo` (trainer.py)."""

    METHOD = "sdpo"

    method: Literal["sdpo", "rft", "grpo"] = argument(
        "What is learned from the rollouts: the teacher's distribution (sdpo), the successful ones "
        "themselves (rft), or the reward relative to the mean of its group (grpo).",
        default="sdpo",
    )
    diagnostics_warning_interval: int = argument(
        "Let TRL warn when as many steps in a row have nothing to learn from; 0 for never.", default=10
    )
    sample_at_once: int | None = argument(
        "Completions that a process samples at a time; all of a step by default, fewer need less memory."
    )


@dataclass
class GuardedSDFTConfig(GuardOptions, SDFTConfig):  # type: ignore[misc] # TRL ships no types
    """SDFTConfig with guards and a budget of the teacher's prompt."""

    METHOD = "sdft"

    teacher_model_kind: Literal["base", "live", "ema"] = argument(
        "The teacher: the model without the adapter, the model itself, or its moving average.", default="ema"
    )
    teacher_prompt_template: str = argument(
        "Wording of the teacher's prompt.",
        default="{prompt}\n" + TRACE_TEMPLATE.replace("feedback_raw", "privileged_context"),
    )
    max_reprompt_len: int = argument("Maximum tokens of the teacher's prompt; contexts are shortened.", default=4096)
    sample_at_once: int | None = argument("Completions that a process samples at a time; all of a step by default.")


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
    eval_split: str | None = argument(
        "Split whose rows are scored before and after training; by default test, or else the sessions of --held_out."
    )
    held_out: float = argument(
        "Share of the sessions that is kept out of training where the rows have no split test; 0 for none.",
        default=0.1,
    )
    eval_rows: int = argument("Held-out rows that are scored, at most.", default=32)
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
class SDFTArguments(CommonArguments):
    """The arguments of SDFT and SDPO: source of the rows, declared tools, completions."""

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
    tools: str | None = argument(
        "Tools that the chat template declares to the model, such as pi or repo_agent; none by default."
    )
    generations: int | None = argument("Train for this many completions, rounded up to whole steps.")
    preflight_rows: int = argument(
        "Rows for which the preflight samples completions; with 0, --mode preflight loads no weights.", default=4
    )


@dataclass
class SDPOArguments(SDFTArguments):
    """The arguments of SDPO, RFT and GRPO: rewards and feedback."""

    reward: str | None = argument(
        "What scores a completion: verifiers (named by --gate and --grade), trace_grounding (a smoke test: a "
        "fluent wrong answer scores like a right one), or a function of your own as module:name, in the current "
        "folder or installed; by default the tests of the rows, or else trace_grounding."
    )
    gate: list[str] = argument("Verifiers that must pass, such as tool_calls.", default=[])
    grade: list[str] = argument("Verifiers that count, with weights such as syntax=0.5.", default=[])
    feedback: Mode | None = argument(
        "What the teacher of a failed completion reads: the verifiers' feedback (rollout), the "
        "row's context (trace), both or none; defaults to both with verifiers, else trace."
    )
    feedback_tokens: int = argument(
        "Maximum tokens of the verifiers' feedback; longer texts are shortened.", default=256
    )
    teacher_wording: Literal["own", "trl"] = argument(
        "Wording of the teacher's prompt: our own, about failed completions, or TRL's, also about successful ones.",
        default="own",
    )
    eval_generations: int = argument("Completions per held-out row.", default=4)


# The arguments of the job and the configuration of TRL, by the section of the method.
TYPES: dict[str, tuple[type[CommonArguments], type[GuardOptions]]] = {
    "sdft": (SDFTArguments, GuardedSDFTConfig),
    "sdpo": (SDPOArguments, GuardedSDPOConfig),
    "sft": (CommonArguments, GuardedSFTConfig),
    "dpo": (DPOArguments, GuardedDPOConfig),
}
ABOUT = """\
--mode preflight check rows, lengths and memory, and where completions are sampled a few of them, with
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

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse and check the numbers before the libraries divide by them."""
        accept_negative_numbers(self)
        parsed, rest = super().parse_known_args(args, namespace)
        defaults = {one.name: one.default for type_ in self.dataclass_types for one in fields(type_)}
        check_numbers(vars(parsed), defaults)
        return parsed, rest


def parse_job(
    method: str, argv: list[str], recipe: str, description: str | None = None
) -> tuple[Any, Any, ModelConfig, str]:
    """Return the arguments of the job, of TRL and of the model, and the recipe's file name.

    `recipe` is used unless `argv` has --config.
    """
    refuse_removed("train", argv)
    found, rest = split_options(argv, config=recipe)
    path, parser = find_recipe(found["config"]), open_parser(method, description)
    values = read_recipe(found["config"], method)
    try:
        parser.set_defaults_with_config(**checked_recipe(values, parser))
        job, args, model_args, *unknown = parser.parse_args_into_dataclasses(
            args=rest, return_remaining_strings=True, look_for_args_file=False
        )
    except (ValueError, ImportError, OSError) as error:
        # TRL raises ValueError when its arguments contradict each other.
        reason = " ".join(str(error).split()).rstrip(".")
        raise TrainingInputError(
            f"The arguments of `{path.name}` and the command line cannot be used: {reason}."
        ) from error
    refuse_unknown(unknown[-1], parser)
    job.license = check_licence(job.license)
    run_name = args.run_name = args.run_name or path.stem
    if run_name != Path(run_name).name or ".." in run_name or "\\" in run_name:
        raise TrainingInputError(
            f"The run name `{run_name}` is not a folder name; leave out slashes and "
            "`..`, or give the path as --output_dir."
        )
    if args.output_dir == "trainer_output":
        args.output_dir = str(Path("outputs") / f"{run_name}{'-smoke' * (job.mode == 'smoke')}")
    args.hub_model_id = args.hub_model_id or os.environ.get("HUB_MODEL_ID") or None
    return job, args, model_args, path.name


def open_parser(method: str, description: str | None = None) -> SentenceParser:
    """Return the parser of the arguments of the job, of TRL and of the model."""
    return SentenceParser(
        (*TYPES[section_of(method)], ModelConfig),
        # The default lists every option of TRL.
        usage="%(prog)s [--OPTION VALUE]...",
        formatter_class=_HelpFormatter,
        description=f"{description or ''}\n{ABOUT}".lstrip(),
        allow_abbrev=False,
    )
