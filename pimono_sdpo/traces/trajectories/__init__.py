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
    """Yield the files with runs below a folder, or a single file, each with its format."""
    for file in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
        if file.is_file():
            try:
                format_ = next((format_ for format_ in FORMATS if format_.recognises(file)), None)
            except OSError as error:
                raise SourceError(f"`{file}` cannot be read: {error}") from error
            if format_ is not None:
                yield file, format_
