"""Define stages, which are row functions with declared columns, and run them on datasets.

    apply(dataset, stage)         one `map` or `filter`
    run_stages(dataset, stages)   the same rows from one batched `map` over all stages, from Arrow to Arrow

The same stage object runs on a `Dataset`, on an `IterableDataset` and on the tables of a parquet
shard. It carries a hash of the code, because `datasets` 5.2 fingerprints an imported function by
its name only: without the hash, an edited function would silently reuse an outdated cache.
"""

import hashlib
import marshal
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib.util import find_spec
from inspect import unwrap
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeVar

import pyarrow as pa
from datasets import Dataset, Features, IterableDataset, Value

from pimono_sdpo.errors import OwnCodeError, PimonoError, SourceError

Row = Mapping[str, Any]
AnyDataset = TypeVar("AnyDataset", Dataset, IterableDataset)
OURS = ("pimono_sdpo", "processors", "rewards")
HASHED = (".py", ".toml", ".json")
KEPT, STAGE, REASON, DETAIL = "kept", "stage", "drop_reason", "detail"
CRASHED = "crashed"
# Set to 1 by --strict: the first crash ends the run with its traceback.
STRICT = "PIMONO_STRICT"
BATCH_ROWS = 64
TOGETHER = 16


class _Hashed:
    """A stage whose pickle, from which `datasets` computes fingerprints, contains the hash of its code."""

    fn: Callable[[Row], Any]
    reads: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.reads, str):
            raise OwnCodeError(f"`reads` is the text {self.reads!r}; give a tuple of columns: ({self.reads!r},).")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "code_hash": source_hash(self.fn)}


@dataclass(frozen=True)
class Map(_Hashed):
    """Add or replace columns: `fn(row) -> {column: value}`.

    `tallies` names columns the report counts: lists of strings or structs of integers.
    """

    fn: Callable[[Row], dict[str, Any]]
    reads: tuple[str, ...]
    writes: Features
    drops: tuple[str, ...] = ()
    tallies: tuple[str, ...] = ()

    def __call__(self, row: Row) -> dict[str, Any]:
        """Return the new columns of one row."""
        new: object = self.fn(row)
        if not isinstance(new, dict):
            raise OwnCodeError(f"The stage `{name_of(self)}` returned {new!r:.80}; return a dict of its columns.")
        return new


@dataclass(frozen=True)
class FlatMap(_Hashed):
    """Replace a row by the rows that `fn(row)` returns; their columns are those of `writes`.

    With `on_crash(row)`, which returns the columns of a reject, a crash drops only this row, see `Fused`.
    """

    fn: Callable[[Row], list[dict[str, Any]]]
    reads: tuple[str, ...]
    writes: Features
    tallies: tuple[str, ...] = ()
    on_crash: Callable[[Row], dict[str, Any]] | None = None

    def __call__(self, batch: Row) -> dict[str, list[Any]]:
        """Return the rows of a batch, column by column."""
        rows = (dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True))
        new_rows = [new for row in rows for new in self.fn(row)]
        return {name: [row[name] for row in new_rows] for name in self.writes}


@dataclass(frozen=True)
class Filter(_Hashed):
    """Keep a row if `fn(row)` returns None; a string is the reason to drop it."""

    fn: Callable[[Row], str | None]
    reads: tuple[str, ...]

    def __call__(self, row: Row) -> bool:
        """Return whether the row is kept."""
        return self.reason(row) is None

    def reason(self, row: Row) -> str | None:
        """Return the reason to drop a row, None to keep it; raises OwnCodeError if `fn` returns anything else."""
        reason = self.fn(row)
        if reason is not None and not (isinstance(reason, str) and reason):
            raise OwnCodeError(f"The stage `{name_of(self)}` returned {reason!r:.80}; return None or a reason.")
        return reason


Stage = Map | FlatMap | Filter


def name_of(stage: Stage) -> str:
    """Return the name of a stage, which is that of the module with its function."""
    return module_of(stage.fn).rpartition(".")[2]


def module_of(fn: Callable[..., Any]) -> str:
    """Return the name of the module that defines a function."""
    return _function(fn).__module__


