"""Steps and pairs on the Hub: one dataset, a config for each, beside the rows of the filter.

    data/ of a folder of steps  ->  steps/            its config `steps`
    rejects/                    ->  steps_rejects/
    report.json                 ->  steps/report.json

The card of the dataset has a section for each stage; a push replaces its own and leaves the others.
"""

import re
from typing import Any

import yaml

from pimono_sdpo.errors import OutputError
from pimono_sdpo.runs.folders import REPORT

STAGES = ("steps", "pairs")
CARD = "README.md"
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_SECTION = re.compile(r"<!-- pimono-sdpo:(\w+) -->\n.*?<!-- /pimono-sdpo:\1 -->\n", re.DOTALL)
Json = dict[str, Any]


def place_of(name: str, stage: str | None) -> str:
    """Return where a file of a folder lies in the dataset.

    >>> place_of("data/train-00000-of-00001.parquet", "steps")
    'steps/train-00000-of-00001.parquet'
    """
    if stage is None or name == CARD:
        return name
    folder, slash, rest = name.rpartition("/")
    if not slash:
        return f"{stage}/{name}"
    return f"{stage}/{rest}" if folder == "data" else f"{stage}_{folder}/{rest}"


def is_of(name: str, stage: str | None) -> bool:
    """Tell a shard that a push of this stage made, or of the filter's rows for None."""
    folders = ("data", "rejects") if stage is None else (stage, f"{stage}_rejects")
    return name.startswith(tuple(f"{folder}/" for folder in folders)) and name.endswith(".parquet")


def report_of(stage: str | None) -> str:
    """Return where the report of a stage lies in the dataset."""
    return place_of(REPORT, stage)


def merged_card(mine: str, theirs: str | None, stage: str | None, repo_id: str) -> str:
    """Return the card of a dataset after a push: of all stages whose rows are there then.

    Raises OutputError for a dataset whose files no config names: another one would hide them.
    """
    if stage is None:
        if theirs is None or not _SECTION.search(theirs):
            return mine
        others = [match[0] for match in _SECTION.finditer(theirs)]
        metadata, body = _parts(mine)
        before = _parts(theirs)[0]
        kept = [one for one in before.get("configs", []) if _stage_of(one) is not None]
        tags = sorted({*metadata["tags"], *before.get("tags", [])})
        told = {**metadata, "configs": [*metadata["configs"], *_plain(kept)], "tags": tags}
        return _card(told, body, others)
    own, body = _parts(mine)
    section = f"<!-- pimono-sdpo:{stage} -->\n{body.strip()}\n<!-- /pimono-sdpo:{stage} -->\n"
    configs = [_placed(config, stage) for config in own["configs"]]
    if theirs is None:
        return _card({**own, "configs": configs}, "", [section])
    metadata, body = _parts(theirs)
    if "configs" not in metadata:
        raise OutputError(
            f"The card of `{repo_id}` has no `configs`, so one for {stage} would hide what is "
            "there; add a config for it, or give another name."
        )
    kept = [config for config in metadata["configs"] if _stage_of(config) != stage]
    if any(config.get("default") for config in kept):
        configs = _plain(configs)
    sections = {match[1]: match[0] for match in _SECTION.finditer(body)} | {stage: section}
    tags = sorted({*metadata.get("tags", []), *own["tags"]})
    body = _SECTION.sub("", body)
    told = {**own, **metadata, "configs": [*kept, *configs], "tags": tags}
    return _card(told, body, [sections[name] for name in STAGES if name in sections])


def _parts(card: str) -> tuple[Json, str]:
    match = _FRONT_MATTER.match(card)
    if match is None:
        return {}, card
    found = yaml.safe_load(match[1])
    return (found if isinstance(found, dict) else {}), card[match.end() :]


def _card(metadata: Json, body: str, sections: list[str]) -> str:
    """Put a card together; in whatever order stages were pushed, it is the same."""
    order = [None, *STAGES]
    configs = sorted(metadata["configs"], key=lambda config: order.index(_stage_of(config)))
    told = {**metadata, "configs": configs}
    front: str = yaml.safe_dump(told, sort_keys=True, allow_unicode=True)
    rest = "\n\n".join(part.strip() for part in [body, *sections] if part.strip())
    return f"---\n{front}---\n\n{rest}\n"


def _stage_of(config: Json) -> str | None:
    name = str(config.get("config_name", "")).removesuffix("_rejects")
    return name if name in STAGES else None


def _placed(config: Json, stage: str) -> Json:
    files = [
        {**file, "path": place_of(file["path"], stage)} for file in config.get("data_files", [])
    ]
    return {**config, "data_files": files}


def _plain(configs: list[Json]) -> list[Json]:
    """Of a dataset one config alone is the default."""
    return [{k: v for k, v in config.items() if k != "default"} for config in configs]
