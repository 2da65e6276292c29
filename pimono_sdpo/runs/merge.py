"""A part of a divided run: the finished shards of one machine, and the check that parts are whole.

part.json   pimono_sdpo, part, parts, source (name, kind, revision, shards), upstream, reader,
            stages, options, sessions, rows, rejects, records (of each shard, with the sha256 of its
            three files): the same bytes wherever the part was made
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pimono_sdpo import __version__
from pimono_sdpo.errors import SourceError
from pimono_sdpo.runs.engine import sha256
from pimono_sdpo.runs.folders import PART, make_output, mark_of
from pimono_sdpo.runs.parquet import link_or_copy
from pimono_sdpo.runs.sessions import OUTPUTS, REJECTS, ROWS, files_of
from pimono_sdpo.traces.sources import Kind, Shard, Source

Json = dict[str, Any]


@dataclass(frozen=True)
class Whole:
    """All shards of a source, from parts that fit: what they say alike, files, records."""

    says: Json
    files: list[dict[str, Path]]
    records: list[Json]

    def source(self) -> Source:
        """The source the parts were made from, as far as a report tells of it."""
        source = self.says["source"]
        kind: Kind = source["kind"]
        shards = tuple(
            Shard(kind, one["path"], one["layout"], one["sessions"], one["bytes"]) for one in source["shards"]
        )
        return Source(source["name"], kind, source["revision"], shards, self.says.get("upstream"))


def says(part: tuple[int, int], source: Source, described: Sequence[Json], made_by: Json) -> Json:
    """What `part.json` holds but the counts; names in `source` are without secrets."""
    shards = [{**one, "path": shard.path} for one, shard in zip(described, source.shards, strict=True)]
    named = {"name": source.name, "kind": source.kind, "revision": source.revision}
    return {
        "pimono_sdpo": __version__,
        "part": part[0],
        "parts": part[1],
        "source": {**named, "shards": shards},
        "upstream": source.upstream,
        **made_by,
    }


def write_part(work: Path, says: Json, records: Mapping[int, Json]) -> Path:
    """Put finished shards of `work` into `work/out`, ready to be published, and return it.

    The run's own folders stay, so that a kill in the middle costs nothing.
    """
    out = make_output(work, *OUTPUTS)
    for index in records:
        files = files_of(out, index)
        for kind, here in files_of(work, index).items():
            link_or_copy(here, files[kind])
    content = {
        **says,
        "sessions": sum(says["source"]["shards"][index]["sessions"] for index in records),
        **{kind: sum(one["rows"][kind] for one in records.values()) for kind in (ROWS, REJECTS)},
        # What a shard was made from has the times of one machine.
        "records": {index: {**one, "made_from": None} for index, one in records.items()},
    }
    (out / PART).write_text(json.dumps(content, indent=2) + "\n")
    return out


def gather(folders: Sequence[Path]) -> Whole:
    """Check that parts hold every shard of one source once, made alike; raises SourceError."""
    parts = [(folder, _open(folder)) for folder in folders]
    first = parts[0][1]
    by_number: dict[int, tuple[Path, Json]] = {}
    for folder, part in parts:
        if difference := _find_difference(first, part):
            raise SourceError(f"`{folder}` and `{folders[0]}` come from different runs: the {difference}.")
        twin, _ = by_number.setdefault(part["part"], (folder, part))
        if by_number[part["part"]][1] is not part:
            raise SourceError(
                f"Part {part['part']} of {part['parts']} is there twice, in `{twin}` and in "
                f"`{folder}`; give each part once."
            )
    count, shards = first["parts"], len(first["source"]["shards"])
    # What has no shards may be left out.
    missing = [n for n in range(1, min(count, shards) + 1) if n not in by_number]
    if missing:
        wanted = ", ".join(f"--shard {n}/{count}" for n in missing)
        raise SourceError(
            f"Of the {count} parts of `{first['source']['name']}` {len(missing)} are missing; "
            f"make them with `filter` and {wanted}, and give them too."
        )
    held = [by_number[index % count + 1] for index in range(shards)]
    files = [files_of(folder, index) for index, (folder, _) in enumerate(held)]
    records = [part["records"][str(index)] for index, (_, part) in enumerate(held)]
    for index, (record, paths) in enumerate(zip(records, files, strict=True)):
        for kind, path in paths.items():
            if not path.is_file() or sha256(path) != record["sha256"][kind]:
                folder, part = held[index]
                raise SourceError(
                    f"`{folder}` does not hold shard {index:05} whole; copy the part again, or "
                    f"make it again with --shard {part['part']}/{part['parts']}."
                )
    return Whole(first, files, records)


def _open(folder: Path) -> Json:
    """Return what `part.json` says; `mark_of` has read it."""
    if not folder.is_dir() or mark_of(folder) != PART:
        raise SourceError(f"`{folder}` is not a part of a divided run; give folders that `filter --shard` wrote.")
    content: Json = json.loads((folder / PART).read_bytes())
    return content


def _find_difference(first: Json, other: Json) -> str:
    """Say what shows that two parts are not of one run, and what to do; "" if nothing does."""
    for name, label, same in (
        ("pimono_sdpo", "version", "with the same version"),
        ("parts", "number of parts", "with the same number of parts"),
        ("source", "source", "from the same files"),
        ("options", "value of an option", "with the same options"),
        # Last: a stage knows its options, and its code differs when they do.
        ("reader", "code", "with the same version"),
        ("stages", "code", "with the same version"),
    ):
        ours, theirs, what = first[name], other[name], ""
        if ours == theirs:
            continue
        if isinstance(ours, dict):
            what = next(key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key))
            ours, theirs = ours.get(what), theirs.get(what)
        if what == "shards" and len(ours) == len(theirs):
            pairs = zip(ours, theirs, strict=True)
            found = next(f"`{b['path']}`" for a, b in pairs if a != b)
        elif what == "shards":
            found = f"{len(theirs)} shards, not {len(ours)}"
        elif name == "stages":
            found = ", ".join(stage for stage, code in theirs if [stage, code] not in ours)
        else:
            found = f"{what} {theirs}, not {ours}".lstrip()
        return f"{label} differs ({found}); make all parts {same}"
    return ""
