"""What `speed.py` compares: one function per contender, from a corpus to what it writes.

Each imports what it needs inside, is given the corpus and an empty folder to write to, and returns
how many sessions its rule kept (None where it has no rule). What only has the simple rule of
`rule.py` writes the names of the kept sessions and nothing else, which is in its favour.
"""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.rule import EXITED, MIN_PROMPT, Entry, keeps_text, keeps_typed, plain_row

SQL = f"""
COPY (
  WITH messages AS (
    SELECT file_path, (line::JSON)->'$.message' AS m
    FROM (SELECT file_path, unnest(string_split(trace, chr(10))) AS line
          FROM read_parquet('{{files}}'))
    WHERE line <> ''
  ), texts AS (
    SELECT file_path, m->>'$.role' AS role, m->>'$.toolName' AS tool, m->>'$.isError' AS marked,
           CASE json_type(m->'$.content') WHEN 'VARCHAR' THEN m->>'$.content'
             ELSE array_to_string(json_extract_string(m, '$.content[*].text'), chr(10)) END AS text
    FROM messages WHERE m->>'$.role' IN ('user', 'toolResult')
  )
  SELECT file_path FROM texts GROUP BY file_path
  HAVING bool_or(role = 'user' AND length(text) >= {MIN_PROMPT})
     AND bool_or(role = 'toolResult' AND (marked = 'true'
                 OR (tool = 'bash' AND contains(text, '{EXITED}'))))
) TO '{{out}}' (FORMAT parquet)
"""


class Contender(NamedTuple):
    """A row of the table; `needs` are the modules without which it is told as not installed."""

    name: str
    reads: str
    run: Callable[[Path, Path], int | None]
    needs: tuple[str, ...] = ()
    install: str = ""


def ours(corpus: Path, out: Path, reads: str) -> int:
    """The whole filter: rows, rejects, report, card and plot."""
    from pimono_sdpo.filtering import FilterOptions, run_filter

    options = FilterOptions(unit="session", min_worth=0.0)
    report = run_filter(str(corpus / reads), out / "rows", options)
    # What is a duplicate passed the rule: the rivals keep duplicates too.
    return int(next(stage["rows_out"] for stage in report["stages"] if stage["stage"] == "keep"))


def ours_shards(corpus: Path, out: Path) -> int:
    """Up to the shards the stages write; without duplicates, report, card and plot."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from pimono_sdpo.runs.engine import run_shards
    from pimono_sdpo.runs.sessions import session_parts
    from pimono_sdpo.traces.sources import open_source
    from processors import pipeline

    shards = open_source(str(corpus / "export")).shards
    made = run_shards(session_parts(shards, pipeline(unit="session", min_worth=0.0), {}), out)
    return sum(pc.sum(pq.read_table(part.file, columns=["kept"])["kept"]).as_py() or 0 for part in made)


def floor(corpus: Path, out: Path) -> int:
    """Read the parquet and decode every line into typed structs, over Arrow's own buffers."""
    import msgspec
    import pyarrow as pa
    import pyarrow.parquet as pq

    decoder = msgspec.json.Decoder(Entry)
    kept = 0
    for path in sorted((corpus / "export").rglob("*.parquet")):
        with pq.ParquetFile(path) as parquet:
            for batch in parquet.iter_batches(columns=["trace"]):
                column = batch.column(0).cast(pa.large_binary())
                kept += sum(keeps_typed(decoder.decode_lines(v.as_buffer())) for v in column)
    return kept


def load_json(corpus: Path, out: Path) -> None:
    """The converter of `teich` is inside; `out` takes the cache."""
    from datasets import load_dataset

    files = str(corpus / "raw" / "*.jsonl")
    load_dataset("json", data_files=files, split="train", cache_dir=str(out))


def plain_map(corpus: Path, out: Path) -> int:
    """`json.loads` of every line in `Dataset.map`."""
    from datasets import load_dataset

    files = str(corpus / "export/default/train/*.parquet")
    data = load_dataset("parquet", data_files=files, split="train", cache_dir=str(out))
    judged = data.map(lambda row: {"keep": keeps_text(row["trace"])}, remove_columns=["trace"])
    kept = judged.filter(lambda row: row["keep"])
    kept.to_parquet(str(out / "kept.parquet"))
    return len(kept)


