import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets import Dataset, Features, IterableDataset, Json, List, Value

import pimono_sdpo
from pimono_sdpo.errors import PimonoError
from pimono_sdpo.filter_options import Unit
from pimono_sdpo.schema import PRINT, SDPO_ROW, SESSION
from pimono_sdpo.stage import (
    Filter,
    FlatMap,
    Map,
    Stage,
    apply,
    apply_all,
    iterate_rows,
    name_of,
    run_stages,
    source_hash,
)
from pimono_sdpo.traces.sources import load_sessions, open_source, read_sessions
from processors import PIPELINE, pipeline, run_pipeline
from processors.threshold import check_score
from tests.exports import write_samples
from tests.traces import HEADER, bash, trace, user

NUMBER = Features({"n": Value("int64")})


def double(row: Any) -> dict[str, Any]:
    return {"n": row["n"] * 2}


def repeat(row: Any) -> list[dict[str, Any]]:
    return [{"n": row["n"]}] * row["n"]


def untold(row: Any) -> Any:
    return True


def in_words(row: Any) -> Any:
    return {"n": "one"}


def nothing(row: Any) -> Any:
    return None


def odd(row: Any) -> str | None:
    return "odd" if row["n"] % 2 else None


STAGES = (
    FlatMap(repeat, reads=("n",), writes=NUMBER),
    Filter(odd, reads=("n",)),
    Map(double, reads=("n",), writes=Features({"n": Value("int64")})),
)


ROWS = Dataset.from_dict({"n": [1]})


@pytest.mark.parametrize("run", [apply_all, run_stages])
def test_the_same_stages_run_on_both_kinds_of_dataset_and_on_an_empty_one(run: Any) -> None:
    rows = Dataset.from_dict({"n": [1, 2, 3, 4], "extra": list("abcd")})
    done = run(rows, STAGES)
    assert (done["n"], done.features) == ([4, 4, 8, 8, 8, 8], NUMBER)
    assert [row["n"] for row in run(rows.to_iterable_dataset(), STAGES)] == done["n"]
    empty = run(Dataset.from_dict({"n": []}, features=NUMBER), STAGES)
    assert (empty.features, empty.num_rows) == (NUMBER, 0)


def test_rejects_have_the_columns_of_when_they_were_dropped() -> None:
    rejects = run_stages(Dataset.from_dict({"n": [1, 2, 3, 4]}), STAGES, rejects=NUMBER, batch_size=1)
    assert [row["n"] for row in rejects if not row["kept"]] == [1, 3, 3, 3]


@pytest.mark.parametrize("run", [apply_all, run_stages])
@pytest.mark.parametrize(
    ("given", "stage", "sentence"),
    [
        (Dataset.from_dict({"m": [1]}), STAGES[2], "`test_stage` reads n; the columns are m"),
        (None, STAGES[2], "not on a NoneType; make one with `load_sessions`"),
        ([{"n": 1}], STAGES[2], "not on a list"),
        (ROWS, Filter(untold, reads=("n",)), "`test_stage` returned True; return None or a reason"),
        (ROWS, Map(nothing, reads=("n",), writes=NUMBER), "`test_stage` returned None; return a dict"),
        (ROWS, Map(in_words, reads=("n",), writes=NUMBER), "what a column of its `writes` cannot hold: .*'one'"),
        (ROWS, 1, "1 is not a stage; make one with `Map`, `FlatMap` or `Filter`"),
    ],
)
def test_a_dataset_or_stage_that_cannot_run_is_refused(run: Any, given: Any, stage: Stage, sentence: str) -> None:
    with pytest.raises(PimonoError, match=sentence):
        run(given, [stage])


def test_reads_are_a_tuple() -> None:
    with pytest.raises(PimonoError, match=r"`reads` is the text 'n'; give a tuple of columns: \('n',\)"):
        Filter(odd, reads="n")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"unit": "bad"}, "--unit is 'bad'; use one of session, episode."),
        ({"split_by": None}, "--split-by is None; use one of repository, session"),
        ({"min_score": "x"}, "--min-score is 'x'; use a finite number."),
        ({"min_score": float("nan")}, "--min-score is nan"),
        ({"min_worth": -1}, "--min-worth is -1; use a finite number from 0"),
        ({"test_fraction": -1}, "--test-fraction is -1"),
        ({"history_chars": -3}, "--history-chars is -3; use a finite number from 0."),
    ],
)
def test_values_that_no_stage_can_use_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PimonoError, match=sentence):
        pipeline(**options)


FAILING = trace(
    {key: value for key, value in HEADER.items() if key not in {"id", "cwd"}},
    user("Fix the parser test, which fails since yesterday evening"),
    *bash("npm test", "Tests  1 failed\n\nCommand exited with code 1", error=True),
    *bash("npm ci", "added 12 packages"),
    *bash("npm test", "Tests  1 passed"),
)


