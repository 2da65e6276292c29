"""Open what a command is to read as one source: paths, ids on the Hub, words for own sessions."""

from dataclasses import replace
from pathlib import Path

import typer

from pimono_sdpo.options import argument, option, options
from pimono_sdpo.runs.folders import require_disjoint
from pimono_sdpo.traces.own_sessions import WORDS, check_word, choose_sessions, find_own_sessions
from pimono_sdpo.traces.sources import Source, join_sources, open_source
from processors.identity import find_own_names


@options
class SourceOptions:
    """Which recorded sessions a command reads."""

    source: list[str] = argument(
        "One or more of: `claude`, `codex`, `pi` or `all` for the sessions of these agents on this "
        "machine; a folder, file or glob of viewer-export parquet or session JSONL (also .gz, "
        ".zst), a saved dataset, a Hub dataset id (ns/name, read at refs/convert/parquet), or "
        "files on the Hub (hf://datasets/ns/name[@rev]/path, hf://buckets/ns/name/path)."
    )
    project: str | None = option(
        "Read the session files whose recorded working directory or path contains this.", default=None, shown="all"
    )
    since: str | None = option(
        "Read the session files changed since a date (2026-05-31) or for days (7d).", default=None, shown="all"
    )
    exclude: list[str] = option(
        "Pattern of the paths of session files below the source to leave out, such as `*/agent-*`; may be repeated.",
        default_factory=list,
    )

    def choices(self) -> list[str]:
        """Return the options given that choose among session files."""
        names = ("project", "since", "exclude")
        return [f"--{name}" for name in names if getattr(self, name)]

    def open_sessions(self, out: Path) -> Source:
        """Open all sources, and print what was found of this user's own sessions."""
        given = list(dict.fromkeys(self.source))
        for one in given:
            if one and one not in WORDS and Path(one).exists():
                require_disjoint(Path(one).resolve(), out.resolve())
        opened = [open_one(one) for one in given]
        for root in {shard.root for one in opened if one.name in WORDS for shard in one.shards}:
            require_disjoint(root.resolve(), out.resolve())
        return choose_sessions(join_sources(opened), self.project, self.since, self.exclude)


def open_one(source: str) -> Source:
    """Open a source, and print what was found of this user's own sessions."""
    check_word(source)
    if source not in WORDS:
        return open_source(source)
    opened, found = find_own_sessions(source)
    for sentence in found:
        typer.echo(sentence)
    return replace(opened, recorder=tuple(find_own_names()))
