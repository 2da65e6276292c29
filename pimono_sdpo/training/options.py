"""Choose the method for rows, and check options, recipes, rows and flavors, before torch is imported."""

import json
import math
import re
from argparse import ArgumentError, ArgumentParser
from collections.abc import Collection, Sequence
from dataclasses import field
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub import HfApi, JobHardware

from pimono_sdpo.errors import TrainingInputError
from pimono_sdpo.removed import refuse_removed

# The packages that options need; TRL looks for them only once the weights are loaded.
OPTIONAL_PACKAGES = {"use_vllm": "vllm", "use_liger_kernel": "liger_kernel"}
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
# The command that writes the rows of a method, and the columns that the method reads.
READS = {
    "sdft": ("filter", ("prompt", "privileged_context")),
    "sdpo": ("filter", ("prompt", "privileged_context", "reward_terms")),
    "sft": ("steps", ("prompt", "completion")),
    "dpo": ("pairs", ("prompt", "chosen", "rejected")),
}
SAMPLING = ("sdpo", "rft", "grpo")
SMOKE_TEST = "trace_grounding"
# That of the reference run.
SMOKE_THRESHOLD = 0.35
DEFAULT_RECIPE = "qwen3_4b"
# The libraries check few ranges, and some only after the weights are loaded. No number may be negative
# unless its default is, or it is a bound of a reward; these may not be 0 either, unless their default is:
POSITIVE = (
    *("learning_rate", "temperature", "repetition_penalty", "beta", "lora_r", "lora_alpha", "num_iterations"),
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "num_generations"),
    *("max_length", "max_prompt_length", "max_completion_length", "max_reprompt_len", "steps_per_generation"),
    *("generation_batch_size", "teacher_sync_steps", "max_samples", "eval_generations", "generations"),
    *("feedback_tokens", "sample_at_once", "guard_window", "num_train_epochs", "eval_rows"),
)
# And these are shares of at most 1.
SHARES = ("top_p", "min_p", "lora_dropout", "distillation_alpha", "teacher_update_rate", "label_smoothing", "held_out")


class Choice(NamedTuple):
    """The method for rows, what scores its completions, and a clause that says why.

    reward   verifiers or trace_grounding for methods that sample and score; None for the others
    grade    the verifiers that count
    """

    method: str
    reward: str | None
    grade: tuple[str, ...]
    why: str

    def sentence(self, recipe: str, model: str | None, reward: str | None) -> str:
        """Return the first line of a training; `reward` is the one that is used."""
        smoke = ""
        if self.method in SAMPLING and reward == SMOKE_TEST:
            smoke = "smoke test, a fluent wrong answer scores like a right one: "
        scored = f", reward {reward}" if self.method in SAMPLING else ""
        return f"{smoke}method {self.method}{scored}, recipe {recipe}, model {model}: {self.why}"


def choose(method: str, columns: Collection[str], specs: Sequence[str | None] | None) -> Choice:
    """Return the method for rows and its reward; `auto` follows from the columns.

    specs   the `verifier_spec` of each row, None if there are none

    >>> choose("auto", ["prompt", "privileged_context"], ["{}", None])[:2]
    ('sdft', None)
    """
    scored = sum(has_key(spec, "tests") for spec in specs or ())
    counted = f"{scored} of {len(specs)} rows have tests" if specs else "the rows have no tests"
    if method == "auto" and {"chosen", "rejected"} <= {*columns}:
        return Choice("dpo", None, (), "the rows have a chosen and a rejected answer")
    if method == "auto" and "completion" in columns:
        return Choice("sft", None, (), "the rows have recorded answers")
    if method == "auto":
        method = "sdpo" if scored * 2 > len(specs or ()) else "sdft"
    if method not in SAMPLING:
        why = "as asked for" if method != "sdft" else f"{counted}, and sdft needs no reward"
        return Choice(method, None, (), why)
    if scored:
        return Choice(method, "verifiers", ("tests",), f"{counted}, which grade the answers")
    if answered := sum(has_key(spec, "recovery") for spec in specs or ()):
        why = f"{answered} of {len(specs or ())} rows have a recorded answer, which grades the answers"
        return Choice(method, "verifiers", ("recovery",), why)
    return Choice(method, SMOKE_TEST, (), f"{counted}, so nothing can grade the answers")


