"""What a finished shard was made from: compared here to resume, on another machine to merge.

input     path, layout, sessions, bytes, revision, files (sha256 of their names and sizes)
times     mtime in ns of each file; only means something on one machine
reader    hash of the code that reads a source
stages    name and code hash of each stage
options   those that decide on rows
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pimono_sdpo.runs.shards import run_shard
from pimono_sdpo.stage import Stage, name_of, source_hash
from pimono_sdpo.traces.sources import Shard

Json = dict[str, Any]


def made_from(shard: Shard, stages: Sequence[Stage], options: Json) -> Json:
    """What a finished shard depends on; a change of any part makes it again."""
    times = [path.stat().st_mtime_ns for _, path in _files(shard)]
    return {"input": describe(shard), "times": times, **made_by(stages, options)}


def made_by(stages: Sequence[Stage], options: Json) -> Json:
    """The part of `made_from` that all shards of a run share: code and options."""
    return {
        "reader": source_hash(run_shard),
        "stages": [[name_of(stage), stage.code] for stage in stages],
        "options": options,
    }


def describe(shard: Shard) -> Json:
    """Tell a shard again on another machine: no times, no path outside of the source."""
    sizes = [[name, path.stat().st_size] for name, path in _files(shard)]
    return {
        "path": shard.path,
        "layout": shard.layout,
        "sessions": shard.sessions,
        "bytes": shard.bytes,
        "revision": shard.revision,
        "files": hashlib.sha256(json.dumps(sizes).encode()).hexdigest(),
    }


def _files(shard: Shard) -> Iterator[tuple[str, Path]]:
    """Yield the files that hold the data, named from the source; none for the Hub."""
    for path in shard.files:
        if path.is_dir():
            # A saved split; what `datasets` caches beside its data is no input.
            data = [*path.glob("*.arrow"), *path.glob("state.json")]
            yield from ((file.name, file) for file in sorted(data) if file.name[:6] != "cache-")
        elif shard.kind == "jsonl":
            yield path.relative_to(shard.root).as_posix(), path
        else:
            yield path.name, path
