import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from pimono_sdpo.errors import SourceError
from pimono_sdpo.traces.sources import open_source, read_sessions
from tests.traces import HEADER, trace, user

TEXT = trace(HEADER, user("Fix the parser, it drops the last line"))
LINES = TEXT.split("\n")


def parquet(folder: Path, name: str = "0000.parquet", **columns: pa.Array) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"session_id": pa.array(["s-1"]), **columns}), folder / name)
    return folder


def as_json(values: list[object], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


def layouts() -> dict[str, dict[str, pa.Array]]:
    text = pa.string()
    lines = pa.array([LINES], pa.list_(text))
    json_lines = pa.ListArray.from_arrays(lines.offsets, pa.ExtensionArray.from_storage(pa.json_(), lines.values))
    wrapped = pa.array([json.dumps(TEXT)], text)
    return {
        "traces_list": {"traces": json_lines, "file_name": pa.array(["a.jsonl"])},
        "traces_list_text": {"traces": lines, "file_name": pa.array(["a.jsonl"])},
        "trace_list": {"trace": json_lines, "file_path": pa.array(["a.jsonl"])},
        "trace_text": {
            "trace": pa.ExtensionArray.from_storage(pa.json_(), wrapped),
            "file_path": pa.array(["a.jsonl"]),
        },
        "trace_plain": {"trace": pa.array([TEXT], pa.large_string()), "file_path": pa.array(["a.jsonl"])},
    }  # fmt: skip


@pytest.mark.parametrize("name", list(layouts()))
def test_every_layout_gives_the_same_session(name: str, tmp_path: Path) -> None:
    source = open_source(str(parquet(tmp_path / "export" / "default", **layouts()[name]).parent))
    (shard,) = source.shards
    (table,) = read_sessions(shard)
    assert (source.kind, source.name, shard.path) == ("viewer_export", "export", "default/0000.parquet")
    assert table.to_pylist() == [
        {"harness": "", "session_id": "s-1", "source": "a.jsonl", "trace": TEXT.encode(), "bytes_not_utf8": 0}
    ]


def test_raw_files_globs_and_saved_datasets(tmp_path: Path) -> None:
    raw = tmp_path / "raw" / "deep"
    raw.mkdir(parents=True)
    (raw / "a.jsonl").write_bytes(TEXT.encode() + b"\n\xff\xfe")
    (raw / ".hidden.jsonl").write_text(TEXT)
    for name in (
        ".claude/b.jsonl",
        "c.jsonl.reset.2026-03-19T23-41-41.547Z",
        "d.jsonl.deleted.2026-03-19",
        ".e/f.parquet",
    ):
        (raw / name).parent.mkdir(exist_ok=True)
        (raw / name).write_text(TEXT)
    (table,) = read_sessions(open_source(str(tmp_path / "raw")).shards[0])
    kept = ["deep/.claude/b.jsonl", "deep/a.jsonl", "deep/c.jsonl.reset.2026-03-19T23-41-41.547Z"]
    assert table.column("source").to_pylist() == kept
    table = table.slice(1)
    assert table.column("trace")[0].as_py() == (TEXT + "\n\ufffd\ufffd").encode()
    assert table.column("bytes_not_utf8")[0].as_py() == 2
    by_glob = open_source(str(tmp_path / "raw" / "**" / "a*.jsonl"))
    assert (by_glob.kind, by_glob.shards[0].sessions) == ("jsonl", 1)

    saved = Dataset.from_dict({"session_id": ["s"], "trace": [TEXT], "file_path": ["x.jsonl"]})
    DatasetDict({"train": saved, "extra": saved}).save_to_disk(tmp_path / "saved")
    source = open_source(str(tmp_path / "saved"))
    assert (source.kind, [shard.path for shard in source.shards]) == ("dataset", ["train", "extra"])
    assert next(read_sessions(source.shards[1])).column("trace").to_pylist() == [TEXT.encode()]


def two_traces(folder: Path) -> Path:
    folder.mkdir()
    table = pa.table([pa.array([TEXT]), pa.array([TEXT])], names=["trace", "trace"])
    pq.write_table(table, folder / "a.parquet")
    return folder


def stray(folder: Path, name: str) -> Path:
    folder.mkdir()
    (folder / name).write_text("[]")
    (folder / "a.jsonl").write_text(TEXT)
    return folder


@pytest.mark.parametrize(
    ("make", "found", "advice"),
    [
        (lambda p: p / "missing", "does not exist", "use a folder"),
        (lambda p: p, "neither .parquet nor .jsonl", "use a viewer export"),
        (lambda p: parquet(p / "x", text=pa.array(["a"])), "session_id, text", "neither `trace`"),
        (lambda p: parquet(p / "x", trace=pa.array([3])), "of type int64", "JSON text"),
        (lambda p: two_traces(p / "x"), "2 columns named `trace`", "leave one"),
        (lambda p: stray(p / "x", "dataset_dict.json"), "looks like a saved dataset", "save it"),
        (lambda _: "", "is empty", "use a folder"),
    ],
)
def test_bad_sources_are_explained(make, found: str, advice: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SourceError) as problem:
        open_source(str(make(tmp_path)))
    assert found in str(problem.value)
    assert advice in str(problem.value)
    assert "\n" not in str(problem.value)


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing here")
    with pytest.raises(SourceError, match=r"`bad.parquet` cannot be read"):
        open_source(str(tmp_path))


def test_a_damaged_page_is_reported_when_it_is_read(tmp_path: Path) -> None:
    parquet(tmp_path / "x", trace=pa.array([TEXT]))
    file = tmp_path / "x" / "0000.parquet"
    content = bytearray(file.read_bytes())
    content[4:60] = b"\xff" * 56
    file.write_bytes(content)
    with pytest.raises(SourceError, match=r"`0000.parquet` cannot be read"):
        list(read_sessions(open_source(str(file)).shards[0]))


def test_other_files_and_names_with_wildcards_are_ignored(tmp_path: Path) -> None:
    assert open_source(str(stray(tmp_path / "x", "state.json"))).kind == "jsonl"
    assert open_source(str(stray(tmp_path / "runs[1]", "notes.txt"))).name == "runs[1]"