def apply(dataset: AnyDataset, stage: Stage, **options: Any) -> AnyDataset:
    """Run one stage as a `map` or `filter`; `options` go to `Dataset.map` or `Dataset.filter`.

    Raises SourceError for a dataset without the columns that it reads.
    """
    features = _check_features(dataset, [stage])
    if isinstance(stage, Filter):
        return dataset.filter(stage, **options)
    removed = list(features) if isinstance(stage, FlatMap) else list(stage.drops) or None
    if isinstance(stage, FlatMap):
        options |= {"batched": True, "batch_size": 1}
    return _map(dataset, stage, features_after(features, [stage]), removed, **options)


def _map(dataset: AnyDataset, fn: Any, features: Features, removed: list[str] | None, **options: Any) -> AnyDataset:
    if isinstance(dataset, Dataset) and dataset.num_rows == 0:
        # `Dataset.map` does not change the columns of an empty dataset.
        return Dataset.from_dict({name: [] for name in features}, features=features)
    try:
        return dataset.map(fn, features=features, remove_columns=removed, **options)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise OwnCodeError(f"A stage returned what a column of its `writes` cannot hold: {error}.") from error


def apply_all(dataset: AnyDataset, stages: Iterable[Stage], **options: Any) -> AnyDataset:
    """Run stages one after the other, each as a `map` or `filter`."""
    for stage in stages:
        dataset = apply(dataset, stage, **options)
    return dataset


def features_after(features: Features, stages: Iterable[Stage]) -> Features:
    """Return the columns of a dataset with `features` after these stages."""
    columns = dict(features)
    for stage in stages:
        if isinstance(stage, FlatMap):
            columns = dict(stage.writes)
        elif isinstance(stage, Map):
            columns = {name: kind for name, kind in columns.items() if name not in stage.drops} | stage.writes
    return Features(columns)


