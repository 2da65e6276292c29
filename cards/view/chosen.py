"""Choose the rows that a page lists, the best by score, without holding the others.

reads   data/*.parquet, rejects/*.parquet of a filter run
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from pimono_sdpo.report import SCORE_IN_DETAIL

Json = dict[str, Any]


@dataclass(frozen=True)
class Chosen:
    """The rows listed and how many there are; rejects have `score`, None when none was given."""

    kept: list[Json]
    rejected: list[Json]
    kept_total: int
    rejected_total: int


def choose_rows(folder: Path, limit: int) -> Chosen:
    """Take the best `limit` rows and as many rejects; of equal ones those that come first."""
    data = folder / "data"
    kept = _scan([*sorted(data.glob("train-*.parquet")), *sorted(data.glob("test-*.parquet"))])
    rejects = _scan(sorted((folder / "rejects").glob("*.parquet")))
    if rejects is not None:
        score = pl.col("detail").str.extract(SCORE_IN_DETAIL).cast(pl.Float64, strict=False)
        rejects = rejects.with_columns(score.alias("score"))
    listed, rows = _best(kept, limit)
    not_kept, others = _best(rejects, limit)
    return Chosen(listed, not_kept, rows, others)


def _scan(files: list[Path]) -> pl.LazyFrame | None:
    return pl.scan_parquet(files, row_index_name="row") if files else None


def _best(rows: pl.LazyFrame | None, limit: int) -> tuple[list[Json], int]:
    if rows is None:
        return [], 0
    scores = rows.select("row", "score").collect()
    best = _sorted(scores).head(limit)["row"]
    listed = rows.filter(pl.col("row").is_in(best.implode())).collect(engine="streaming")
    return _sorted(listed).drop("row").to_dicts(), scores.height


def _sorted(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.sort("score", "row", descending=[True, False], nulls_last=True)
