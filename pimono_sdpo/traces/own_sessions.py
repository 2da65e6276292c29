"""Find the sessions that agents keep on this machine, and choose among session files.

claude    CLAUDE_CONFIG_DIR, else ~/.claude      projects/
codex     CODEX_HOME, else ~/.codex              sessions/, archived_sessions/
pi        PI_CODING_AGENT_DIR, else ~/.pi/agent  sessions/
"""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path

import msgspec
import pyarrow as pa

from pimono_sdpo.errors import SourceError
from pimono_sdpo.traces.sources import Shard, Source, is_session, list_files, open_raw, shard_by_root, shard_sessions

# The harness, its variable, its home and the folders there that hold sessions.
PLACES = {
    "claude": ("Claude Code", "CLAUDE_CONFIG_DIR", "~/.claude", ("projects",)),
    "codex": ("Codex", "CODEX_HOME", "~/.codex", ("sessions", "archived_sessions")),
    "pi": ("Pi", "PI_CODING_AGENT_DIR", "~/.pi/agent", ("sessions",)),
}
ALL = "all"
WORDS = (*PLACES, ALL)
# The working directory is recorded in one of the first lines.
HEAD_BYTES = 2**16
_CWD = re.compile(rb'"cwd"\s*:\s*("(?:[^"\\]|\\.)*")')
_DAYS = re.compile(r"([0-9]{1,5})d")


def find_own_sessions(word: str) -> tuple[Source, list[str]]:
    """Open the sessions of one harness, or of all; return them and a sentence on each harness.

    Raises SourceError if there are none.
    """
    shards: list[Shard] = []
    found, missing = [], []
    for harness in PLACES if word == ALL else [word]:
        name, variable, usual, folders = PLACES[harness]
        home = Path(os.environ.get(variable) or usual).expanduser()
        places = [home / folder for folder in folders]
        there = [place for place in places if place.is_dir()]
        files = sorted(f for place in there for f in list_files(place) if is_session(f))
        if not files:
            missing.append(" or ".join(f"`{place}`" for place in places))
            continue
        # Of one folder, names are as when it is given itself.
        shards += shard_sessions(files, places[0] if len(places) == 1 else home)
        projects = len({find_project(file) or str(file.parent) for file in files})
        size = sum(file.stat().st_size for file in files) / 1e6
        found.append(
            f"{name}: {len(files)} sessions of {projects} projects, {size:,.1f} MB, in "
            + " and ".join(map(str, there))
        )
    if not found:
        raise SourceError(f"There are no sessions in {', '.join(missing)}; give the folder that holds yours.")
    return Source(word, "jsonl", None, tuple(shards)), found


def check_word(source: str) -> None:
    """Raise SourceError for a word that is neither of an agent nor of anything else."""
    if re.fullmatch(r"\w+", source) and source not in WORDS and not Path(source).exists():
        meant = get_close_matches(source, WORDS, 1)
        hint = f"did you mean `{meant[0]}`? The" if meant else "the"
        raise SourceError(
            f"`{source}` does not exist; {hint} words for your own sessions are "
            f"{', '.join(WORDS)}; else use a folder, a file, a glob or a Hub id such as `ns/name`."
        )


def find_project(file: Path) -> str:
    """Return the working directory that a session recorded, or an empty text."""
    try:
        with open_raw(file) as stream:
            found = _CWD.search(stream.read(HEAD_BYTES))
        return msgspec.json.decode(found[1], type=str) if found else ""
    except (pa.ArrowException, OSError, msgspec.DecodeError):
        # The run names files that cannot be read.
        return ""


def choose_sessions(source: Source, project: str | None, since: str | None, exclude: Sequence[str]) -> Source:
    """Keep the session files that all of the options let through; raises SourceError.

    `project` is a part of the recorded working directory or of the path of the file, `since` a date
    or a number of days of the last change, `exclude` patterns of paths below the source.
    """
    start = _read_date(since) if since is not None else 0.0

    def is_kept(file: Path, name: str) -> bool:
        return (
            (project is None or project in name or project in find_project(file))
            and (since is None or file.stat().st_mtime >= start)
            and not any(fnmatch(name, pattern) for pattern in exclude)
        )

    if project is None and since is None and not exclude:
        return source
    if any(shard.kind != "jsonl" for shard in source.shards):
        raise SourceError(
            f"--project, --since and --exclude choose among session files, but `{source.name}` "
            "holds other files as well; leave them out."
        )
    files = [(shard.root, file) for shard in source.shards for file in shard.files]
    kept = [(root, file) for root, file in files if is_kept(file, file.relative_to(root).as_posix())]
    if not kept:
        given = {"--project": project, "--since": since, "--exclude": exclude}
        named = " and ".join(flag for flag, value in given.items() if value)
        raise SourceError(f"No session of `{source.name}` ({len(files)} in all) is left by {named}; choose otherwise.")
    return replace(source, shards=tuple(shard_by_root(kept)))


def _read_date(text: str) -> float:
    """Return the time of a date or of a number of days ago, in seconds."""
    if days := _DAYS.fullmatch(text):
        return (datetime.now().astimezone() - timedelta(days=int(days[1]))).timestamp()
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError as error:
        raise SourceError(f"--since `{text}` is not a date; use one such as 2026-05-31, or 7d.") from error
