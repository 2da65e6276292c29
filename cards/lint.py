"""Check a card offline by the rules that the Hub applies to uploads."""

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from pimono_sdpo.errors import OutputError

_BASE_TAG = re.compile(r"base_model:(?:adapter|finetune|quantized|merge):")
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
Json = dict[str, Any]


def lint_card(text: str) -> list[str]:
    """Return one sentence per rule that the card breaks."""
    match = _FRONT_MATTER.match(text)
    if match is None:
        return ["The card has no YAML front matter; start it with `---`."]
    try:
        metadata = yaml.safe_load(match.group(1))
    except (yaml.YAMLError, ValueError) as error:
        # PyYAML raises ValueError for an impossible date.
        return [f"The front matter is not valid YAML: {' '.join(str(error).split())}."]
    if not isinstance(metadata, dict):
        return ["The front matter is not a mapping of names to values."]
    lists = {
        key: value if isinstance(value, list) or key == "model-index" else [value] for key, value in metadata.items()
    }
    # Imported here: `filter` only checks licences, and this would add a tenth to its start-up time.
    from jsonschema import Draft202012Validator, FormatChecker

    formats = FormatChecker(())
    formats.checks("repository")(is_repo_id)
    formats.checks("tag")(_is_tag)
    validator = Draft202012Validator(_read_schema(), format_checker=formats)
    return [_describe_error(error) for error in validator.iter_errors(lists)]


def lint_file(path: Path) -> list[str]:
    """Lint a card file."""
    try:
        return lint_card(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        return ["The card is not valid UTF-8."]


def check_licence(licence: str | None) -> str | None:
    """Return a licence in lower case; raises OutputError for one that the Hub does not support."""
    licence = licence.lower() if licence else None
    known = _read_schema()["properties"]["license"]["items"]["enum"]
    if licence is not None and licence not in known:
        raise OutputError(
            f"The Hub does not know the licence `{licence}`; use an id such as mit or apache-2.0, "
            "or leave out --license."
        )
    return licence


def is_repo_id(name: object) -> bool:
    """Return whether `name` is a valid repository id on the Hub."""
    try:
        validate_repo_id(str(name))
    except HFValidationError:
        return False
    return isinstance(name, str)


def _is_tag(tag: object) -> bool:
    match = _BASE_TAG.match(str(tag))
    return match is None or is_repo_id(str(tag)[match.end() :])


@cache
def _read_schema() -> Json:
    schema: Json = json.loads(files("cards").joinpath("metadata.schema.json").read_text())
    return schema


def _describe_error(error: Any) -> str:
    where = ".".join(map(str, error.absolute_path))
    key = where.partition(".")[0]
    if error.validator == "enum":
        return f"`{key}` is `{error.instance}`, which is not a known value."
    if error.validator == "format":
        return f"`{key}` holds `{error.instance}`, which is not a valid repository id."
    return f"{f'`{where}`: ' * bool(where)}{error.message}."
