"""A finished folder to the Hub."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pimono_sdpo.push import Target


def run_push(folder: Path, target: "Target") -> str:
    """Put what `run_filter` wrote on the Hub; raises OutputError. Return what was done."""
    from cards.lint import lint_file
    from pimono_sdpo.push import push_folder
    from processors.secrets import find_secret_kinds

    return push_folder(folder, target, lint_file, find_secret_kinds)
