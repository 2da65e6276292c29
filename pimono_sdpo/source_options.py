"""Open the SOURCE arguments of a command, including `claude` or `all`, with --project, --since and --exclude."""

import os
import re
from dataclasses import replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path
from time import time

import msgspec
import pyarrow as pa

from pimono_sdpo.errors import SourceError
from pimono_sdpo.program import print_lines
from pimono_sdpo.runs.folders import require_disjoint
from pimono_sdpo.session_options import SourceOptions
from pimono_sdpo.stage import STRICT
from pimono_sdpo.text import describe_size
from pimono_sdpo.traces.harness import OWN
from pimono_sdpo.traces.sources import (
    Kind,
    Shard,
    Source,
    count_kinds,
    is_session,
    join_sources,
    list_files,
    name_others,
    open_source,
    read_head,
    select_sessions,
    shard_databases,
    shard_sessions,
)
from pimono_sdpo.traces.stores import StoredSession, is_database
from processors.identity import find_own_names

ALL = "all"
WORDS = (*OWN, ALL)
# The working directory is recorded in one of the first lines.
HEAD_BYTES = 2**16
_CWD = re.compile(rb'"cwd"\s*:\s*("(?:[^"\\]|\\.)*")')
_DAYS = re.compile(r"([0-9]{1,5})d")


def open_sessions(options: SourceOptions, out: Path) -> Source:
    """Open all sources, and print a summary of the user's own sessions."""
    if options.strict:
        # Read by all processes of this run.
        os.environ[STRICT] = "1"
    names = list(dict.fromkeys(options.source))
    for name in names:
        if name and name not in WORDS and Path(name).exists():
            require_disjoint(Path(name).resolve(), out.resolve())
    sources = [open_one(name) for name in names]
    for root in {shard.root for source in sources if source.name in WORDS for shard in source.shards}:
        require_disjoint(root.resolve(), out.resolve())
    return _select(options, join_sources(sources))


def _select(options: SourceOptions, source: Source) -> Source:
    """Keep the session files that match all of the options; raises SourceError."""
    if options.project is None and options.since is None and not options.exclude:
        return source
    if any(shard.kind not in ("jsonl", "sqlite") for shard in source.shards):
        raise SourceError(
            f"--project, --since and --exclude select sessions, but `{source.name}` "
            "holds other files as well; leave them out."
        )
    start = _read_date(options.since) if options.since is not None else 0.0
    if start > time():
        raise SourceError(f"--since `{options.since}` is in the future; use a date that has passed, or 7d.")

    project = (options.project or "").casefold()

    def is_excluded(name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in options.exclude)

    def is_kept(name: str, file: Path, stored: StoredSession | None) -> bool:
        return (
            (not project or project in name.casefold() or project in _name_project(file, stored).casefold())
            and (options.since is None or not _is_older(file, stored, start))
            and not is_excluded(name)
        )

    kept = select_sessions(source.shards, is_kept)
    if not kept:
        used = " and ".join(options.choices())
        count = sum(shard.sessions for shard in source.shards)
        raise SourceError(f"No session of `{source.name}` ({count} in all) is left by {used}; change these options.")
    others = {name: why for name, why in source.others.items() if not is_excluded(name)}
    return replace(source, shards=tuple(kept), others=others)


def open_one(source: str) -> Source:
    """Open a source; for the user's own sessions, print a summary."""
    if source in WORDS:
        opened, summaries = find_own_sessions(source)
        for summary in summaries:
            print_lines(summary)
        return replace(opened, recorder=tuple(find_own_names()))
    if re.fullmatch(r"\w+", source) and not Path(source).exists():
        similar = get_close_matches(source, WORDS, 1)
        hint = f"did you mean `{similar[0]}`? The" if similar else "the"
        raise SourceError(
            f"`{source}` does not exist; {hint} words for your own sessions are "
            f"{', '.join(WORDS)}; otherwise use a folder, a file, a glob or a Hub id such as `ns/name`."
        )
    return open_source(source)


