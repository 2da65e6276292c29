"""A part of a divided run: the finished shards of one machine, and the check that parts are whole.

part.json   pimono_sdpo, part, parts, source (name, kind, revision, shards), upstream, reader,
            stages, options, sessions, rows, rejects, records (sha256 of each), check (sha256 of
            all this): the same bytes wherever the part was made
done/       a record per shard, with the sha256 of its three files
"""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq

from pimono_sdpo import __version__
from pimono_sdpo.errors import SourceError
from pimono_sdpo.runs.dedupe import ShardFiles, files_of
from pimono_sdpo.runs.engine import DONE, sha256
from pimono_sdpo.runs.folders import PART, mark_of, read_json
from pimono_sdpo.runs.parquet import link_or_copy
from pimono_sdpo.traces.sources import Kind, Shard, Source

Json = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A folder of a part and what its `part.json` says."""

    folder: Path
    says: Json

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"`{self.folder}`"


@dataclass(frozen=True)
class Whole:
    """All shards of a source, from parts that fit: what they say alike, files, records."""

    says: Json
    files: list[ShardFiles]
    records: list[Json]

    def source(self) -> Source:
        """The source the parts were made from, as far as a report tells of it."""
        source = self.says["source"]
        kind: Kind = source["kind"]
        shards = tuple(
            Shard(kind, one["path"], one["layout"], one["sessions"], one["bytes"])
            for one in source["shards"]
        )
        return Source(source["name"], kind, source["revision"], shards, self.says.get("upstream"))


def numbers_of(part: int, parts: int, shards: int) -> range:
    """The shards of a source that part 1, 2, ... of so many is made of."""
    return range(part - 1, shards, parts)


def says(part: tuple[int, int], source: Source, described: Sequence[Json], made_by: Json) -> Json:
    """What `part.json` holds but the counts; names in `source` are without secrets."""
    shards = [
        {**one, "path": shard.path} for one, shard in zip(described, source.shards, strict=True)
    ]
    return {
        "pimono_sdpo": __version__,
        "part": part[0],
        "parts": part[1],
        "source": {
            "name": source.name,
            "kind": source.kind,
            "revision": source.revision,
            "shards": shards,
        },
        "upstream": source.upstream,
        **made_by,
    }


def write_part(work: Path, says: Json, records: Mapping[int, Json]) -> Path:
    """Put finished shards of `work` into `work/out`, ready to be published, and return it.

    The run's own folders stay, so that a kill in the middle costs nothing.
    """
    out = work / "out"
    shutil.rmtree(out, ignore_errors=True)
    for kind in (*ShardFiles._fields, DONE):
        (out / kind).mkdir(parents=True)
    for index, record in records.items():
        for here, there in zip(files_of(work, index), files_of(out, index), strict=True):
            link_or_copy(here, there)
        made_from = _made_from(says, index)
        (out / DONE / f"{index:05}.json").write_text(
            json.dumps({**record, "made_from": made_from}) + "\n"
        )
    files = [files_of(out, index) for index in records]
    counts = {
        "sessions": sum(says["source"]["shards"][index]["sessions"] for index in records),
        "rows": sum(pq.read_metadata(file.rows).num_rows for file in files),
        "rejects": sum(pq.read_metadata(file.rejects).num_rows for file in files),
        "records": {path.stem: sha256(path) for path in sorted((out / DONE).iterdir())},
    }
    content = says | counts
    (out / PART).write_text(json.dumps({**content, "check": _check(content)}, indent=2) + "\n")
    return out


def _check(content: Json) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _made_from(says: Json, index: int) -> Json:
    """What a shard of a part was made from: as in a run, without the times of one machine."""
    shared = {name: says[name] for name in ("reader", "stages", "options")}
    return {"input": says["source"]["shards"][index], **shared}


def gather(folders: Sequence[Path]) -> Whole:
    """Check that parts hold every shard of one source once, made alike; raises SourceError."""
    parts = [_open(folder) for folder in folders]
    for part in parts[1:]:
        _fit(parts[0], part)
    by_number: dict[int, Part] = {}
    for part in parts:
        twin = by_number.setdefault(part.says["part"], part)
        if twin is not part:
            raise SourceError(
                f"Part {part.says['part']} of {part.says['parts']} is there twice, in {twin.name} "
                f"and in {part.name}; give each part once."
            )
    first = parts[0].says
    count, shards = first["parts"], len(first["source"]["shards"])
    # What has no shards may be left out.
    missing = [n for n in range(1, min(count, shards) + 1) if n not in by_number]
    if missing:
        wanted = ", ".join(f"--shard {n}/{count}" for n in missing)
        raise SourceError(
            f"Of the {count} parts of `{first['source']['name']}` {len(missing)} are missing; "
            f"make them with `filter` and {wanted}, and give them too."
        )
    files, records = [], []
    for index in range(shards):
        part = by_number[index % count + 1]
        records.append(_record(part, index))
        files.append(files_of(part.folder, index))
    return Whole(first, files, records)


def _open(folder: Path) -> Part:
    if not folder.is_dir() or mark_of(folder) != PART:
        raise SourceError(
            f"`{folder}` is not a part of a divided run; give folders that `filter --shard` wrote."
        )
    content = read_json(folder / PART)
    told = content.pop("check", None) if isinstance(content, dict) else None
    if not isinstance(content, dict) or told != _check(content):
        raise SourceError(
            f"`{folder / PART}` is not as `filter --shard` wrote it; copy the part again, or make "
            "it again."
        )
    return Part(folder, content)


def _fit(first: Part, other: Part) -> None:
    """Raise SourceError when two parts are not of one run."""
    for name, label, advice in (
        ("pimono_sdpo", "version", "make all parts with the same version"),
        ("parts", "number of parts", "divide the source into the same number for all"),
        ("source", "source", "make all parts from the same files"),
        ("options", "value of an option", "make all parts with the same options"),
        # Last: a stage knows its options, and its code differs when they do.
        ("reader", "code", "make all parts with the same version"),
        ("stages", "code", "make all parts with the same version"),
    ):
        ours, theirs = first.says[name], other.says[name]
        if ours != theirs:
            what = _difference(name, ours, theirs)
            raise SourceError(
                f"{other.name} and {first.name} come from different runs: the {label} differs "
                f"({what}); {advice}."
            )


def _difference(name: str, ours: Any, theirs: Any) -> str:
    """Name the first thing that differs, theirs first."""
    if name == "source" and isinstance(ours, dict):
        for key in ("name", "kind", "revision"):
            if ours[key] != theirs[key]:
                return f"{key} {theirs[key]}, not {ours[key]}"
        if len(ours["shards"]) != len(theirs["shards"]):
            return f"{len(theirs['shards'])} shards, not {len(ours['shards'])}"
        pairs = zip(ours["shards"], theirs["shards"], strict=True)
        return next(f"`{b['path']}`" for a, b in pairs if a != b)
    if name == "stages":
        return ", ".join(stage for stage, code in theirs if [stage, code] not in ours)
    if isinstance(ours, dict):
        key = next(key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key))
        return f"{key} {theirs.get(key)}, not {ours.get(key)}"
    return "what reads a source" if name == "reader" else f"{theirs}, not {ours}"


def _record(part: Part, index: int) -> Json:
    """Return the record of a shard; raises SourceError when the part does not hold it whole."""
    done = part.folder / DONE / f"{index:05}.json"
    is_ours = done.is_file() and sha256(done) == part.says["records"].get(done.stem)
    record = read_json(done) if is_ours else None
    whole = (
        isinstance(record, dict)
        and record["made_from"] == _made_from(part.says, index)
        and all(
            path.is_file() and sha256(path) == record["sha256"][path.parent.name]
            for path in files_of(part.folder, index)
        )
    )
    if not whole:
        raise SourceError(
            f"{part.name} does not hold shard {index:05} whole; copy the part again, or make it "
            f"again with --shard {part.says['part']}/{part.says['parts']}."
        )
    return cast(Json, record)
