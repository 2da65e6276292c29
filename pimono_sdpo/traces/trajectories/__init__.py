"""Read runs of other agents: OpenAI messages, ATIF, mini-swe-agent, SWE-agent, Inspect.

To add a format, define a `Format` in a module here and add it to FORMATS.
"""

from collections.abc import Iterator
from pathlib import Path

from pimono_sdpo.errors import SourceError
from pimono_sdpo.traces.trajectories import atif, inspect_eval, openai_messages, swe_agent
from pimono_sdpo.traces.trajectories.base import Format

FORMATS: tuple[Format, ...] = (*swe_agent.FORMATS, atif.FORMAT, inspect_eval.FORMAT, openai_messages.FORMAT)


def find_runs(folder: Path) -> Iterator[tuple[Path, Format]]:
    """Yield the files with runs below a folder, or a single file, each with its format.

    A file that continues the run of another one is read with that one.
    """
    files = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
    found = [(file, form) for file in files if file.is_file() and (form := _find_format(file)) is not None]
    continued: set[Path] = set()
    for file, form in found:
        if file.resolve() not in continued:
            continued.update(form.continuations(file))
    yield from ((file, form) for file, form in found if file.resolve() not in continued)


def _find_format(file: Path) -> Format | None:
    try:
        return next((form for form in FORMATS if form.recognises(file)), None)
    except OSError as error:
        raise SourceError(f"`{file}` cannot be read: {error}") from error
