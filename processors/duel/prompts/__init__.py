"""Load the prompts of a duel, the files in this folder.

Answers end up in datasets that train models: a changed prompt changes the fingerprint of a stage.
"""

import hashlib
from pathlib import Path

import jinja2

_FOLDER = Path(__file__).parent
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_FOLDER), undefined=jinja2.StrictUndefined, autoescape=False
)


def prompt(name: str, **values: object) -> str:
    """Fill in a prompt; a missing value is an error."""
    return _TEMPLATES.get_template(name).render(**values).strip()


def fingerprint() -> str:
    """A hash of all prompts."""
    texts = {p.name: p.read_text() for p in sorted(_FOLDER.iterdir()) if p.suffix in (".md", ".j2")}
    return hashlib.sha256(repr(texts).encode()).hexdigest()
