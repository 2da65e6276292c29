"""What a formatter may have changed in the files, judging by its command and its output."""

import re
from collections.abc import Mapping

from pimono_sdpo.replay.commands import Changes
from pimono_sdpo.replay.files import File

_KINDS = {
    re.compile(r"\bbiome (?:check|format|lint|ci)\b|^Checked \d+ files? in \d+", re.MULTILINE): (
        "js mjs cjs jsx ts mts cts tsx json jsonc json5 css scss less graphql gql html vue svelte"
        " astro grit"
    ),
    re.compile(r"\bruff (?:check|format)\b|\bblack\b|\bisort\b"): "py pyi ipynb pyw",
    re.compile(r"\bgofmt\b|\bgo fmt\b|\bgolangci-lint\b"): "go",
    re.compile(r"\bcargo (?:fmt|clippy)\b|\brustfmt\b"): "rs",
}
# These format nearly every kind of file, or run whatever is configured.
_ANY = re.compile(
    r"prettier|dprint|mdformat|markdownlint|oxfmt|treefmt|eslint|pre-commit run|stylua|taplo|shfmt"
)


def find_formatted_suffixes(text: str) -> set[str]:
    """Return the suffixes the formatter may touch (`*` for any), or none if unknown.

    >>> sorted(find_formatted_suffixes("> ruff format ."))
    ['ipynb', 'py', 'pyi', 'pyw']
    """
    if _ANY.search(text):
        return {"*"}
    return {kind for sign, kinds in _KINDS.items() if sign.search(text) for kind in kinds.split()}


def is_touched(path: str, kinds: set[str]) -> bool:
    """Return whether a formatter of these suffixes may touch a file; without any it may."""
    return not kinds or "*" in kinds or path.rsplit(".", 1)[-1].lower() in kinds


def apply_formatter(files: Mapping[str, File], changes: Changes, kinds: set[str]) -> None:
    """Follow a formatter's run."""
    left = changes.fixed
    touched = [file for path, file in files.items() if is_touched(path, kinds)]
    edited = [file for file in touched if file.edited]
    if left is not None and left > len(edited):
        # Somebody else has edited, too.
        for file in touched:
            file.is_stale = True
    elif changes.clean or left == 0:
        for file in edited:
            file.edited = []
    elif changes.formatted:
        for file in edited:
            file.format()
