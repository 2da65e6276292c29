import json
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pimono_sdpo.failures import CATEGORIES
from pimono_sdpo.samples import SAMPLE_SESSIONS
from pimono_sdpo.traces.layouts import detect_layout
from tests.exports import ExportLayout, write_export, write_samples

SESSIONS = sorted(SAMPLE_SESSIONS.glob("*.jsonl"))
EXPECTED = json.loads((SAMPLE_SESSIONS.parent / "expected.json").read_text())
BROKEN_ON_PURPOSE = {
    "12_two_objects_on_a_line.jsonl": "Extra data",
    "13_bad_escape.jsonl": "Invalid \\escape",
    "14_cut_last_line.jsonl": "Unterminated string",
}


def problems(path: Path) -> list[str]:
    found = []
    for line in path.read_text().rstrip("\n").split("\n"):
        try:
            json.loads(line)
        except json.JSONDecodeError as error:
            found.append(error.msg)
    return found


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_a_session_is_broken_only_where_it_is_meant_to_be(path: Path) -> None:
    expected = BROKEN_ON_PURPOSE.get(path.name)
    found = problems(path)
    assert len(found) == (expected is not None)
    assert all(message.startswith(expected or "") for message in found)


def test_the_samples_cover_what_they_promise() -> None:
    assert set(EXPECTED) == {path.name for path in SESSIONS}
    kept = [truth for truth in EXPECTED.values() if truth["kept"]]
    dropped = {truth["drop_reason"] for truth in EXPECTED.values() if not truth["kept"]}
    assert len(kept) >= 16
    assert {category for truth in kept for category in truth["categories"]} == set(CATEGORIES)
    assert dropped == {"no_evidence", "no_prompt", "no_messages", "only_a_slip"}
    headers = [json.loads(path.read_text().split("\n", 1)[0]) for path in SESSIONS]
    assert {header.get("version") for header in headers} == {None, 3}


@pytest.mark.parametrize("layout", get_args(ExportLayout))
@pytest.mark.parametrize("json_as_text", [False, True])
def test_an_export_has_the_layout_it_says(layout: ExportLayout, json_as_text: bool, tmp_path: Path) -> None:
    whole = [path for path in SESSIONS if path.name not in BROKEN_ON_PURPOSE]
    path = write_export(tmp_path, layout, whole, json_as_text)
    table = pq.read_table(path)
    column = table.column("traces" if layout == "traces_list" else "trace")
    kind = column.type.value_type if layout != "trace_text" else column.type
    assert detect_layout(table.schema, "here") == layout
    assert isinstance(kind, pa.BaseExtensionType) != json_as_text
    assert table.num_rows == len(whole)


def test_every_sample_is_written_once_and_always_alike(tmp_path: Path) -> None:
    written = write_samples(tmp_path / "a")
    again = write_samples(tmp_path / "b")
    names = []
    for path in written:
        if path.suffix == ".jsonl":
            names.append(path.name)
        else:
            table = pq.read_table(path)
            column = next(name for name in ("file_path", "file_name") if name in table.column_names)
            names += table.column(column).to_pylist()
    assert sorted(names) == [path.name for path in SESSIONS]
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in again]
    assert {path.parent.parent.parent.name for path in written if path.suffix == ".parquet"} == set(
        get_args(ExportLayout)
    )
