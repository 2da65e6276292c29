import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets import Dataset, Features, IterableDataset, Value

from pimono_sdpo.runs.shards import Rows, Tally, run_stages
from pimono_sdpo.samples import write_samples
from pimono_sdpo.schema import PRINT, SDPO_ROW, SESSION
from pimono_sdpo.stage import Filter, FlatMap, Map, apply, apply_all, name_of, source_hash
from pimono_sdpo.traces.sources import open_source, read_sessions
from processors import PIPELINE, pipeline
from processors.threshold import check_score
from tests.traces import HEADER, bash, trace, user

NUMBER = Features({"n": Value("int64")})


def double(row: Any) -> dict[str, Any]:
    return {"n": row["n"] * 2}


def repeat(row: Any) -> list[dict[str, Any]]:
    return [{"n": row["n"]}] * row["n"]


def odd(row: Any) -> str | None:
    return "odd" if row["n"] % 2 else None


STAGES = (
    FlatMap(repeat, reads=("n",), writes=NUMBER),
    Filter(odd, reads=("n",)),
    Map(double, reads=("n",), writes=Features({"n": Value("int64")})),
)


def test_the_same_stages_run_on_both_kinds_of_dataset() -> None:
    rows = Dataset.from_dict({"n": [1, 2, 3, 4], "extra": list("abcd")})
    done = apply_all(rows, STAGES)
    streamed: IterableDataset = apply_all(rows.to_iterable_dataset(), STAGES)
    assert done["n"] == [4, 4, 8, 8, 8, 8]
    assert [row["n"] for row in streamed] == done["n"]
    assert done.features == NUMBER


def test_an_empty_dataset_gets_the_columns_too() -> None:
    empty = Dataset.from_dict({"n": []}, features=NUMBER)
    writes = Features({"m": Value("string")})
    out = apply(empty, Map(double, reads=("n",), writes=writes, drops=("n",)))
    assert (out.features, out.num_rows) == (writes, 0)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(KeyError, match=r"reads \['n'\] but the dataset has \['m'\]"):
        apply(Dataset.from_dict({"m": [1]}), STAGES[2])


FAILING = trace(
    {key: value for key, value in HEADER.items() if key not in {"id", "cwd"}},
    user("Fix the parser test, it fails since yesterday"),
    *bash("npm test", "Tests  1 failed\n\nCommand exited with code 1", error=True),
)


def test_a_stream_has_to_know_its_columns() -> None:
    stream = IterableDataset.from_generator(lambda: iter([{"n": 1}]))
    with pytest.raises(ValueError, match="give `features` where it is made"):
        apply(stream, STAGES[0])


def test_the_pipeline_runs_on_a_plain_dataset() -> None:
    columns: dict[str, list[Any]] = {
        "harness": ["pi"],
        "session_id": ["s"],
        "source": ["s.jsonl"],
        "trace": [FAILING],
    }
    columns["bytes_not_utf8"] = [0]
    rows = apply_all(Dataset.from_dict(columns, features=SESSION), PIPELINE)
    assert rows.features == {**SDPO_ROW, **PRINT}
    assert rows[0]["prompt"][-1]["role"] == "user"
    assert rows[0]["categories"] == ["command_error", "test_or_assertion"]


def test_rows_in_memory_come_out_as_those_of_a_dataset(tmp_path: Path) -> None:
    """The samples, all layouts and oddities of them, once by `apply` and once as a shard runs."""
    write_samples(tmp_path)
    shards = open_source(str(tmp_path)).shards
    tables = [table for shard in shards for table in read_sessions(shard)]
    sessions = Dataset(pa.concat_tables(tables))
    by_map = apply_all(sessions, PIPELINE)
    kept, rejected = run_stages(pa.concat_tables(tables).to_pylist(), PIPELINE, Tally())
    in_memory = pa.Table.from_pylist(kept, by_map.features.arrow_schema)
    assert by_map.num_rows > 8
    assert in_memory.to_pylist() == by_map.with_format("arrow")[:].to_pylist()
    assert len(kept) + len(rejected) == sessions.num_rows


def test_the_cache_key_follows_source_and_options() -> None:
    one, same, two = (source_hash(partial(check_score, min_score=n)) for n in (1.0, 1.0, 2.0))
    assert one == same != two
    assert pipeline(min_score=1.0)[6].code != pipeline(min_score=2.0)[6].code
    assert [stage.code for stage in pipeline()] == [stage.code for stage in PIPELINE]


def test_stages_are_named_by_their_module() -> None:
    names = [name_of(stage) for stage in PIPELINE]
    assert names == [
        "evidence",
        "split",
        "names",
        "keep",
        "redact",
        "grade",
        "threshold",
        "context",
        "rows",
    ]


class Watched(dict[str, Any]):
    """A row that remembers which of its columns were asked for."""

    def __init__(self, row: dict[str, Any]) -> None:
        super().__init__(row)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)


def test_reads_and_writes_are_true() -> None:
    """A stage asks for what it declares and no more; nothing undeclared stays."""
    columns = set(SESSION)
    dataset = Dataset.from_dict(
        {"harness": [""], "session_id": [""], "source": ["a/s.jsonl"], "trace": [FAILING]}
        | {"bytes_not_utf8": [0]},
        features=SESSION,
    )
    for stage in PIPELINE:
        assert set(stage.reads) <= columns
        row = Watched(dataset[0])
        stage.fn(row)
        assert row.asked == set(stage.reads), name_of(stage)
        dataset = apply(dataset, stage)
        if isinstance(stage, FlatMap):
            columns = set(stage.writes)
        elif isinstance(stage, Map):
            columns = (columns - set(stage.drops)) | set(stage.writes)
    assert columns == {*SDPO_ROW, *PRINT}


def test_the_data_files_of_a_stage_are_part_of_its_code(tmp_path: Path) -> None:
    """In a copy of the project, so that the real weights are left alone."""
    root = Path(__file__).parents[1]
    for package in ("pimono_sdpo", "processors"):
        shutil.copytree(root / package, tmp_path / package)
    command = "from processors import PIPELINE; print(PIPELINE[0].code, PIPELINE[4].code)"

    def codes() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    before = codes()
    assert codes() == before
    weights = tmp_path / "processors" / "corrections" / "weights.json"
    weights.write_text(weights.read_text() + " ")
    assert codes()[0] != before[0]


def test_the_rows_of_a_table_are_those_of_its_list(tmp_path: Path) -> None:
    write_samples(tmp_path)
    for shard in open_source(str(tmp_path)).shards:
        for table in read_sessions(shard):
            rows = Rows(table)
            assert len(rows) == table.num_rows
            assert list(rows) == table.to_pylist()
