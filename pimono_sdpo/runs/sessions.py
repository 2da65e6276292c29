"""Build the parts that run stages over recorded sessions, one part for each shard."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Value
from datasets.table import InMemoryTable

from pimono_sdpo.runs.duplicates import PRINTS, add_prints
from pimono_sdpo.runs.engine import Part, Piece
from pimono_sdpo.schema import REJECT, SDPO_ROW, SESSION
from pimono_sdpo.stage import CRASHED, DETAIL, KEPT, REASON, STAGE, FlatMap, Fused, Stage, name_of
from pimono_sdpo.traces.parse import NOT_READ
from pimono_sdpo.traces.sources import Shard, Unreadable, read_sessions

# The keys under which the counts of a part list the files that cannot be read, and the rejects to name in a report.
UNREADABLE, LEFT_OUT = "unreadable", "left_out"
NAMED = 3
REJECTED = Features({**REJECT, "harness": SDPO_ROW["harness"], "score": SDPO_ROW["score"]})
# A session can become hundreds of rows that each hold most of it.
SLICE_BYTES = 256_000
Json = dict[str, Any]
Table = tuple[Features, Features]


def both(rows: Features, rejects: Features) -> Features:
    """Return the columns of a part with rows and rejects."""
    return Features({**rows, **rejects, KEPT: Value("bool")})


FILTERED = Features({**both(SDPO_ROW, REJECT), "evidence": Value("int64"), **PRINTS})


def session_parts(
    shards: Sequence[Shard], stages: Sequence[Stage], options: Json, table: Table | None = None
) -> list[Part]:
    """Return a part for each shard: of the filter, or with the columns of rows and rejects in `table`."""
    parts = []
    for number, shard in enumerate(shards):
        # A node of a cluster works in another folder than this process.
        files = tuple(file.absolute() for file in shard.files)
        absolute = replace(shard, files=files, root=shard.root.absolute())
        columns, run = FILTERED, partial(filter_shard, absolute, tuple(stages))
        if table is not None:
            columns, run = both(*table), partial(_cut_shard, absolute, tuple(stages), table)
        given = {name: getattr(shard, name) for name in ("path", "layout", "sessions", "bytes", "revision")}
        source = {**given, "names": shard.list_names()}
        parts.append(
            Part(
                name=f"{number:05}",
                title=shard.path,
                units=shard.sessions,
                input=source,
                options=options,
                run=run,
                schema=columns.arrow_schema,
                files=absolute.hashed,
                stages=tuple(stages),
            )
        )
    return parts


def filter_shard(shard: Shard, stages: Sequence[Stage]) -> Iterator[Piece]:
    """Yield the rows of a shard table by table, with what duplicates are found by, followed by the rejects."""
    order = pa.array([name_of(stage) for stage in stages])
    fused = Fused(tuple(stages), SESSION, REJECTED)
    unreadable: Unreadable = {}
    for table in read_sessions(shard, unreadable):
        done = run_on_table(table, fused)
        counts = count_rows(done, table.num_rows, stages)
        # The stage of a kept row is null, hence its rank: rejects are sorted by their stage.
        done = done.take(pc.sort_indices(pc.fill_null(pc.index_in(done[STAGE], order), -1)))
        details = [
            row[DETAIL] or (row["harness"] if row["score"] is None else f"{row['harness']}, score {row['score']:g}")
            for row in done.select([DETAIL, "harness", "score"]).to_pylist()
        ]
        done = done.set_column(done.schema.get_field_index(DETAIL), DETAIL, pa.array(details, pa.string()))
        done, counts["prints"] = add_prints(done)
        yield make_piece(done.select(list(FILTERED)), table.num_rows, counts, name="source")
    yield _count_unreadable(unreadable)


def _cut_shard(shard: Shard, stages: Sequence[Stage], table: Table) -> Iterator[Piece]:
    unreadable: Unreadable = {}
    for sessions in read_sessions(shard, unreadable):
        for part in slice_table(sessions):
            yield rows_and_rejects(part, stages, *table, "runs")
    yield _count_unreadable(unreadable)


def _count_unreadable(found: Unreadable) -> Piece:
    # With an error, the next run tries these files again.
    error = "a file cannot be read" if found else None
    return Piece(units=len(found), counts={UNREADABLE: found} if found else {}, error=error)


def list_unreadable(counts: Json) -> dict[str, int]:
    """Return the sizes of the session files that could not be read; a key is the name and the reason."""
    files = sorted(counts.get(UNREADABLE, {}).items())
    return {f"{name} ({reason})": size for name, reasons in files for reason, size in reasons.items()}


def slice_table(table: pa.Table) -> Iterator[pa.Table]:
    """Yield a table in slices of about SLICE_BYTES, at least a row each."""
    rows = max(table.num_rows * SLICE_BYTES // max(table.nbytes, 1), 1)
    yield from (table.slice(start, rows) for start in range(0, table.num_rows, rows))


def rows_and_rejects(table: pa.Table, stages: Sequence[Stage], rows: Features, rejects: Features, noun: str) -> Piece:
    """Run stages over a table; `counts` has the number of its rows as `noun`, and the drop reasons."""
    done = run_on_table(table, Fused(tuple(stages), Features.from_arrow_schema(table.schema), rejects))
    reasons = done.filter(pc.invert(done[KEPT]))[REASON].value_counts().to_pylist()
    counts = {noun: table.num_rows, "dropped": {one["values"]: one["counts"] for one in reasons}}
    name = "task_id" if "task_id" in rejects else "session_id"
    return make_piece(done.select(list(both(rows, rejects))), table.num_rows, counts, name)


def make_piece(table: pa.Table, units: int, counts: Json, name: str) -> Piece:
    """Return a piece that also counts crashes by place, and has the first names of sessions that are not read."""
    left_out: dict[str, dict[str, int]] = {}
    rejects = table.filter(pc.invert(table[KEPT]))
    for reason in (CRASHED, *NOT_READ):
        if (here := rejects.filter(pc.equal(rejects[REASON], reason))).num_rows:
            named = here[DETAIL] if reason == CRASHED else here[name].slice(0, NAMED)
            left_out[reason] = {one["values"]: one["counts"] for one in named.value_counts().to_pylist()}
    # The next run tries these sessions again.
    error = "a session crashed" if CRASHED in left_out else None
    return Piece(table, units, counts | ({LEFT_OUT: left_out} if left_out else {}), error)


def run_on_table(table: pa.Table, fused: Fused) -> pa.Table:
    """Run stages over a table in memory: one `Dataset.map`, with the columns of `Fused`."""
    # With a fixed fingerprint, `datasets` does not hash every trace.
    dataset = Dataset(InMemoryTable(table), fingerprint="0" * 16)
    dataset.set_format("arrow")
    done = fused.map(dataset, None, keep_in_memory=True, load_from_cache_file=False, new_fingerprint="1" * 16)
    return done.data.table


def count_rows(done: pa.Table, rows: int, stages: Sequence[Stage]) -> Json:
    """Count how many of `rows` input rows enter and leave each stage, and why rows are dropped; sum up tallies."""
    rejected = done.filter(pc.invert(done[KEPT]))
    dropped: dict[str, dict[str, int]] = {}
    for one in rejected.group_by([STAGE, REASON]).aggregate([([], "count_all")]).to_pylist():
        dropped.setdefault(one[STAGE], {})[one[REASON]] = one["count_all"]
    counts: Json = {}
    # Every row from a FlatMap is kept or rejected by a later stage.
    before = done.num_rows if isinstance(stages[0], FlatMap) else rows
    for number, stage in enumerate(stages):
        assert number == 0 or not isinstance(stage, FlatMap), "a FlatMap has to be the first stage"
        name = name_of(stage)
        after = before - sum(dropped.get(name, {}).values())
        counts[name] = {"in": before if number else rows, "out": after}
        before = after
    tallies = {
        name.removeprefix("tally_"): _tally(done[name]) for name in done.column_names if name.startswith("tally_")
    }
    return {"stages": counts, "dropped": dropped, "columns": tallies}


def _tally(column: pa.ChunkedArray) -> dict[str, int]:
    """Add up the fields of structs or the counts in lists by their names, or count the strings of lists."""
    column = column.drop_null().combine_chunks()
    if pa.types.is_list(column.type) and pa.types.is_struct(column.type.value_type):
        sums = pa.Table.from_struct_array(column.flatten()).group_by("name").aggregate([("count", "sum")])
        return {one["name"]: one["count_sum"] for one in sums.to_pylist()}
    if pa.types.is_struct(column.type):
        sums = {f.name: pc.sum(pc.struct_field(column, f.name), min_count=0) for f in column.type}
        return {name: total.as_py() for name, total in sums.items()}
    return {one["values"]: one["counts"] for one in column.flatten().value_counts().to_pylist()}
