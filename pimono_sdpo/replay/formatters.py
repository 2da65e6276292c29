"""What a formatter may have done to the files, told by what its runs have printed."""

import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol

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
# These know nearly every kind, or run whatever they are told to.
_ANY = re.compile(
    r"prettier|dprint|mdformat|markdownlint|oxfmt|treefmt|eslint|pre-commit run|stylua|taplo|shfmt"
)


def kinds_told(text: str) -> set[str]:
    """Return the suffixes of the files it may touch, `*` for any; none where nothing is told.

    >>> sorted(kinds_told("> ruff format ."))
    ['ipynb', 'py', 'pyi', 'pyw']
    """
    if _ANY.search(text):
        return {"*"}
    return {kind for sign, kinds in _KINDS.items() if sign.search(text) for kind in kinds.split()}


def is_touched(path: str, kinds: set[str]) -> bool:
    """Tell whether a formatter may touch a file; where nothing was told it may."""
    return not kinds or "*" in kinds or path.rsplit(".", 1)[-1].lower() in kinds


class Reformatted(NamedTuple):
    """What a formatter makes of whole texts: those it changes.

    `has_run` tells whether it has run in the session, None when perhaps; `fixed` how many files it
    has rewritten there, None when nobody knows.
    """

    texts: dict[str, str]
    has_run: bool | None
    fixed: int | None


class Reformat(Protocol):
    """The formatter of a workspace, which has no other."""

    @property
    def kinds(self) -> frozenset[str]:
        """Suffixes of the files that it may touch."""

    def __call__(
        self, texts: Mapping[str, str], command: str, output: str, cwd: str
    ) -> Reformatted | None:
        """Run it on whole texts by their paths below the workspace; None where it could not.

        `command` is what was recorded, with its output.
        """


def run_again(
    files: Mapping[str, File], reformat: Reformat, cwd: str, command: str, output: str
) -> Reformatted | None:
    """Run a formatter on the whole texts; return all of them, by their paths, as it leaves them."""
    root = f"{cwd}/"
    texts = {
        path.removeprefix(root): text
        for path, file in files.items()
        if path.startswith(root) and (text := file.sure) is not None
    }
    again = reformat(texts, command, output, cwd)
    if again is None:
        return None
    return again._replace(texts={root + name: text for name, text in (texts | again.texts).items()})


def follow(
    files: Mapping[str, File], changes: Changes, kinds: set[str], again: Reformatted | None = None
) -> None:
    """Follow a formatter's run, or what came of it when it was run `again`."""
    if again and again.has_run is False:
        return
    left, clean = changes.fixed, changes.clean
    if again and left is None and again.fixed is not None:
        left, clean = again.fixed, again.fixed == 0
    rest = {path: file for path, file in files.items() if is_touched(path, kinds)}
    formatted = again.texts if again else {}
    changed = {path for path, text in formatted.items() if text != files[path].whole}
    if (clean and changed) or (left is not None and len(changed) > left):
        # It cannot have run as it was run here.
        formatted = {}
    is_sure = clean or left is not None or bool(again and again.has_run)
    for path, text in formatted.items():
        files[path].take_formatted(text, is_sure)
        rest.pop(path, None)
    if left is not None and formatted:
        left -= len(changed)
    if changes.formats:
        for file in rest.values():
            file.is_stale = True
    edited = [file for file in rest.values() if file.edited]
    if left is not None and left > len(edited):
        # Somebody else has edited, too.
        for path, file in files.items():
            file.is_stale |= is_touched(path, kinds)
    elif clean or left == 0:
        for file in edited:
            file.edited = []
    elif changes.formatted:
        for file in edited:
            file.format()
