"""A part of a divided run: the finished shards of one machine, and the check that parts are whole.

part.json   pimono_sdpo, part, parts, source (name, kind, revision, shards), upstream, options, code, sessions, rows,
            rejects, records (of each shard, with the sha256 of its three files): the same bytes wherever it was made
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pimono_sdpo import __version__
from pimono_sdpo.errors import SourceError
from pimono_sdpo.runs.engine import code_of, sha256
from pimono_sdpo.runs.folders import PART, make_output, mark_of
from pimono_sdpo.runs.parquet import link_or_copy
from pimono_sdpo.runs.sessions import OUTPUTS, REJECTS, ROWS, describe, files_of, filter_shard
from pimono_sdpo.stage import Stage
from pimono_sdpo.traces.sources import Shard, Source

Json = dict[str, Any]
# What all parts of a run say alike.
ALIKE = ("pimono_sdpo", "parts", "source", "options", "code")


@dataclass(frozen=True)
class Whole:
    """A source, and the files and records of all its shards."""

    source: Source
    files: list[dict[str, Path]]
    records: list[Json]


def describe_part(
    part: tuple[int, int], redacted: Source, source: Source, stages: Sequence[Stage], options: Json
) -> Json:
    """Return what `part.json` holds but the counts; names in `redacted` are without secrets."""
    both = zip(source.shards, redacted.shards, strict=True)
    shards = [{**describe(shard), "path": named.path} for shard, named in both]
    return {
        "pimono_sdpo": __version__,
        "part": part[0],
        "parts": part[1],
        "source": {"name": redacted.name, "kind": source.kind, "revision": source.revision, "shards": shards},
        "upstream": source.upstream,
        "options": options,
        "code": code_of(filter_shard, stages),
    }


def write_part(work: Path, about: Json, records: Mapping[int, Json]) -> Path:
    """Put finished shards of `work` into `work/out`, ready to be published, and return it.

    The run's own folders stay, so that a kill in the middle costs nothing.
    """
    out = make_output(work, *OUTPUTS)
    for index in records:
        files = files_of(out, index)
        for kind, here in files_of(work, index).items():
            link_or_copy(here, files[kind])
    content = {
        **about,
        "sessions": sum(about["source"]["shards"][index]["sessions"] for index in records),
        **{kind: sum(one["rows"][kind] for one in records.values()) for kind in (ROWS, REJECTS)},
        # What a shard was made from has the times of one machine.
        "records": {index: {**one, "made_from": None} for index, one in records.items()},
    }
    (out / PART).write_text(json.dumps(content, indent=2) + "\n")
    return out


def gather(folders: Sequence[Path]) -> tuple[Whole, Json]:
    """Return all shards of one source, once each and whole, from its parts, and the options that made them."""
    by_number: dict[int, tuple[Path, Json]] = {}
    first: Json = {}
    for folder in folders:
        if not folder.is_dir() or mark_of(folder) != PART:
            raise SourceError(f"`{folder}` is not a part of a divided run; give folders that `filter --shard` wrote.")
        part = json.loads((folder / PART).read_bytes())
        first = first or part
        if difference := _find_difference(first, part):
            raise SourceError(
                f"`{folder}` and `{folders[0]}` come from different runs ({difference}); make all parts from the "
                "same files, with the same version and options."
            )
        if part["part"] in by_number:
            raise SourceError(f"Part {part['part']} is in `{by_number[part['part']][0]}` and in `{folder}`; give one.")
        by_number[part["part"]] = folder, part
    if first["pimono_sdpo"] != __version__:
        raise SourceError(
            f"The parts were written by pimono-sdpo {first['pimono_sdpo']}; merge them with that version."
        )
    about, count = first["source"], first["parts"]
    # What has no shards may be left out.
    missing = [n for n in range(1, min(count, len(about["shards"])) + 1) if n not in by_number]
    if missing:
        wanted = ", ".join(f"--shard {n}/{count}" for n in missing)
        raise SourceError(
            f"Of the {count} parts of `{about['name']}` {len(missing)} are missing; make them with `filter` and "
            f"{wanted}, and give them too."
        )
    files, records = [], []
    for index in range(len(about["shards"])):
        folder, part = by_number[index % count + 1]
        files.append(files_of(folder, index))
        records.append(part["records"][str(index)])
        for kind, path in files[-1].items():
            if not path.is_file() or sha256(path) != records[-1]["sha256"][kind]:
                raise SourceError(
                    f"`{folder}` does not hold shard {index:05} whole; copy the part again, or make it again with "
                    f"--shard {part['part']}/{count}."
                )
    shards = tuple(
        Shard(about["kind"], one["path"], one["layout"], one["sessions"], one["bytes"]) for one in about["shards"]
    )
    source = Source(about["name"], about["kind"], about["revision"], shards, first.get("upstream"))
    return Whole(source, files, records), first["options"]


def _find_difference(first: Json, other: Json) -> str:
    """Return what shows that two parts are not of one run, "" if nothing does."""
    for name in ALIKE:
        ours, theirs = first[name], other[name]
        if ours != theirs:
            if isinstance(ours, dict):
                name = next(key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key))
                ours, theirs = ours.get(name), theirs.get(name)
            return name if isinstance(ours, list) else f"{name}: {theirs}, not {ours}"
    return ""