def find_own_sessions(word: str) -> tuple[Source, list[str]]:
    """Open the user's sessions of one harness, or of all; return them with a summary of each harness.

    Raises SourceError if there are none.
    """
    shards: list[Shard] = []
    others: dict[str, str] = {}
    notes: list[str] = []
    summaries, missing = [], []
    for harness in OWN.values() if word == ALL else [OWN[word]]:
        places = harness.homes(os.environ, Path("~").expanduser())
        existing = [place for place in places if _is_there(place)]
        found: list[tuple[Path, Path]] = []
        for place in existing:
            root = _find_root(place, places)
            below, left_out = ([place], {}) if _is_file(place) else list_files(place)
            found += ((root, file) for file in sorted(below))
            others |= name_others([], root, left_out)
        # Places may be links to each other, or one may be inside another.
        found = [*{os.path.realpath(file): (root, file) for root, file in reversed(found)}.values()][::-1]
        files = [(root, file) for root, file in found if is_session(file)]
        stored, lacking = shard_databases((root, file) for root, file in found if is_database(file))
        read = {file for shard in stored for file in shard.files}
        for root in dict.fromkeys(root for root, _ in found):
            others |= name_others([file for at, file in found if at == root], root, {}, read)
        if not files and not stored:
            missing.append(" or ".join(f"`{place}`" for place in places))
            continue
        own = [*shard_sessions(files), *stored]
        shards += own
        notes += lacking
        projects = {find_project(file) or str(file.parent) for _, file in files}
        projects |= {one.project for shard in stored for one in shard.stored}
        size = describe_size(sum(shard.bytes for shard in own))
        summaries.append(
            f"{harness.title}: {sum(shard.sessions for shard in own)} sessions of {len(projects)} "
            f"project{'s' * (len(projects) > 1)}, {size}, in " + " and ".join(map(str, existing))
        )
    if not summaries:
        only = f", only {count_kinds(others)}" if others else ""
        raise SourceError(
            f"There are no sessions in {', '.join(missing)}{only}; give the folder that holds yours, or try "
            "the samples that `pimono-sdpo demo sessions --out traces` writes."
        )
    kinds = [*{shard.kind for shard in shards}]
    kind: Kind = kinds[0] if len(kinds) == 1 else "several"
    return Source(word, kind, None, tuple(shards), others=others, notes=tuple(notes)), summaries


def _find_root(place: Path, places: list[Path]) -> Path:
    """Return the folder that names of sessions are relative to: that of the source, or one that several share."""
    is_shared = sum(other.parent == place.parent for other in places) > 1
    return place.parent if is_shared or _is_file(place) else place


def _name_project(file: Path, stored: StoredSession | None) -> str:
    return stored.project if stored else find_project(file)


def _is_file(place: Path) -> bool:
    # Path.is_file raises PermissionError.
    return os.path.isfile(place)  # noqa: PTH113


def _is_there(place: Path) -> bool:
    """Return whether a folder exists, also one that cannot be read."""
    try:
        place.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def find_project(file: Path) -> str:
    """Return the working directory that a session recorded, or ""."""
    try:
        match = _CWD.search(read_head(file, HEAD_BYTES))
        return msgspec.json.decode(match[1], type=str) if match else ""
    except (pa.ArrowException, OSError, msgspec.DecodeError):
        # The run itself reports files that cannot be read.
        return ""


def _is_older(file: Path, stored: StoredSession | None, start: float) -> bool:
    try:
        return (stored.updated if stored else file.stat().st_mtime) < start
    except OSError:
        # The run itself reports files that cannot be read.
        return False


def _read_date(text: str) -> float:
    """Return the timestamp of a date such as 2026-05-31, or of a number of days ago such as 7d."""
    if days := _DAYS.fullmatch(text):
        return (datetime.now().astimezone() - timedelta(days=int(days[1]))).timestamp()
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError as error:
        raise SourceError(f"--since `{text}` is not a date; use one such as 2026-05-31, or 7d.") from error