def test_a_stream_has_to_know_its_columns() -> None:
    stream = IterableDataset.from_generator(lambda: iter([{"n": 1}]))
    with pytest.raises(PimonoError, match="give `features` where it is made"):
        apply(stream, STAGES[0])


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The samples in all layouts, with unusual rows."""
    folder = tmp_path_factory.mktemp("samples")
    write_samples(folder)
    tables = [t for shard in open_source(str(folder)).shards for t in read_sessions(shard)]
    return Dataset(pa.concat_tables(tables))


@pytest.mark.parametrize("unit", ["session", "episode"])
def test_fused_and_stage_by_stage_give_equal_rows(sessions: Dataset, unit: Unit) -> None:
    stages = pipeline(unit=unit, min_score=1.0, min_worth=0, test_fraction=0.4, history_chars=2000)
    one_by_one = run_pipeline(sessions, stages, fused=False)
    fused = run_pipeline(sessions, stages, batch_size=5)
    assert one_by_one.num_rows > 8
    assert fused.features == one_by_one.features
    assert fused.to_list() == one_by_one.to_list()
    stream = sessions.to_iterable_dataset()
    assert list(run_pipeline(stream, stages)) == one_by_one.to_list()
    assert list(run_pipeline(stream, stages, fused=False)) == one_by_one.to_list()


def test_rejects_are_kept_on_request(sessions: Dataset) -> None:
    rows, done = run_pipeline(sessions), run_pipeline(sessions, keep_rejects=True)
    assert set(done["source"]) == set(sessions["source"])
    assert done.num_rows > rows.num_rows
    kept = done.filter(lambda row: row["kept"]).select_columns(rows.column_names)
    assert kept.to_list() == rows.to_list()
    dropped = done.filter(lambda row: not row["kept"])
    assert {"keep", "no_prompt"} <= {*dropped["stage"], *dropped["drop_reason"]}
    assert set(dropped["prompt"]) == {None}
    assert list(done.features)[-4:] == ["tally_counts", "tally_volume", "tally_drift", "tally_redactions"]
    with pytest.raises(PimonoError, match="Only the fused pipeline keeps rejects"):
        run_pipeline(sessions, fused=False, keep_rejects=True)


def test_json_is_decoded_before_stages_and_encoded_after_them() -> None:
    turns = Features({"turns": List({"args": Json()})})
    given = Dataset.from_list([{"turns": [{"args": {"n": 1}}]}, {"turns": []}], features=turns)
    stage = Map(_first_args, reads=("turns",), writes=Features({"args": Json()}))
    assert run_stages(given, [stage]).to_list() == apply(given, stage).to_list()
    assert run_stages(given, [stage])["args"] == [{"n": 1}, None]


def _first_args(row: Any) -> dict[str, Any]:
    return {"args": row["turns"][0]["args"] if row["turns"] else None}


def test_the_cache_key_follows_source_and_options() -> None:
    one, same, two = (source_hash(partial(check_score, min_score=n)) for n in (1.0, 1.0, 2.0))
    assert one == same != two
    assert source_hash(pipeline(min_score=1.0)[6].fn) != source_hash(pipeline(min_score=2.0)[6].fn)
    assert [source_hash(stage.fn) for stage in pipeline()] == [source_hash(stage.fn) for stage in PIPELINE]


class Watched(dict[str, Any]):
    """A row that records which of its columns are read."""

    def __init__(self, row: dict[str, Any]) -> None:
        super().__init__(row)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)


def test_stages_read_and_write_only_declared_columns() -> None:
    """A stage reads and returns only the columns that it declares."""
    columns = set(SESSION)
    dataset = Dataset.from_dict(
        {"harness": [""], "session_id": [""], "source": ["a/s.jsonl"], "trace": [FAILING]} | {"bytes_not_utf8": [0]},
        features=SESSION,
    )
    for stage in pipeline(min_worth=0):
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


def test_the_rows_of_a_table_are_those_of_its_list(sessions: Dataset) -> None:
    table = sessions.data.table
    assert list(iterate_rows(table, SESSION)) == table.to_pylist()


def test_sessions_are_loaded_as_any_kind_of_dataset(sessions: Dataset, tmp_path: Path) -> None:
    write_samples(tmp_path)
    loaded = load_sessions(tmp_path)
    assert isinstance(loaded, Dataset)
    assert (loaded.features, loaded.to_list()) == (SESSION, sessions.to_list())
    stream = load_sessions(str(tmp_path), streaming=True)
    assert isinstance(stream, IterableDataset)
    assert list(stream) == sessions.to_list()
    wrong: Any
    for wrong in (5, [5]):
        with pytest.raises(PimonoError, match=re.escape(f"{wrong} is not a source; give a path")):
            load_sessions(wrong)
    both = load_sessions([tmp_path / "raw", tmp_path / "trace_text"])
    assert len(both) == len(load_sessions(tmp_path / "raw")) + len(load_sessions(tmp_path / "trace_text"))
    # A changed file is read again.
    one = next((tmp_path / "raw").iterdir())
    one.write_text(FAILING)
    assert FAILING.encode() in load_sessions(tmp_path)["trace"]


def test_public_names_exist_and_are_imported_lazily() -> None:
    code = "import sys, pimono_sdpo; print(sorted({'datasets', 'pyarrow', 'numpy'} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
    for name in pimono_sdpo.__all__:
        assert getattr(pimono_sdpo, name) is not None
        assert name in dir(pimono_sdpo)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = pimono_sdpo.nothing  # type: ignore[attr-defined]
    without = "import sys; sys.modules |= dict.fromkeys(('torch', 'transformers', 'trl')); from pimono_sdpo import *; "
    done = subprocess.run([sys.executable, "-c", f"{without} train('rows')"], capture_output=True, text=True)
    assert "EngineError: Training here needs the extra" in done.stderr