@dataclass(frozen=True)
class Fused:
    """Combine stages into one function from Arrow table to Arrow table, for one batched `map`.

    The stages get a few rows at a time: that is faster than row by row, and few intermediate rows
    are in memory. Without `rejects`, only kept rows are returned. With it, all rows are: a rejected
    row has the columns of `rejects` as they were when it was dropped. All rows also have

        kept         whether the row is kept
        stage        the stage that dropped it, null for a kept row
        drop_reason  why
        tally_NAME   for each column that a stage tallies, its value after that stage

    If a stage of this package raises an error that is neither a PimonoError nor a MemoryError, the row that was
    given becomes a reject `crashed`, with the type of the error and its place as `detail`, and the rows already
    made from it are dropped. This needs `rejects`, and a first stage with `on_crash`; errors of the user's own
    stages are always raised, and those of all stages if PIMONO_STRICT is 1.
    """

    stages: tuple[Stage, ...]
    given: Features
    rejects: Features | None = None

    @cached_property
    def features(self) -> Features:
        """The columns of the returned table."""
        rows = features_after(self.given, self.stages)
        if self.rejects is None:
            return rows
        outcome = {KEPT: Value("bool"), STAGE: Value("string"), REASON: Value("string")}
        tallies = {
            f"tally_{name}": stage.writes[name]
            for stage in self.stages
            if not isinstance(stage, Filter)
            for name in stage.tallies
        }
        return Features({**rows, **self.rejects, **outcome, **tallies})

    @cached_property
    def _schema(self) -> pa.Schema:
        return self.features.arrow_schema

    def __call__(self, table: pa.Table) -> pa.Table:
        """Run all rows of a table through all stages."""
        starts = range(0, table.num_rows, TOGETHER)
        results = [one for start in starts for one in self._run(table, start)]
        try:
            return self._write(results)
        except Exception as error:
            if not self._contains(error, self.stages):
                raise
        return self._write([one for given in groupby(results, itemgetter(0)) for one in self._check(table, *given)])

    def _write(self, results: Iterable[tuple[int, Row]]) -> pa.Table:
        return table_of_rows((row for _, row in results), self.features, self._schema)

    def _check(self, table: pa.Table, origin: int, results: Iterable[tuple[int, Row]]) -> list[tuple[int, Row]]:
        """Return the rows made from row `origin`, or its reject if they have values that no column can hold."""
        rows = list(results)
        try:
            self._write(rows)
        except Exception as error:
            if not self._contains(error, self.stages):
                raise
            return [(origin, self._reject(table, origin, self.stages[-1], error))]
        return rows

    def map(self, dataset: AnyDataset, batch_size: int | None, **options: Any) -> AnyDataset:
        """Run all stages over a dataset with the format "arrow"; `options` go to `Dataset.map`."""
        # The returned table replaces all columns; a stream would remove these from it.
        removed = list(self.given) if isinstance(dataset, Dataset) else None
        options |= {"batched": True, "batch_size": batch_size}
        return _map(dataset, self, self.features, removed, **options)

    def _run(self, table: pa.Table, start: int) -> list[tuple[int, Row]]:
        """Run the stages on the rows from `start` on; return the kept rows of each, followed by its rejects."""
        rows: Iterable[tuple[int, Row]] = enumerate(iterate_rows(table.slice(start, TOGETHER), self.given), start)
        rejected: list[tuple[int, Row]] = []
        crashed: dict[int, Row] = {}
        for stage in self.stages:
            passed: list[tuple[int, Row]] = []
            for origin, row in rows:
                if origin in crashed:
                    continue
                try:
                    if not isinstance(stage, Filter):
                        passed += [(origin, new) for new in _transform(row, stage)]
                    elif (reason := stage.reason(row)) is None:
                        passed.append((origin, row))
                    elif self.rejects is not None:
                        outcome = {KEPT: False, STAGE: name_of(stage), REASON: reason}
                        columns = {n: v for n, v in row.items() if n in self.rejects or n[:6] == "tally_"}
                        rejected.append((origin, {**columns, **outcome}))
                except Exception as error:
                    if not self._contains(error, [stage]):
                        raise
                    crashed[origin] = self._reject(table, origin, stage, error)
            rows = passed
        results = [*((origin, {**row, KEPT: True}) for origin, row in rows), *rejected]
        whole = [one for one in results if one[0] not in crashed]
        return sorted([*whole, *crashed.items()], key=itemgetter(0))

    def _contains(self, error: Exception, stages: Iterable[Stage]) -> bool:
        """Check that an error of these stages drops only one of the rows that were given."""
        is_ours = all(module_of(stage.fn).partition(".")[0] in OURS for stage in stages)
        has_reject = self.rejects is not None and getattr(self.stages[0], "on_crash", None) is not None
        is_bug = not isinstance(error, PimonoError | MemoryError)
        return is_ours and has_reject and is_bug and os.environ.get(STRICT) != "1"

    def _reject(self, table: pa.Table, origin: int, stage: Stage, error: Exception) -> Row:
        """Return the reject of a row on which a stage crashed."""
        first = self.stages[0]
        assert isinstance(first, FlatMap)
        assert first.on_crash is not None
        columns = first.on_crash(next(iterate_rows(table.slice(origin, 1), self.given)))
        tallies = {f"tally_{name}": columns[name] for name in first.tallies if name in columns}
        outcome = {KEPT: False, STAGE: name_of(stage), REASON: CRASHED, DETAIL: locate(error)}
        return {**columns, **tallies, **outcome}


def locate(error: Exception) -> str:
    """Return the type of an error and the last line of this package that it passed, such as `KeyError at a/b.py:7`."""
    frames = [(frame.f_globals.get("__name__", ""), frame, line) for frame, line in walk_tb(error.__traceback__)]
    module, frame, line = [one for one in frames if one[0].partition(".")[0] in OURS][-1]
    # The last folders of the path are the packages of the module.
    parts = Path(frame.f_code.co_filename).parts
    top = len(parts) - 1 - parts[::-1].index(module.partition(".")[0])
    return f"{type(error).__name__} at {'/'.join(parts[top:])}:{line}"


def _transform(row: Row, stage: Map | FlatMap) -> Iterator[Row]:
    if isinstance(stage, FlatMap):
        new_rows = stage.fn(row)
    else:
        new_rows = [{n: v for n, v in row.items() if n not in stage.drops} | stage(row)]
    for new in new_rows:
        yield {**new, **{f"tally_{name}": new[name] for name in stage.tallies}}


def run_stages(
    dataset: AnyDataset,
    stages: Sequence[Stage],
    *,
    rejects: Features | None = None,
    batch_size: int | None = BATCH_ROWS,
    **options: Any,
) -> AnyDataset:
    """Run all stages in one batched `map`, which is faster than a `map` or `filter` for each.

    With `rejects`, dropped rows are also returned, see `Fused`. `options` go to `Dataset.map`.
    Raises SourceError if the dataset lacks columns that the stages read.
    """
    fused = Fused(tuple(stages), _check_features(dataset, stages), rejects)
    return fused.map(dataset.with_format("arrow"), batch_size, **options).with_format(None)


