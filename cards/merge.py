"""Merge the card of a pushed folder into the card of its repository on the Hub.

Each stage has its section between marks, `<!-- pimono-sdpo:steps -->` and `<!-- /pimono-sdpo:steps -->`. A push
replaces its own section and the keys of the metadata that it writes; all else stays as the owner has written it.
"""

import re
from typing import Any

import yaml

# The section of rows of the filter and of a duel, which are the default config, and those with configs of their own.
SECTIONS = ("rows", "steps", "pairs")
# Keys, and tags with these beginnings, that a push removes if it has no value for them.
OURS = ("base_model", "base_model_relation", "datasets", "model-index", "source_datasets")
OUR_TAGS = ("base_model:", "trackio:")
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_SECTION = re.compile(r"<!-- pimono-sdpo:(\w+) -->\n(.*?)\n<!-- /pimono-sdpo:\1 -->", re.DOTALL)
Json = dict[str, Any]


def split_card(card: str) -> tuple[Json, str]:
    """Return the metadata of a card and its text."""
    match = _FRONT_MATTER.match(card)
    metadata = yaml.safe_load(match[1]) if match else None
    return (metadata if isinstance(metadata, dict) else {}), card[match.end() :] if match else card


def path_in_repo(name: str, section: str) -> str:
    """Return the path in the repository of a file of the pushed folder."""
    if section not in SECTIONS[1:] or name == "README.md":
        return name
    folder, _, rest = name.rpartition("/")
    return f"{section}_rejects/{rest}" if folder == "rejects" else f"{section}/{rest}"


def merge_cards(section: str, new_card: str, old_card: str) -> tuple[str, str]:
    """Return the card after a push, and a note for the owner or ""; `old_card` is that on the Hub, "" without one."""
    (new, text), (old, body) = split_card(new_card), split_card(old_card)
    metadata, note = _merge_metadata(section, new, old), ""
    # A session may quote the marks.
    text = re.sub("<!--(?= /?pimono-sdpo:)", "<! --", text).strip()
    marked = f"<!-- pimono-sdpo:{section} -->\n{text}\n<!-- /pimono-sdpo:{section} -->"
    if section in {match[1] for match in _SECTION.finditer(body)}:
        body = _SECTION.sub(lambda match: marked if match[1] == section else match[0], body)
    else:
        if section not in SECTIONS[1:] and _SECTION.sub("", body).strip():
            note = "the earlier text of the card stays above the new one; remove there what is outdated"
        body = f"{body.strip()}\n\n{marked}"
    if old_card and (metadata, body) == split_card(old_card):
        return old_card, ""
    header = yaml.safe_dump(metadata, sort_keys=True, allow_unicode=True)
    return f"---\n{header}---\n\n{body.strip()}\n", note


def _merge_metadata(section: str, new: Json, old: Json) -> Json:
    """Return the metadata after a push: ours, and what the owner and other sections added."""

    def section_of(config: Json) -> str:
        name = str(config.get("config_name")).removesuffix("_rejects")
        return name if name in SECTIONS else SECTIONS[0]

    others = [config for config in old.get("configs") or [] if section_of(config) != section]
    configs = [
        {**one, "data_files": [{**file, "path": path_in_repo(file["path"], section)} for file in one["data_files"]]}
        for one in new.get("configs", [])
    ]
    configs = sorted([*configs, *others], key=lambda config: SECTIONS.index(section_of(config)))
    # Only one config of a dataset may be the default.
    for config in [one for one in configs if one.get("default")][1:]:
        del config["default"]
    merged = {**{name: value for name, value in old.items() if name not in OURS}, **new}
    if configs and configs[0] in others:
        # The metadata is about the first config; the others only add what is missing.
        merged = {**new, **old}
    tags = {tag for tag in _list(old, "tags") if not str(tag).startswith(OUR_TAGS)} | {*_list(new, "tags")}
    return merged | ({"tags": sorted(tags)} if tags else {}) | ({"configs": configs} if configs else {})


def _list(metadata: Json, name: str) -> list[Any]:
    """Return a value of the metadata as a list; a single one may stand without it."""
    value = metadata.get(name) or []
    return value if isinstance(value, list) else [value]
