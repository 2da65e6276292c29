"""Join records of pull requests to turns by instance id.

reads   a dataset with `instance_id`, and its columns for an issue, a patch, a commit, a description
writes  PULL_REQUEST

Only the ids of all records are read; texts are read for the requested records alone.
"""

import json
import re
from collections.abc import Collection, Iterable
from typing import Any

import polars as pl

from pimono_sdpo.errors import SourceError
from pimono_sdpo.text import replace_surrogates
from pimono_sdpo.traces.sources import ParquetFiles, find_parquet_files

Json = dict[str, Any]
KEY = "instance_id"
# Names that such datasets use for a column; the first one present counts.
NAMES = {
    "problem_statement": ("problem_statement", "issue", "issue_text", "issue_body"),
    "patch": ("patch", "diff", "gold_patch"),
    "base_commit": ("base_commit", "commit", "base_sha"),
    "description": ("description", "pr_description", "pr_body", "body", "hints_text"),
}
TITLES = ("title", "pr_title")
CHANGE_COLUMNS = (NAMES["problem_statement"], NAMES["patch"], NAMES["description"])
_TARGETS = re.compile(r"^diff --git a/.{1,500}? b/(.{1,500})$", re.MULTILINE)


class PullRequests:
    """The records of a dataset; raises SourceError when it has no pull requests."""

    def __init__(self, source: str) -> None:
        self.files: ParquetFiles = find_parquet_files(source)
        self._scans = [
            pl.scan_parquet(self.files.local(index)) for index in range(len(self.files.names))
        ]
        for name, scan in zip(self.files.names, self._scans, strict=True):
            try:
                columns = scan.collect_schema()
            except pl.exceptions.PolarsError as error:
                raise SourceError(
                    f"`{name}` cannot be read ({str(error).splitlines()[0]}); download it again "
                    "or leave it out."
                ) from error
            if columns.get(KEY) != pl.String:
                raise SourceError(
                    f"`{name}` has no text column `{KEY}`; give records of pull requests."
                )
            if not set(columns) & {*TITLES, *(n for names in CHANGE_COLUMNS for n in names)}:
                raise SourceError(
                    f"`{name}` has no column that describes a change, such as "
                    "`problem_statement` or `patch`; give records of pull requests."
                )

    def ids(self) -> frozenset[str]:
        """Return all instance ids."""
        columns = (scan.select(KEY).collect(engine="streaming") for scan in self._scans)
        return frozenset(value for column in columns for value in column[KEY] if value)

    def records(self, wanted: Collection[str]) -> list[Json]:
        """Return the records of these ids, sorted; of two with the same id the first is kept."""
        keys = pl.LazyFrame({KEY: sorted(wanted)}, schema={KEY: pl.String})
        found: dict[str, Json] = {}
        for scan in self._scans:
            there = scan.collect_schema().names()
            needed = [KEY, *(n for names in (*NAMES.values(), TITLES) for n in names if n in there)]
            joined = scan.select(needed).join(keys, on=KEY, how="semi", maintain_order="left")
            for row in joined.collect(engine="streaming").iter_rows(named=True):
                found.setdefault(row[KEY], make_record(row))
        return [found[key] for key in sorted(found)]


def make_record(row: Json) -> Json:
    """Bring a row to the columns of PULL_REQUEST."""
    texts = {name: _first_text(row, names) for name, names in NAMES.items()}
    title = _first_text(row, TITLES)
    if title:
        texts["description"] = f"{title}\n\n{texts['description']}".strip()
    return {
        KEY: row[KEY],
        **texts,
        "files": list_patch_files(texts["patch"]),
        "pr_chars": sum(map(len, texts.values())),
    }


def list_patch_files(patch: str) -> list[str]:
    """Return the files a patch touches, each once, in its order."""
    return list(dict.fromkeys(_TARGETS.findall(patch)))


def _first_text(row: Json, names: Iterable[str]) -> str:
    for name in names:
        value = row.get(name)
        if value is not None and value != "":
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            return replace_surrogates(text).strip()
    return ""
