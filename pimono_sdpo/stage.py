"""A stage is a plain row function with declared columns.

The same stage object runs on a `Dataset`, an `IterableDataset` and a parquet shard. It carries a
hash of its source, because `datasets` 5.2 fingerprints an imported function by its name only:
without the hash, an edited rule would silently reuse yesterday's cache.
"""

import ast
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from datasets import Dataset, Features, IterableDataset

Row = Mapping[str, Any]
AnyDataset = TypeVar("AnyDataset", Dataset, IterableDataset)
OURS = ("pimono_sdpo", "processors", "rewards")


@dataclass(frozen=True)
class Map:
    """Add or replace columns: `fn(row) -> {column: value}`.

    `tallies` names columns the report counts: lists of strings or structs of integers.
    """

    fn: Callable[[Row], dict[str, Any]]
    reads: tuple[str, ...]
    writes: Features
    drops: tuple[str, ...] = ()
    tallies: tuple[str, ...] = ()
    code: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", source_hash(self.fn))

    def __call__(self, row: Row) -> dict[str, Any]:
        """Return the new columns of one row."""
        return self.fn(row)


@dataclass(frozen=True)
class FlatMap:
    """Replace a row by the rows `fn(row)` returns; all columns become those of `writes`."""

    fn: Callable[[Row], list[dict[str, Any]]]
    reads: tuple[str, ...]
    writes: Features
    tallies: tuple[str, ...] = ()
    code: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", source_hash(self.fn))

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Return the rows of a batch, column by column."""
        names = tuple(batch)
        rows = zip(*(batch[name] for name in names), strict=True)
        out = [new for row in rows for new in self.fn(dict(zip(names, row, strict=True)))]
        return {name: [row[name] for row in out] for name in self.writes}


@dataclass(frozen=True)
class Filter:
    """Keep a row when `fn(row)` is None; otherwise the string says why it was dropped."""

    fn: Callable[[Row], str | None]
    reads: tuple[str, ...]
    code: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", source_hash(self.fn))

    def __call__(self, row: Row) -> bool:
        """Return whether the row stays."""
        return self.fn(row) is None


Stage = Map | FlatMap | Filter


def name_of(stage: Stage) -> str:
    """Name a stage by the module that holds its function."""
    return _function(stage.fn).__module__.rpartition(".")[2]


def apply(dataset: AnyDataset, stage: Stage) -> AnyDataset:
    """Run one stage; raises KeyError when a column it reads is not there.

    A stream has to know its columns: ValueError otherwise.
    """
    features = dataset.features
    if features is None:
        raise ValueError("The stream does not know its columns; give `features` where it is made.")
    missing = [column for column in stage.reads if column not in features]
    if missing:
        raise KeyError(f"{name_of(stage)} reads {missing} but the dataset has {sorted(features)}")
    if isinstance(stage, Filter):
        return dataset.filter(stage)
    kept = {} if isinstance(stage, FlatMap) else dict(features)
    dropped = stage.drops if isinstance(stage, Map) else ()
    after = Features({k: v for k, v in kept.items() if k not in dropped} | stage.writes)
    if isinstance(dataset, Dataset) and dataset.num_rows == 0:
        # `Dataset.map` leaves the columns of an empty dataset as they are.
        return Dataset.from_dict({name: [] for name in after}, features=after)
    if isinstance(stage, FlatMap):
        return dataset.map(
            stage, batched=True, batch_size=1, remove_columns=list(features), features=after
        )
    return dataset.map(stage, remove_columns=list(stage.drops) or None, features=after)


def apply_rows(rows: Iterable[Row], stage: Map | FlatMap) -> list[Row]:
    """Run one stage over rows in memory, to the same rows as `apply` over a dataset of them.

    A shard runs this way: no row becomes Arrow between two stages.
    """
    if isinstance(stage, FlatMap):
        return [new for row in rows for new in stage.fn(row)]
    dropped = frozenset(stage.drops)
    return [
        {name: value for name, value in row.items() if name not in dropped} | stage.fn(row)
        for row in rows
    ]


def apply_all(dataset: AnyDataset, stages: Iterable[Stage]) -> AnyDataset:
    """Run stages one after the other."""
    for stage in stages:
        dataset = apply(dataset, stage)
    return dataset


def source_hash(fn: Callable[..., Any]) -> str:
    """Hash the source a function depends on: its module and what that imports from this project.

    Bound arguments of a `functools.partial` are part of the hash.
    """
    bound = repr((fn.args, sorted(fn.keywords.items()))) if isinstance(fn, partial) else ""
    return hashlib.sha256((_module_hash(_function(fn).__module__) + bound).encode()).hexdigest()


def _function(fn: Callable[..., Any]) -> Callable[..., Any]:
    return fn.func if isinstance(fn, partial) else fn


@cache
def _module_hash(module_name: str) -> str:
    """Hash a module and all it imports from this project, with the data files beside them."""
    digests: dict[str, str] = {}
    pending = [module_name]
    while pending:
        name = pending.pop()
        if name not in digests:
            source = inspect.getsource(sys.modules[name])
            digests[name] = hashlib.sha256(source.encode()).hexdigest()
            folder = Path(inspect.getfile(sys.modules[name])).parent
            for data in (*folder.glob("*.json"), *folder.glob("*.toml")):
                digests[data.name] = hashlib.sha256(data.read_bytes()).hexdigest()
            pending.extend(_project_imports(source))
    joined = "".join(f"{name}:{digest};" for name, digest in sorted(digests.items()))
    return hashlib.sha256(joined.encode()).hexdigest()


def _project_imports(source: str) -> list[str]:
    """Modules of this project a source imports at any depth; they are loaded by then."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return [name for name in names if name.partition(".")[0] in OURS and name in sys.modules]
