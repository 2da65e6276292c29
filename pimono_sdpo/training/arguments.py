"""Read the command line of the training job; whatever is wrong with it is one sentence."""

import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

import yaml
from trl import ModelConfig, TrlParser

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.training.recipes import find_recipe

MOST = 2**63 - 1
# What NumPy takes for a seed, and SQLite for a number of rows.
LIMITS = {"seed": (0, 2**32 - 1), "data_seed": (0, 2**32 - 1), "max_samples": (1, MOST)}
LIMITS |= {"preflight_rows": (0, MOST), "eval_generations": (1, MOST), "generations": (1, MOST)}
LIMITS |= {"feedback_tokens": (1, MOST)}


class SentenceParser(TrlParser):  # type: ignore[misc] # TRL ships no types
    """TRL's parser without abbreviations and without its pages of usage."""

    def __init__(self, types: tuple[type, ...], description: str | None) -> None:
        super().__init__(types, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found instead of printing its usage."""
        raise TrainingInputError(
            f"The arguments cannot be used ({' '.join(message.split())}); see --help."
        )

    def set_defaults_with_config(self, **config: Any) -> list[str]:
        """Hold a recipe to the choices of the command line, which argparse does not."""
        for action in self._actions:
            value = config.get(action.dest)
            if action.choices and isinstance(value, str) and value not in action.choices:
                known = ", ".join(str(choice) for choice in action.choices)
                self.error(f"{action.dest} is {value} in the recipe, and not one of {known}")
        unknown: list[str] = super().set_defaults_with_config(**config)
        return unknown


def parse_job(
    argv: list[str],
    types: tuple[type, type],
    description: str | None,
    recipes: Path,
    default_recipe: str,
    licences: Collection[str],
) -> tuple[Any, Any, ModelConfig, str]:
    """Merge recipe, command line and environment into the job's arguments, TRL's and the model's.

    `types` are the first two, `recipes` the folder of the jobs' recipes, `licences` the ids that
    the Hub knows. Returns the recipe's name last. Raises TrainingInputError for what cannot be
    used.
    """
    name, rest = take_config(argv)
    recipe = find_recipe(name or default_recipe, recipes)
    parser = SentenceParser((*types, ModelConfig), description)
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
        check_numbers(vars(given))
    check_length(args.max_steps, args.num_train_epochs)
    job.license = known_licence(job.license, licences)
    args.run_name = args.run_name or recipe.stem
    check_run_name(args.run_name)
    if args.output_dir == "trainer_output":
        suffix = "-smoke" if job.mode == "smoke" else ""
        args.output_dir = str(Path("outputs") / f"{args.run_name}{suffix}")
    args.hub_model_id = args.hub_model_id or os.environ.get("HUB_MODEL_ID") or None
    return job, args, model_args, recipe.name


def take_config(argv: list[str]) -> tuple[str | None, list[str]]:
    """Take `--config NAME` or `--config=NAME` out of the arguments."""
    rest = list(argv)
    for index, argument in enumerate(rest):
        if argument.startswith("--config="):
            del rest[index]
            return argument.removeprefix("--config="), rest
        if argument == "--config":
            if index + 1 == len(rest):
                raise TrainingInputError("--config needs the name or the path of a recipe.")
            name = rest[index + 1]
            del rest[index : index + 2]
            return name, rest
    return None, rest


def check_numbers(values: Mapping[str, object]) -> None:
    """Refuse numbers that are none or too large for the libraries that take them.

    Every comparison with NaN is false, without a word.
    """
    for name, value in values.items():
        low, high = LIMITS.get(name, (-MOST, MOST))
        if isinstance(value, int) and not low <= value <= high:
            raise TrainingInputError(f"--{name} is {value}; give a number from {low} to {high}.")
        if isinstance(value, float) and not math.isfinite(value):
            raise TrainingInputError(f"--{name} is {value}; give a finite number.")


def check_length(max_steps: int, epochs: float) -> None:
    """Refuse a training of no step: the Trainer would take one."""
    if max_steps < 1 and max_steps != -1:
        raise TrainingInputError(
            f"--max_steps is {max_steps}; give a number from 1, or -1 to train for "
            "--num_train_epochs."
        )
    if max_steps == -1 and epochs <= 0:
        raise TrainingInputError(f"--num_train_epochs is {epochs}; give a number above 0.")


def check_run_name(name: str) -> None:
    """Refuse a name that would leave outputs/."""
    if name in ("", ".") or ".." in name or "/" in name or "\\" in name:
        raise TrainingInputError(
            f"The run name `{name}` is not the name of one folder; leave out slashes and `..`, or "
            "give the place as --output_dir."
        )


def known_licence(licence: str | None, known: Collection[str]) -> str | None:
    """Return the licence as the Hub spells it; raises TrainingInputError for an unknown one."""
    lower = licence.lower() if licence else None
    if lower is not None and lower not in known:
        raise TrainingInputError(
            f"The Hub knows no licence `{licence}`; give an id such as mit or apache-2.0, or leave "
            "--license out."
        )
    return lower
