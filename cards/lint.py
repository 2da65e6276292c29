"""Check a card offline: the rules that the Hub applies on upload, and a few of our own."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml

from pimono_sdpo.errors import OutputError

# A word boundary at each end: no name starts or ends with a dot or a dash.
_REPO_ID = re.compile(r"(?:\b[\w.-]{1,96}\b/)?\b[\w.-]{1,96}\b", re.ASCII)
_BASE_TAG = re.compile(r"base_model:(?:adapter|finetune|quantized|merge):")
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
LICENCES = frozenset(
    """
    afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bigcode-openrail-m bigscience-openrail-m bsd
    bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0
    cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0
    cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0
    cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0 ecl-2.0 epl-1.0 epl-2.0 etalab-2.0
    eupl-1.1 eupl-1.2 gemma gfdl gpl gpl-2.0 gpl-3.0 isc lgpl lgpl-2.1 lgpl-3.0 llama2 llama3
    llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 openrail
    openrail++ osl-3.0 other pddl postgresql unknown unlicense wtfpl zlib
    """.split()
)
PIPELINE_TAGS = frozenset({"text-generation", "image-text-to-text", "any-to-any"})
LIBRARIES = frozenset({"peft", "transformers"})
_PICTURE = re.compile(r"!\[[^\]]*\]\(<?([^)\s>]+)>?[^)]*\)")
Json = dict[str, Any]


def lint_card(text: str) -> list[str]:
    """Return one sentence per rule that the card breaks.

    >>> lint_card("---\\nlicense: mit\\n---\\n# A card")
    []
    >>> lint_card("# A card")
    ['The card has no YAML front matter; start it with `---`.']
    """
    match = _FRONT_MATTER.match(text)
    if match is None:
        return ["The card has no YAML front matter; start it with `---`."]
    try:
        node = yaml.compose(match.group(1), Loader=yaml.SafeLoader)
        metadata = yaml.safe_load(match.group(1))
    except (yaml.YAMLError, ValueError) as error:
        # PyYAML raises ValueError for an impossible date.
        return [f"The front matter is not valid YAML: {' '.join(str(error).split())}."]
    if not isinstance(metadata, dict):
        return ["The front matter is not a mapping of names to values."]
    return [
        *_find_repeated_keys(node),
        *_check_ids(metadata),
        *_check_values(metadata),
        *_check_model_index(metadata.get("model-index", [])),
        *_check_body(text[match.end() :]),
    ]


def lint_file(path: Path) -> list[str]:
    """Lint a card file; pictures that it shows must exist beside it."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ["The card is not valid UTF-8."]
    return [*lint_card(text), *_find_missing_pictures(text, path.parent)]


def check_licence(licence: str | None) -> str | None:
    """Return a licence in lower case; raises OutputError for one the Hub does not know."""
    licence = licence.lower() if licence else None
    if licence is not None and licence not in LICENCES:
        raise OutputError(
            f"The Hub does not know the licence `{licence}`; use an id such as mit or apache-2.0, "
            "or leave out --license."
        )
    return licence


def is_repo_id(name: object) -> bool:
    """Return whether `name` is a valid repository id on the Hub.

    >>> is_repo_id("google/gemma-4-12B-it"), is_repo_id("/home/ann/model"), is_repo_id("a--b/c")
    (True, False, False)
    """
    return (
        isinstance(name, str)
        and _REPO_ID.fullmatch(name) is not None
        and not any(part in name for part in ("--", ".."))
        and not name.endswith(".git")
    )


def _find_repeated_keys(node: yaml.MappingNode) -> list[str]:
    """Find keys that occur twice: PyYAML keeps the last one, the Hub refuses the card."""
    keys = [str(key.value) for key, _ in node.value]
    twice = dict.fromkeys(key for key in keys if keys.count(key) > 1)
    return [f"`{key}` occurs more than once in the front matter." for key in twice]


def _check_ids(metadata: Json) -> list[str]:
    problems = []
    for key in ("base_model", "datasets", "source_datasets"):
        value = metadata.get(key, [])
        for name in _as_list(value):
            if not is_repo_id(name):
                problems.append(f"`{key}` holds `{name}`, which is not a repository id.")
    for tag in _as_list(metadata.get("tags", [])):
        mark = _BASE_TAG.match(str(tag))
        if mark and not is_repo_id(str(tag)[mark.end() :]):
            problems.append(f"The tag `{tag}` does not name a repository id.")
    if "base_model" in metadata and "base_model_relation" not in metadata:
        problems.append("`base_model` is given without `base_model_relation`.")
    return problems


def _check_values(metadata: Json) -> list[str]:
    known = {"license": LICENCES, "pipeline_tag": PIPELINE_TAGS, "library_name": LIBRARIES}
    return [
        f"`{key}` is `{value}`, which is not a known value."
        for key, values in known.items()
        for value in _as_list(metadata.get(key, []))
        if str(value) not in values
    ]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check_model_index(index: Any) -> Iterator[str]:
    """Check that each result names its task, dataset and metrics, as the Hub requires."""
    if not isinstance(index, list) or not all(isinstance(model, dict) for model in index):
        yield "`model-index` is not a list of models."
        return
    for model in index:
        if not isinstance(model.get("name"), str):
            yield "A model of `model-index` has no `name`."
        results = model.get("results")
        if not isinstance(results, list) or not results:
            yield "A model of `model-index` has no `results`."
            continue
        for result in results:
            yield from _check_result(result if isinstance(result, dict) else {})


def _check_result(result: Json) -> Iterator[str]:
    for outer, inner in (("task", "type"), ("dataset", "type"), ("dataset", "name")):
        part = result.get(outer)
        if not isinstance(part, dict) or not part.get(inner):
            yield f"A result of `model-index` has no `{outer}.{inner}`."
    metrics = result.get("metrics")
    if not isinstance(metrics, list) or not metrics:
        yield "A result of `model-index` has no `metrics`."
        return
    for metric in metrics:
        if not isinstance(metric, dict) or not {"type", "value"} <= metric.keys():
            yield "A metric of `model-index` lacks its `type` or `value`."


def _find_missing_pictures(text: str, folder: Path) -> list[str]:
    """Find pictures with a relative path that do not exist; URLs are not checked."""
    links = dict.fromkeys(_PICTURE.findall(_strip_code(text)))
    local = [link for link in links if not re.match(r"[a-z]+:|//", link)]
    return [
        f"The card shows `{link}`, but that file does not exist."
        for link in local
        if not (folder / unquote(link)).is_file()
    ]


def _strip_code(text: str) -> str:
    return re.sub(r"^(`{3,}).*?(?:^\1`*$|\Z)", "", text, flags=re.MULTILINE | re.DOTALL)


def _check_body(body: str) -> list[str]:
    return (
        [] if re.search(r"^# \S", _strip_code(body), re.MULTILINE) else ["The card has no title."]
    )
