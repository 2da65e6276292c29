"""Sessions of real users, when there are any: set PIMONO_TRACES to their folder."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pimono_sdpo.cli import run_filter
from pimono_sdpo.trace import read_trace

TRACES = Path(os.environ.get("PIMONO_TRACES", ""))
pytestmark = pytest.mark.skipif(
    not os.environ.get("PIMONO_TRACES"), reason="PIMONO_TRACES is not set"
)


def rows_of(source: Path, out: Path) -> pa.Table:
    run_filter(str(source), out)
    files = sorted((out / "data").glob("*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files]).sort_by("source")


def test_the_three_layouts_give_identical_rows(tmp_path: Path) -> None:
    first, *others = (
        rows_of(TRACES / "viewer_export" / layout, tmp_path / layout)
        for layout in ("traces_list", "trace_list", "trace_text")
    )
    assert first.num_rows > 5
    assert all(other.equals(first) for other in others)


def test_raw_sessions_give_the_rows_of_their_export(tmp_path: Path) -> None:
    exported = rows_of(TRACES / "viewer_export" / "trace_text", tmp_path / "export")
    raw = rows_of(TRACES / "pi", tmp_path / "raw")
    names = set(exported.column("source").to_pylist())
    shared = raw.filter(pa.array([name in names for name in raw.column("source").to_pylist()]))
    assert shared.equals(exported)
    assert raw.num_rows > exported.num_rows


@pytest.mark.parametrize("folder", ["pi", "odd", "claude_code", "codex", "droid"])
def test_every_file_is_read_or_says_why_not(folder: str) -> None:
    for path in sorted((TRACES / folder).glob("*.jsonl")):
        text = path.read_bytes().decode("utf-8", errors="replace")
        trace = read_trace(text)
        filled = sum(1 for line in text.split("\n") if line.strip("\0\ufeff \t\r"))
        assert trace.lines.parsed + trace.lines.repaired + trace.lines.skipped == filled
        assert (trace.problem is None) == any(
            event.kind in {"user", "assistant", "tool_call", "tool_result", "bash"}
            for event in trace.events
        )
        assert [event.index for event in trace.events] == list(range(len(trace.events)))
        if folder == "pi":
            assert trace.problem is None