def plain_rows(corpus: Path, out: Path) -> int:
    """Our own rule written down plainly, in `Dataset.map` and `filter`."""
    from datasets import load_dataset

    files = str(corpus / "export/default/train/*.parquet")
    data = load_dataset("parquet", data_files=files, split="train", cache_dir=str(out))
    rows = data.map(lambda row: plain_row(row["trace"]), remove_columns=["trace"])
    kept = rows.filter(lambda row: bool(row["prompt"] and row["categories"]))
    kept.to_parquet(str(out / "kept.parquet"))
    return len(kept)


def teich(corpus: Path, out: Path) -> None:
    """What the command `teich convert` does with a folder of sessions."""
    app = importlib.import_module("teich.cli").app
    arguments = ["convert", str(corpus / "raw"), "--out", str(out / "rows.jsonl")]
    app(arguments, standalone_mode=False)


def datatrove(corpus: Path, out: Path) -> int:
    """Our own rule written down plainly; one task per shard, in this process."""
    readers: Any = importlib.import_module("datatrove.pipeline.readers")
    filters: Any = importlib.import_module("datatrove.pipeline.filters")
    writers: Any = importlib.import_module("datatrove.pipeline.writers")
    local: Any = importlib.import_module("datatrove.executor.local")
    steps = [
        readers.ParquetReader(
            str(corpus / "export/default/train"),
            text_key="trace",
            id_key="file_path",
            read_metadata=False,
            batch_size=100,
        ),
        filters.LambdaFilter(_keeps),
        writers.ParquetWriter(
            str(out / "rows"),
            # Its parquet writer takes the type of a list from the first rows alone.
            adapter=lambda self, document: {"row": json.dumps(document.metadata)},
        ),
    ]
    local.LocalPipelineExecutor(steps, tasks=4, workers=1, logging_dir=str(out / "logs")).run()
    return _rows(out / "rows")


def _keeps(document: Any) -> bool:
    document.metadata = plain_row(document.text)
    return bool(document.metadata["prompt"] and document.metadata["categories"])


def duckdb(corpus: Path, out: Path) -> int:
    """The rule as SQL over the parquet files."""
    (out / "rows").mkdir()
    files = str(corpus / "export/default/train/*.parquet")
    connection = importlib.import_module("duckdb").connect()
    connection.execute(SQL.format(files=files, out=out / "rows" / "kept.parquet"))
    return _rows(out / "rows")


def polars(corpus: Path, out: Path) -> int:
    """The rule as expressions; of a message it sees the first block, as JSON paths go no further."""
    import polars as pl

    (out / "rows").mkdir()
    line = pl.col("trace")
    lines = (
        pl.scan_parquet(str(corpus / "export/default/train/*.parquet"))
        .select("file_path", line.str.split("\n"))
        .explode("trace")
        .filter(line.str.contains('"role":"(?:user|toolResult)"'))
    )
    message = {
        name: line.str.json_path_match(f"$.message.{path}")
        for name, path in {
            "role": "role",
            "tool": "toolName",
            "marked": "isError",
            "block": "content[0].text",
            "content": "content",
        }.items()
    }
    text = pl.coalesce("block", "content")
    role = pl.col("role")
    failed = (pl.col("tool") == "bash") & text.str.contains(EXITED, literal=True)
    kept = (
        lines.select("file_path", **message)
        .group_by("file_path")
        .agg(
            asks=((role == "user") & (text.str.len_chars() >= MIN_PROMPT)).any(),
            fails=((role == "toolResult") & ((pl.col("marked") == "true") | failed)).any(),
        )
        .filter(pl.col("asks") & pl.col("fails"))
        .select("file_path")
    )
    kept.collect().write_parquet(out / "rows" / "kept.parquet")
    return _rows(out / "rows")


def _rows(folder: Path) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))


CONTENDERS = (
    Contender("ours, the whole filter", "export", lambda corpus, out: ours(corpus, out, "export")),
    Contender("ours, the whole filter", "raw", lambda corpus, out: ours(corpus, out, "raw")),
    Contender("ours, up to written shards", "export", ours_shards),
    Contender("floor: parquet and typed decode", "export", floor),
    Contender('load_dataset("json")', "raw", load_json, ("teich",), "teich"),
    Contender("teich convert", "raw", teich, ("teich",), "teich"),
    Contender(
        "datatrove, our rule plainly",
        "export",
        datatrove,
        ("datatrove", "regex", "nltk"),
        '"datatrove[io]" regex nltk',
    ),
    Contender("Dataset.map, our rule plainly", "export", plain_rows),
    Contender("Dataset.map, simple rule", "export", plain_map),
    Contender("DuckDB, simple rule", "export", duckdb, ("duckdb",), "duckdb"),
    Contender("polars, simple rule", "export", polars),
)
