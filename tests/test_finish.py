"""Published files have a limit, and rows keep their order in them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pimono_sdpo.runs import finish
from pimono_sdpo.runs.finish import Files


@pytest.mark.parametrize("rows", [0, 1, 100, 5000])
def test_files_are_divided_below_their_limit_and_keep_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(finish, "FILE_BYTES", 20_000)
    monkeypatch.setattr(finish, "GROUP_BYTES", 5_000)
    table = pa.table({"n": range(rows), "text": [f"{n * 7919 % 10007:05} of them" for n in range(rows)]})
    files = Files(tmp_path, "train", table.select(["text", "n"]).schema)
    for start in range(0, rows, 37):
        files.write(table.slice(start, 37))
    paths = files.close()
    assert files.rows == rows
    assert [path.name for path in paths] == [f"train-{n:05}-of-{len(paths):05}.parquet" for n in range(len(paths))]
    assert sorted(tmp_path.iterdir()) == paths
    assert (len(paths) > 1) == (rows == 5000)
    assert all(path.stat().st_size <= 20_000 for path in paths)
    written = [number for path in paths for number in pq.read_table(path)["n"].to_pylist()]
    assert written == [*range(rows)]
