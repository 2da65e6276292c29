"""Check a card offline by the rules the Hub applies on upload, and some it should.

The Hub validates a README only when it is uploaded; a card of ours must not fail there.
"""

import re
from typing import Any

import yaml

REPO_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95}")
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
LICENCES = frozenset(
    """
    afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bsd bsd-2-clause bsd-3-clause bsl-1.0
    bsd-3-clause-clear cc cc-by-2.0 cc-by-3.0 cc-by-4.0 cc-by-nc-4.0 cc-by-nc-nd-4.0
    cc-by-nc-sa-4.0 cc-by-nd-4.0
    cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-2.0 ecl-2.0 epl-2.0 eupl-1.2 gemma gpl gpl-2.0
    gpl-3.0 isc lgpl lgpl-2.1 lgpl-3.0 llama2 llama3 llama3.1 llama3.2 llama3.3 mit mpl-2.0 ms-pl
    odbl odc-by openrail other pddl unknown unlicense wtfpl zlib
    """.split()
)
PIPELINE_TAGS = frozenset({"text-generation", "image-text-to-text", "any-to-any"})
LIBRARIES = frozenset({"peft", "transformers"})
Json = dict[str, Any]


def lint_card(text: str) -> list[str]:
    """Return one sentence per rule the card breaks; an empty list when there is none.

    >>> lint_card("---\\nlicense: mit\\n---\\n# A card")
    []
    >>> lint_card("# A card")
    ['The card has no YAML front matter; start it with `---`.']
    """
    match = _FRONT_MATTER.match(text)
    if match is None:
        return ["The card has no YAML front matter; start it with `---`."]
    try:
        metadata = yaml.safe_load(match.group(1))
    except yaml.YAMLError as error:
        # A broken card is what this function is for.
        return [f"The front matter is no YAML: {' '.join(str(error).split())}."]
    if not isinstance(metadata, dict):
        return ["The front matter is no mapping of names to values."]
    return [*_ids(metadata), *_known_values(metadata), *_body(text[match.end() :])]


def _ids(metadata: Json) -> list[str]:
    problems = []
    for key in ("base_model", "datasets", "source_datasets"):
        value = metadata.get(key, [])
        for name in value if isinstance(value, list) else [value]:
            if not isinstance(name, str) or not REPO_ID.fullmatch(name):
                problems.append(f"`{key}` holds `{name}`, which is no repository id.")
    if "base_model" in metadata and "base_model_relation" not in metadata:
        problems.append("`base_model` comes without `base_model_relation`.")
    return problems


def _known_values(metadata: Json) -> list[str]:
    known = {"license": LICENCES, "pipeline_tag": PIPELINE_TAGS, "library_name": LIBRARIES}
    return [
        f"`{key}` is `{metadata[key]}`, which the Hub does not know."
        for key, values in known.items()
        if key in metadata and metadata[key] not in values
    ]


def _body(body: str) -> list[str]:
    return [] if re.search(r"^# \S", body, re.MULTILINE) else ["The card has no title."]