def has_key(spec: str | None, key: str) -> bool:
    """Return whether the `verifier_spec` of a row has a value for a key, such as its tests."""
    try:
        decoded = json.loads(spec or "{}")
    except (TypeError, ValueError):  # the reward reports it with its row
        return False
    return isinstance(decoded, dict) and bool(decoded.get(key))


def argument(help: str, *, default: Any = None) -> Any:
    """Declare an argument of a job for the parser of Transformers."""
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata={"help": help})
    return field(default=default, metadata={"help": help})


def accept_negative_numbers(parser: ArgumentParser) -> None:
    """Let a parser take -1e-5 or -1h for a value; before Python 3.14, argparse takes it for an option."""
    parser._negative_number_matcher = re.compile(r"-\.?\d|-(?:inf|nan)$")


def check_generations(method: str, generations: int, learns_from_feedback: bool = False) -> None:
    """Raise TrainingInputError for a method that compares completions of a prompt if there is only one."""
    if generations < 2 and method != "rft" and not learns_from_feedback:
        raise TrainingInputError(
            "--num_generations is 1, so there is no other completion of a prompt to compare one with; give at least 2."
        )


def seconds_of(limit: str) -> float:
    """Return the seconds of a duration as Hugging Face Jobs writes it, such as 90m or 3h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", limit.strip())
    seconds = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not seconds:
        raise TrainingInputError(f"`{limit}` is not a valid time limit; use a duration such as 90m or 3h.")
    return seconds


def read_options(method: str) -> dict[str, Any]:
    """Return the arguments of `add_argument` for each option of a job, by its name.

    They come from a file that `make docs` writes: TRL's own parser takes seconds to import, and may
    not be installed.
    """
    by_method: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("options.json").read_text())
    return by_method[section_of(method)]


def split_options(argv: list[str], **defaults: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return the values of some options, and the other arguments; raises TrainingInputError."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, default in defaults.items():
        parser.add_argument(*dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")), default=default)
    try:
        parsed, rest = parser.parse_known_args(argv)
    except ArgumentError as error:
        raise TrainingInputError(f"{error}; see --help.") from error
    return vars(parsed), rest


def section_of(method: str) -> str:
    """Return the name of the section of a recipe, and of the trainer, for a method."""
    return "sdpo" if method in SAMPLING else method


def find_shipped(name: str) -> Path:
    """Return a file or folder of jobs/, from the installed package or a checkout."""
    package = Path(str(files("pimono_sdpo")))
    packaged = package / name
    return packaged if packaged.exists() else package.parent / "jobs" / name


def find_recipe(name: str) -> Path:
    """Return the file at this path, or else the recipe of this name, with or without `.yaml`."""
    recipes = find_shipped("recipes")
    for path in (Path(name), recipes / f"{name.removesuffix('.yaml')}.yaml"):
        if path.is_file():
            return path
    refuse_removed(f"recipe {name.removesuffix('.yaml')}")
    known = ", ".join(sorted(path.stem for path in recipes.glob("*.yaml")))
    raise TrainingInputError(f"There is no recipe `{name}`; give the path of a YAML file or one of {known}.")


def read_recipe(name: str, method: str) -> dict[str, Any]:
    """Return the options of a recipe: those at its top, and those in the section of the method, such as `sft:`."""
    path = find_recipe(name)
    try:
        recipe = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise TrainingInputError(
            f"The recipe `{path}` cannot be read ({' '.join(str(error).split())}); correct it."
        ) from error
    if not isinstance(recipe, dict):
        raise TrainingInputError(
            f"The recipe `{path}` is not a mapping; write a line `option: value` for each option."
        )
    sections = {section: recipe.pop(section) for section in READS if isinstance(recipe.get(section), dict)}
    values = {**recipe, **sections.get(section_of(method), {})}
    refuse_removed("train", [f"--{name}={value}" for name, value in values.items()])
    return values


def is_local(name: str) -> bool:
    """Return whether a name is a path and not a Hub id: it exists here, or is not of the form `ns/name`."""
    return Path(name).exists() or name.startswith(("/", ".", "~")) or name.count("/") != 1


def check_folder(dataset: str) -> None:
    """Raise TrainingInputError for a name that is neither a folder nor a Hub id."""
    folder = Path(dataset)
    if folder.is_file():
        raise TrainingInputError(f"`{folder}` is a file; give the folder of rows that `filter` wrote.")
    if is_local(dataset) and not folder.is_dir():
        raise TrainingInputError(
            f"There is no folder `{folder}`; make it with `pimono-sdpo filter SOURCE --out {folder}` or give the Hub "
            "id of a dataset."
        )


def check_columns(method: str, columns: Sequence[str], dataset: str) -> None:
    """Raise TrainingInputError unless the rows have the columns that the method reads."""
    command, needed = READS[section_of(method)]
    if missing := [name for name in needed if name not in columns]:
        raise TrainingInputError(
            f"`{dataset}` has no column {' and '.join(missing)}, only {', '.join(columns)}; give rows that "
            f"`{command}` wrote, or name their configuration with --dataset_config."
        )


def refuse_unknown(arguments: list[str], parser: ArgumentParser) -> None:
    """Raise TrainingInputError for unknown arguments, and suggest the option that was probably meant."""
    if arguments:
        matches = get_close_matches(arguments[0], ["--config", *parser._option_string_actions], 1)
        advice = f", did you mean {matches[0]}? See --help." if matches else "; see --help."
        if not arguments[0].startswith("-"):
            advice = "; give one folder of rows, then options."
        raise TrainingInputError(f"Unknown argument(s) {' '.join(arguments)}{advice}")


def checked_recipe(recipe: dict[str, Any], parser: ArgumentParser) -> dict[str, Any]:
    """Check the names and values in a recipe, which argparse would not; return it with numbers as text."""
    for action in parser._actions:
        value = recipe.get(action.dest)
        given = value if isinstance(value, list) else [value]
        if wrong := [one for one in given if action.choices and isinstance(one, str) and one not in action.choices]:
            choices = ", ".join(map(str, action.choices or ()))
            raise TrainingInputError(
                f"{action.dest} is {wrong[0]} in the recipe, and not one of {choices}; correct it."
            )
        is_list = action.nargs == "+" and action.type is str and value is not None
        if is_list and not all(isinstance(one, str) for one in given):
            raise TrainingInputError(f"{action.dest} is {value} in the recipe, and not a list of texts; correct it.")
        if action.type in (int, float) and action.nargs is None and value is not None:
            # Of defaults, argparse converts only those that are text.
            recipe[action.dest] = str(value)
    names = [action.dest for action in parser._actions]
    if unknown := sorted(recipe.keys() - set(names)):
        matches = get_close_matches(unknown[0], names, 1)
        advice = "give --config a recipe of this method"
        if matches and len(unknown) == 1:
            advice = f"write {matches[0]}"
        raise TrainingInputError(f"The recipe sets {', '.join(unknown)}, which this method does not have; {advice}.")
    return recipe


def check_numbers(values: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Raise TrainingInputError for a number that an option cannot have; `defaults` are those of the libraries."""
    for name, value in values.items():
        if not isinstance(value, int | float):
            continue
        default = defaults.get(name)
        # A comparison with NaN is always false, so checks of ranges would miss it.
        if not math.isfinite(value):
            allowed = "a finite number"
        elif name in POSITIVE and value <= 0 and default != 0:
            allowed = "a number above 0"
        elif name in SHARES and not 0 <= value <= 1:
            allowed = "a number from 0 to 1"
        elif value < 0 and not (isinstance(default, int) and default < 0) and name != "success_reward_threshold":
            allowed = "a number of at least 0"
        else:
            continue
        raise TrainingInputError(f"--{name} is {value}; give {allowed}.")
    if (steps := values["max_steps"]) < 1 and steps != -1:
        raise TrainingInputError(f"--max_steps is {steps}; give at least 1, or -1 for --num_train_epochs.")


def find_flavor(api: HfApi, flavor: str) -> Any:
    """Return a flavor of HF Jobs; raises TrainingInputError for an unknown one.

    The list of `huggingface_hub` is kept in step with the Hub.
    """
    known = [item.value for item in JobHardware]
    if flavor not in known:
        raise TrainingInputError(f"There is no flavor `{flavor}`; give one of {', '.join(known)}.")
    flavors = {item.name: item for item in api.list_jobs_hardware()}
    if flavor not in flavors:
        raise TrainingInputError(f"There is no flavor `{flavor}`; give one of {', '.join(flavors)}.")
    return flavors[flavor]
