"""Read runs of other agents: OpenAI messages, ATIF, mini-swe-agent, SWE-agent, Inspect.

A format is a `Format` of a module, and its entry in FORMATS.
"""

from collections.abc import Iterator
from pathlib import Path

from pimono_sdpo.errors import SourceError
from pimono_sdpo.traces.trajectories import atif, inspect_eval, openai_messages, swe_agent
from pimono_sdpo.traces.trajectories.base import Format

FORMATS: tuple[Format, ...] = (*swe_agent.FORMATS, atif.FORMAT, inspect_eval.FORMAT, openai_messages.FORMAT)


def find_runs(folder: Path) -> Iterator[tuple[Path, Format]]:
    """Yield the files below a folder, or the one file, that hold runs, and their formats."""
    for file in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
        if file.is_file():
            try:
                form = next((form for form in FORMATS if form.recognises(file)), None)
            except OSError as error:
                raise SourceError(f"`{file}` cannot be read: {error}") from error
            if form is not None:
                yield file, form