def _check_features(dataset: Dataset | IterableDataset, stages: Sequence[Stage]) -> Features:
    """Return the columns of a dataset; raises an error if the stages cannot run on it."""
    if not isinstance(dataset, Dataset | IterableDataset):
        raise SourceError(
            f"Stages run on a `Dataset`, not on a {type(dataset).__name__}; make one with `load_sessions`."
        )
    if dataset.features is None:
        raise SourceError("The stream does not know its columns; give `features` where it is made.")
    for at, stage in enumerate(stages):
        if not isinstance(stage, Stage):
            raise OwnCodeError(f"{stage!r:.80} is not a stage; make one with `Map`, `FlatMap` or `Filter`.")
        columns = features_after(dataset.features, stages[:at])
        if missing := [name for name in stage.reads if name not in columns]:
            raise SourceError(f"`{name_of(stage)}` reads {', '.join(missing)}; the columns are {', '.join(columns)}.")
    return dataset.features


def iterate_rows(table: pa.Table, features: Features) -> Iterator[dict[str, Any]]:
    """Yield the decoded rows of a table, one at a time since traces are large."""
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for at in range(table.num_rows):
        # No variable refers to the row, nor to its Arrow values, which are copies: they are free for what comes next.
        yield features.decode_example({name: column[at].as_py() for name, column in columns.items()})


def table_of_rows(rows: Iterable[Row], features: Features, schema: pa.Schema | None = None) -> pa.Table:
    """Return rows as a table of exactly these columns; missing values are null.

    `schema` is `features.arrow_schema`, if the caller has it: computing it takes milliseconds.
    """
    listed, schema = list(rows), schema or features.arrow_schema
    # Arrow converts text to JSON, but not dicts.
    encode = {
        column.name: features[column.name].encode_example for column in schema if isinstance(column.type, pa.JsonType)
    }
    others = pa.schema([column for column in schema if column.name not in encode])
    if text_for_json(others).equals(others):
        encoded = ({**row, **{name: write(row.get(name)) for name, write in encode.items()}} for row in listed)
        return pa.Table.from_pylist([*encoded] if encode else listed, schema)
    columns = {name: [row.get(name) for row in listed] for name in features}
    return Dataset.from_dict(columns, features=features).data.table


def text_for_json(schema: pa.Schema) -> pa.Schema:
    """Return a schema with text in place of JSON."""
    return pa.schema([(column.name, _text_for_json(column.type)) for column in schema])


def _text_for_json(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.JsonType):
        return kind.storage_type
    if pa.types.is_list(kind):
        return pa.list_(_text_for_json(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _text_for_json(field.type)) for field in kind])
    return kind


def source_hash(fn: Callable[..., Any]) -> str:
    """Hash the code that a function depends on, and the bound arguments of a `functools.partial`."""
    fn = unwrap(fn)
    bound = repr((fn.args, sorted(fn.keywords.items()))) if isinstance(fn, partial) else ""
    return hashlib.sha256((code_hash(fn) + bound).encode()).hexdigest()


def code_hash(fn: Callable[..., Any]) -> str:
    """Hash this package, and the module of a function that is defined elsewhere."""
    function, package = _function(fn), _hash_package()
    if function.__module__.partition(".")[0] in OURS:
        return package
    file = getattr(sys.modules[function.__module__], "__file__", None)
    # There is no file for a function of a notebook or one built into Python.
    own = Path(file).read_bytes() if file else marshal.dumps(getattr(function, "__code__", function.__qualname__))
    return hashlib.sha256(package.encode() + own).hexdigest()


def _function(fn: Callable[..., Any]) -> Callable[..., Any]:
    fn = unwrap(fn)
    return fn.func if isinstance(fn, partial) else fn


@cache
def _hash_package() -> str:
    """Hash all source files and tables of this package."""
    digest = hashlib.sha256()
    for name in OURS:
        root = Path(str(getattr(find_spec(name), "origin", ""))).parent
        for path in sorted(path for path in root.rglob("*.*") if path.suffix in HASHED):
            digest.update(f"{path.relative_to(root.parent)}:{path.stat().st_size}:".encode() + path.read_bytes())
    return digest.hexdigest()
